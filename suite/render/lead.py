"""Answers in words: is it right, how fast, what holds it back, how sure, what to type next. Pure.

Each answer belongs to a section of the page, which begins with it; the terminal shows all of them below its table.
Cells with the same reason share a line, which names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from rich.filesize import decimal

from suite.plan.cells import SINGLE
from suite.properties.answers import UNSEEN
from suite.records import baselines, counters
from suite.records.record import BarRecord, CellRecord, Machine, Record, oversubscribed_mark
from suite.render import commands, figures
from suite.render.document import Block, Facts, Fold, Lines, Step
from suite.render.figures import interval, number, plural, size, some
from suite.room import hardware
from suite.verdict import Outcome
from suite.verdict.diagnose import bar_name, outdone
from suite.verdict.metrics import Interval

MOST = 6  # lines of a fact, and names in a line
MOST_FOLDED = 200  # further lines of the facts of a section
FEW_RED = 3  # cells of one outcome that have a command each here; of more, each has its own below
RED = (Outcome.FAIL, Outcome.ERROR)
GRAVE = (*RED, Outcome.INCONCLUSIVE)
WORTH_SAYING = 0.01  # the smallest share of a step that is reported as a cause
BY_SESSIONS = ("time", "drift", "floor", "accuracy")  # the rules that a longer run may decide


class Fact(NamedTuple):
    """The answer to one question, which `name` names."""

    name: str
    lines: tuple[str, ...]  # at most `MOST`
    left_out: tuple[str, ...] = ()  # further lines, which the last one counts


def facts(record: Record, *sections: str) -> list[Fact]:
    """Return what there is to say, in reading order; where sections are named, what belongs to these alone."""
    answers = (
        ("Hardware", "machine", _hardware),
        ("The machine", "machine", _machine),
        ("Commit", "machine", _commit),
        ("Workload", "cells", _workload),
        ("Verdict", "cells", lambda record: verdicts(record) if figures.is_compared(record) else ()),
        ("Warnings", "cells", cautions),
        ("What changed in a step?", "counters", _changed),
        ("The machine", "machine", _machine_left_out),
        ("Is it right?", "cells", _right),
        ("How fast?", "cells", _fast),
        ("Memory", "memory", _memory),
        ("Efficiency", "scaling", _efficiency),
        ("Exchange", "exchange", _exchange),
        ("Held back by", "lost_time", _held_back),
        ("How sure?", "machine", _sure),
    )
    wanted = ((name, answer) for name, section, answer in answers if not sections or section in sections)
    every = (_shortened(name, tuple(answer(record))) for name, answer in wanted)
    return [fact for fact in every if fact.lines]


def told(record: Record, section: str) -> list[Block]:
    """Return the answers that a section begins with."""
    found = facts(record, section)
    blocks: list[Block] = []
    if found:
        blocks.append(Facts(tuple((fact.name, "\n".join(fact.lines)) for fact in found)))
    if left_out := tuple(line for fact in found for line in fact.left_out):
        blocks.append(Fold(f"{len(left_out)} more", (Lines(left_out[:MOST_FOLDED], len(left_out[MOST_FOLDED:])),)))
    return blocks


def title(record: Record) -> str:
    """Return the title without the word "Scaling": the cells by outcome, what a first run measured, or the sweeps."""
    if record.collectives and not record.cells:
        failed = sum(1 for sweep in record.collectives if sweep.error)
        swept = f"{plural(len(record.collectives), 'sweep')} of collectives"
        return f"{swept}, {failed} ERROR" if failed else swept
    sped = [cell for cell in record.cells if figures.gain(cell) is not None and not cell.oversubscribed]
    if figures.is_compared(record) or not sped:
        return figures.headline(cell.outcome for cell in record.cells)
    most = max(sped, key=lambda cell: (cell.world_size, _estimate(figures.gain(cell))))
    alike = [cell for cell in sped if (cell.workload, cell.world_size) == (most.workload, most.world_size)]
    best = max(alike, key=lambda cell: _estimate(cell.samples_per_s))  # as in "How fast?"
    if best.world_size == 1:
        return f"{best.workload} on one device, {figures.speed(best)}"
    times = interval(figures.gain(best), ".2f", bounds=False)
    where = f"on {plural(best.world_size, 'device')} as {'' if best.runs_script else 'the plain trainer '}on one"
    what = best.workload
    if ":" in best.trainer and best.workload in _not_named(record):
        what = f"{figures.names(record)[best.trainer]} on the built-in {best.workload}"
    return f"{what} runs {times} times as fast {where}"


def _not_named(record: Record) -> list[str]:
    """Return the built-in workloads of a run for which the user has named none."""
    if any(argument.startswith("--scaling-workload") for argument in record.repeat):
        return []
    return [name for name, workload in record.workloads.items() if not workload.is_the_users]


def _workload(record: Record) -> Iterable[str]:
    """Yield what the user's own trainers train where the user has not said it."""
    own = {cell.workload for cell in record.cells if ":" in cell.trainer}
    if built_in := [name for name in _not_named(record) if name in own]:
        yield f"the built-in {', '.join(built_in)}; --scaling-workload names your own"


