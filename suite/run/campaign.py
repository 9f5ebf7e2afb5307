"""One run: sessions over all undecided cells, until everything is decided or the budget is spent.

Every cell is compared with its base from the first session on: with the one that the user named, or with the rebuilt
commits of accepted runs. Without a named base, the first sessions also time what the figures need, train nets and take
cells apart; where accepted runs have cells, these sessions are few, the others are for the comparison alone, and the
quick profile trains when that is over.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from suite.base.git import CheckoutError
from suite.base.sides import Sides, hosts_of
from suite.plan import cells
from suite.plan.cells import SINGLE, Arm, Cell
from suite.processes.failure import WorkerFailure
from suite.processes.group import START_TIMEOUT_S
from suite.properties.answers import Described
from suite.render.figures import plural
from suite.room import check, hardware
from suite.room.meter import Meter
from suite.run import accepted, accuracy, attribution, collectives, counting, forecast, judging, preparing, schedule
from suite.run.groups import Groups
from suite.run.observations import Comparison, Observations
from suite.run.results import to_record
from suite.run.session import Next, Say, Sessions
from suite.run.variants import Target
from suite.verdict import FIRST_LOOK, Outcome
from suite.verdict.stored import ENOUGH_RUNS


@dataclass(frozen=True)
class Collaborators:
    """What a campaign starts processes with; a test of the campaign's decisions gives it others."""

    neighbours: Callable[..., list[str] | tuple[str, ...]] = check.neighbours
    meter: Callable[..., Meter] = Meter
    sides: Callable[..., Sides] = Sides
    sessions: Callable[..., Sessions] = Sessions
    prepare: Callable[..., None] = preparing.prepare
    training: Callable[..., Callable[[Groups], None]] = accuracy.training
    probing: Callable[..., Callable[[Groups], None]] = attribution.probing
    counting: Callable[..., Callable[[Groups], None]] = counting.counting
    sweep: Callable[..., Any] = collectives.measure


def measure(
    run: Observations,
    say: Say,
    collaborators: Collaborators | None = None,
    grown: Callable[[], None] = lambda: None,
) -> None:
    """Measure until every cell is decided or the budget is spent.

    Everything measured is added to `run`, and what fails to `run.lost`, also where Ctrl-C ends the measurement; every
    process has ended by then. Workers may import from the user's project and from the working directory.
    `grown` is called after every session and after the sweeps, when `run` has more than before.
    """
    collaborators = collaborators or Collaborators()
    run.neighbours = list(collaborators.neighbours(run.plan.config.devices))
    for neighbour in run.neighbours:
        say(f"room check: {neighbour}")
    for sentence in hardware.unusual(run.plan.machine.cards):
        say(sentence)
    config = run.plan.config
    hosts = hosts_of(config.devices)

    note = partial(_note, run, say)
    sides_of_run = collaborators.sides(config.devices.kind, config.root, config.python_path, hosts, note)
    with collaborators.meter(config.devices) as meter, sides_of_run as sides:
        campaign = _Campaign(run, sides, meter, say, collaborators, grown)
        try:
            campaign.time_cells()
            campaign.sweep()
        finally:
            if run.plan.config.against is None:
                run.stored = accepted.checks(run, to_record(run))


@dataclass(frozen=True)
class Figures:
    """What the first sessions have for figures, beside the comparison: arms on one device, waterfalls, and training."""

    on_one: Sequence[tuple[Arm, ...]] = ()
    explained: Sequence[Target] = ()
    train: Callable[[Groups], None] | None = None


