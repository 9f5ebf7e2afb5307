"""One run: sessions over all undecided cells, until everything is decided or the budget is spent.

With a base that the user named, every cell is compared with it from the first session on. Otherwise the cells are first
measured without a base. Where accepted runs have them, that takes few sessions, and the rest of the budget is for
comparing them with the rebuilt commits of those runs.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from suite.base.checkout import CheckoutError
from suite.base.several import hosts_of
from suite.base.sides import Sides
from suite.plan import cells
from suite.plan.cells import SINGLE, Arm, Cell
from suite.processes.failure import WorkerFailure
from suite.processes.group import START_TIMEOUT_S
from suite.properties.answers import Described
from suite.room import check, hardware
from suite.room.meter import Meter
from suite.run import accepted, accuracy, attribution, collectives, counting, forecast, judging, preparing, results
from suite.run.observations import Comparison, Observations
from suite.run.session import Groups, Say, Sessions
from suite.verdict import FIRST_LOOK, Outcome
from suite.verdict.stored import ENOUGH_RUNS

# Where accepted commits are rebuilt, at most a quarter of the sessions comes before: figures, training and waterfalls
# come from these, and the verdict from the others.
SHARE_BEFORE = 4
MAX_SESSIONS = {"quick": 6, "full": 20}  # where nothing can be decided, more sessions only narrow the intervals


@dataclass(frozen=True)
class Collaborators:
    """What a campaign starts processes with; a test of the campaign's decisions gives it others."""

    neighbours: Callable[..., list[str] | tuple[str, ...]] = check.neighbours
    sides: Callable[..., Sides] = Sides
    sessions: Callable[..., Sessions] = Sessions
    prepare: Callable[..., None] = preparing.prepare
    training: Callable[..., Callable[[Groups], None]] = accuracy.training
    probing: Callable[..., Callable[[Groups], None]] = attribution.probing
    counting: Callable[..., Callable[[Groups], None]] = counting.counting
    sweep: Callable[..., Any] = collectives.measure