def _hardware(record: Record) -> Iterable[str]:
    """Yield what is unusual on the GPUs; nothing on a sound machine. It changes no outcome."""
    if record.machine.problem:
        yield record.machine.problem
    blocks = [conditions.gpus for session in record.sessions for conditions in session.conditions]
    yield from hardware.unusual(record.machine.cards, blocks)


def _commit(record: Record) -> Iterable[str]:
    """Yield why git does not tell the commit; nothing where it does."""
    if record.environment.commit_problem:
        yield f"unknown, so no later run can rebuild this one: {record.environment.commit_problem}"


def verdicts(record: Record) -> list[str]:
    """Return a line for every outcome and reason with its cells, the gravest first; PASS has no reasons."""
    said = (
        ((cell.outcome, cell.reason if cell.outcome in GRAVE else ""), cell)
        for cell in figures.gravest_first(record.cells)
    )
    lines = []
    for (outcome, reason), cells in figures.labels(said).items():
        who = some(cells, MOST) if outcome in GRAVE else plural(len(cells), "cell")
        lines.append(f"{outcome.value}: {who}{f': {reason}' if reason else ''}")
    return lines


def no_baseline(record: Record) -> str:
    """Return a line on the cells that have nothing to be compared with; empty where there are none."""
    count = sum(1 for cell in record.cells if cell.outcome is Outcome.NO_BASELINE)
    how = "accept a run like this one, or measure a base in the same run"
    if baselines.refusal(record):
        how = "measure a base in the same run, or accept a run that ends without an ERROR"
    return f"{Outcome.NO_BASELINE.value}: {plural(count, 'cell')}; {how}" if count else ""


def _shortened(name: str, lines: tuple[str, ...]) -> Fact:
    """Return a fact of at most `MOST` lines, the last of which counts what is left out."""
    if len(lines) <= MOST:
        return Fact(name, lines)
    left_out = lines[MOST - 1 :]
    return Fact(name, (*lines[: MOST - 1], f"and {len(left_out)} more, below"), left_out)


def _estimate(value: Interval | None) -> float:
    return value.estimate if value else 0.0


def _changed(record: Record) -> Iterable[str]:
    """Yield what steps do that a base's, or an accepted run's, do not, with the cells of each change."""
    changed = (
        (f"{check.reason} (against {check.against})", cell)
        for cell in figures.gravest_first(record.cells)
        for check in cell.checks
        if check.rule == counters.RULE and check.outcome is not Outcome.PASS
    )
    yield from (f"{some(cells, MOST)}: {what}" for what, cells in figures.labels(changed).items())
    yield from _connected_otherwise(record)


def _connected_otherwise(record: Record) -> Iterable[str]:
    """Yield arms whose GPUs NCCL connected by other transports than those of the same trainer on another side."""
    candidates = {arm.id.removeprefix("candidate"): arm for arm in record.arms if arm.side == "candidate"}
    for other in record.arms:
        own = candidates.get(other.id.removeprefix(other.side))
        if own is not None and own.transports and other.transports and set(own.transports) != set(other.transports):
            both = (", ".join(arm.transports) for arm in (own, other))
            yield f"{own.id}: NCCL connected its GPUs by {' (against '.join(both)} of {other.id})"


