"""`python -m suite sweep`: accuracy over batch, learning rate and world size, for every rule that scales the rate.

The documents' exercises (rows 2-E1, 2-E2, 3-E1) and their advice (0-advice): k devices take k times the batch; the rate
is raised, but not without limit. Real nets on real workers, fresh from their seeds. Every net is kept as soon as it is
trained, so the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from suite.cli import gate
from suite.cli.sweep_folder import FILES, SweepFolder, alone_in
from suite.plan.cells import Cell, short
from suite.plan.config import Config
from suite.plan.workloads import Recipe
from suite.processes.failure import WorkerFailure
from suite.records.record import Environment, RecordError
from suite.records.sweep import LINEAR_WARMUP, RULES, Grid, Sweep
from suite.render import sweep as render
from suite.room.devices import cuda_count
from suite.run.observations import Observations
from suite.run.plan import plan_here
from suite.run.progress import StreamProgress
from suite.run.sweep import GivenUp, Trainings

SUMMARY = "train over batch x learning rate x world size, and compare the rules that scale the rate"
PYTEST_OPTIONS = True
EPOCHS = 10
SEEDS = 3
WARMUP_EPOCHS = 2
RATES = (0.5, 1.0, 2.0, 4.0)  # times the recipe's
USAGE_ERROR = pytest.ExitCode.USAGE_ERROR


class _Refused(Exception):
    """What is asked for cannot be; with the exit status and the reason."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is asked beside pytest's own options."""
    ones = "on one device, comma-separated"
    parser.add_argument(
        "--batches", type=_counts, metavar="B,...", help=f"samples a step {ones} (default: the workload's recipe)"
    )
    parser.add_argument(
        "--lrs", type=_rates, metavar="LR,...", help=f"learning rates {ones} (default: half to four times the recipe's)"
    )
    parser.add_argument(
        "--lr-rules", type=_rules, default=RULES, metavar="NAME,...", help=f"of {', '.join(RULES)} (default: all)"
    )
    parser.add_argument(
        "--epochs",
        type=_counts,
        default=(EPOCHS,),
        metavar="N,...",
        help=f"of a training; a table for each, of the same nets (default: {EPOCHS})",
    )
    parser.add_argument("--seeds", type=_count, default=SEEDS, metavar="N", help=f"nets a setting (default: {SEEDS})")
    parser.add_argument(
        "--warmup-epochs",
        type=_count,
        metavar="N",
        help=f"in which {LINEAR_WARMUP} climbs from the one-device rate (default: {WARMUP_EPOCHS}, or all)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the sweep is kept and goes on (default: in the report folder)"
    )
    parser.add_argument("--scaling-trainer", default="ddp", metavar="NAME", help="the one that trains (default: ddp)")


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Train what is missing; 0 when all of it is there, 1 when some is not, 4 for a wrong option."""
    settings = gate.settings([*pytest_arguments, f"--scaling-trainer={asked.scaling_trainer}"])
    if not isinstance(settings, Config):
        return settings
    progress = StreamProgress(sys.stdout, "sweep")
    asked.warmup_epochs = asked.warmup_epochs or min(WARMUP_EPOCHS, *asked.epochs)
    try:
        grid, recipe = _grid(asked, settings)
        measurement = _measurement(settings, recipe, grid)
        name = f"{short(settings.trainers[0])}-{settings.workloads[0].name}"
        path = asked.out or settings.report_dir / measurement.plan.machine.key / "sweeps" / name
        with alone_in(path), Trainings(measurement, settings.root, asked.epochs[-1], asked.warmup_epochs) as trainings:
            trainings.prepare(progress)
            _check_prepared(measurement, recipe, grid)
            folder = SweepFolder(path, _described(measurement, settings, asked, recipe, grid))
            _complete(folder, trainings, progress)
    except _Refused as refused:
        status, reason = refused.args
        print(f"sweep: error: {reason}", file=sys.stderr)
        return int(status)
    except (RecordError, WorkerFailure) as error:
        print(f"sweep: {error}", file=sys.stderr)
        return 1
    finally:
        progress.end()
    for epochs in asked.epochs:
        progress.write(render.terminal(folder.sweep.after(epochs), shutil.get_terminal_size().columns))
    progress.keep(f"kept in {path} ({', '.join(FILES)})")
    return 1 if folder.sweep.missing() else 0


def _complete(folder: SweepFolder, trainings: Trainings, progress: StreamProgress) -> None:
    """Train what the folder lacks."""
    missing = folder.sweep.missing()
    progress.keep(f"{len(missing)} nets to train, {len(folder.sweep.shown())} are there")
    begun = time.monotonic()
    reasons: set[str] = set()
    try:
        for number, (wanted, seed) in enumerate(missing):
            note = _note(number, len(missing), time.monotonic() - begun)
            try:
                folder.add(trainings.train(wanted, seed, partial(_say, progress, note)))
            except WorkerFailure as failure:
                folder.fail(wanted, seed, failure.cause)
                progress.keep(f"failed: {failure}")
            except GivenUp as reason:
                reasons.add(str(reason))
    except KeyboardInterrupt:
        done = len(missing) - len(folder.sweep.missing())
        progress.keep(f"interrupted: {done} of {len(missing)} nets are kept; the same command goes on with the others")
        raise
    finally:
        folder.show()
    for given_up in sorted(reasons):
        progress.keep(given_up)


def _say(progress: StreamProgress, note: str, line: str) -> None:
    progress(f"{line}; {note}")


def _note(done: int, count: int, elapsed_s: float) -> str:
    """Which net it is, and how long the others will take."""
    left = f", about {(count - done) * elapsed_s / done / 60:.1f} min left" if done else ""
    return f"{done + 1} of {count}{left}"


def _grid(asked: argparse.Namespace, settings: Config) -> tuple[Grid, Recipe]:
    """What to train, by the options and by the workload's recipe.

    Raises:
        _Refused: the options do not fit together, or there is no device.
    """
    for option, given in (("trainer", settings.trainers), ("workload", settings.workloads)):
        if len(given) != 1:
            raise _Refused(
                USAGE_ERROR, f"--scaling-{option} names {len(given)}: a sweep is of one; run it once for each"
            )
    [workload], devices = settings.workloads, settings.devices
    if workload.accuracy is None:
        table = f"[tool.scaling.workloads.{workload.name}.accuracy]"
        raise _Refused(USAGE_ERROR, f"workload {workload.name!r} has no recipe to train by: add {table}")
    if LINEAR_WARMUP in asked.lr_rules and asked.warmup_epochs > asked.epochs[0]:
        longer = f"--warmup-epochs {asked.warmup_epochs} is above --epochs {asked.epochs[0]}"
        raise _Refused(USAGE_ERROR, f"{longer}: the rate would never be reached")
    if not settings.world_sizes or (devices.kind == "cuda" and devices.gpus_needed > cuda_count()):
        found = f"{devices}: CUDA shows {cuda_count()} device(s)"
        raise _Refused(1, f"{found}; check the driver (nvidia-smi), or use --scaling-devices cpu")
    recipe = workload.accuracy
    grid = Grid(
        batches=asked.batches or (recipe.batch,),
        lrs=asked.lrs or tuple(float(f"{recipe.lr * factor:.9g}") for factor in RATES),
        rules=asked.lr_rules,
        world_sizes=settings.world_sizes,
        seeds=asked.seeds,
    )
    return grid, recipe


def _measurement(settings: Config, recipe: Recipe, grid: Grid) -> Observations:
    """What preparing workers needs of a run; nothing of it is timed, so the recipe's data is all that is loaded."""
    [workload], [trainer] = settings.workloads, settings.trainers
    trained = workload.model_copy(update={"dataset": recipe.dataset})
    config = dataclasses.replace(settings, workloads=(trained,), against=None)
    return Observations(plan_here(config, [Cell(trainer, workload.name, "weak", size) for size in grid.world_sizes]))


