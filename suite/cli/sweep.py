"""`python -m suite sweep`: accuracy over batch, learning rate and world size, for every rule that scales the rate.

The documents' exercises (rows 2-E1, 2-E2, 3-E1) and their advice (0-advice): k devices take k times the batch; the rate
is raised, but not without limit. Real nets on real workers, fresh from their seeds. The files are written after every
net, so that a sweep which is stopped keeps the nets that it has.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import time
from pathlib import Path

from suite.cli import pytest_run
from suite.cli.command import USAGE_ERROR, Stop, new_folder, positive, several, whole_number, writing
from suite.plan.cells import Cell, short
from suite.plan.config import Config
from suite.plan.workloads import Recipe, no_recipe
from suite.processes.failure import WorkerFailure
from suite.records.files import keep_from_git, write_atomically
from suite.records.record import Environment
from suite.records.sweep import LINEAR_WARMUP, RULES, Grid, Sweep
from suite.render import sweep as render
from suite.render.figures import plural
from suite.room.devices import cuda_count
from suite.run.observations import Observations
from suite.run.progress import StreamProgress
from suite.run.session import Say
from suite.run.sweep import Trainings

SUMMARY = "train over batch x learning rate x world size, and compare the rules that scale the rate"
PYTEST_OPTIONS = True
EPOCHS = 10
SEEDS = 3
WARMUP_EPOCHS = 2
RATES = (0.5, 1.0, 2.0, 4.0)  # times the recipe's
FILES = ("sweep.json", "summary.md")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the grid, the length of a training, and where the files go."""
    counts, ones = several(whole_number()), "on one device, comma-separated"
    parser.add_argument(
        "--batches", type=counts, metavar="B,...", help=f"samples a step {ones} (default: the workload's recipe)"
    )
    parser.add_argument(
        "--lrs",
        type=several(positive),
        metavar="LR,...",
        help=f"learning rates {ones} (default: half to four times the recipe's)",
    )
    parser.add_argument(
        "--lr-rules",
        type=several(_rule),
        default=RULES,
        metavar="NAME,...",
        help=f"of {', '.join(RULES)} (default: all)",
    )
    parser.add_argument(
        "--epochs",
        type=counts,
        default=(EPOCHS,),
        metavar="N,...",
        help=f"of a training; a table for each, of the same nets (default: {EPOCHS})",
    )
    parser.add_argument(
        "--seeds", type=whole_number(), default=SEEDS, metavar="N", help=f"nets a setting (default: {SEEDS})"
    )
    parser.add_argument(
        "--warmup-epochs",
        type=whole_number(),
        metavar="N",
        help=f"in which {LINEAR_WARMUP} climbs from the one-device rate (default: {WARMUP_EPOCHS}, or all)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="a new folder for the files (default: in the report folder)"
    )
    parser.add_argument("--scaling-trainer", default="ddp", metavar="NAME", help="the one that trains (default: ddp)")


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Train the grid, print its table, and return 0 when every net is there, 1 when one is missing.

    Raises:
        Stop: an option is wrong (status 4), or nothing can be trained or written (1).
    """
    settings = pytest_run.settings([*pytest_arguments, f"--scaling-trainer={asked.scaling_trainer}"])
    asked.epochs = sorted(asked.epochs)
    asked.warmup_epochs = asked.warmup_epochs or min(WARMUP_EPOCHS, asked.epochs[0])
    recipe = _recipe(asked, settings)
    grid = Grid(
        batches=tuple(sorted(asked.batches or [recipe.batch])),
        lrs=tuple(sorted(asked.lrs or [float(f"{recipe.lr * factor:.9g}") for factor in RATES])),
        rules=asked.lr_rules,
        world_sizes=settings.world_sizes,
        seeds=asked.seeds,
    )
    # Nothing is timed, so only the recipe's data is loaded.
    trained = settings.workloads[0].model_copy(update={"dataset": recipe.dataset})
    cells = [Cell(settings.trainers[0], trained.name, "weak", size) for size in settings.world_sizes]
    measurement = pytest_run.without_base(dataclasses.replace(settings, workloads=(trained,)), cells)
    name = f"{short(settings.trainers[0])}-{trained.name}-{measurement.plan.run_id}"
    folder = asked.out or settings.report_dir / measurement.plan.machine.key / "sweeps" / name
    progress = StreamProgress(sys.stdout)
    try:
        with pytest_run.sides(settings) as sides:
            trainings = Trainings(measurement, sides, asked.epochs[-1], asked.warmup_epochs)
            trainings.prepare(progress)
            sweep = _empty(measurement, settings, asked, recipe, grid)
            _check_prepared(measurement, sweep)
            with new_folder(folder, "--out", None if asked.out else settings.report_dir):
                if not asked.out:
                    keep_from_git(folder.parents[1])
                sweep = _train_all(sweep, folder, trainings, progress)
    except WorkerFailure as error:
        raise Stop(str(error)) from error
    finally:
        progress.end()
    for epochs in asked.epochs:
        progress.write(render.terminal(sweep.after(epochs), shutil.get_terminal_size().columns))
    progress.keep(f"kept in {folder} ({', '.join(FILES)})")
    return 1 if sweep.missing() else 0


def _train_all(sweep: Sweep, folder: Path, trainings: Trainings, progress: StreamProgress) -> Sweep:
    """Train every net of the grid, and write both files after each."""
    wanted = list(sweep.grid.wanted())
    progress.keep(f"{plural(len(wanted), 'net')} to train")
    begun = time.monotonic()
    try:
        for number, (setting, seed) in enumerate(wanted):
            left_min = (len(wanted) - number) * (time.monotonic() - begun) / number / 60 if number else None
            note = f"{number + 1} of {len(wanted)}" + (f", about {left_min:.1f} min left" if left_min else "")
            try:
                net = trainings.train(setting, seed, _noted(progress, note))
                sweep = sweep.model_copy(update={"trained": (*sweep.trained, net)})
            except WorkerFailure as failure:
                progress.keep(f"failed: {failure}")
                failed = f"{setting}, seed {seed}: {failure.cause}"
                sweep = sweep.model_copy(update={"failed": (*sweep.failed, failed)})
            with writing(folder, "--out"):
                write_atomically(folder / FILES[0], sweep.model_dump_json(indent=1) + "\n")
                write_atomically(folder / FILES[1], render.markdown(sweep))
    except KeyboardInterrupt:
        progress.keep(f"interrupted: {len(sweep.trained)} of {len(wanted)} nets are kept in {folder}")
        raise
    return sweep


def _noted(say: Say, note: str) -> Say:
    return lambda line: say(f"{line}; {note}")


def _recipe(asked: argparse.Namespace, settings: Config) -> Recipe:
    """Return the recipe to train by.

    Raises:
        Stop: there is none, the options do not fit together, or there is no device.
    """
    for option, given in (("trainer", settings.trainers), ("workload", settings.workloads)):
        if len(given) != 1:
            message = f"--scaling-{option} names {len(given)}: a sweep is of one; run it once for each"
            raise Stop(message, USAGE_ERROR)
    [workload], devices = settings.workloads, settings.devices
    if workload.accuracy is None:
        raise Stop(no_recipe(workload.name), USAGE_ERROR)
    if LINEAR_WARMUP in asked.lr_rules and asked.warmup_epochs > asked.epochs[0]:
        longer = f"--warmup-epochs {asked.warmup_epochs} is above --epochs {asked.epochs[0]}"
        raise Stop(f"{longer}: the rate would never be reached; lower it", USAGE_ERROR)
    if devices.kind == "cuda" and not 0 < devices.gpus_needed <= cuda_count():
        missing = f"{devices}: CUDA shows {cuda_count()} device(s)"
        raise Stop(f"{missing}; {devices.remedy}, or use --scaling-devices cpu")
    if settings.misfit:
        raise Stop(settings.misfit)
    return workload.accuracy


def _check_prepared(run: Observations, sweep: Sweep) -> None:
    """Check what only a worker can tell: how much data there is, and what kind of step the trainer takes.

    Raises:
        Stop: the options ask for something else.
    """
    batch, size = max(sweep.grid.batches), max(sweep.grid.world_sizes)
    if batch * size > sweep.train_samples:
        too_many = f"batch {batch} on {size} device(s) is {batch * size} samples"
        remedy = "lower --batches or --scaling-world-sizes"
        raise Stop(f"{too_many}, above the {sweep.train_samples} of {sweep.dataset}; {remedy}", USAGE_ERROR)
    [oracle] = {about.oracle for about in run.trainers.values()}
    if LINEAR_WARMUP in sweep.grid.rules and oracle != "sgd":
        others = ",".join(rule for rule in RULES if rule != LINEAR_WARMUP)
        needs = f"{LINEAR_WARMUP} needs a trainer whose step is plain SGD, and this one's oracle is {oracle!r}"
        raise Stop(f"--lr-rules: {needs}; use --lr-rules {others}", USAGE_ERROR)


def _empty(run: Observations, settings: Config, asked: argparse.Namespace, recipe: Recipe, grid: Grid) -> Sweep:
    """Return the sweep without any net."""
    dataset = run.datasets[recipe.dataset]
    return Sweep(
        trainer=settings.trainers[0],
        workload=settings.workloads[0],
        epochs=asked.epochs[-1],
        warmup_epochs=asked.warmup_epochs,
        dataset=dataset.name,
        train_samples=dataset.train_samples,
        test_samples=dataset.test_samples,
        machine=run.plan.machine,
        environment=Environment(versions=run.versions["candidate"], commit=run.plan.commit, dirty=run.plan.dirty),
        grid=grid,
    )


def _rule(text: str) -> str:
    if text not in RULES:
        raise argparse.ArgumentTypeError(f"{text!r}: valid values are {', '.join(RULES)}")
    return text
