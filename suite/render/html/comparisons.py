"""The candidate beside what it was compared with: every rule's finding, and the ratio of times as a dot on an axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from suite.records.baselines import Baseline
from suite.records.record import CheckRecord, Record
from suite.render import figures
from suite.render.html.bounds import Rows, bounded
from suite.render.html.chart import Span, Strip, strips

MAX_REASON = 600


class Finding(NamedTuple):
    """What one rule found for one cell."""

    cell: str
    rule: str
    against: str
    outcome: str
    counts: bool
    ratio: str
    drawn: Strip
    reason: str


@dataclass(frozen=True)
class View:
    """What the template shows; `bases` are label, kind, commit and versions of each."""

    compared_with: str
    tolerance: str
    bases: tuple[tuple[str, str, str, str], ...]
    findings: Rows[Finding]


def view(record: Record, baseline: Baseline | None) -> View | None:
    """Every rule of every cell, the gravest cells first; None where no rule had anything to say."""
    checks = [(cell, check) for cell in figures.graver_first(record.cells) for check in cell.checks]
    if not checks and not record.bases:
        return None
    # No slowdown, and the one that must be found: between them nothing is said.
    drawn = strips([_span(check) for _, check in checks], (1.0, 1.0 + record.tolerance), log=True)
    findings = (
        Finding(
            cell.id,
            check.rule,
            check.against,
            check.outcome.value,
            check.counts,
            figures.interval(check.ratio, ".3f"),
            strip,
            check.reason[:MAX_REASON],
        )
        for (cell, check), strip in zip(checks, drawn, strict=True)
    )
    bases = tuple(
        (
            base.label,
            f"{base.kind}, {base.side}",
            (base.commit or "-")[:12],
            ", ".join(f"{name} {version}" for name, version in base.versions.items()) or "as the candidate's",
        )
        for base in record.bases
    )
    return View(
        figures.compared_with(record), figures.number(record.tolerance, ".1%"), bases, bounded(findings, len(checks))
    )


def _span(check: CheckRecord) -> Span:
    if check.ratio is None:
        return Span(0.0, 0.0)  # nowhere on a logarithmic axis
    at = check.ratio.estimate
    return Span(at, at, check.ratio.low, check.ratio.high, "fail" if check.outcome.value == "FAIL" else "bar")
