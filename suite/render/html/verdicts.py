"""The outcome and figures of every cell, what each rule found, and how a run becomes the accepted baseline."""

from __future__ import annotations

from collections.abc import Mapping

from suite.records import baselines, memory
from suite.records.baselines import AcceptedRun, Baseline
from suite.records.record import CellRecord, CheckRecord, Record
from suite.render import commands, figures
from suite.render.html.chart import Span, strips
from suite.render.html.environment import bounded, macro
from suite.render.lead import RED, no_baseline
from suite.verdict import Outcome

MAX_STACKS = 20  # cells whose stacks are shown


def verdicts(record: Record) -> Mapping[str, object]:
    """Return the content of the section "Verdicts", the gravest cells first; NO BASELINE is one line for all cells."""
    cells = figures.gravest_first(record.cells)
    names = figures.names(record)
    judged = [cell for cell in cells if cell.outcome is not Outcome.NO_BASELINE]
    return {
        "no_baseline": no_baseline(record),
        "verdicts": bounded((_verdict(record, cell, names) for cell in judged), len(judged)),
        "columns": figures.columns(record),
        "figures": bounded(figures.rows(record, record.cells), len(record.cells)),
        "stacks": [(cell.label, cell.details) for cell in cells if cell.details][:MAX_STACKS],
        "shortened": any(run.shortened for run in record.accuracies),
        "missing": figures.missing(record.cells)[:MAX_STACKS],
    }


def _verdict(record: Record, cell: CellRecord, names: Mapping[str, str]) -> tuple[str, ...]:
    return (
        macro("badge", cell.outcome.value),
        figures.name(cell, names),
        figures.number(cell.world_size, "d"),
        cell.reason + (f" Warning: {cell.warning}" if cell.warning else ""),
        figures.interval(cell.slowdown, ".3f"),
        macro("command", commands.only(record, [cell])) if cell.outcome in RED else "",
    )


def rules(record: Record) -> Mapping[str, object] | None:
    """Return what every rule found for every cell, the gravest cells first; None where no rule found anything."""
    checks = [(cell, check) for cell in figures.gravest_first(record.cells) for check in cell.checks]
    if not checks and not record.bases:
        return None
    drawn = strips([_span(check) for _, check in checks], (1.0, 1.0 + record.tolerance), log=True)
    findings = (
        (
            cell.label,
            check.rule,
            check.against,
            macro("badge", check.outcome.value, check.counts),
            figures.interval(check.ratio, ".3f"),
            strip,
            check.reason,
        )
        for (cell, check), strip in zip(checks, drawn, strict=True)
    )
    return {
        "compared_with": figures.compared_with(record),
        "tolerance": figures.number(record.tolerance, ".1%"),
        "bases": [
            (
                base.label,
                f"{base.kind}, {base.side}",
                (base.commit or "-")[:12],
                figures.versions(base.versions) or "as the candidate's",
            )
            for base in record.bases
        ],
        "findings": bounded(findings, len(checks)),
    }


def _span(check: CheckRecord) -> Span | None:
    if check.ratio is None:
        return None
    at = check.ratio.estimate
    return Span(at, at, check.ratio.low, check.ratio.high, "fail" if check.outcome is Outcome.FAIL else "bar")


def counted(record: Record) -> Mapping[str, object] | None:
    """Return what one step of each cell does or why it was not counted, and of each arm peak memory and transports."""
    cells = figures.gravest_first(record.cells)
    columns, rows = figures.counted(cells)
    reasons = figures.labels((why, cell) for cell in cells if (why := cell.why("counters")))
    without = [(figures.some(ids, MAX_STACKS), reason) for reason, ids in reasons.items()]
    held = [(arm.id, words) for arm in record.arms if (words := memory.shown(arm.memory))]
    connected = [(arm.id, ", ".join(arm.transports)) for arm in record.arms if arm.transports]
    if not (rows or without or held or connected):
        return None
    return {
        "columns": columns,
        "rows": bounded(rows, len(rows)),
        "without": bounded(without, len(without)),
        "memory": bounded(held, len(held)),
        "connected": bounded(connected, len(connected)),
    }


def accepting(record: Record, baseline: Baseline | None) -> Mapping[str, object]:
    """Return how this run, or one like it, becomes the accepted baseline."""
    never = baselines.refusal(record)
    return {
        "refused": f"This run cannot be accepted: {never}." if never else "",
        "failed": any(cell.outcome is Outcome.FAIL for cell in record.cells),
        "slowed": any(map(baselines.slowed, record.cells)),
        "command": commands.accept(record),
        "accepted": len(baseline.runs) if baseline else None,
        "included": baseline is not None and any(run.run_id == record.run_id for run in baseline.runs),
        "path": f"{record.machine.key}/baseline.json",
        "warning": baselines.warning(record),
    }


def newest(record: Record, baseline: Baseline | None) -> AcceptedRun | None:
    """Return the newest accepted run that is not this one."""
    runs = baseline.runs if baseline else ()
    return next((run for run in reversed(runs) if run.run_id != record.run_id), None)
