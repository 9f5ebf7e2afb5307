"""`python -m suite sweep`: accuracy over learning rate, batch and world size (rows 2-E1, 2-E2, 3-E1, 0-advice).

Real nets on real workers, fresh from their seeds, with a group of processes for each world size. Both files are written
after every net, and the same command with the same --out trains the nets that are missing there.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shutil
import time
from pathlib import Path

from rich.console import Console

from suite.base.sides import Sides
from suite.cli import pytest_run
from suite.cli.command import USAGE_ERROR, Stop, new_folder, positive, several, whole_number, writing
from suite.plan.cells import Cell, short
from suite.plan.config import Config
from suite.plan.workloads import Recipe, no_recipe
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Epoch, TrainingRecipe
from suite.records.files import RecordError, keep_from_git, read_model, write_atomically
from suite.records.record import Environment
from suite.records.sweep import Setting, Sweep, Trained
from suite.render import html, terminal
from suite.render import sweep as render
from suite.render.terminal import shown
from suite.room.devices import cuda_count
from suite.run import preparing
from suite.run.learning import Limits, NotScored, learn
from suite.run.observations import Observations
from suite.run.plan import FIRST_STEP_TIMEOUT_S
from suite.run.session import Say
from suite.run.timer import hang_timeout_s

SUMMARY = "train over learning rate x batch x world size, and show the accuracy"
PYTEST_OPTIONS = True
EPOCHS, SEEDS = 10, 3
RATES = (0.5, 1.0, 1.5, 2.0, 4.0)  # times the recipe's; on two devices every rule's rate is one of them
FILES = ("sweep.json", "sweep.html")
MOST_FAILURES = 3  # in a row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the grid, the length of a training, and where the files go."""
    counts, times = several(whole_number()), ", ".join(f"{rate:g}" for rate in RATES)
    for name, kind, default, text in (
        ("--batches", counts, None, "samples a step on one device, k times as many on k (default: the recipe's)"),
        ("--lrs", several(positive), None, f"learning rates, on every k (default: {times} times the recipe's)"),
        ("--epochs", counts, (EPOCHS,), f"of a training; of several, accuracy after each (default: {EPOCHS})"),
        ("--seeds", whole_number(), SEEDS, f"how many nets of a setting (default: {SEEDS})"),
        ("--out", Path, None, "a new folder for the files, or that of a sweep to be continued (default: a new one)"),
        ("--scaling-trainer", str, "ddp", "the one that trains (default: ddp)"),
    ):
        parser.add_argument(name, type=kind, default=default, help=text)


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Train the grid, print its table, and return 0 when every net is there, 1 when one is missing."""
    settings = pytest_run.settings([*pytest_arguments, f"--scaling-trainer={asked.scaling_trainer}"])
    recipe = _recipe(settings)
    [trainer], [workload] = settings.trainers, settings.workloads
    # Nothing is timed, so only the recipe's data is loaded.
    trained = workload.model_copy(update={"dataset": recipe.dataset})
    cells = [Cell(trainer, trained.name, "weak", size) for size in settings.world_sizes]
    measurement = pytest_run.without_base(dataclasses.replace(settings, workloads=(trained,)), cells)
    plan, epochs = measurement.plan, sorted(asked.epochs)
    folder = settings.report_dir / plan.machine.key / "sweeps" / f"{short(trainer)}-{trained.name}-{plan.run_id}"
    made = new_folder(folder, "--out", settings.report_dir) if asked.out is None else contextlib.nullcontext()
    with pytest_run.sides(settings) as sides:
        preparing.prepare(measurement, sides, [plan.own(cell) for cell in cells], lambda line: None)
        if failure := next(iter(measurement.lost.values()), None):
            raise Stop(str(failure))
        dataset = measurement.datasets[recipe.dataset]
        sweep = Sweep(
            trainer=trainer,
            workload=workload,
            batches=tuple(sorted(asked.batches or [recipe.batch])),
            lrs=tuple(sorted(asked.lrs or [float(f"{recipe.lr * factor:.9g}") for factor in RATES])),
            world_sizes=settings.world_sizes,
            seeds=asked.seeds,
            epochs=epochs[-1],
            dataset=dataset.name,
            test_samples=dataset.test_samples,
            machine=plan.machine,
            environment=Environment(versions=measurement.versions["candidate"], commit=plan.commit, dirty=plan.dirty),
        )
        if (largest := max(setting.batch for setting in sweep.settings)) > dataset.train_samples:
            too_many = f"a batch of {largest} is above the {dataset.train_samples} samples of {dataset.name}"
            raise Stop(f"{too_many}; lower --batches or --scaling-world-sizes", USAGE_ERROR)
        with made:
            if asked.out is None:
                keep_from_git(folder.parents[1])
            sweep = _train_all(_continued(sweep, asked.out), asked.out or folder, epochs, measurement, sides)
    print(terminal.write(render.document(sweep, epochs), shutil.get_terminal_size().columns))
    return 1 if sweep.missing else 0


def _recipe(settings: Config) -> Recipe:
    """Return the recipe of the only workload; a `Stop` where there are several, or these devices can train none."""
    for option, given in (("trainer", settings.trainers), ("workload", settings.workloads)):
        if len(given) != 1:
            raise Stop(f"--scaling-{option} names {len(given)}: a sweep is of one; run it once for each", USAGE_ERROR)
    [workload], devices = settings.workloads, settings.devices
    if workload.accuracy is None:
        raise Stop(no_recipe(workload.name), USAGE_ERROR)
    if devices.kind == "cuda" and not 0 < devices.gpus_needed <= cuda_count():
        remedy = f"{devices.remedy}, or use --scaling-devices cpu"
        raise Stop(f"{devices}: CUDA shows {cuda_count()} device(s); {remedy}")
    if settings.misfit:
        raise Stop(settings.misfit)
    return workload.accuracy


def _continued(sweep: Sweep, folder: Path | None) -> Sweep:
    """Return the sweep with the nets that the folder has of it."""
    if folder is None or not (folder / FILES[0]).exists():
        return sweep
    try:
        kept = read_model(folder / FILES[0], Sweep)
    except RecordError as error:
        raise Stop(str(error), USAGE_ERROR) from error
    same = ("trainer", "workload", "epochs", "dataset", "test_samples", "machine", "environment")
    if other := [name for name in same if getattr(kept, name) != getattr(sweep, name)]:
        raise Stop(f"{folder} has another sweep, whose {', '.join(other)} differ; choose another --out", USAGE_ERROR)
    return sweep.model_copy(update={"trained": kept.trained})


def _train_all(sweep: Sweep, folder: Path, epochs: list[int], measurement: Observations, sides: Sides) -> Sweep:
    """Train every net that is missing, write both files after each, and stop where several fail in a row."""
    wanted, in_a_row, console = sweep.missing, 0, Console()
    with writing(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
    about = f"sweep: {len(wanted)} nets to train; they are kept in {folder} ({', '.join(FILES)})"
    console.print(shown(about), soft_wrap=True)
    for number, (setting, seed) in enumerate(wanted, 1):
        with console.status(f"{number} of {len(wanted)}") as status:
            try:
                net = train(measurement, sides, setting, seed, epochs[-1], lambda line: status.update(shown(line)))
                sweep, in_a_row = sweep.model_copy(update={"trained": (*sweep.trained, net)}), 0
                line = f"{number} of {len(wanted)}: {setting}, seed {seed}: accuracy {net.per_epoch[-1]:.3f}"
            except WorkerFailure as failure:
                line, failed = f"failed: {failure}", (*sweep.failed, f"{setting}, seed {seed}: {failure.cause}")
                sweep, in_a_row = sweep.model_copy(update={"failed": failed}), in_a_row + 1
        console.print(shown(f"sweep: {line}"), soft_wrap=True)
        with writing(folder, "--out"):
            write_atomically(folder / FILES[0], sweep.model_dump_json(indent=1) + "\n")
            write_atomically(folder / FILES[1], html.write(render.document(sweep, epochs), ((FILES[0], FILES[0]),)))
        if in_a_row == MOST_FAILURES:
            break
    return sweep


def train(measurement: Observations, sides: Sides, wanted: Setting, seed: int, epochs: int, say: Say) -> Trained:
    """Train one net; a rank that died, raised or was silent is a WorkerFailure, and the next net gets fresh workers."""
    config, size = measurement.plan.config, wanted.world_size
    [own] = {measurement.plan.own(cell) for cell in measurement.plan.cells if cell.world_size == size}
    accuracy = config.workloads[0].accuracy
    assert accuracy is not None, "a workload without a recipe is refused before"
    batch, dataset = wanted.batch, measurement.datasets[accuracy.dataset]
    recipe = TrainingRecipe(dataset=dataset, batch=batch, lr=wanted.lr, epochs=epochs, init=accuracy.init)
    job = dataclasses.replace(measurement.jobs[own], seed=seed)
    group = sides.pools["candidate"].group(f"sweep-{size}", job.size)
    # The deadline of an epoch comes from a step and a small evaluation, once everything is warm.
    for _ in range(2):
        begun, trial = time.monotonic(), dataclasses.replace(recipe, samples=batch, epochs=1)
        group.request(Epoch, "train", FIRST_STEP_TIMEOUT_S, arm=job, recipe=trial, epoch=0)
    limits = Limits(hang_timeout_s(recipe.minibatches * (time.monotonic() - begun)))
    try:
        curve = learn(group.request, job, recipe, limits, f"{short(config.trainers[0])} on {wanted}, seed {seed}", say)
    except NotScored as error:
        raise WorkerFailure("sweep", f"no accuracy: {error}") from error
    assert curve is not None, "a group raises where it cannot answer"
    crowded, reached, train_s = config.devices.oversubscribed(size), curve.per_epoch, curve.train_s
    return Trained(setting=wanted, seed=seed, per_epoch=reached, train_s=train_s, oversubscribed=crowded)
