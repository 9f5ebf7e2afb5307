"""From what was measured to what is reported: every cell's figures and verdict, and the record of the run.

The reduction is the same everywhere: a window to a time a step, a session's rounds to their middle
(`metrics.location`), sessions to a t-interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from suite import cells, metrics, record, verdict
from suite.baselines import Baseline
from suite.cells import YARDSTICK, Arm, Cell, Side
from suite.measurement import Measurement
from suite.record import CellRecord, IntervalRecord
from suite.session import Session
from suite.verdict import Outcome, Verdict


def rounds(session: Session, arm: Arm, steps: int) -> dict[tuple[int, int], float]:
    """ln(seconds a step) of an arm in a session, by block and by visit within it; the slowest rank counts.

    Disturbed blocks are not among them.
    """
    found: dict[tuple[int, int], float] = {}
    left_out = session.left_out
    for window in session.windows:
        if window.arm == arm.id and window.block not in left_out:
            visit = (window.block, 1 if (window.block, 0) in found else 0)
            found[visit] = metrics.log_step_s(max(window.duration_ns), steps)
    return found


def over_sessions(run: Measurement, arm: Arm) -> list[float]:
    """ln(seconds a step) of an arm, one value a session."""
    per_session = [rounds(session, arm, run.steps[arm]) for session in run.sessions if arm in run.steps]
    return [metrics.location(list(found.values())) for found in per_session if found]


def step_samples_s(run: Measurement, arm: Arm) -> list[float]:
    """Seconds a step of every window of an arm, in the order they were timed."""
    return [
        max(window.duration_ns) / run.steps[arm] / 1e9
        for session in run.sessions
        for window in session.windows
        if window.arm == arm.id
    ]


def contrast(run: Measurement, minuend: Arm, subtrahend: Arm) -> list[list[float]]:
    """ln(t_minuend / t_subtrahend) of every round, in which both were timed next to each other; a list a session.

    A block visits its arms forwards and then backwards, so it holds two rounds, and their order cancels.
    """
    if minuend not in run.steps or subtrahend not in run.steps:
        return []
    found = []
    for session in run.sessions:
        a = rounds(session, minuend, run.steps[minuend])
        b = rounds(session, subtrahend, run.steps[subtrahend])
        if pairs := [a[visit] - b[visit] for visit in a if visit in b]:
            found.append(pairs)
    return found


def log_ratios(run: Measurement, minuend: Arm, subtrahend: Arm) -> list[float]:
    """The same, one value a session."""
    return [metrics.location(pairs) for pairs in contrast(run, minuend, subtrahend)]


def interleaved_verdict(run: Measurement, cell: Cell, side: Side) -> Verdict:
    """A cell's verdict against a base in the run."""
    arms = run.compared(cell)
    found = contrast(run, arms["candidate"], arms[side])
    return verdict.paired(found, run.config.tolerance, comparisons(run), run.planned, run.session_s)


def comparisons(run: Measurement) -> int:
    """Everything in a run that can fail shares its error budget; strong and weak at one device are one comparison."""
    return len({(arms["candidate"], arms[side]) for arms in map(run.compared, run.cells) for side in run.bases})


def to_record(run: Measurement, baseline: Baseline) -> record.Record:
    """The record of the run.

    Args:
        run: what was measured.
        baseline: the accepted one of this machine; cells are judged by it where the run has no base of its own.
    """
    used = {cell.workload: run.workload(cell.workload) for cell in run.cells}
    datasets = {
        name: run.datasets[workload.dataset] for name, workload in used.items() if workload.dataset in run.datasets
    }
    draft = record.Record(
        run_id=run.run_id,
        started_utc=run.started.isoformat(timespec="seconds"),
        wall_s=round(run.elapsed_s, 3),
        interrupted=run.interrupted,
        settings=tuple(run.config.header()),
        tolerance=run.config.tolerance,
        against=run.config.against and run.config.against.label,
        bases=tuple(_base(run, side) for side in run.bases),
        planned=run.planned,
        neighbours=tuple(run.neighbours),
        seed=run.order_seed,
        machine=run.machine,
        environment=record.Environment(versions=run.versions.get("candidate", {}), commit=run.commit, dirty=run.dirty),
        workloads=used,
        workload_hashes={name: workload.hash for name, workload in used.items()},
        datasets={name: dataset["name"] for name, dataset in datasets.items()},
        epoch_samples={name: dataset["train_samples"] for name, dataset in datasets.items()},
        arms=tuple(_arm(run, arm) for arm in run.steps),
        sessions=tuple(session.to_record() for session in run.sessions),
        accuracies=tuple(run.accuracies),
        cells=tuple(_cell(run, cell) for cell in run.cells),
    )
    if run.config.against is not None:
        return draft
    compared = tuple(_against_stored(run, cell, draft, baseline) for cell in draft.cells)
    return draft.model_copy(update={"cells": compared})