def cautions(record: Record) -> list[str]:
    """Return the warnings of all cells, those of the gravest cells first."""
    return [f"{cell.label}: {said}" for cell in figures.gravest_first(record.cells) for said in cell.cautions]


def _machine(record: Record) -> Iterable[str]:
    """Yield why the machine itself could not be judged; where it failed, the verdict says so."""
    unclear = (
        (check.reason, cell)
        for cell in record.cells
        for check in cell.checks
        if check.rule == "machine" and check.outcome is Outcome.INCONCLUSIVE
    )
    yield from (f"INCONCLUSIVE by {some(cells, MOST)}: {reason}" for reason, cells in figures.labels(unclear).items())


def _machine_left_out(record: Record) -> Iterable[str]:
    """Yield that a run with a base judges neither machine nor drift; nothing where it has no efficiency to judge."""
    if record.against is not None and any(cell.world_size > 1 and not cell.oversubscribed for cell in record.cells):
        yield "neither it nor drift is judged with --scaling-against; a run without it judges both by accepted runs"


def _right(record: Record) -> Iterable[str]:
    """Yield what the run says about correctness."""
    if record.checks_to_come:
        checks = f"{plural(record.checks_to_come, 'check')} of correctness"
        yield f"This run goes on with {checks}; pytest's closing line and JUnit give the outcome."
    elif record.cells:
        yield "This run did not check gradients; pytest -m correctness does."
    names = figures.names(record)
    classes = [arm for arm in record.arms if arm.side == "candidate" and not arm.runs_script]
    own = [arm for arm in classes if arm.oracle == "self" and not arm.has_reference]
    if trainers := list(dict.fromkeys(names.get(arm.trainer, arm.trainer) for arm in own)):
        yield f"{some(trainers, MOST)}: {UNSEEN}."
    differences = _differences(record)
    if differences:
        less = [sum(of_seeds) / len(of_seeds) for of_seeds in differences]
        fewest, most = min(map(len, differences)), max(map(len, differences))
        one = "one pair of trainings each, which shows only large losses"
        pairs = one if most == 1 else f"{fewest if fewest == most else f'{fewest} to {most}'} seed pairs each"
        ends = " to ".join(dict.fromkeys(number(end, "+.3f") for end in (min(less), max(less))))
        yield f"Accuracy on several devices minus accuracy on one: {ends} in {plural(len(less), 'cell')} ({pairs})."
    on_one = _on_one_device(record)
    yield from (f"{some(cells, MOST)}: {reason}." for reason, cells in on_one.items())
    if record.against is not None and any(not cell.runs_script for cell in record.cells):
        yield "Accuracy is not judged with --scaling-against; a run without it trains nets where the budget has time."
    elif not differences and not on_one and (record.accuracies or _without_accuracy(record)):
        yield from _accuracy_not_judged(record)
    elif untrained := [cell for cell in _without_accuracy(record) if cell.world_size > 1]:
        untrained.sort(key=lambda cell: cell.world_size)
        yield f"Accuracy is not judged by {some([cell.label for cell in untrained], MOST)}; the report says why."


def _without_accuracy(record: Record) -> list[CellRecord]:
    """Return the cells that have a recipe, and of which no net was trained by it."""
    return [cell for cell in record.cells if cell.why("accuracy") and not cell.lacks("accuracy", "no recipe")]


def _accuracy_not_judged(record: Record) -> Iterable[str]:
    """Yield why nothing is said of accuracy, though there are recipes."""
    cells = [cell for cell in record.cells if cell.world_size > 1]
    notes = figures.labels((why, cell) for cell in cells if (why := cell.why("accuracy")))
    yield from (f"Accuracy is not judged by {some(who, MOST)}: {note}." for note, who in notes.items())
    if not cells:
        yield (
            "Accuracy is judged on several devices against one, and on one against accepted runs; this run had "
            "neither. Accept it, or let two ranks share a device (--scaling-devices=cuda:0,cuda:0 or cpu:2)."
        )


