"""The page of a run as data: its first screen, and its sections in reading order. Pure.

The first screen has a sentence of verdict, a picture of what was asked, where the time went, and what to type next.
With a base the picture is the time of each cell over that of the base, the worst first. Without one it is the speed-up
over the number of devices, or the speed of each cell where there is one device only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from suite.records.baselines import Baseline
from suite.records.record import CellRecord, Record
from suite.render import figures, lead
from suite.render.document import Chart, Document, First, Intervals, Row, Rules, Span, Stack
from suite.render.figures import interval, number, plural, some
from suite.render.sections.cells import cells, once, rules
from suite.render.sections.details import counted, held, samples
from suite.render.sections.exchange import exchange
from suite.render.sections.learning import learning
from suite.render.sections.lost_time import lost_time, stack
from suite.render.sections.machine import machine, newest
from suite.render.sections.scaling import scaling, speedups
from suite.verdict import Outcome
from suite.verdict.metrics import Interval

MOST = 12  # cells in the picture
MOST_NAMES = 3
SLOWER = ("time", "drift")  # the rules that fail a cell for being slower than a base


def document(record: Record, baseline: Baseline | None = None) -> Document:
    """Return a run's page; without the baseline of its machine it does not show what changed since then."""
    sections = (
        cells(record),
        lost_time(record),
        scaling(record, newest(record, baseline)),
        learning(record),
        exchange(record),
        machine(record, baseline),
        rules(record),
        counted(record),
        held(record),
        samples(record),
    )
    return Document(
        f"Scaling: {lead.title(record)}",
        first(record),
        tuple(section for section in sections if section.blocks),
        _origin(record),
    )


def _origin(record: Record) -> str:
    data = [
        f"{name}: {data} ({figures.number(record.epoch_samples.get(name, 0), ',')} samples)"
        for name, data in sorted(record.datasets.items())[:20]
    ]
    timed = f" Timed on {', '.join(data)}." if data else ""
    return (
        f"Commit {figures.commit(record.environment)} on {record.machine.key}, {figures.when(record.started_utc)} UTC; "
        f"compared with {figures.compared_with(record)}, tolerance {figures.number(record.tolerance, '.1%')}; "
        f"{figures.took(record)}.{timed}"
    )


def first(record: Record) -> First:
    """Return the first screen of a run."""
    pictures = tuple(picture for picture in (asked(record), lost(record)) if picture is not None)
    gravest = figures.gravest_first(record.cells)
    return First(
        outcome=gravest[0].outcome.value if gravest and figures.is_compared(record) else "",
        sentence=sentence(record),
        summary=_summary(record),
        notes=tuple(_notes(record)),
        pictures=pictures,
        why=tuple(_why(record)),
        answers=tuple(_answers(record)),
        steps=tuple(lead.steps(record)),
        muted=" ".join(_muted(record)),
        about="Scaling: ",
    )


def _summary(record: Record) -> str:
    counts = f"{figures.headline(cell.outcome for cell in record.cells)}. " if record.cells else ""
    hosts = f" on {plural(record.machine.hosts, 'host')}" if record.machine.hosts > 1 else ""
    return f"{counts}{figures.took(record)}{hosts}."


def sentence(record: Record) -> str:
    """Return the answer in a sentence: which cell is slower and by how much, or what a first run measured."""
    if not figures.is_compared(record):
        return lead.title(record)
    of = {outcome: [cell for cell in record.cells if cell.outcome is outcome] for outcome in Outcome}
    if failed := of[Outcome.FAIL]:
        return _failed(record, failed)
    if lost_cells := of[Outcome.ERROR]:
        return f"{some([cell.label for cell in lost_cells], MOST_NAMES)} could not be measured"
    if undecided := len(of[Outcome.INCONCLUSIVE]):
        are = "is" if undecided == 1 else "are"
        return f"{undecided} of {plural(len(record.cells), 'cell')} {are} not decided; none failed"
    tolerance = number(record.tolerance, ".1%").replace(".0%", "%").replace("%", " %")
    none = "No cell" if not of[Outcome.NO_BASELINE] else f"None of the {len(of[Outcome.PASS])} cells that have a base"
    return f"{none} is slower than {base(record)} by the tolerance of {tolerance}"


def _failed(record: Record, failed: Sequence[CellRecord]) -> str:
    """Return which cell failed most, by how much it is slower or else why it failed, and how many others failed."""
    more = len(failed) - 1
    others = f", and {plural(more, 'other cell')} fail{'s' if more == 1 else ''} too" if more else ""
    slower = [
        (check.ratio, cell, check.against)
        for cell in failed
        for check in cell.checks
        if check.rule in SLOWER and check.outcome is Outcome.FAIL and check.ratio is not None
    ]
    if not slower:
        return f"{failed[0].label}: {failed[0].reason}{others}"
    ratio, cell, against = max(slower, key=lambda each: each[0].estimate)
    return f"{cell.label} is {_percent(ratio)} slower than {record.against or against}{others}"


def base(record: Record) -> str:
    """Return what cells were compared with, in a few words."""
    return record.against or "the accepted runs"


def _percent(ratio: Interval) -> str:
    """Return by how much a cell is slower, with its interval: '10.3 % [8.1, 12.4]'."""
    text = f"{number(100 * (ratio.estimate - 1), '.1f')} %"
    if ratio.low is None or ratio.high is None:
        return text
    return f"{text} [{number(100 * (ratio.low - 1), '.1f')}, {number(100 * (ratio.high - 1), '.1f')}]"


