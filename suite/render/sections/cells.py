"""Every cell in one table, all about each cell behind its name, and what each rule found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from suite.plan.cells import measured_mode
from suite.records.record import CellRecord, CheckRecord, Record
from suite.render import commands, figures, lead
from suite.render.document import (
    NONE,
    Badge,
    Block,
    Drawn,
    Facts,
    Fold,
    Lines,
    Link,
    Rules,
    Section,
    Span,
    Step,
    Steps,
    Table,
    Text,
    Value,
    Verbatim,
)
from suite.render.lead import RED
from suite.render.sections.lost_time import stack
from suite.verdict import Outcome
from suite.verdict.metrics import Interval

MOST = 60  # cells that have a fold of their own
DRAWN = "faster ← → slower"


def cells(record: Record) -> Section:
    """Return the table of all cells, the gravest first, what is missing in it, and a fold for each cell."""
    if not record.cells:
        return Section("cells", "Cells", ())
    shown = once(figures.gravest_first(record.cells))
    blocks: list[Block] = [table(record, shown)]
    if figures.is_compared(record) and (line := lead.no_baseline(record)):
        blocks.append(Text(line))
    blocks.append(Text(_legend(record), muted=True))
    blocks += lead.told(record, "cells")
    if missing := figures.missing(record.cells):
        blocks.append(Lines(tuple(missing[:MOST]), len(missing[MOST:])))
    blocks += [_cell(record, cell) for cell in shown[:MOST]]
    return Section("cells", "Cells", tuple(blocks))


def once(cells: Iterable[CellRecord]) -> list[CellRecord]:
    """Return cells without the second of a trainer's two on one device, where strong and weak are one measurement."""
    first: dict[tuple[object, ...], CellRecord] = {}
    for cell in cells:
        found = (cell.outcome, cell.reason, cell.sec_per_epoch)
        place = (*cell.place[:2], measured_mode(cell.mode, cell.world_size), cell.world_size)
        first.setdefault((*place, *found) if cell.world_size == 1 else (cell.id,), cell)
    return list(first.values())


def _legend(record: Record) -> str:
    shortened = any(run.shortened for run in record.accuracies)
    return (
        "Square brackets are 95 % intervals over sessions of fresh processes. Efficiency is R_k / (k R_1) of the same "
        "trainer; the speed-up is over the plain trainer on one device; “published” is what the documents print for "
        "this run on their own GPUs."
        + (" * trained for less than the recipe says, because this is a CPU." if shortened else "")
    )


def table(record: Record, cells: Sequence[CellRecord]) -> Table:
    """Return the verdict and the figures of these cells; the first ones' names lead to their folds."""
    alone = {cell.id for cell in cells[:MOST]}
    after = figures.COLUMNS.index("time / base") + 1
    return Table.of(
        "Figures of each cell" + (", what needs attention first" if figures.is_compared(record) else ""),
        (*figures.COLUMNS[:after], DRAWN, *figures.COLUMNS[after:]),
        (
            (
                *_named(cell, row[:after], linked=cell.id in alone),
                _drawn(cell.slowdown, cell.outcome),
                *row[after:],
            )
            for cell, row in zip(cells, figures.rows(record, cells), strict=True)
        ),
        numbers=[column for column in figures.COLUMNS if column not in ("cell", "verdict")],
        rules=Rules((1.0, 1.0 + record.tolerance), log=True),
        total=len(cells),
    )


def _named(cell: CellRecord, fields: Sequence[str], *, linked: bool) -> Iterator[Value]:
    """Yield the first fields of a row: the cell's name leads to its fold, and its verdict is a badge."""
    name, size, verdict, *others = fields
    yield Link(name, f"#{anchor(cell)}") if linked else name
    yield size
    yield Badge(verdict) if verdict != NONE else NONE
    yield from others


def _drawn(ratio: Interval | None, outcome: Outcome) -> Drawn:
    return Drawn((Span.dot(ratio, "fail" if outcome is Outcome.FAIL else "bar"),))


def anchor(cell: CellRecord) -> str:
    """Return the anchor of a cell's fold."""
    return f"cell-{cell.id}"


def _cell(record: Record, cell: CellRecord) -> Fold:
    """Return all about one cell."""
    about = [text for text in (cell.reason, *cell.cautions) if text]
    if cell.own_waterfall:
        about += [
            fall.sentence if fall.side == "candidate" else f"{fall.side}: {fall.sentence}" for fall in cell.waterfalls
        ]
    blocks: list[Block] = [Lines(tuple(about))] if about else []
    [row] = figures.rows(record, [cell])
    known = [pair for pair in zip(figures.COLUMNS, row, strict=True) if pair[1] != NONE]
    blocks.append(Facts(tuple(known[1:])))
    if cell.waterfalls:
        blocks.append(stack(cell))
    if cell.outcome in RED:
        blocks.append(Steps((Step("measure it alone", commands.only(record, [cell])),)))
    if cell.checks:
        blocks.append(_checks(record, [(cell, check) for check in cell.checks], whose=False))
    columns, rows = figures.counted([cell])
    if rows:
        blocks.append(Table.of("What one step does", columns, rows, numbers=columns[3:]))
    if cell.details:
        blocks.append(Text("What its ranks said"))
        blocks.append(Verbatim(cell.details))
    return Fold(f"{cell.label}: {cell.outcome.value}", tuple(blocks), anchor=anchor(cell))


def rules(record: Record) -> Section:
    """Return what every rule found for every cell, the gravest cells first; open where a rule failed a cell."""
    checks = [(cell, check) for cell in figures.gravest_first(record.cells) for check in cell.checks]
    if not checks:
        return Section("rules", "What each rule found", ())
    blocks: list[Block] = [Text(f"Compared with {figures.compared_with(record)}.")]
    if record.bases:
        bases = (
            (base.label, f"{base.kind}, {base.side}", (base.commit or "-")[:12],
             figures.versions(base.versions) or "as the candidate's")
            for base in record.bases
        )  # fmt: skip
        blocks.append(
            Table.of("What the candidate was compared with", ("base", "kind", "commit", "versions"), list(bases))
        )
    blocks.append(_checks(record, checks))
    news = any(check.counts and check.outcome in RED for _, check in checks)
    return Section("rules", "What each rule found", tuple(blocks), folded=True, open=news)


def _checks(record: Record, checks: Sequence[tuple[CellRecord, CheckRecord]], *, whose: bool = True) -> Table:
    columns = ("cell", "rule", "against", "outcome", "time / base", DRAWN, "why")
    tolerance = figures.number(record.tolerance, ".1%")
    return Table.of(
        f"What each rule found; the lines are at no slowdown and at the tolerance of {tolerance}",
        columns if whose else columns[1:],
        (row if whose else row[1:] for row in _found(checks)),
        numbers=("time / base",),
        rules=Rules((1.0, 1.0 + record.tolerance), log=True),
        total=len(checks),
    )


def _found(checks: Sequence[tuple[CellRecord, CheckRecord]]) -> Iterator[tuple[Value, ...]]:
    for cell, check in checks:
        yield (
            cell.label,
            check.rule,
            check.against,
            Badge(check.outcome.value, check.counts),
            figures.interval(check.ratio, ".3f"),
            _drawn(check.ratio, check.outcome),
            check.reason,
        )
