"""One run: sessions over all undecided cells, until everything is decided or the budget is spent.

The controller's side alone: it imports neither torch nor any trainer. What can be told of a trainer without running it
is asked of a worker first, and every dataset is loaded once, by a worker, for all the others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from suite import cells, record, results
from suite.cells import Arm
from suite.failure import WorkerFailure
from suite.measurement import Measurement
from suite.pool import Group, Pool, one_worker
from suite.quiet import available_cores
from suite.session import Crew, Say, Sessions
from suite.verdict import Outcome
from suite.workloads import Recipe

SEED = 1  # of weights and of the order of samples: equal in every arm and every run
MAX_SESSIONS = {"quick": 6, "full": 20}  # where nothing can be decided, more sessions only narrow the intervals
PREPARE_TIMEOUT_S = 900.0


def measure(run: Measurement, root: Path, say: Say) -> None:
    """Measure until every cell is decided or the budget is spent.

    What fails is kept in `run.lost`; what was measured before a Ctrl-C is in `run` when the KeyboardInterrupt goes on,
    and every process has ended by then.

    Args:
        run: what is to be measured; filled here.
        root: the user's project; the workers may import from it and from the working directory.
        say: is told what is going on, a line at a time.
    """
    with Pool(kind=run.config.devices.kind, import_paths=[Path.cwd(), root]) as pool:
        try:
            with one_worker(pool, "prepare") as group:
                _describe(run, group, say)
                _prepare(run, group, pool.folder, say)
        except WorkerFailure as failure:
            run.lost |= dict.fromkeys(run.arms, failure)
            return
        _sessions(run, pool, say)


def _describe(run: Measurement, group: Group, say: Say) -> None:
    """Ask a worker what the trainers are; one that cannot be used costs its cells, and nothing else."""
    say("asking a worker about versions and trainers")
    [answer] = group.request("describe", trainers=sorted({arm.trainer for arm in run.arms}))
    run.versions, run.trainers = answer["versions"], answer["trainers"]
    for arm in run.arms:
        if error := run.trainers[arm.trainer].get("error"):
            run.lost[arm] = WorkerFailure(f"trainer {arm.trainer}", error)


def _prepare(run: Measurement, group: Group, folder: Path, say: Say) -> None:
    """Have every dataset loaded once and kept where the workers of all sessions map it."""
    workloads = [run.workload(cell.workload) for cell in run.cells]
    recipes = [workload.accuracy for workload in workloads if workload.accuracy and run.config.against is None]
    names = [workload.dataset for workload in workloads] + [recipe.dataset for recipe in recipes]
    for number, name in enumerate(dict.fromkeys(names)):
        say(f"loading the dataset {name}")
        [run.datasets[name]] = group.request(
            "prepare",
            PREPARE_TIMEOUT_S,
            dataset=name,
            data_root=str(run.config.data_root),
            folder=str(folder / f"dataset-{number}"),
        )


def _order(run: Measurement, arm: Arm) -> dict[str, Any]:
    """What the workers of an arm are told."""
    devices, workload = run.config.devices, run.workload(arm.workload)
    # NCCL refuses two ranks on one GPU.
    nccl = devices.kind == "cuda" and not devices.oversubscribed(arm.world_size)
    return cells.describe(
        arm,
        workload,
        processes=run.trainers[arm.trainer]["processes"],
        devices=list(devices.names[: arm.world_size]),
        backend="nccl" if nccl else "gloo",
        pinned=list(devices.cores[: arm.world_size]),
        free_cores=available_cores(),
        seed=SEED,
        dataset=run.datasets[workload.dataset],
    )


def _sessions(run: Measurement, pool: Pool, say: Say) -> None:
    run.orders = {arm: _order(run, arm) for arm in run.arms if arm not in run.lost}

    def left_s() -> float:
        return run.config.budget_s - run.elapsed_s

    def say_left(what: str) -> None:
        left = (run.planned - len(run.sessions)) * run.session_s if run.planned else left_s()
        say(f"{what}; at most {max(left, 0.0) / 60:.1f} min left")

    sessions = Sessions(pool, run.orders, random.Random(run.order_seed), left_s, say_left)
    while units := _undecided(run):
        first = not run.sessions
        session = sessions.run(units, _training(run, sessions, say_left) if first else None)
        run.sessions.append(session)
        run.lost |= session.failures
        run.steps = sessions.steps
        if first:
            # The plan is made once, from what the first session cost and not from what it showed.
            run.planned = max(run.config.min_sessions, 1 + int(left_s() / run.session_s))
            if run.config.against is None:
                run.planned = min(run.planned, MAX_SESSIONS[run.config.profile])
        if len(run.sessions) >= run.planned and not _never_timed(run, units):
            return


def _never_timed(run: Measurement, units: list[tuple[Arm, ...]]) -> bool:
    """Whether an arm has no sample because another that shared its processes broke them: it is owed another session."""
    timed = {window.arm for session in run.sessions for window in session.windows}
    return any(arm.id not in timed and arm not in run.lost for unit in units for arm in unit)


def _undecided(run: Measurement) -> list[tuple[Arm, ...]]:
    """Judge the cells, and say what still has to be timed for those without an answer."""
    for cell in run.cells:
        if cell not in run.decided and not run.failure(cell):
            found = results.interleaved_verdict(run, cell)
            if found.outcome in (Outcome.PASS, Outcome.FAIL):
                run.decided[cell] = found
    open_cells = [cell for cell in run.cells if cell not in run.decided and not run.failure(cell)]
    alive = [tuple(arm for arm in unit if arm not in run.lost) for unit in cells.units(open_cells, run.config.against)]
    return [unit for unit in alive if unit]


def _training(run: Measurement, sessions: Sessions, say: Say) -> Callable[[Crew], None]:
    """What is done with the first session's workers once they are timed: training, once a trainer and world size.

    With a base in the run nothing is trained: the whole budget goes to the comparison.
    """
    wanted: dict[tuple[str, str, int], Arm] = {}
    for cell in run.cells if run.config.against is None else ():
        wanted.setdefault((cell.trainer, cell.workload, cell.world_size), cells.arm("candidate", cell.trainer, cell))

    def train(crew: Crew) -> None:
        start = time.monotonic()
        for arm in wanted.values():
            recipe = run.workload(arm.workload).accuracy
            if recipe is None or arm not in crew.groups:
                continue
            order, shortened = _recipe(run, recipe)
            steps = order["epochs"] * -(-(order["samples"] or order["dataset"]["train_samples"]) // recipe.batch)
            say(f"training {arm.trainer} on {arm.world_size} device(s) with {order['dataset']['name']}, {steps} steps")
            # A small batch does not cost less in proportion; the clock is for hangs, not for slowness.
            timeout_s = 60 + sessions.timeout_s(arm, steps)
            answers = crew.request(arm, "train", timeout_s, arm=run.orders[arm], recipe=order)
            if answers is not None:
                run.accuracies.append(_accuracy(arm, order, answers[0], shortened))
        run.training_s = time.monotonic() - start

    return train


def _recipe(run: Measurement, recipe: Recipe) -> tuple[dict[str, Any], str]:
    """The recipe as workers are told it, and in words what was cut from it on a CPU."""
    on_cpu = run.config.devices.kind == "cpu"
    epochs = (on_cpu and recipe.cpu_epochs) or recipe.epochs
    samples = recipe.cpu_samples if on_cpu else None
    cut = [f"{epochs} of {recipe.epochs} epochs"] if epochs < recipe.epochs else []
    if samples is not None:
        cut.append(f"{samples} samples an epoch")
    order = {"batch": recipe.batch, "lr": recipe.lr, "init": recipe.init, "epochs": epochs, "samples": samples}
    return {**order, "dataset": run.datasets[recipe.dataset]}, ", ".join(cut)


def _accuracy(arm: Arm, order: dict[str, Any], answer: dict[str, Any], shortened: str) -> record.Accuracy:
    return record.Accuracy(
        trainer=arm.trainer,
        workload=arm.workload,
        world_size=arm.world_size,
        dataset=order["dataset"]["name"],
        train_samples=answer["train_samples"],
        test_samples=answer["test_samples"],
        per_epoch=tuple(epoch["accuracy"] for epoch in answer["epochs"]),
        train_s=tuple(epoch["train_s"] for epoch in answer["epochs"]),
        shortened=shortened,
    )
