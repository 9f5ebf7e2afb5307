"""What a reader sees first: is it right, is it slower, how fast, what holds it back, how sure, what to type. Pure.

A run that was compared with something leads with its verdict. One that was not, the first on a machine, leads with
what it found: its cells have the same verdict, and that stands in one line. Terminal, summary.md and report.html show
the same facts. Cells whose reason is the same share a line, which names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from suite.plan.cells import short
from suite.records.record import BarRecord, CellRecord, Record
from suite.render import commands, figures
from suite.render.figures import interval, number
from suite.verdict import Outcome
from suite.verdict.diagnose import outdone, supported

MOST = 6  # lines of a fact, and names in a line
GRAVE = (Outcome.FAIL, Outcome.ERROR, Outcome.INCONCLUSIVE)
WORTH_SAYING = 0.01  # of the step, that a cause costs


@dataclass(frozen=True)
class Fact:
    """The answer to one question, in lines."""

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """A command, and what it is for."""

    what: str
    command: str


@dataclass(frozen=True)
class Lead:
    """The first screen; `title` is without the word "Scaling"."""

    title: str
    facts: tuple[Fact, ...]
    steps: tuple[Step, ...]


def lead(record: Record) -> Lead:
    """The facts that there are, in reading order, and at most six commands."""
    compared = is_compared(record)
    answers = (
        ("Verdict", tuple(verdicts(record)) if compared else ()),
        ("Is it right?", tuple(_right(record))),
        ("How fast?", tuple(_fast(record))),
        ("Efficiency", tuple(_efficiency(record))),
        ("Held back by", tuple(_held_back(record))),
        ("How sure?", tuple(_sure(record))),
    )
    facts = tuple(Fact(name, _some(lines)) for name, lines in answers if lines)
    return Lead(title(record), facts, tuple(_steps(record)))


def is_compared(record: Record) -> bool:
    """Whether any cell has a verdict, or failed."""
    return any(cell.outcome is not Outcome.NO_BASELINE for cell in record.cells)


def title(record: Record) -> str:
    """The verdicts, or what a first run found."""
    sped = [cell for cell in record.cells if cell.speedup is not None and not cell.oversubscribed]
    if is_compared(record) or not sped:
        return figures.headline(record)
    best = max(sped, key=lambda cell: (cell.world_size, cell.speedup.estimate if cell.speedup else 0.0))
    if best.world_size == 1:
        return f"{best.workload} on one device, {interval(best.samples_per_s, ',.0f', bounds=False)} samples/s"
    times = interval(best.speedup, ".2f", bounds=False)
    return f"{best.workload} runs {times} times as fast on {_devices(best.world_size)} as on one"


def verdicts(record: Record) -> list[str]:
    """A line for every outcome and reason, the gravest first, with the cells it holds for; PASS without reasons."""
    groups: dict[tuple[Outcome, str], list[CellRecord]] = {}
    for cell in figures.graver_first(record.cells):
        groups.setdefault((cell.outcome, cell.reason if cell.outcome in GRAVE else ""), []).append(cell)
    lines = []
    for (outcome, reason), cells in groups.items():
        who = names(cells) if outcome in GRAVE else _count(len(cells))
        lines.append(f"{outcome.value}: {who}{f': {reason}' if reason else ''}")
    return lines


def no_baseline(record: Record) -> str:
    """All cells that have nothing to be compared with, in a line; empty where there are none."""
    count = sum(1 for cell in record.cells if cell.outcome is Outcome.NO_BASELINE)
    how = "accept a run like this one, or measure a base beside it (the commands are above)"
    return f"{Outcome.NO_BASELINE.value}: {_count(count)}; {how}" if count else ""


def names(cells: Sequence[CellRecord]) -> str:
    """The ids of cells, a few of many."""
    more = f" and {len(cells) - MOST} more" if len(cells) > MOST else ""
    return ", ".join(cell.id for cell in cells[:MOST]) + more


def _some(lines: Sequence[str]) -> tuple[str, ...]:
    if len(lines) <= MOST:
        return tuple(lines)
    return (*lines[: MOST - 1], f"and {len(lines) - MOST + 1} more, below")


def _count(count: int) -> str:
    return f"{count} cell{'s' if count != 1 else ''}"


def _devices(count: int) -> str:
    return f"{number(count, 'd')} device{'s' if count != 1 else ''}"


def _right(record: Record) -> Iterable[str]:
    if record.cells:
        yield "This run did not check gradients; the command that does is below."
    alone = {_group(cell): cell.accuracy for cell in record.cells if cell.world_size == 1}
    less = [
        cell.accuracy - one
        for cell in record.cells
        if cell.world_size > 1 and cell.accuracy is not None and (one := alone.get(_group(cell))) is not None
    ]
    if less:
        seeds = len({run.seed for run in record.accuracies})
        pairs = (
            "one pair of trainings each, which shows large losses only" if seeds == 1 else f"{seeds} seed pairs each"
        )
        ends = " to ".join(dict.fromkeys(number(end, "+.3f") for end in (min(less), max(less))))
        yield f"Accuracy on several devices less that on one: {ends} in {_count(len(less))} ({pairs})."


def _group(cell: CellRecord) -> tuple[str, str, str]:
    return cell.trainer, cell.workload, cell.mode


def _fastest(record: Record) -> Iterable[CellRecord]:
    """The cell of every workload that has most samples a second."""
    timed = [cell for cell in record.cells if cell.samples_per_s is not None and not cell.oversubscribed]
    timed.sort(key=lambda cell: cell.samples_per_s.estimate if cell.samples_per_s else 0.0, reverse=True)
    return {cell.workload: cell for cell in reversed(timed)}.values()


def _fast(record: Record) -> Iterable[str]:
    for cell in _fastest(record):
        times = f"; {interval(cell.speedup, '.2f')} times the plain trainer on one" if cell.speedup else ""
        speed = f"{interval(cell.samples_per_s, ',.0f', bounds=False)} samples/s"
        epoch = f"{interval(cell.sec_per_epoch, '.3g')} s an epoch"
        yield f"{figures.name(cell)} on {_devices(cell.world_size)}: {speed}, {epoch}{times}"


def _efficiency(record: Record) -> Iterable[str]:
    """At the largest world size of each workload and mode, the best trainer first."""
    known = [cell for cell in record.cells if cell.efficiency is not None and cell.world_size > 1]
    if not known:
        notes = dict.fromkeys(cell.efficiency_note for cell in record.cells if cell.efficiency_note)
        yield from notes
    several = len({cell.workload for cell in known}) > 1
    known.sort(key=lambda cell: (cell.workload, cell.mode))
    for (workload, mode), group in groupby(known, key=lambda cell: (cell.workload, cell.mode)):
        cells = list(group)
        largest = max(cell.world_size for cell in cells)
        at = [cell for cell in cells if cell.world_size == largest]
        at.sort(key=lambda cell: cell.efficiency.estimate if cell.efficiency else 0.0, reverse=True)
        each = ", ".join(f"{short(cell.trainer)} {interval(cell.efficiency, '.2f')}" for cell in at[:MOST])
        more = f" and {len(at) - MOST} more" if len(at) > MOST else ""
        yield f"{f'{workload} ' if several else ''}{mode} on {_devices(largest)}: {each}{more}"


def _held_back(record: Record) -> Iterable[str]:
    """After a FAIL beside a base what grew; otherwise what each cell loses most to, as far as that is known."""
    apart = [(cell, fall) for cell in record.cells for fall in cell.waterfalls if fall.side == "candidate"]
    failed = [(cell, fall) for cell, fall in apart if len(cell.waterfalls) > 1]
    if failed:
        yield from (f"{cell.id}: {fall.sentence}" for cell, fall in failed)
        return
    causes = _causes(record)
    for cause in causes:
        cost = f"{interval(cause.bar.step_s, '.1f', factor=1e3)} ms a step ({number(cause.share * 100, '.0f')} %)"
        more = "; another part may cost more" if cause.outdone else ""
        yield f"{cause.cell.id}: {figures.causes(cause.bar)}, {cost}{more}"
    named = {cause.cell.id for cause in causes}
    unknown = [cell for cell, _ in apart if cell.id not in named]
    if unknown:
        sessions = max(fall.sessions for _, fall in apart)
        yield f"not known after {sessions} session{'s' if sessions != 1 else ''}: {names(unknown)}"


class _Cause(NamedTuple):
    """A part of a cell's step that its interval supports, the share of the step, and whether another may be larger."""

    cell: CellRecord
    bar: BarRecord
    share: float
    outdone: bool