def _cell(run: Measurement, cell: Cell) -> CellRecord:
    oversubscribed = run.config.devices.oversubscribed(cell.world_size)
    about = {"id": cell.id, "trainer": cell.trainer, "workload": cell.workload, "mode": cell.mode}
    fixed = {**about, "world_size": cell.world_size, "oversubscribed": oversubscribed}
    if failure := run.failure(cell):
        details = "\n".join(failure.details)
        return CellRecord.model_validate(
            {**fixed, "outcome": Outcome.ERROR, "reason": failure.cause, "details": details}
        )
    own = cells.arm("candidate", cell.trainer, cell)
    logs = over_sessions(run, own)
    if not logs:
        reason = "it was not measured before the run was cut short"
        return CellRecord.model_validate({**fixed, "outcome": Outcome.ERROR, "reason": reason})
    order = run.orders[own]
    batch, samples = order["global_batch"], order["dataset"]["train_samples"]
    step_s = metrics.from_logs(logs)
    checks = tuple(_check(run, cell, side) for side in run.bases)
    outcome, reason = _combined(checks)
    efficiency, note = _efficiency(run, cell, own)
    figures = {
        "sessions": len(logs),
        "sec_per_epoch": _scaled(step_s, lambda step: metrics.sec_per_epoch(step, samples, batch)),
        "samples_per_s": _scaled(step_s, lambda step: batch / step),
        "efficiency": efficiency,
        "efficiency_note": note,
        "speedup": _speedup(run, cell, own),
        "slowdown": checks[0].ratio if checks else None,
        "checks": checks,
        "accuracy": _final_accuracy(run, cell),
        "devices": tuple(order["devices"]),
    }
    return CellRecord.model_validate({**fixed, "outcome": outcome, "reason": reason, **figures})


def _check(run: Measurement, cell: Cell, side: Side) -> record.CheckRecord:
    judged = run.decided.get((cell, side)) or interleaved_verdict(run, cell, side)
    return record.CheckRecord(
        rule="time" if side == "base" else "drift",
        against=run.bases[side].label,
        outcome=judged.outcome,
        reason=judged.reason,
        ratio=_interval(judged.ratio),
    )


def _combined(checks: Sequence[record.CheckRecord]) -> tuple[Outcome, str]:
    """A cell's outcome from those of its rules: the gravest counts, and says why."""
    for gravest in (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS):
        reasons = [check.reason for check in checks if check.outcome is gravest]
        if reasons:
            return gravest, "; ".join(reasons)
    return Outcome.NO_BASELINE, "there is nothing to compare with"


def _base(run: Measurement, side: Side) -> record.BaseRecord:
    base = run.bases[side]
    return record.BaseRecord(
        side=side, kind=base.kind, label=base.label, commit=base.commit, versions=run.versions.get(side, {})
    )


def _efficiency(run: Measurement, cell: Cell, own: Arm) -> tuple[IntervalRecord | None, str]:
    if cell.world_size == 1:
        return None, "needs 2 devices" if len(run.config.devices.names) < 2 else ""
    if run.config.devices.oversubscribed(cell.world_size):
        return None, "oversubscribed"
    one = cells.arm("candidate", cell.trainer, cell, 1)
    if one in run.lost:
        return None, f"its one-device arm failed: {run.lost[one].cause}"
    logs = [metrics.log_efficiency(ratio, 0.0, cell.mode, cell.world_size) for ratio in log_ratios(run, one, own)]
    return _interval(metrics.from_logs(logs)), ""


def _speedup(run: Measurement, cell: Cell, own: Arm) -> IntervalRecord | None:
    plain = cells.arm("candidate", YARDSTICK, cell, 1)
    logs = [metrics.log_speedup(ratio, 0.0, cell.mode, cell.world_size) for ratio in log_ratios(run, plain, own)]
    return _interval(metrics.from_logs(logs))


def _against_stored(run: Measurement, cell: CellRecord, draft: record.Record, baseline: Baseline) -> CellRecord:
    if cell.outcome is not Outcome.NO_BASELINE or cell.sec_per_epoch is None:
        return cell
    accepted = baseline.accepted(cell, draft)
    if not accepted:
        return cell
    fewest = min(run.sessions for run in accepted)
    if cell.sessions < fewest:
        reason = f"measured in {cell.sessions} session(s), the accepted runs in {fewest} or more: raise the budget"
        return cell.model_copy(update={"outcome": Outcome.INCONCLUSIVE, "reason": reason})
    judged = verdict.stored(
        math.log(cell.sec_per_epoch.estimate),
        [math.log(run.sec_per_epoch) for run in accepted],
        run.config.tolerance,
        len(run.cells),
    )
    return cell.model_copy(
        update={"outcome": judged.outcome, "reason": judged.reason, "slowdown": _interval(judged.ratio)}
    )


def _arm(run: Measurement, arm: Arm) -> record.ArmRecord:
    order = run.orders[arm]
    return record.ArmRecord(
        id=arm.id,
        side=arm.side,
        trainer=arm.trainer,
        workload=arm.workload,
        mode=arm.mode,
        world_size=arm.world_size,
        global_batch=order["global_batch"],
        lr=order["lr"],
        processes=order["processes"],
        steps_per_window=run.steps[arm],
    )


def _final_accuracy(run: Measurement, cell: Cell) -> float | None:
    wanted = (cell.trainer, cell.workload, cell.world_size)
    found = (a.per_epoch[-1] for a in run.accuracies if (a.trainer, a.workload, a.world_size) == wanted)
    return next(found, None)


def _scaled(interval: metrics.Interval | None, function: Callable[[float], float]) -> IntervalRecord | None:
    """The interval of a monotone function of a quantity; a falling one swaps its ends."""
    if interval is None:
        return None
    if interval.low is None or interval.high is None:
        return IntervalRecord(estimate=function(interval.estimate))
    low, high = sorted((function(interval.low), function(interval.high)))
    return IntervalRecord(estimate=function(interval.estimate), low=low, high=high)


def _interval(interval: metrics.Interval | None) -> IntervalRecord | None:
    return _scaled(interval, lambda value: value)