def _slower_first(cells: Iterable[CellRecord]) -> list[CellRecord]:
    known = [(cell.slowdown.estimate, cell) for cell in cells if cell.slowdown is not None]
    return [cell for _, cell in sorted(known, key=lambda pair: pair[0], reverse=True)]


def asked(record: Record) -> Intervals | Chart | None:
    """Return the picture of what was asked; None where nothing was measured."""
    cells = once(figures.gravest_first(record.cells))
    if compared := _slower_first(cells):
        lost_cells = [cell for cell in cells if cell.outcome is Outcome.ERROR and cell.slowdown is None]
        rows = [_row(cell) for cell in figures.gravest_first([*compared, *lost_cells])]
        rules = Rules((1.0, 1.0 + record.tolerance), log=True)
        title = f"Time / {base(record)}; the dashed line is the tolerance"
        return Intervals(title, tuple(rows[:MOST]), rules, len(rows[MOST:]))
    timed = [cell for cell in cells if cell.samples_per_s is not None]
    several = [cell for cell in timed if cell.world_size > 1 and figures.gain(cell) is not None]
    if several:
        workload = max(several, key=lambda cell: cell.world_size).workload
        if (chart := speedups(record, workload)) is not None:
            return chart
    rows = [
        Row(cell.label, Span.dot(cell.samples_per_s), f"{interval(cell.samples_per_s, ',.0f', bounds=False)} samples/s")
        for cell in timed
    ]
    return Intervals("Samples a second", tuple(rows[:MOST]), Rules(), len(rows[MOST:])) if rows else None


def _row(cell: CellRecord) -> Row:
    style = "fail" if cell.outcome is Outcome.FAIL else "bar"
    text = interval(cell.slowdown, ".3f") if cell.slowdown else "not measured"
    return Row(cell.label, Span.dot(cell.slowdown, style), text, cell.outcome.value)


def worst(record: Record) -> CellRecord | None:
    """Return the cell whose lost time is shown: the slowest that failed, or that which loses the largest share."""
    apart = [cell for cell in record.cells if cell.own_waterfall is not None]
    failed = _slower_first(cell for cell in apart if cell.outcome is Outcome.FAIL)
    return failed[0] if failed else max(apart, key=_lost, default=None)


def _lost(cell: CellRecord) -> tuple[bool, float]:
    """Return whether a part is known to cost time, and which share of the step is lost."""
    fall = cell.own_waterfall
    if fall is None or fall.measured_s.estimate <= 0:
        return False, 0.0
    return fall.named is not None, 1 - fall.ideal_s.estimate / fall.measured_s.estimate


def _told(cell: CellRecord, *, known: bool) -> Iterable[str]:
    """Yield the sentence of a cell's waterfall if a part of the step is known to cost time, or if none is."""
    fall = cell.own_waterfall
    if fall is not None and (fall.named is not None) is known:
        yield f"{cell.label}: {fall.sentence}"


def lost(record: Record) -> Stack | None:
    """Return where the time of the worst cell went; None where no cell was taken apart."""
    cell = worst(record)
    return None if cell is None else stack(cell)


def _why(record: Record) -> Iterable[str]:
    """Yield the sentence of the worst cell's waterfall where it names a part, and what changed in its step."""
    cell, said = worst(record), sentence(record)
    if cell is not None:
        yield from _told(cell, known=True)
    else:
        failed = [each for each in figures.gravest_first(record.cells) if each.outcome in lead.RED]
        yield from (each.reason for each in failed[:1] if each.reason not in said)
    yield from (fact.lines[0] for fact in lead.facts(record, "counters"))


def _notes(record: Record) -> Iterable[str]:
    """Yield what must be known first: that the run was cut short, what is wrong with the hardware, and warnings."""
    if record.interrupted:
        yield figures.cut_short(record)
    known = {fact.name: fact.lines for fact in lead.facts(record, "machine", "cells")}
    for name in ("Hardware", "Commit", "Workload", "Warnings"):
        lines = known.get(name, ())
        if lines:
            more = f" (and {len(lines) - 1} more, below)" if len(lines) > 1 else ""
            yield f"{name}: {lines[0]}{more}"


def _answers(record: Record) -> Iterable[tuple[str, str]]:
    facts = {fact.name: fact.lines for fact in lead.facts(record, "cells")}
    if right := facts.get("Is it right?"):
        yield "Right?", right[0]
    sessions = len(record.sessions)
    if sessions:
        over = f"95 % intervals over {sessions} sessions of fresh processes"
        yield "How sure?", f"{over if sessions > 1 else 'One session shows no interval'}; {figures.quiet(record)}."


def _muted(record: Record) -> Iterable[str]:
    """Yield what is not known."""
    if line := lead.no_baseline(record):
        yield f"{line}."
    apart = worst(record)
    if apart is not None:
        yield from _told(apart, known=False)
    without = [cell for cell in record.cells if cell.world_size > 1 and not cell.waterfalls and cell.why("waterfall")]
    if without and apart is not None:
        yield f"{plural(len(without), 'cell')} {'was' if len(without) == 1 else 'were'} not taken apart."
    elif without:
        yield f"Where the time went is not known: {without[0].why('waterfall')}."