def _on_one_device(record: Record) -> dict[str, list[str]]:
    """Return what accepted runs say of accuracies on one device, and of which cells."""
    return figures.labels(
        (check.reason, cell)
        for cell in record.cells
        for check in cell.checks
        if check.rule == "accuracy" and cell.world_size == 1
    )


def _differences(record: Record) -> list[list[float]]:
    """Return accuracy on several devices minus that on one, of every cell for each seed that both were trained from."""
    last = {
        (net.trainer, net.workload, net.mode, net.world_size, net.seed): net.per_epoch[-1]
        for net in record.accuracies
        if net.per_epoch
    }
    by_cell: dict[tuple[str, str, str, int], list[float]] = {}
    for (trainer, workload, mode, world_size, seed), reached in last.items():
        on_one = last.get((trainer, workload, "strong", 1, seed))
        if world_size > 1 and on_one is not None:
            by_cell.setdefault((trainer, workload, mode, world_size), []).append(reached - on_one)
    return list(by_cell.values())


def _fast(record: Record) -> Iterable[str]:
    """Yield the speed of the fastest cell of each workload, the slowest workload first."""
    timed = [cell for cell in record.cells if cell.samples_per_s is not None and not cell.oversubscribed]
    timed.sort(key=lambda cell: _estimate(cell.samples_per_s), reverse=True)
    names = figures.names(record)
    for cell in {cell.workload: cell for cell in reversed(timed)}.values():
        compared = cell.speedup and (cell.trainer, cell.world_size) != (SINGLE, 1)
        times = f"; {interval(cell.speedup, '.2f')} times the plain trainer on one" if compared else ""
        speed = figures.speed(cell)
        epoch = figures.step(record, cell) if cell.runs_script else f"{interval(cell.sec_per_epoch, '.3g')} s an epoch"
        yield f"{figures.name(cell, names)} on {plural(cell.world_size, 'device')}: {speed}, {epoch}{times}"


def _memory(record: Record) -> Iterable[str]:
    """Yield the most memory that an arm reserved of a GPU; on CPUs it is only in the report."""
    largest = max(record.arms, key=lambda arm: counters.most_reserved(arm.memory), default=None)
    if largest is not None and (most := counters.most_reserved(largest.memory)):
        sizes = [card.memory_bytes for card in record.machine.cards if card.memory_bytes]
        of = f" of {decimal(min(sizes))}" if sizes else ""
        yield f"at most {decimal(most)}{of} reserved on a GPU, by {largest.id}"


def _efficiency(record: Record) -> Iterable[str]:
    """Yield the efficiencies at the largest world size of each workload and mode, the best trainer first."""
    known = [cell for cell in record.cells if cell.efficiency is not None and cell.world_size > 1]
    if not known:
        yield from dict.fromkeys(why for cell in record.cells if (why := cell.why("efficiency")))
    several, names = len({cell.workload for cell in known}) > 1, figures.names(record)
    known.sort(key=lambda cell: (cell.workload, cell.mode))
    for (workload, mode), group in groupby(known, key=lambda cell: (cell.workload, cell.mode)):
        cells = list(group)
        largest = max(cell.world_size for cell in cells)
        at = [cell for cell in cells if cell.world_size == largest]
        at.sort(key=lambda cell: _estimate(cell.efficiency), reverse=True)
        each = some([f"{names[cell.trainer]} {interval(cell.efficiency, '.2f')}" for cell in at], MOST)
        yield f"{f'{workload} ' if several else ''}{mode} on {plural(largest, 'device')}: {each}"
        yield from _across_hosts(record.machine, cells, names)