def measure(
    run: Observations,
    root: Path,
    say: Say,
    collaborators: Collaborators | None = None,
    grown: Callable[[], None] = lambda: None,
) -> None:
    """Measure until every cell is decided or the budget is spent.

    Everything measured is added to `run`, and what fails to `run.lost`, also where Ctrl-C ends the measurement; every
    process has ended by then. Workers may import from `root`, the user's project, and from the working directory.
    `grown` is called after every session and after the sweeps, when `run` has more than before.
    """
    collaborators = collaborators or Collaborators()
    run.neighbours = list(collaborators.neighbours(run.plan.config.devices))
    for neighbour in run.neighbours:
        say(f"in use by others: {neighbour}")
    for sentence in hardware.unusual(run.plan.machine.cards):
        say(sentence)
    config = run.plan.config
    hosts = hosts_of(config.devices)

    def note(line: str) -> None:
        run.notes.append(line)
        say(line)

    sides_of_run = collaborators.sides(config.devices.kind, root, config.python_path, hosts, note)
    with Meter(config.devices) as meter, sides_of_run as sides:
        campaign = _Campaign(run, sides, meter, say, collaborators, grown)
        if run.plan.config.against is not None:
            campaign.compare(Comparison({"base": run.plan.config.against}, run.plan.cells))
            return
        campaign.measure_without_base()
        campaign.sweep()
        run.stored = accepted.checks(run, results.to_record(run))  # for a run that is interrupted from here on
        campaign.compare_with_accepted()


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
        self._rebuild = Comparison()
        rng = random.Random(run.plan.seed)
        self._sessions = collaborators.sessions(run, sides.pools, rng, meter, self._left_s, self._say_left)

    def measure_without_base(self) -> None:
        """Time every cell and what its efficiency and its speed-up need; train."""
        run = self._run
        own = self._units(run.plan.cells)
        on_one = cells.one_device_arms(run.plan.cells, speedup=True)
        explained = attribution.targets(run, run.plan.cells, ["candidate"])
        self._prepare([*_arms(own + on_one), *attribution.arms(run, explained)])
        if not run.plan.config.calibrate:
            self._rebuild = accepted.rebuild(run, results.to_record(run))
        train = self._collaborators.training(run, self._sessions, self._say_left)
        training_s = accuracy.allowed_s(run, self._left_s()) if accuracy.trained(run) else 0.0
        self._sessions.replan_blocks(training_s, self._loading_s)
        self._run_sessions(run.plan.cells, on_one, explained, train)

    def sweep(self) -> None:
        """Time the selected collectives, also for the message sizes of the run's gradients."""
        run = self._run
        if not run.plan.sweeps:
            return
        if not run.versions:  # no cell was selected, and no worker asked
            with contextlib.suppress(WorkerFailure):  # every sweep will say what is wrong
                timeout_s = run.plan.deadline_s(START_TIMEOUT_S)
                answer = self._sides.ask("candidate", Described, "describe", timeout_s, trainer=SINGLE)
                run.versions["candidate"] = answer.versions
            self._sides.dismiss()
        run.collectives = self._collaborators.sweep(
            self._sides.pools["candidate"],
            run.plan.sweeps,
            run.plan.config.devices,
            self._say_left,
            deadline_s=run.plan.deadline_s,
            gradient_bytes=set(run.gradient_bytes.values()),
            seed=run.plan.seed,
        )
        self._grown()

    def compare_with_accepted(self) -> None:
        """Compare the cells that accepted runs have with the rebuilt commits of those runs."""
        run = self._run
        measured = tuple(cell for cell in self._rebuild.cells if run.plan.own(cell) not in run.lost)
        if measured:
            self._say(f"{len(measured)} cell(s) with accepted runs: rebuilding their commits")
            self.compare(replace(self._rebuild, cells=measured, sessions_before=len(run.sessions)))
            run.stored = accepted.checks(run, results.to_record(run))

    def compare(self, comparison: Comparison) -> None:
        """Time cells next to their bases until each is decided; the whole budget goes to the comparison."""
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
        chosen = self._carried(comparison.cells)
        run.comparison = replace(
            comparison, cells=chosen, over_budget=tuple(cell for cell in comparison.cells if cell not in chosen)
        )
        self._sessions.replan_blocks(loading_s=self._loading_s)
        self._run_sessions(chosen, self._on_one(chosen))

    def _on_one(self, chosen: Sequence[Cell]) -> list[tuple[Arm, ...]]:
        """Return the arms on one device that floors need, and that judging the machine needs of the accepted commit."""
        run = self._run
        of_floors = cells.one_device_arms([cell for cell in chosen if cell in run.plan.floors], speedup=False)
        judges_machine = run.plan.config.against is None and len(run.plan.baseline.runs) >= ENOUGH_RUNS
        if not judges_machine:
            return of_floors
        bases = [(cell, arms["base"]) for cell in chosen if "base" in (arms := run.arms(cell))]
        of_base = [(cells.arm("base", base.trainer, cell, 1),) for cell, base in bases]
        return list(dict.fromkeys([*of_floors, *of_base]))

    def _carried(self, chosen: Sequence[Cell]) -> tuple[Cell, ...]:
        """Return the cells that the budget can judge; a profile's budget stretches to all of them."""
        if self._run.plan.config.min_sessions > 1 or self._run.plan.config.calibrate:
            return tuple(chosen)
        return forecast.carried(
            chosen, lambda some: self._forecast(self._units(some) + self._on_one(some)).wall_s, self._left_s()
        )

    def _forecast(self, units: Sequence[tuple[Arm, ...]], untimed: Sequence[Arm] = ()) -> forecast.Length:
        """Return how long a session of these arms will be; 0 where none of them can be started."""
        arms = [arm for arm in (*_arms(units), *untimed) if arm in self._run.jobs]
        if not arms:
            return forecast.Length(0.0, 0)
        return forecast.session(self._run, arms, self._sides.start_s, self._left_s(), forks=self._sides.forks)

    def _suspects(self, chosen: Sequence[Cell]) -> list[attribution.Target]:
        """Return the waterfalls, of candidate and base, of the cells that look slower so far.

        They are timed when the blocks of the next session are over, so that what grew is known when a cell fails. The
        full profile takes the slowest cells apart whether they look slower or not. A budget that the user set keeps the
        sessions that a FAIL needs.
        """
        run = self._run
        if not run.comparison.bases:
            return []
        behind, every = {cell: judging.surplus(run, cell) for cell in chosen}, run.plan.config.profile == "full"
        slowest_first = sorted(chosen, key=lambda cell: -behind[cell])
        wanted = attribution.slowest(run, [cell for cell in slowest_first if behind[cell] or every])
        of_a_fail_s = max(1, FIRST_LOOK + 1 - self._sessions_done) * run.session_s
        if (
            wanted
            and self._keeps_budget
            and self._left_s() < of_a_fail_s + len(attribution.SIDES) * attribution.SESSION_S
        ):
            why = "the budget has no more time than the sessions of a FAIL need; raise --scaling-budget"
            run.unexplained |= dict.fromkeys((target.cell for target in wanted), why)
            return []
        arms = attribution.arms(run, wanted)
        if any(arm not in run.jobs and arm not in run.lost for arm in arms):
            self._say(f"the parts of {len({target.cell for target in wanted})} cell(s) are timed too")
            self._prepare(arms)
        return wanted

    def _explaining(self, wanted: Sequence[attribution.Target]) -> Callable[[Groups], None]:
        """Return what times these waterfalls with a session's groups; the sessions without them cost less."""
        run, probe = self._run, self._collaborators.probing(self._run, self._sessions, wanted, self._say_left)

        def explain(groups: Groups) -> None:
            start = run.plan.clock()
            probe(groups)
            groups.session.explaining_s = run.plan.clock() - start

        return explain

    def _prepare(self, arms: Sequence[Arm]) -> None:
        self._collaborators.prepare(self._run, self._sides, arms, self._say)

    def _run_sessions(
        self,
        chosen: Sequence[Cell],
        on_one: Sequence[tuple[Arm, ...]],
        explained: Sequence[attribution.Target] = (),
        train: Callable[[Groups], None] | None = None,
    ) -> None:
        """Run sessions over the cells that are still undecided; the first ones also time the waterfalls' variants."""
        run = self._run
        run.planned = 0
        self._show_plan(chosen, on_one, attribution.arms(run, explained))
        while units := self._units([cell for cell in chosen if self._undecided(cell)]):
            number = self._sessions_done
            over = run.planned and number >= run.planned
            if over or (self._keeps_budget and run.sessions and self._left_s() < run.session_s):
                units = [unit for unit in units if self._never_timed(unit)]
            if not units:
                return
            timed = _arms(units)
            units += [unit for unit in on_one if unit[0] not in timed and unit[0] not in run.lost]
            probed = explained if number < attribution.SESSIONS[run.plan.config.profile] else []
            suspects = self._suspects(chosen)
            untimed = [
                arm
                for arm in attribution.arms(run, [*probed, *suspects])
                if arm not in run.lost and (arm, "setup") not in run.unprobed
            ]
            afterwards = [self._collaborators.probing(run, self._sessions, probed, self._say_left)] if probed else []
            afterwards += [self._explaining(suspects)] if suspects else []
            afterwards += [train] if train is not None and number == 0 else []
            if number == 0 and run.plan.config.counters != "off" and run.plan.config.explain:
                afterwards.append(self._collaborators.counting(run, self._sessions, chosen, self._say_left))
            if self._session(units, untimed, afterwards) and number == 0:
                # The plan is made once, from what the first session cost and not from what it showed.
                run.planned = run.plan.config.calibrate or self._planned(1 + self._left_s() / run.session_s)

    def _session(
        self, units: Sequence[tuple[Arm, ...]], untimed: Sequence[Arm], afterwards: Sequence[Callable[[Groups], None]]
    ) -> bool:
        """Run a session; return whether it counts."""
        run, discarded = self._run, len(self._run.discarded)
        if run.sessions:
            self._sides.renew()
        try:
            self._sessions.run(units, untimed, afterwards)
        finally:
            timed, counts = _arms(units), len(run.discarded) == discarded
            for arm, failure in (run.sessions if counts else run.discarded)[-1].failures.items():
                if arm in timed:
                    run.lost[arm] = failure
                else:  # only a waterfall needs it, and what has been decided stays
                    run.unprobed[arm, "setup"] = failure.cause
        self._grown()
        return counts

    def _show_plan(self, chosen: Sequence[Cell], on_one: Sequence[tuple[Arm, ...]], untimed: Sequence[Arm]) -> None:
        run = self._run
        each = self._forecast([*self._units(chosen), *on_one], untimed)
        if not each.wall_s:
            return
        planned = run.plan.config.calibrate or self._planned(self._left_s() / each.wall_s)
        for line in forecast.lines(run, planned, each):
            run.notes.append(line)
            self._say(line)

    def _planned(self, affordable: float) -> int:
        """Return how many sessions the present comparison gets, where the budget allows `affordable`."""
        config = self._run.plan.config
        sessions = max(config.min_sessions, int(affordable))
        if self._run.comparison.bases:
            return sessions
        if self._rebuild.cells:
            return min(max(1, sessions // SHARE_BEFORE), FIRST_LOOK)
        return min(sessions, MAX_SESSIONS[config.profile])

    @property
    def _loading_s(self) -> float:
        """What later sessions take longer to start: the first one has the template that answered the questions."""
        return 0.0 if self._run.sessions or not self._sides.forks else self._sides.start_s

    @property
    def _keeps_budget(self) -> bool:
        """Whether the budget is the user's own, which is kept even if sessions take longer than planned."""
        return self._run.plan.config.min_sessions == 1 and not self._run.plan.config.calibrate

    @property
    def _sessions_done(self) -> int:
        """Sessions of the present comparison that have ended."""
        return len(self._run.sessions) - self._run.comparison.sessions_before

    def _outcome(self, cell: Cell, rules: Sequence[str] | None = None) -> Outcome:
        """Return a cell's outcome so far from these rules, or from all of them."""
        checks = judging.checks(self._run, cell)
        return judging.combined([check for check in checks if rules is None or check.rule in rules])[0]

    def _undecided(self, cell: Cell) -> bool:
        run = self._run
        if any(arm in run.lost for arm in run.arms(cell).values()):
            return False
        if run.plan.config.calibrate or not run.comparison.bases or not run.planned:
            return True  # no look is planned before the first session has shown how many there will be
        rules = list(judging.BY_SESSION)
        if cells.arm("candidate", cell.trainer, cell, 1) in run.lost:  # no session can measure its efficiency
            rules.remove("floor")
        return self._outcome(cell, rules) is Outcome.INCONCLUSIVE

    def _units(self, chosen: Sequence[Cell]) -> list[tuple[Arm, ...]]:
        run = self._run
        units = dict.fromkeys(tuple(run.arms(cell).values()) for cell in chosen)  # each cell next to its bases
        alive = [tuple(arm for arm in unit if arm not in run.lost) for unit in units]
        return [unit for unit in alive if unit]

    def _never_timed(self, unit: tuple[Arm, ...]) -> bool:
        """Return whether an arm has no sample: another arm broke their processes, and one more session is due to it."""
        timed = {window.arm for session in self._run.sessions for window in session.windows}
        return any(arm.id not in timed for arm in unit)

    def _left_s(self) -> float:
        """Return how much of the budget is left, without what sweeps that are still to come need."""
        plan = self._run.plan
        sweeps = 0 if self._run.collectives else len({sweep.world_size for sweep in plan.sweeps})
        return plan.config.budget_s - plan.elapsed_s - sweeps * collectives.cost_s(plan.config.devices.kind)

    def _say_left(self, what: str) -> None:
        run = self._run
        left_s = (run.planned - self._sessions_done) * run.session_s if run.planned else self._left_s()
        self._say(f"{what}; {f'at most {left_s / 60:.1f} min left' if left_s > 0 else 'past the budget'}")


def _arms(units: Sequence[tuple[Arm, ...]]) -> list[Arm]:
    return list(dict.fromkeys(arm for unit in units for arm in unit))
