"""From what was measured to what is reported: every cell's figures and verdict, and the record of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from suite.plan import cells
from suite.plan.cells import YARDSTICK, Arm, Cell, Side
from suite.records import record
from suite.records.record import CellRecord, IntervalRecord
from suite.run import accuracy, attribution, judging, samples
from suite.run.observations import Observations
from suite.verdict import Outcome, metrics


def to_record(run: Observations) -> record.Record:
    """The record of the run, or of what there is of it so far."""
    used = {cell.workload: run.plan.workload(cell.workload) for cell in run.plan.cells}
    datasets = {
        name: run.datasets[workload.dataset] for name, workload in used.items() if workload.dataset in run.datasets
    }
    return record.Record(
        run_id=run.plan.run_id,
        started_utc=run.plan.started.isoformat(timespec="seconds"),
        wall_s=round(run.plan.elapsed_s, 3),
        interrupted=run.interrupted,
        settings=tuple(run.plan.config.header()),
        repeat=run.plan.config.repeat,
        tolerance=run.plan.config.tolerance,
        against=run.plan.config.against and run.plan.config.against.label,
        bases=tuple(_base(run, side) for side in run.bases),
        planned=run.planned,
        plan=tuple(run.notes),
        neighbours=tuple(run.neighbours),
        seed=run.plan.seed,
        machine=run.plan.machine,
        environment=record.Environment(
            versions=run.versions.get("candidate", {}), commit=run.plan.commit, dirty=run.plan.dirty, main=run.plan.main
        ),
        workloads=used,
        workload_hashes={name: workload.hash for name, workload in used.items()},
        datasets={name: dataset["name"] for name, dataset in datasets.items()},
        epoch_samples={name: dataset["train_samples"] for name, dataset in datasets.items()},
        arms=tuple(_arm(run, arm) for arm in run.steps),
        sessions=tuple(session.to_record() for session in run.sessions),
        accuracies=tuple(run.accuracies),
        cells=tuple(_cell(run, cell) for cell in run.plan.cells),
        collectives=run.collectives,
    )


def _cell(run: Observations, cell: Cell) -> CellRecord:
    oversubscribed = run.plan.config.devices.oversubscribed(cell.world_size)
    about = {"id": cell.id, "trainer": cell.trainer, "workload": cell.workload, "mode": cell.mode}
    fixed = {**about, "world_size": cell.world_size, "oversubscribed": oversubscribed}
    if failure := run.failure(cell):
        details = "\n".join(failure.details)
        return CellRecord.model_validate(
            {**fixed, "outcome": Outcome.ERROR, "reason": failure.cause, "details": details}
        )
    own = cells.arm("candidate", cell.trainer, cell)
    logs = samples.over_sessions(run, own)
    if not logs:
        reason = "it was not measured before the run was cut short"
        return CellRecord.model_validate({**fixed, "outcome": Outcome.ERROR, "reason": reason})
    order = run.orders[own]
    batch, in_epoch = order["global_batch"], order["dataset"]["train_samples"]
    step_s = metrics.from_logs(logs)
    checks = judging.checks(run, cell)
    outcome, reason = judging.combined(checks)
    efficiency, note = _efficiency(run, cell, own)
    figures = {
        "sessions": len(logs),
        "sec_per_epoch": _scaled(step_s, lambda step: metrics.sec_per_epoch(step, in_epoch, batch)),
        "samples_per_s": _scaled(step_s, lambda step: batch / step),
        "efficiency": efficiency,
        "efficiency_note": note,
        "speedup": _speedup(run, cell, own),
        "slowdown": next((check.ratio for check in checks if check.ratio is not None and check.counts), None),
        "checks": checks,
        "warning": judging.warning(run, cell),
        "accuracy": accuracy.reached(run, cell),
        "accuracy_note": accuracy.why_none(run, cell),
        "devices": tuple(order["devices"]),
        "waterfalls": attribution.waterfalls(run, cell),
        "waterfall_note": attribution.note(run, cell),
    }
    return CellRecord.model_validate({**fixed, "outcome": outcome, "reason": reason, **figures})


def _base(run: Observations, side: Side) -> record.BaseRecord:
    base = run.bases[side]
    return record.BaseRecord(
        side=side, kind=base.kind, label=base.label, commit=base.commit, versions=run.versions.get(side, {})
    )


def _efficiency(run: Observations, cell: Cell, own: Arm) -> tuple[IntervalRecord | None, str]:
    if cell.world_size == 1:
        return None, "needs 2 devices" if len(run.plan.config.devices.names) < 2 else ""
    if run.plan.config.devices.oversubscribed(cell.world_size):
        return None, "oversubscribed"
    one = cells.arm("candidate", cell.trainer, cell, 1)
    if one in run.lost:
        return None, f"its one-device arm failed: {run.lost[one].cause}"
    logs = samples.log_efficiencies(run, own, one, cell.mode)
    return _from_logs(logs), "" if logs else "needs world size 1 in the run"


def _speedup(run: Observations, cell: Cell, own: Arm) -> IntervalRecord | None:
    plain = cells.arm("candidate", YARDSTICK, cell, 1)
    logs = [
        metrics.log_speedup(ratio, 0.0, cell.mode, cell.world_size) for ratio in samples.log_ratios(run, plain, own)
    ]
    return _from_logs(logs)


def _from_logs(logs: Sequence[float]) -> IntervalRecord | None:
    found = metrics.from_logs(logs)
    return None if found is None else record.interval(found)


def _arm(run: Observations, arm: Arm) -> record.ArmRecord:
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
        gradient_bytes=run.gradient_bytes.get(arm, 0),
    )


def _scaled(interval: metrics.Interval | None, function: Callable[[float], float]) -> IntervalRecord | None:
    """The interval of a monotone function of a quantity; a falling one swaps its ends."""
    if interval is None:
        return None
    if interval.low is None or interval.high is None:
        return IntervalRecord(estimate=function(interval.estimate))
    low, high = sorted((function(interval.low), function(interval.high)))
    return IntervalRecord(estimate=function(interval.estimate), low=low, high=high)