def _across_hosts(machine: Machine, cells: Sequence[CellRecord], names: Mapping[str, str]) -> Iterable[str]:
    """Yield, of each trainer that was measured on one full host and on all, how much of E is lost on the way between.

    E_nk = R_nk / (nk R_1) is E_k inside a host times R_nk / (n R_k) across n hosts.
    """
    inside = {cell.trainer: cell for cell in cells if cell.world_size == machine.per_host}
    whole = machine.hosts * machine.per_host
    for cell in cells if machine.hosts > 1 else ():
        if cell.world_size != whole or (machine.per_host > 1 and cell.trainer not in inside):
            continue
        within = _estimate(inside[cell.trainer].efficiency) if cell.trainer in inside else 1.0
        if within > 0:
            across = number(_estimate(cell.efficiency) / within, ".2f")
            inner = f"{number(within, '.2f')} inside a host ({plural(machine.per_host, 'device')})"
            yield f"  {names[cell.trainer]}: {inner}, {across} across {machine.hosts}"


def _exchange(record: Record) -> Iterable[str]:
    """Yield the best bus bandwidth that sweeps of each collective reached on so many devices.

    On a single device, yield that nothing could be.
    """
    if any(cell.lacks("efficiency", "one device") for cell in record.cells):
        yield f"not checked: one {'GPU' if record.machine.gpus else 'core'}"
    best: dict[tuple[str, int], tuple[float, str]] = {}
    for sweep in record.collectives:
        what = f"{sweep.collective} on {plural(sweep.world_size, 'device')}{oversubscribed_mark(sweep)}"
        for point in sweep.points:
            bandwidth = f"{number(point.busbw_gb_per_s, '.3g')} GB/s of bus bandwidth"
            latency = f", latency {interval(sweep.alpha_s, '.3g', factor=1e6)} µs" if sweep.alpha_s else ""
            line = f"{what}: {bandwidth} at {size(point.size_bytes)} ({sweep.algorithm}{latency})"
            kind = sweep.collective, sweep.world_size
            best[kind] = max(best.get(kind, (0.0, "")), (point.busbw_gb_per_s, line))
    yield from (line for _, line in best.values())


def _held_back(record: Record) -> Iterable[str]:
    """Yield what grew since the base after a FAIL; otherwise the largest known cause of each cell."""
    apart = [(cell, cell.own_waterfall) for cell in record.cells if cell.own_waterfall]
    failed = [(cell, fall) for cell, fall in apart if cell.outcome is Outcome.FAIL and len(cell.waterfalls) > 1]
    if failed:
        yield from (f"{cell.label}: {fall.sentence}" for cell, fall in failed)
        return
    causes = _causes(record)
    for cause in causes:
        cost = f"{interval(cause.bar.step_s, '.1f', factor=1e3)} ms a step ({number(cause.share * 100, '.0f')} %)"
        more = "; another part may cost more" if cause.outdone else ""
        yield f"{cause.cell.label}: {bar_name(cause.bar.causes)}, {cost}{more}"
    named = {cause.cell.id for cause in causes}  # comparing whole cells would take minutes for thousands
    unknown = [cell for cell, _ in apart if cell.id not in named]
    if unknown:
        sessions = max(fall.sessions for _, fall in apart)
        yield f"not known after {plural(sessions, 'session')}: {some([cell.label for cell in unknown], MOST)}"
    late = [cell for cell in record.cells if not cell.waterfalls and cell.lacks("waterfall", "budget")]
    if late:
        late.sort(key=lambda cell: cell.world_size)
        yield f"not taken apart for lack of time: {some([cell.label for cell in late], MOST)}"


class _Cause(NamedTuple):
    """A part of a cell's step, its share of the step, and whether another part may cost more."""

    cell: CellRecord
    bar: BarRecord
    share: float
    outdone: bool


def _causes(record: Record) -> list[_Cause]:
    """Return the cause of each cell whose interval shows that it costs time, the largest share first."""
    causes = []
    for cell in record.cells:
        fall = cell.own_waterfall
        if fall is not None and fall.named is not None and fall.measured_s.estimate > 0:
            parts_s = [bar.step_s for bar in fall.bars]
            share = parts_s[fall.named].estimate / fall.measured_s.estimate
            causes.append(_Cause(cell, fall.bars[fall.named], share, outdone(parts_s, fall.named)))
    return sorted((each for each in causes if each.share >= WORTH_SAYING), key=lambda each: each.share, reverse=True)