class _Campaign:
    """The sessions of a run, which share its budget and its random numbers."""

    def __init__(
        self,
        run: Observations,
        sides: Sides,
        meter: Meter,
        say: Say,
        collaborators: Collaborators,
        grown: Callable[[], None],
    ) -> None:
        self._run, self._sides, self._say, self._collaborators, self._grown = run, sides, say, collaborators, grown
        self._of_figures: int | None = None  # sessions that time more than the comparison needs, once that is known
        self._forecast_s = 0.0  # of the last session
        self._shown = forecast.Shown()
        self._comparing = True
        self._open: int | None = None  # cells that are not decided
        rng = random.Random(run.plan.seed)
        self._sessions = collaborators.sessions(run, sides.pools, rng, meter, self._left_s, self._say_left)
        self._lengths = forecast.Lengths(run, sides, self._sessions)

    def time_cells(self) -> None:
        """Time every cell, next to its base where it has one; without a named base also all that its figures need."""
        run, config = self._run, self._run.plan.config
        if config.against is not None:
            self._of_figures = 0
            self._add(Comparison({"base": config.against}, run.plan.cells))
            self._compare_alone()
            self._run_sessions()
            return
        own = self._units(run.plan.cells)
        on_one = cells.one_device_arms(run.plan.cells, speedup=True)
        explained = attribution.targets(run, run.plan.cells, ["candidate"])
        self._prepare([*_arms(own + on_one), *attribution.arms(run, explained)])
        rebuilt = Comparison() if config.calibrate else accepted.rebuild(run, to_record(run))
        compared = tuple(cell for cell in rebuilt.cells if run.plan.own(cell) not in run.lost)
        if compared:
            self._say(f"{len(compared)} cell(s) with accepted runs: rebuilding their commits")
            self._add(replace(rebuilt, cells=compared))
        train = self._collaborators.training(run, self._sessions, self._say_left)
        training_s = accuracy.allowed_s(run, self._left_s()) if accuracy.trained(run) else 0.0
        if run.compares_first:
            training_s = 0.0
            if not self._judges_machine:  # a FAIL of the machine names the part that grew
                explained = [target for target in explained if not run.has_base(target.cell)]
        self._sessions.replan_blocks(training_s)
        beside = [*on_one, *self._on_one(run.plan.cells)]
        session_s = self._forecast([*own, *beside], attribution.arms(run, explained), least=True).wall_s
        explained = attribution.carried(run, self._sessions, explained, session_s)
        carried = self._carried(compared)
        left_out = [cell for cell in compared if cell not in carried]
        run.comparison = replace(run.comparison, needed_s=self._needed_s(compared) if left_out else 0.0)
        self._show_plan(beside, explained, training_s, left_out)
        self._run_sessions(Figures(on_one, explained, None if run.compares_first else train))
        if run.compares_first:
            self._comparing = False
            starting_s = self._forecast([(arm,) for arm in accuracy.needed(run)], least=True).wall_s
            try:
                accuracy.train_last(run, self._sessions, train, self._left_s(), starting_s, self._say)
            finally:
                self._grown()

    def sweep(self) -> None:
        """Time the selected collectives, also for the message sizes of the run's gradients."""
        run = self._run
        if not run.plan.sweeps:
            return
        self._comparing = False
        if not run.plan.cells:
            minutes = collectives.cost_s(run.plan) / 60
            self._say(f"plan: {plural(len(run.plan.sweeps), 'sweep')} of collectives, about {minutes:.1f} min")
        if not run.versions:  # no cell was selected, and no worker asked
            with contextlib.suppress(WorkerFailure):  # every sweep will say what is wrong
                timeout_s = run.plan.deadline_s(START_TIMEOUT_S)
                answer = self._sides.ask("candidate", Described, "describe", timeout_s, trainer=SINGLE)
                run.versions["candidate"] = answer.versions
            self._sides.dismiss()
            self._sides.wait_for_templates()
        run.collectives = self._collaborators.sweep(
            self._sides.pools["candidate"], run.plan, set(run.gradient_bytes.values()), self._say_left
        )
        self._grown()

    def _add(self, comparison: Comparison) -> None:
        """Compare these cells from now on; a base that cannot be had is lost."""
        run = self._run
        run.comparison = comparison
        units = [*self._units(comparison.cells), *self._on_one(comparison.cells)]
        for side, base in comparison.bases.items():
            try:
                run.notes += [f"{base.label}: {note}" for note in self._sides.add(side, base)]
            except CheckoutError as error:
                failure = WorkerFailure(side, str(error))
                run.lost |= {arm: failure for arm in _arms(units) if arm.side == side}
        self._prepare(_arms(units))

    def _compare_alone(self) -> None:
        """Leave all but the comparison from now on, and the cells that the rest of the budget cannot judge."""
        run = self._run
        asked = run.comparison.judged
        chosen = self._carried(asked)
        left_out = tuple(cell for cell in asked if cell not in chosen)
        kept = run.comparison.cells if run.sessions else chosen
        known, needed_s = run.comparison, self._needed_s(asked) if left_out else run.comparison.needed_s
        run.comparison = replace(known, cells=kept, over_budget=(*known.over_budget, *left_out), needed_s=needed_s)
        if left_out or self._of_figures or not run.sessions:
            self._sessions.replan_blocks()
        if left_out or not run.sessions:
            self._show_plan(self._on_one(chosen))

    def _on_one(self, chosen: Sequence[Cell]) -> list[tuple[Arm, ...]]:
        """Return the arms on one device that floors need, and that judging the machine needs of the accepted commit."""
        run = self._run
        of_floors = cells.one_device_arms([cell for cell in chosen if cell in run.plan.floors], speedup=False)
        if not self._judges_machine:
            return of_floors
        of_base = [(arms["base"].on_one,) for cell in chosen if "base" in (arms := run.arms(cell))]
        return list(dict.fromkeys([*of_floors, *of_base]))

    @property
    def _judges_machine(self) -> bool:
        """Whether there are as many accepted runs as judging the machine takes."""
        return self._run.plan.config.against is None and len(self._run.plan.baseline.runs) >= ENOUGH_RUNS

    def _carried(self, chosen: Sequence[Cell]) -> tuple[Cell, ...]:
        """Return the cells that the budget can judge; a profile's budget stretches to all of them."""
        if not self._session_plan.keeps_budget:
            return tuple(chosen)
        return forecast.carried(chosen, self._run.sessions_lacking, self._session_of, self._left_s())

    def _session_of(self, some: Sequence[Cell]) -> float:
        return self._forecast(self._units(some) + self._on_one(some)).wall_s

    def _needed_s(self, chosen: Sequence[Cell]) -> float:
        """Return the budget that has room for cells, as far as it can be told now."""
        spent_s = self._run.plan.config.budget.seconds - self._left_s()
        return spent_s + self._run.sessions_lacking * self._session_of(chosen)

    def _forecast(
        self, units: Sequence[tuple[Arm, ...]], untimed: Sequence[Arm] = (), *, least: bool = False
    ) -> forecast.Length:
        """Return how long a session of these arms will be, by default or at least; 0 where none can be started."""
        return self._lengths.of(_arms(units), untimed, 0.0 if least else self._left_s())

    def _slower_targets(self) -> list[Target]:
        """Return the waterfalls of the cells that look slower so far, with what their arms need prepared."""
        run, wanted = self._run, attribution.of_slower(self._run, self._sessions)
        arms = attribution.arms(run, wanted)
        if any(arm not in run.jobs and arm not in run.lost for arm in arms):
            self._say(f"the parts of {len({target.cell for target in wanted})} cell(s) are timed too")
            self._prepare(arms)
        return wanted

    def _taking_apart(self, wanted: Sequence[Target]) -> list[Callable[[Groups], None]]:
        """Return what times these waterfalls with a session's groups; with a base, sessions without them cost less."""
        run = self._run
        if not wanted:
            return []
        probe = self._collaborators.probing(run, self._sessions, wanted, self._say_left)

        def explain(groups: Groups) -> None:
            start = run.plan.clock()
            probe(groups)
            groups.session.explaining_s = run.plan.clock() - start

        return [explain if run.comparison.bases else probe]

    def _prepare(self, arms: Sequence[Arm]) -> None:
        self._collaborators.prepare(self._run, self._sides, arms, self._say)

    def _run_sessions(self, figures: Figures | None = None) -> None:
        """Run sessions while cells are undecided and the budget lasts, with what figures need in the first of them."""
        while (session := self._next(figures or Figures())) is not None:
            if self._session(session):
                self._lengths.learn(_arms(session.units), session.untimed)
                self._forecast_s = self._forecast(session.units, session.untimed, least=True).wall_s
                self._replan(len(self._run.sessions) - 1)
        self._take_apart_alone()

    def _next(self, figures: Figures) -> Next | None:
        """Return the session to come; None where everything is decided, or the budget is spent."""
        run, config, number = self._run, self._run.plan.config, len(self._run.sessions)
        of_figures = not run.comparison.bases or self._of_figures is None or number < self._of_figures
        units = self._undecided_units(figures.on_one, of_figures=of_figures)
        if not units:
            return None
        late = attribution.left_out(run)
        several = of_figures and number < attribution.SESSIONS
        probed = [target for target in figures.explained if several and target.cell not in late]
        suspects = self._slower_targets()
        untimed = [
            arm
            for arm in attribution.arms(run, [*probed, *suspects])
            if arm not in run.lost and (arm, "setup") not in run.unprobed
        ]
        afterwards = self._taking_apart(list(dict.fromkeys([*probed, *suspects])))
        if number == 0:
            afterwards += [figures.train] if figures.train is not None else []
            if config.counters == "fail" or (config.counters == "warn" and config.explain):
                counted = run.plan.cells if of_figures else run.comparison.cells
                afterwards.append(self._collaborators.counting(run, self._sessions, counted, self._say_left))
        # How long the blocks may take (docs/verdict.md, "Rounds per session").
        share_s = self._session_plan.share_s(self._left_s(), run.planned - number)
        share_s -= attribution.added_s(run) if share_s and suspects else 0.0
        return Next(units, untimed, afterwards, share_s)

    def _undecided_units(self, on_one: Sequence[tuple[Arm, ...]], *, of_figures: bool) -> list[tuple[Arm, ...]]:
        """Return what the next session times: undecided cells beside their bases, and what floors and figures need."""
        run, number = self._run, len(self._run.sessions)
        chosen = [cell for cell in run.plan.cells if self._wants_time(cell, of_figures=of_figures)]
        if run.comparison.bases and number:
            self._open = len(chosen)
        units, beside = self._units(chosen), [*(on_one if of_figures else ()), *self._on_one(chosen)]
        over = run.planned and number >= run.planned
        to_load_s = self._sides.next_load_s - self._sides.loading_s  # more than sessions share, or less
        next_s = self._next_s([*units, *beside]) + to_load_s
        if over or (self._session_plan.keeps_budget and number and self._left_s() < next_s):
            units = [unit for unit in units if run.never_timed(unit)]
        timed = _arms(units)
        more = [unit for unit in dict.fromkeys(beside) if unit[0] not in timed and unit[0] not in run.lost]
        return [*units, *more] if units else []

    def _take_apart_alone(self) -> None:
        """Take cells apart in what the comparison has left of the budget, as often as the full profile does."""
        run = self._run
        while run.plan.config.profile == "full" and run.comparison.bases and run.sessions:
            wanted = self._slower_targets()
            arms = [arm for arm in attribution.arms(run, wanted) if arm not in run.lost]
            if not arms or self._left_s() < run.session_s + attribution.added_s(run):
                return
            if not self._session(Next([], arms, self._taking_apart(wanted))) or not run.sessions[-1].probes:
                return

    def _replan(self, number: int) -> None:
        """Fix how many sessions there are, from what they cost and not from what they showed.

        So the time that cells took because they look slower counts as if it were left.
        """
        run, config = self._run, self._run.plan.config
        left_s = self._left_s() + run.for_slower_cells_s(self._of_figures or 0)
        if self._of_figures is None:
            self._of_figures = self._session_plan.of_figures(number + 1 + left_s / run.session_s)
        if run.comparison.bases and number + 1 == max(1, self._of_figures):
            self._compare_alone()
        left = ""
        if not run.planned or number + 1 < run.planned:
            left = forecast.leave(run, [cell for cell in run.comparison.timed if self._undecided(cell)], self._bought)
        if left:
            _note(run, self._say, left)
            if len(run.sessions) < FIRST_LOOK:  # no look has been taken yet
                run.planned = 0
                self._sessions.replan_blocks()
        if not run.planned and (number >= self._of_figures or not run.comparison.bases):
            timed = run.comparison.timed
            units, next_s = [*self._units(timed), *self._on_one(timed)], run.session_s
            if run.comparison.over_budget:
                next_s = self._next_s(units) or next_s
            more = self._bought(timed).sessions if left else left_s / next_s
            shorter = run.comparison.bases and self._session_plan.keeps_budget and not left
            if shorter and (fitting := self._sessions.fit()):
                # The last session also timed the cells that are over budget, so that more than these may fit.
                more = max(more, fitting) if run.comparison.over_budget else fitting
            run.planned = config.calibrate or self._session_plan.sessions(number + 1 + more)
        elif number:
            return
        self._correct_plan(left_s)

    def _session(self, session: Next) -> bool:
        """Run a session; return whether it counts."""
        run, discarded = self._run, len(self._run.discarded)
        if run.sessions:
            self._sides.renew()
        try:
            self._sessions.run(session)
        finally:
            timed, counts = _arms(session.units), len(run.discarded) == discarded
            for arm, failure in (run.sessions if counts else run.discarded)[-1].failures.items():
                if arm in timed:
                    run.lost[arm] = failure
                else:  # only a waterfall needs it, and what has been decided stays
                    run.unprobed[arm, "setup"] = failure.cause
        self._grown()
        return counts

    def _show_plan(
        self,
        beside: Sequence[tuple[Arm, ...]],
        explained: Sequence[Target] = (),
        training_s: float = 0.0,
        left_out: Sequence[Cell] = (),
    ) -> None:
        run = self._run
        chosen = run.plan.cells if self._of_figures is None else run.comparison.timed
        each = self._forecast([*self._units(chosen), *beside], attribution.arms(run, explained))
        if not each.wall_s:
            return
        if not run.comparison.bases:  # otherwise the first sessions alone, or those that find a cell slower
            each = each._replace(wall_s=each.wall_s + attribution.needed_s(run, self._sessions, explained))
        affordable = len(run.sessions) + (self._left_s() - training_s) / each.wall_s
        planned = run.plan.config.calibrate or self._session_plan.sessions(affordable)
        self._say_plan(planned, each, left_out)

    def _say_plan(self, planned: int, each: forecast.Length, left_out: Sequence[Cell] = ()) -> None:
        self._shown = forecast.Shown.of(self._run, planned, each)
        for line in forecast.lines(self._run, planned, each, left_out):
            _note(self._run, self._say, line)

    def _correct_plan(self, left_s: float) -> None:
        """Show the plan again where what the last session took makes it another one."""
        run, done, timed = self._run, len(self._run.sessions), self._run.comparison.timed
        units = [*self._units(timed), *self._on_one(timed)]
        alike = not run.comparison.bases or done < (self._of_figures or 0)
        each = self._forecast(units)._replace(wall_s=run.session_s if alike else self._next_s(units))
        if not each.wall_s:
            return
        planned = run.planned or self._session_plan.sessions(done + left_s / each.wall_s)
        fewer = bool(run.comparison.bases) and planned < self._shown.sessions
        if fewer or self._shown.is_wrong(forecast.Shown.of(run, planned, each)):
            self._say_plan(planned, each)

    @property
    def _session_plan(self) -> schedule.SessionPlan:
        run, config = self._run, self._run.plan.config
        least = run.sessions_needed if run.comparison.bases else 0
        return schedule.SessionPlan(config.budget, least, config.profile, config.calibrate)

    def _bought(self, some: Sequence[Cell]) -> schedule.Price:
        """Return what the rest of the budget buys for these cells."""
        run, each = self._run, self._forecast(self._units(some) + self._on_one(some))
        if len(run.sessions) >= FIRST_LOOK:
            sessions = run.planned - len(run.sessions)
            more_s = self._left_s() / sessions - each.wall_s
            return schedule.Price(sessions, each.rounds + max(0, int(more_s / each.round_s)) if each.round_s else 1)
        lacking = self._session_plan.sessions(0) - len(run.sessions)
        fitting = int(self._left_s() / each.wall_s) if each.wall_s else 0
        return schedule.Price(max(1, lacking, fitting), max(1, each.rounds))

    def _next_s(self, units: Sequence[tuple[Arm, ...]]) -> float:
        """Return what sessions of these arms cost: what the last one did, less by what is no longer timed."""
        forecast_s = self._forecast(units, least=True).wall_s
        return self._run.session_s * (min(1.0, forecast_s / self._forecast_s) if self._forecast_s else 1.0)

    def _wants_time(self, cell: Cell, *, of_figures: bool) -> bool:
        """Return whether the next session times a cell."""
        run = self._run
        if run.failure(cell) is not None or cell in run.comparison.over_budget:
            return False
        if of_figures or run.never_timed((run.plan.own(cell),)):
            return True
        return cell not in run.comparison.left and self._undecided(cell)

    def _undecided(self, cell: Cell) -> bool:
        """Return whether a session may decide a cell that has been timed, by its bases or by its floor."""
        run, rules = self._run, set[str]()
        if cell in run.comparison.cells and run.lost.keys().isdisjoint(run.arms(cell).values()):
            rules |= set(judging.RULE_AGAINST.values())
        if cell in run.plan.floors and run.plan.own(cell).on_one not in run.lost:
            rules.add("floor")
        if run.plan.config.calibrate or not run.planned:
            return bool(rules)  # no look is planned before a session has shown how many there will be
        checks = [check for check in judging.checks(run, cell) if check.rule in rules]
        return judging.combined(checks)[0] is Outcome.INCONCLUSIVE

    def _units(self, chosen: Sequence[Cell]) -> list[tuple[Arm, ...]]:
        run = self._run
        units = dict.fromkeys(tuple(run.arms(cell).values()) for cell in chosen)  # each cell next to its bases
        alive = [tuple(arm for arm in unit if arm not in run.lost) for unit in units]
        return [unit for unit in alive if unit]

    def _left_s(self) -> float:
        """Return how much of the budget is left, without what sweeps that are still to come need."""
        sweeps_s = 0.0 if self._run.collectives else collectives.cost_s(self._run.plan)
        return self._run.plan.left_s - sweeps_s

    def _say_left(self, what: str) -> None:
        run, left_s = self._run, self._run.plan.left_s
        fills_budget = run.compares_first and accuracy.trained(run)
        if run.planned and self._comparing and not fills_budget:
            planned_s = (run.planned - len(run.sessions)) * run.session_s + collectives.cost_s(run.plan)
            left_s = min(left_s, planned_s) if self._session_plan.keeps_budget else planned_s
        left, every = f"at most {left_s / 60:.1f} min left" if left_s > 0 else "past the budget", len(run.plan.cells)
        decided = "" if self._open is None else f"{every - self._open} of {plural(every, 'cell')} decided; "
        self._say(f"{what}; {decided}{left}")


def _note(run: Observations, say: Say, line: str) -> None:
    """Keep a line for the record, and say it."""
    run.notes.append(line)
    say(line)


def _arms(units: Sequence[tuple[Arm, ...]]) -> list[Arm]:
    return list(dict.fromkeys(arm for unit in units for arm in unit))