def _causes(record: Record) -> list[_Cause]:
    """The largest share first."""
    found = []
    for cell in record.cells:
        for fall in cell.waterfalls:
            parts_s = [bar.step_s for bar in fall.bars]
            named = supported(parts_s, fall.sessions)
            if fall.side == "candidate" and named is not None and fall.measured_s.estimate > 0:
                share = parts_s[named].estimate / fall.measured_s.estimate
                found.append(_Cause(cell, fall.bars[named], share, outdone(parts_s, named)))
    return sorted((each for each in found if each.share >= WORTH_SAYING), key=lambda each: each.share, reverse=True)


def _sure(record: Record) -> Iterable[str]:
    sessions = len(record.sessions)
    if sessions > 1:
        yield f"Square brackets are 95 % intervals over {sessions} sessions of fresh processes."
    elif sessions:
        yield "One session shows no spread: no figure has an interval."
    yield figures.disturbances(record)
    yield from (f"Not alone: {neighbour}" for neighbour in record.neighbours[:2])


def _refused(record: Record) -> bool:
    """Whether a run like this cannot be accepted, as `suite.records.baselines.accept` has it."""
    return record.interrupted or any(cell.outcome is Outcome.ERROR for cell in record.cells)


def _steps(record: Record) -> Iterable[Step]:
    if not record.cells:
        return
    of = {outcome: [cell for cell in record.cells if cell.outcome is outcome] for outcome in Outcome}
    for outcome in (Outcome.FAIL, Outcome.ERROR):
        if of[outcome]:
            yield Step(f"see the {outcome.value} again", commands.only(record, of[outcome]))
    if of[Outcome.INCONCLUSIVE]:
        yield Step("decide what is INCONCLUSIVE", commands.longer(record, of[Outcome.INCONCLUSIVE]))
    yield Step("check the gradients", commands.correctness(record))
    if of[Outcome.FAIL] and not _refused(record):
        yield Step("measure it again and accept it as slower", commands.accept(record, "slower"))
    elif not _refused(record):
        yield Step("measure it again as the baseline", commands.accept(record))
    if record.against is None:
        yield Step(f"compare with {record.environment.main or 'main'}", commands.against_main(record))
    yield from _about_causes(record)


def _about_causes(record: Record) -> Iterable[Step]:
    """What helps against the largest cause, or to find it."""
    causes = _causes(record)
    if not causes:
        unknown = [cell for cell in record.cells if cell.waterfalls and cell.outcome is Outcome.NO_BASELINE]
        if unknown:
            yield Step("learn what holds it back", commands.longer(record, unknown))
        return
    cell, bar = causes[0].cell, causes[0].bar
    name = figures.causes(bar)
    if bar.causes != ("small batch",):
        yield Step(f"look inside a step ({name})", commands.trace(record, cell))
    elif any(_group(other) == (cell.trainer, cell.workload, "weak") for other in record.cells):
        yield Step("see which accuracy a larger batch has", commands.sweep(record, cell))
    else:
        yield Step("keep the batch on a device", commands.weak(record, cell))