def _sure(record: Record) -> Iterable[str]:
    """Yield how many sessions there were and how quiet the machine was."""
    sessions = len(record.sessions)
    if sessions > 1:
        yield f"Brackets are 95 % intervals over {sessions} sessions of fresh processes."
    elif sessions:
        yield "No figure has an interval: one session shows no spread."
    if record.sessions or record.cells:
        yield figures.disturbances(record)
    yield from (f"Room check: {neighbour}" for neighbour in record.neighbours[:2])


def red(record: Record) -> list[Step]:
    """Return, for each cell and collective that failed, a command that measures it alone; the gravest first."""
    failed = [cell for cell in figures.gravest_first(record.cells) if cell.outcome in RED]
    again = [Step(f"{cell.outcome.value} {cell.label}", commands.only(record, [cell])) for cell in failed]
    for sweep in record.collectives:
        if sweep.error:
            name = commands.collective_id(sweep) + oversubscribed_mark(sweep)
            again.append(Step(f"ERROR {name}", commands.collective(record, sweep)))
    return again


def steps(record: Record) -> list[Step]:
    """Return the commands that a reader may want next, at most ten, without those that are too long for a page."""
    return [step for step in _steps(record) if commands.fits(step.command)]


def _steps(record: Record) -> Iterable[Step]:
    if not record.cells:
        return
    of = {outcome: [cell for cell in record.cells if cell.outcome is outcome] for outcome in Outcome}
    for outcome in RED:
        few = 1 < len(of[outcome]) <= FEW_RED
        for cells in [[cell] for cell in of[outcome]] if few else filter(None, [of[outcome]]):
            which = f" of {cells[0].label}" if few else ""
            what = f"see the {outcome.value}{which} again{_beside(record, cells)}"
            yield Step(what, commands.only(record, cells))
    if undecided := [cell for cell in of[Outcome.INCONCLUSIVE] if _needs_sessions(cell)]:
        yield Step(f"decide what is INCONCLUSIVE{_beside(record, undecided)}", commands.longer(record, undecided))
    if not record.checks_to_come:
        yield Step("check the gradients", commands.correctness(record))
    if not baselines.refusal(record):
        how = "as the baseline"
        if of[Outcome.FAIL]:
            how = f"and accept it {'as slower' if any(map(baselines.slowed, record.cells)) else 'with its FAIL'}"
        how += ", with all changes committed" if record.environment.dirty else ""
        yield Step(f"measure it again {how}", commands.accept(record))
    main = record.environment.main
    if record.against is None and main and record.machine.hosts == 1:  # on several hosts a base must be a trainer
        yield Step(f"compare with {main}", commands.against_main(record))
    yield from _about_causes(record)


def _beside(record: Record, cells: Sequence[CellRecord]) -> str:
    return ", beside other cells" if commands.selects_others(record, cells) else ""


def _needs_sessions(cell: CellRecord) -> bool:
    """Return whether more sessions may decide a cell. One without checks was not measured for lack of time."""
    found = [check.rule for check in cell.checks if check.counts and check.outcome is Outcome.INCONCLUSIVE]
    return not found or any(rule in BY_SESSIONS for rule in found)


def _about_causes(record: Record) -> Iterable[Step]:
    """Yield a command that helps against the largest cause, or that finds it."""
    causes = _causes(record)
    if not causes:
        unknown = [cell for cell in record.cells if cell.waterfalls and cell.outcome is Outcome.NO_BASELINE]
        if unknown:
            yield Step(f"learn what holds it back{_beside(record, unknown)}", commands.longer(record, unknown))
        return
    cell, bar = causes[0].cell, causes[0].bar
    small = bar.causes == ("small batch",)
    if small and not any(other.place[:3] == (cell.trainer, cell.workload, "weak") for other in record.cells):
        yield Step("keep the batch per device (weak scaling)", commands.weak(record, cell))
    elif record.machine.hosts > 1:  # where the other commands do not work
        return
    elif small:
        yield Step("see the accuracy with a larger batch", commands.sweep(record, cell))
    else:
        yield Step(f"look inside a step ({bar_name(bar.causes)})", commands.trace(record, cell))
