"""From observations to the record of a run: every cell's figures and verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from suite.plan import cells
from suite.plan.cells import SINGLE, Arm, Cell, Side
from suite.processes.failure import WorkerFailure
from suite.records import record
from suite.records.record import CellRecord, Missing
from suite.run import accuracy, attribution, counting, judging, machine, samples
from suite.run.observations import Observations
from suite.verdict import Outcome, metrics
from suite.verdict.metrics import Interval


def to_record(run: Observations) -> record.Record:
    """Return the record of a run, or of what was measured so far."""
    plan, config = run.plan, run.plan.config
    used = {cell.workload: plan.workload(cell.workload) for cell in plan.cells}
    datasets = {
        name: run.datasets[workload.dataset] for name, workload in used.items() if workload.dataset in run.datasets
    }
    versions = run.versions.get("candidate", {})
    return record.Record(
        run_id=plan.run_id,
        started_utc=plan.started.isoformat(timespec="seconds"),
        wall_s=round(plan.elapsed_s, 3),
        interrupted=bool(run.cut_short),
        cut_short=run.cut_short,
        settings=tuple(config.header()),
        own_budget=config.budget.fixed,
        repeat=config.repeat,
        tolerance=config.tolerance,
        against=config.against and config.against.label,
        bases=tuple(_base(run, side) for side in run.comparison.bases),
        planned=run.planned,
        plan=tuple(run.notes),
        checks_to_come=plan.checks_to_come,
        neighbours=tuple(run.neighbours),
        seed=plan.seed,
        machine=plan.machine,
        environment=record.Environment(
            versions=versions,
            commit=plan.commit,
            dirty=plan.dirty,
            variables=machine.variables(config.devices),
            main=plan.main,
            commit_problem=plan.commit_problem,
        ),
        workloads=used,
        workload_hashes={name: workload.hash for name, workload in used.items()},
        datasets={name: dataset.name for name, dataset in datasets.items()},
        epoch_samples={name: dataset.train_samples for name, dataset in datasets.items()},
        arms=tuple(_arm(run, arm) for arm in run.steps),
        sessions=tuple(session.to_record() for session in run.sessions),
        accuracies=tuple(run.accuracies),
        cells=tuple(_cell(run, cell) for cell in plan.cells),
        collectives=run.collectives,
    )


def _cell(run: Observations, cell: Cell) -> CellRecord:
    made = partial(
        CellRecord,
        id=cell.id,
        trainer=cell.trainer,
        workload=cell.workload,
        mode=cell.mode,
        world_size=cell.world_size,
        oversubscribed=run.plan.config.devices.oversubscribed(cell.world_size),
    )
    own = run.plan.own(cell)
    logs = samples.over_sessions(run, own)
    failure = run.failure(cell)
    if not failure and not logs and cell in run.comparison.over_budget:
        outcome, reason = judging.combined(judging.checks(run, cell))
        return made(outcome=outcome, reason=reason)
    if failure or not logs:
        reason = failure.cause if failure else "it was not measured before the run was cut short"
        details = "\n".join(failure.details) if failure else ""
        return made(outcome=Outcome.ERROR, reason=reason, details=details)
    job = run.jobs[own]
    batch, in_epoch, tokens = job.global_batch, job.dataset.train_samples, job.dataset.tokens
    flop = run.sample_flop.get(own, 0)
    step_s = metrics.from_logs(logs)
    checks = judging.checks(run, cell)
    outcome, reason = judging.combined(checks)
    efficiency, speedup = _efficiency(run, cell, own), _speedup(run, cell, own)
    others = accuracy.why_none(run, cell), attribution.why_none(run, cell), counting.why_none(run, cell)
    tail = judging.slow_tail(run, cell)
    grew = attribution.caution(run, cell) if outcome is not Outcome.FAIL else ""  # after a FAIL the waterfall says it
    widened = judging.warning(run, cell) or judging.widened(run, cell)
    cautions = tuple(filter(None, (widened, grew, tail.said if tail else "")))
    return made(
        outcome=outcome,
        reason=reason,
        sessions=len(logs),
        sec_per_epoch=_scaled(step_s, lambda step: metrics.sec_per_epoch(step, in_epoch, batch)),
        samples_per_s=_scaled(step_s, lambda step: batch / step),
        tokens_per_s=_scaled(step_s, lambda step: batch * tokens / step) if tokens else None,
        device_flop_per_s=_scaled(step_s, lambda step: batch * flop / step / cell.world_size) if flop else None,
        efficiency=_known(efficiency),
        speedup=_known(speedup),
        slowdown=next((check.ratio for check in checks if check.ratio is not None and check.counts), None),
        checks=checks,
        tail=tail.ratio if tail else None,
        cautions=cautions,
        warning="; ".join(filter(None, (*cautions, counting.warning(run, cell)))),
        counters=counting.counted(run, cell),
        accuracy=accuracy.reached(run, cell),
        test_loss=accuracy.reached_loss(run, cell),
        devices=job.devices,
        waterfalls=attribution.waterfalls(run, cell, failed=outcome is Outcome.FAIL),
        missing=tuple(why for why in (efficiency, speedup, *others) if isinstance(why, Missing)),
    )


def _base(run: Observations, side: Side) -> record.BaseRecord:
    base = run.comparison.bases[side]
    return record.BaseRecord(
        side=side, kind=base.kind, label=base.label, commit=base.commit, versions=run.versions.get(side, {})
    )


def _known(figure: Interval | Missing | None) -> Interval | None:
    return figure if isinstance(figure, Interval) else None


def _efficiency(run: Observations, cell: Cell, own: Arm) -> Interval | Missing | None:
    why = partial(Missing, figure="efficiency")
    if cell.world_size == 1:
        alone = len(run.plan.config.devices.names) < 2
        return why(why="needs 2 devices", because="one device") if alone else None
    if run.plan.config.devices.oversubscribed(cell.world_size):
        return why(why="oversubscribed")
    if own.on_one in run.lost:
        return why(why=f"its one-device arm failed: {run.lost[own.on_one].cause}")
    logs = samples.log_efficiencies(run, own)
    return metrics.from_logs(logs) if logs else why(why="needs world size 1 in the run")


def _speedup(run: Observations, cell: Cell, own: Arm) -> Interval | Missing | None:
    if cell.runs_script:
        return None  # no plain trainer trains what only the script knows
    plain = cells.arm("candidate", SINGLE, cell).on_one
    ratios = samples.log_ratios(run, plain, own)
    if ratios:
        logs = [metrics.log_speedup(ratio, cell.mode, cell.world_size) for ratio in ratios]
        return metrics.from_logs(logs)
    if plain in run.lost:
        why = _why_not_plain(run, cell, run.lost[plain])
    elif run.plan.config.against is not None:
        why = f"{SINGLE} is not timed in a run with a base: the budget is for the comparison"
    else:
        why = f"needs {SINGLE} on one device in the same session"
    return Missing(figure="speedup", why=why)


def _why_not_plain(run: Observations, cell: Cell, failure: WorkerFailure) -> str:
    """Return why the plain trainer has no time, where it was added to the run and the user did not choose it."""
    workload = run.plan.workload(cell.workload)
    dataset = run.datasets.get(workload.dataset)
    if dataset is not None and dataset.unfit:
        why = dataset.unfit
    elif failure.raised_in_python and workload.is_the_users:
        why = f"it calls net(X) and takes the mean cross-entropy of that and y, which raised {failure.cause}"
    else:
        return f"{SINGLE} on one device failed: {failure.cause}"
    return (
        f"the plain trainer, {SINGLE}, cannot train {cell.workload}, whose form may need a loss of your own: {why}. "
        "This is no fault of your trainer; efficiency compares it with itself on one device"
    )


def _arm(run: Observations, arm: Arm) -> record.ArmRecord:
    job, about = run.jobs[arm], run.trainers.get((arm.side, arm.trainer))
    return record.ArmRecord(
        id=arm.id,
        **{name: value for name, value in asdict(arm).items() if name != "runs_script"},
        global_batch=job.global_batch,
        lr=job.lr,
        processes=job.processes,
        steps_per_window=run.steps[arm],
        oracle=about and about.oracle,
        has_reference=about is not None and about.has_reference,
        seed=job.seed,
        gradient_bytes=run.gradient_bytes.get(arm, 0),
        memory=run.memory.get(arm, ()),
        transports=run.transports.get(arm, ()),
    )


def _scaled(interval: Interval, function: Callable[[float], float]) -> Interval:
    """Return the interval of a monotone function of a quantity; a falling one swaps its ends."""
    ends = sorted(function(end) for end in (interval.low, interval.high) if end is not None)
    low, high = ends or (None, None)
    return Interval(function(interval.estimate), low=low, high=high)
