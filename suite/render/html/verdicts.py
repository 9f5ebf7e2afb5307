"""What every cell came to, and its figures: what a reader sees first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from suite.records.baselines import Baseline
from suite.records.record import CellRecord, Record
from suite.render import figures
from suite.render.html.bounds import Rows, bounded
from suite.render.lead import no_baseline
from suite.verdict import Outcome

MAX_REASON = 600
MAX_STACKS = 20  # cells whose stacks are shown
COLUMNS = tuple(column for column in figures.COLUMNS if column not in ("time / base", "verdict"))


class Verdict(NamedTuple):
    """One cell's outcome and why."""

    outcome: str
    cell: str
    world_size: str
    ratio: str
    reason: str
    warning: str


@dataclass(frozen=True)
class View:
    """What the template shows.

    `stacks` are cells that failed, with the end of what their ranks said; `untrained` says why cells have no accuracy.
    Cells that have nothing to be compared with share the line `no_baseline` and are not among the `verdicts`.
    """

    no_baseline: str
    verdicts: Rows[Verdict]
    columns: tuple[str, ...]
    figures: Rows[tuple[str, ...]]
    stacks: tuple[tuple[str, str], ...]
    shortened: bool
    untrained: tuple[str, ...]


def view(record: Record, baseline: Baseline | None) -> View:
    """All cells, the gravest first."""
    judged = [cell for cell in figures.graver_first(record.cells) if cell.outcome is not Outcome.NO_BASELINE]
    wanted = [figures.COLUMNS.index(column) for column in COLUMNS]
    rows = figures.rows(record, record.cells)
    return View(
        no_baseline=no_baseline(record),
        verdicts=bounded(map(_verdict, judged), len(judged)),
        columns=COLUMNS,
        figures=bounded((tuple(row[column] for column in wanted) for row in rows), len(record.cells)),
        stacks=tuple((cell.id, cell.details) for cell in figures.graver_first(record.cells) if cell.details)[
            :MAX_STACKS
        ],
        shortened=any(run.shortened for run in record.accuracies),
        untrained=tuple(line[:MAX_REASON] for line in figures.without_accuracy(record.cells)[:MAX_STACKS]),
    )


def _verdict(cell: CellRecord) -> Verdict:
    reason = cell.reason if len(cell.reason) <= MAX_REASON else f"{cell.reason[:MAX_REASON]} …"
    ratio = figures.interval(cell.slowdown, ".3f")
    world_size = figures.number(cell.world_size, "d")
    return Verdict(cell.outcome.value, figures.name(cell), world_size, ratio, reason, cell.warning[:MAX_REASON])