def _check_prepared(run: Observations, recipe: Recipe, grid: Grid) -> None:
    """What only a worker could tell: how much data there is, and what kind of step the trainer takes.

    Raises:
        _Refused: they do not go with the options.
    """
    samples = run.datasets[recipe.dataset]["train_samples"]
    batch, size = max(grid.batches), max(grid.world_sizes)
    if batch * size > samples:
        too_many = f"batch {batch} on {size} device(s) is {batch * size} samples"
        remedy = "lower --batches or --scaling-world-sizes"
        raise _Refused(USAGE_ERROR, f"{too_many}, above the {samples} of {recipe.dataset}; {remedy}")
    [oracle] = {about["oracle"] for about in run.trainers.values()}
    if LINEAR_WARMUP in grid.rules and oracle != "sgd":
        others = ",".join(rule for rule in RULES if rule != LINEAR_WARMUP)
        needs = f"{LINEAR_WARMUP} needs a trainer whose step is plain SGD, and this one's oracle is {oracle!r}"
        raise _Refused(USAGE_ERROR, f"--lr-rules: {needs}; use --lr-rules {others}")


def _described(run: Observations, settings: Config, asked: argparse.Namespace, recipe: Recipe, grid: Grid) -> Sweep:
    dataset = run.datasets[recipe.dataset]
    return Sweep(
        trainer=settings.trainers[0],
        workload=settings.workloads[0],
        epochs=asked.epochs[-1],
        warmup_epochs=asked.warmup_epochs,
        dataset=dataset["name"],
        train_samples=dataset["train_samples"],
        test_samples=dataset["test_samples"],
        machine=run.plan.machine,
        environment=Environment(versions=run.versions["candidate"], commit=run.plan.commit, dirty=run.plan.dirty),
        grid=grid,
    )


def _list(text: str) -> Sequence[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _counts(text: str) -> tuple[int, ...]:
    parts = _list(text)
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers from 1, such as 32,64")
    return tuple(sorted(set(map(int, parts))))


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = sorted(set(map(float, _list(text))))
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise argparse.ArgumentTypeError(f"{text!r}: expected learning rates above 0, such as 0.05,0.1")
    return tuple(rates)


def _rules(text: str) -> tuple[str, ...]:
    rules = tuple(_list(text))
    if not rules or not set(rules) <= set(RULES):
        raise argparse.ArgumentTypeError(f"{text!r}: valid values are {', '.join(RULES)}")
    return rules


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1")
    return int(text)
