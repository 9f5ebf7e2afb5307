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
from suite.channel import Message
from suite.failure import WorkerFailure
from suite.measurement import Measurement
from suite.pool import START_TIMEOUT_S, Group, Pool
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
    with Pool(kind=run.config.devices.kind, import_paths=[Path.cwd(), root]) as pool, Clerk(pool) as clerk:
        _describe(run, clerk, say)
        _prepare(run, clerk, pool.folder, say)
        clerk.close()  # nothing idle stays while others are timed
        _sessions(run, pool, say)


class Clerk:
    """One worker for questions that measure nothing; replaced when a question ends it. Use it as a context manager."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._group: Group | None = None
        self._count = 0

    def __enter__(self) -> Clerk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, command: str, timeout_s: float = START_TIMEOUT_S, **arguments: object) -> Message:
        """The answer to one command.

        Raises:
            WorkerFailure: the worker raised, died or was silent; the next question gets another worker.
        """
        try:
            if self._group is None:
                self._count += 1
                self._group = self._pool.launch(f"clerk-{self._count}", 1)
                self._group.wait_connected()
            [answer] = self._group.request(command, timeout_s, **arguments)
        except WorkerFailure:
            self._group = None
            raise
        return answer

    def close(self) -> None:
        """Let the worker go."""
        if self._group is not None:
            self._group.close()
            self._group = None


def _describe(run: Measurement, clerk: Clerk, say: Say) -> None:
    """Ask what each trainer is; one that cannot be used, or ends its worker by being imported, costs its own cells."""
    say("asking a worker about versions and trainers")
    for trainer in dict.fromkeys(arm.trainer for arm in run.arms):
        try:
            answer = clerk.ask("describe", trainer=trainer)
            run.versions = answer["versions"]
            run.trainers[trainer] = answer["about"]
        except WorkerFailure as failure:
            run.lost |= {arm: failure for arm in run.arms if arm.trainer == trainer}


def _prepare(run: Measurement, clerk: Clerk, folder: Path, say: Say) -> None:
    """Have every dataset loaded once and kept where the workers of all sessions map it."""
    workloads = [run.workload(cell.workload) for cell in run.cells]
    wanted: dict[str, set[str]] = {}
    for workload in workloads:
        wanted.setdefault(workload.dataset, set()).add(workload.name)
        if workload.accuracy is not None and run.config.against is None:
            wanted.setdefault(workload.accuracy.dataset, set()).add(workload.name)
    for number, (name, users) in enumerate(wanted.items()):
        say(f"loading the dataset {name}")
        kept = str(folder / f"dataset-{number}")
        root = str(run.config.data_root)
        try:
            run.datasets[name] = clerk.ask("prepare", PREPARE_TIMEOUT_S, dataset=name, data_root=root, folder=kept)
        except WorkerFailure as failure:
            run.lost |= {arm: failure for arm in run.arms if arm.workload in users}


def _order(run: Measurement, arm: Arm) -> dict[str, Any]:
    """What the workers of an arm are told."""
    devices, workload = run.config.devices, run.workload(arm.workload)
    names = devices.names[: arm.world_size]
    return cells.describe(
        arm,
        workload,
        processes=run.trainers[arm.trainer]["processes"],
        devices=list(names),
        backend=devices.backend(names),
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

    hard = run.config.min_sessions == 1  # the user's own budget is kept even when sessions turn out longer than planned
    sessions = Sessions(pool, run.orders, random.Random(run.order_seed), left_s, say_left)
    while units := _undecided(run):
        if run.planned and (len(run.sessions) >= run.planned or (hard and left_s() < run.session_s)):
            units = [unit for unit in units if _never_timed(run, unit)]
        if not units:
            return
        first = not run.sessions
        try:
            sessions.run(units, _training(run, sessions, say_left) if first else None)
        finally:  # what an interrupted session has timed is kept as well
            run.sessions.append(sessions.current)
            run.lost |= sessions.current.failures
            run.steps = sessions.steps
        if first:
            # The plan is made once, from what the first session cost and not from what it showed.
            run.planned = max(run.config.min_sessions, 1 + int(left_s() / run.session_s))
            if run.config.against is None:
                run.planned = min(run.planned, MAX_SESSIONS[run.config.profile])


def _never_timed(run: Measurement, unit: tuple[Arm, ...]) -> bool:
    """Whether an arm has no sample because another that shared its processes broke them: it is owed another session."""
    timed = {window.arm for session in run.sessions for window in session.windows}
    return any(arm.id not in timed for arm in unit)


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
            timeout_s = sessions.timeout_s(arm, steps, patience=5)
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
