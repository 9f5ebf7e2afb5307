"""One run: sessions over all undecided cells, until everything is decided or the budget is spent.

The controller's side alone: it imports neither torch nor any trainer. What can be told of a trainer without running it
is asked of a worker first, and every dataset is loaded once, by a worker, for all the others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from suite import cells, record, results, room
from suite.bases import Base
from suite.cells import Arm, Cell, Side
from suite.checkout import CheckoutError
from suite.failure import WorkerFailure
from suite.measurement import Measurement
from suite.meter import Meter
from suite.quiet import available_cores
from suite.session import Crew, Say, Sessions
from suite.sides import Sides
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
    run.neighbours = room.neighbours(run.config.devices)
    for neighbour in run.neighbours:
        say(f"not alone: {neighbour}")
    with Meter(run.config.devices) as meter, Sides(run.config.devices.kind, root) as sides:
        if run.config.against is not None:
            _add(run, sides, "base", run.config.against)
        _describe(run, sides, say)
        _prepare(run, sides, say)
        sides.dismiss_clerks()
        _sessions(run, sides, meter, say)


def _add(run: Measurement, sides: Sides, side: Side, base: Base) -> None:
    """Put a base into the run; where it cannot be had, its cells are lost and say why."""
    run.bases[side] = base
    try:
        sides.add(side, base)
    except CheckoutError as error:
        run.lost |= {arm: WorkerFailure(side, str(error)) for arm in _all_arms(run) if arm.side == side}


def _describe(run: Measurement, sides: Sides, say: Say) -> None:
    """Ask what each trainer is; one that cannot be used, or ends its worker by being imported, costs its own cells."""
    say("asking a worker about versions and trainers")
    arms = [arm for arm in _all_arms(run) if arm not in run.lost]
    for side, trainer in dict.fromkeys((arm.side, arm.trainer) for arm in arms):
        try:
            located = sides.locate(side, trainer)
            answer = sides.clerk(side).ask("describe", trainer=located, apart=sides.apart(side))
            run.versions[side] = answer["versions"]
            run.trainers[side, trainer] = {**answer["about"], "located": located}
        except (WorkerFailure, CheckoutError) as error:
            failure = error if isinstance(error, WorkerFailure) else WorkerFailure(side, str(error))
            run.lost |= {arm: failure for arm in arms if (arm.side, arm.trainer) == (side, trainer)}


def _prepare(run: Measurement, sides: Sides, say: Say) -> None:
    """Have every dataset loaded once, by the candidate, and kept where the workers of all sessions map it."""
    workloads = [run.workload(cell.workload) for cell in run.cells]
    wanted: dict[str, set[str]] = {}
    for workload in workloads:
        wanted.setdefault(workload.dataset, set()).add(workload.name)
        if workload.accuracy is not None and not run.bases:
            wanted.setdefault(workload.accuracy.dataset, set()).add(workload.name)
    for number, (name, users) in enumerate(wanted.items()):
        say(f"loading the dataset {name}")
        kept = str(sides.folder / f"dataset-{number}")
        ask = sides.clerk("candidate").ask
        root = str(run.config.data_root)
        try:
            run.datasets[name] = ask("prepare", PREPARE_TIMEOUT_S, dataset=name, data_root=root, folder=kept)
        except WorkerFailure as failure:
            run.lost |= {arm: failure for arm in _all_arms(run) if arm.workload in users}


def _all_arms(run: Measurement) -> list[Arm]:
    """Everything that may be timed for the cells."""
    units = _compared(run, run.cells) + _yardsticks(run)
    return list(dict.fromkeys(arm for unit in units for arm in unit))


def _compared(run: Measurement, chosen: Sequence[Cell]) -> list[tuple[Arm, ...]]:
    return cells.units(chosen, {side: base.trainer for side, base in run.bases.items()})


def _yardsticks(run: Measurement) -> list[tuple[Arm, ...]]:
    """Beside a base the whole budget goes to the comparison: efficiency is then had from the cells themselves."""
    return [] if run.bases else cells.yardsticks(run.cells, speedup=True)


def _orders(run: Measurement, sides: Sides) -> dict[Arm, dict[str, Any]]:
    """What the workers of each arm are told; an arm whose side does not have its model is lost."""
    orders = {}
    for arm in _all_arms(run):
        if arm not in run.lost:
            try:
                orders[arm] = _order(run, sides, arm)
            except CheckoutError as error:
                run.lost[arm] = WorkerFailure(arm.side, str(error))
    return orders


def _order(run: Measurement, sides: Sides, arm: Arm) -> dict[str, Any]:
    devices, workload = run.config.devices, run.workload(arm.workload)
    names, about = devices.names[: arm.world_size], run.trainers[arm.side, arm.trainer]
    located = workload.model_copy(update={"model": sides.locate(arm.side, workload.model)})
    return cells.describe(
        arm,
        located,
        trainer=about["located"],
        apart=sides.apart(arm.side),
        processes=about["processes"],
        devices=list(names),
        backend=devices.backend(names),
        pinned=list(devices.cores[: arm.world_size]),
        free_cores=available_cores(),
        seed=SEED,
        dataset=run.datasets[workload.dataset],
    )


def _sessions(run: Measurement, sides: Sides, meter: Meter, say: Say) -> None:
    run.orders = _orders(run, sides)

    def left_s() -> float:
        return run.config.budget_s - run.elapsed_s

    def say_left(what: str) -> None:
        left = (run.planned - len(run.sessions)) * run.session_s if run.planned else left_s()
        say(f"{what}; at most {max(left, 0.0) / 60:.1f} min left")

    # The user's own budget is kept even when sessions turn out longer than planned.
    hard = run.config.min_sessions == 1 and not run.config.calibrate
    sessions = Sessions(sides.pools, run.orders, random.Random(run.order_seed), meter, left_s, say_left)
    while units := _undecided(run):
        first = not run.sessions
        if run.planned and (len(run.sessions) >= run.planned or (hard and left_s() < run.session_s)):
            units = [unit for unit in units if _never_timed(run, unit)]
        if not units:
            return
        timed = {arm for unit in units for arm in unit}
        units += [unit for unit in _yardsticks(run) if not timed.intersection(unit) and unit[0] in run.orders]
        try:
            sessions.run(units, _training(run, sessions, say_left) if first else None)
        finally:  # what an interrupted session has timed is kept as well
            run.sessions.append(sessions.current)
            run.lost |= sessions.current.failures
            run.steps = sessions.steps
        if first:
            # The plan is made once, from what the first session cost and not from what it showed.
            run.planned = run.config.calibrate or _planned(run, left_s())


def _planned(run: Measurement, left_s: float) -> int:
    """Sessions that the budget allows, in all."""
    affordable = max(run.config.min_sessions, 1 + int(left_s / run.session_s))
    return affordable if run.bases else min(affordable, MAX_SESSIONS[run.config.profile])


def _never_timed(run: Measurement, unit: tuple[Arm, ...]) -> bool:
    """Whether an arm has no sample because another that shared its processes broke them: it is owed another session."""
    timed = {window.arm for session in run.sessions for window in session.windows}
    return any(arm.id not in timed for arm in unit)


def _undecided(run: Measurement) -> list[tuple[Arm, ...]]:
    """Judge the cells, and say what still has to be timed for those without an answer."""
    for cell in () if run.config.calibrate else run.cells:
        for side in run.bases:
            if (cell, side) not in run.decided and not run.failure(cell):
                found = results.interleaved_verdict(run, cell, side)
                if found.outcome in (Outcome.PASS, Outcome.FAIL):
                    run.decided[cell, side] = found
    open_cells = [cell for cell in run.cells if not _decided(run, cell) and not run.failure(cell)]
    alive = [tuple(arm for arm in unit if arm not in run.lost) for unit in _compared(run, open_cells)]
    return [unit for unit in alive if unit]


def _decided(run: Measurement, cell: Cell) -> bool:
    """Whether every base has its answer, or one of them has failed the cell."""
    found = [run.decided[cell, side] for side in run.bases if (cell, side) in run.decided]
    failed = any(verdict.outcome is Outcome.FAIL for verdict in found)
    return bool(run.bases) and (failed or len(found) == len(run.bases))


def _training(run: Measurement, sessions: Sessions, say: Say) -> Callable[[Crew], None]:
    """What is done with the first session's workers once they are timed: training, once a trainer and world size.

    With a base in the run nothing is trained: the whole budget goes to the comparison.
    """
    wanted: dict[tuple[str, str, int], Arm] = {}
    for cell in () if run.bases else run.cells:
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
