"""One run: sessions over all undecided cells, until everything is decided or the budget is spent.

Beside a base that the user named, every cell is measured next to it from the first session on. Without one the cells
are measured by themselves. Where accepted runs have them, that takes few sessions, and the rest of the budget is for
measuring them next to the rebuilt commits of those runs.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from suite.base.checkout import CheckoutError
from suite.base.sides import Sides
from suite.plan import cells
from suite.plan.base import Base
from suite.plan.cells import YARDSTICK, Arm, Cell, Side
from suite.processes.failure import WorkerFailure
from suite.room.check import neighbours
from suite.room.meter import Meter
from suite.run import accuracy, attribution, forecast, judging, preparing, results, suspicion
from suite.run import collectives as all_reduce
from suite.run.observations import Observations
from suite.run.session import Crew, Say, Sessions
from suite.verdict import FIRST_LOOK, Outcome

# Of the sessions that a budget allows, a quarter at most is alone where accepted commits are measured beside the cells
# afterwards: figures, training and waterfalls come from these, and the verdict from the others.
ALONE_SHARE = 4
MAX_SESSIONS = {"quick": 6, "full": 20}  # where nothing can be decided, more sessions only narrow the intervals


def measure(run: Observations, root: Path, say: Say) -> None:
    """Measure until every cell is decided or the budget is spent.

    What fails is kept in `run.lost`; what was measured before a Ctrl-C is in `run` when the KeyboardInterrupt goes on,
    and every process has ended by then.

    Args:
        run: what is to be measured; filled here.
        root: the user's project; the workers may import from it and from the working directory.
        say: is told what is going on, a line at a time.
    """
    run.neighbours = neighbours(run.plan.config.devices)
    for neighbour in run.neighbours:
        say(f"not alone: {neighbour}")
    with Meter(run.plan.config.devices) as meter, Sides(run.plan.config.devices.kind, root) as sides:
        campaign = _Campaign(run, sides, meter, say)
        if run.plan.config.against is not None:
            campaign.compare({"base": run.plan.config.against}, run.plan.cells)
            return
        campaign.measure_alone()
        campaign.sweep()
        suspicion.hold_against_stored(run, results.to_record(run))  # what an interrupted run has to say
        campaign.compare_with_accepted()


class _Campaign:
    """The sessions of a run; they share its budget, the steps of a window, and the draw of orders."""

    def __init__(self, run: Observations, sides: Sides, meter: Meter, say: Say) -> None:
        self._run, self._sides, self._say = run, sides, say
        self._rebuild = suspicion.Rebuild({}, [])
        self._begun = 0  # sessions that were over when the present part of the campaign began
        rng = random.Random(run.plan.seed)
        self._sessions = Sessions(sides.pools, run.orders, rng, meter, self._left_s, self._say_left)

    def measure_alone(self) -> None:
        """Time every cell, what its efficiency and its speed-up need, and train."""
        own = cells.units(self._run.plan.cells, {})
        yardsticks = cells.yardsticks(self._run.plan.cells, speedup=True)
        explained = attribution.targets(self._run, self._run.plan.cells, ["candidate"])
        beside = attribution.arms(self._run, explained)
        preparing.prepare(self._run, self._sides, [*_arms(own + yardsticks), *beside], self._say)
        if not self._run.plan.config.calibrate:
            self._rebuild = suspicion.rebuild(self._run, results.to_record(self._run))
        train = accuracy.training(self._run, self._sessions, self._say_left)
        self._go_on(self._run.plan.cells, yardsticks, explained, train)

    def sweep(self) -> None:
        """Time the collectives that were selected, also of the sizes that the run's gradients have."""
        run = self._run
        if not run.plan.sweeps:
            return
        if not run.versions:  # there was no cell that would have asked
            with contextlib.suppress(WorkerFailure):  # every sweep will say for itself what is wrong
                run.versions["candidate"] = self._sides.clerk("candidate").ask("describe", trainer=YARDSTICK)[
                    "versions"
                ]
            self._sides.dismiss_clerks()
        sizes = set(run.gradient_bytes.values())
        run.collectives = all_reduce.measure(
            self._sides.pools["candidate"],
            run.plan.sweeps,
            run.plan.config.devices,
            self._say_left,
            gradient_bytes=sizes,
            seed=run.plan.seed,
        )

    def compare_with_accepted(self) -> None:
        """Time the cells that accepted runs have next to the rebuilt commits of those."""
        run = self._run
        measured = [cell for cell in self._rebuild.cells if run.plan.own(cell) not in run.lost]
        if measured:
            self._say(f"{len(measured)} cell(s) with accepted runs: rebuilding what those measured")
            self.compare(self._rebuild.bases, measured)
            suspicion.hold_against_stored(run, results.to_record(run))

    def compare(self, bases: Mapping[Side, Base], chosen: Sequence[Cell]) -> None:
        """Time cells next to their bases until each is decided; the whole budget goes to the comparison."""
        run = self._run
        run.bases, run.beside, run.alone = dict(bases), list(chosen), len(run.sessions)
        units = self._units(chosen)
        yardsticks = cells.yardsticks([cell for cell in chosen if cell in run.plan.floors], speedup=False)
        for side, base in bases.items():
            try:
                run.notes += [f"{base.label}: {note}" for note in self._sides.add(side, base)]
            except CheckoutError as error:
                failure = WorkerFailure(side, str(error))
                run.lost |= {arm: failure for arm in _arms(units) if arm.side == side}
        preparing.prepare(run, self._sides, _arms(units + yardsticks), self._say)
        self._sessions.plan_anew()
        self._go_on(chosen, yardsticks)
        self._explain([cell for cell in chosen if self._failed(cell)])

    def _explain(self, slower: Sequence[Cell]) -> None:
        """Say what grew: candidate and base side by side, in sessions of their own, as far as the budget goes."""
        run = self._run
        sides: tuple[Side, ...] = ("candidate", "base") if "base" in run.bases else ("candidate",)
        wanted = attribution.targets(run, slower, sides)
        if not wanted:
            return
        self._say(f"{len(slower)} cell(s) FAIL: taking their steps apart")
        run.unexplained |= dict.fromkeys(slower, "the budget was spent before it was; raise --scaling-budget")
        beside = attribution.arms(run, wanted)
        preparing.prepare(run, self._sides, beside, self._say)
        alive = [arm for arm in beside if arm not in run.lost]
        cost_s = run.session_s
        for _ in range(attribution.SESSIONS[run.plan.config.profile]):
            if self._left_s() < cost_s:
                break
            probe = attribution.probing(run, self._sessions, wanted, self._say_left)
            self._session([], alive, [probe])
            cost_s = run.sessions[-1].wall_s

    def _go_on(
        self,
        chosen: Sequence[Cell],
        yardsticks: Sequence[tuple[Arm, ...]],
        explained: Sequence[attribution.Target] = (),
        train: Callable[[Crew], None] | None = None,
    ) -> None:
        """Sessions over the cells that are still undecided; the first ones also say where the time goes."""
        run = self._run
        self._begun, run.planned = len(run.sessions), 0
        self._show_plan(chosen, yardsticks, attribution.arms(run, explained))
        # The user's own budget is kept even when sessions turn out longer than planned.
        hard = run.plan.config.min_sessions == 1 and not run.plan.config.calibrate
        while units := self._units([cell for cell in chosen if self._undecided(cell)]):
            over = run.planned and len(run.sessions) - self._begun >= run.planned
            if over or (hard and run.sessions and self._left_s() < run.session_s):
                units = [unit for unit in units if self._never_timed(unit)]
            if not units:
                return
            timed = _arms(units)
            units += [unit for unit in yardsticks if unit[0] not in timed and unit[0] not in run.lost]
            number = len(run.sessions) - self._begun
            probed = explained if number < attribution.SESSIONS[run.plan.config.profile] else []
            beside = [arm for arm in attribution.arms(run, probed) if arm not in run.lost]
            afterwards = [attribution.probing(run, self._sessions, probed, self._say_left)] if probed else []
            afterwards += [train] if train is not None and number == 0 else []
            self._session(units, beside, afterwards)
            if number == 0:
                # The plan is made once, from what the first session cost and not from what it showed.
                run.planned = run.plan.config.calibrate or self._planned(1 + self._left_s() / run.session_s)

    def _session(
        self, units: Sequence[tuple[Arm, ...]], beside: Sequence[Arm], afterwards: Sequence[Callable[[Crew], None]]
    ) -> None:
        run = self._run
        try:
            self._sessions.run(units, beside, afterwards)
        finally:  # what an interrupted session has timed is kept as well
            run.sessions.append(self._sessions.current)
            run.steps |= self._sessions.steps
            run.gradient_bytes |= self._sessions.gradient_bytes
            failures = self._sessions.current.failures
            if units:
                run.lost |= failures
            else:  # nothing was judged, and what has been decided stays
                run.unprobed |= {(arm, "setup"): failure.cause for arm, failure in failures.items()}

    def _show_plan(self, chosen: Sequence[Cell], yardsticks: Sequence[tuple[Arm, ...]], beside: Sequence[Arm]) -> None:
        run = self._run
        arms = [arm for arm in (*_arms([*self._units(chosen), *yardsticks]), *beside) if arm in run.orders]
        if not arms:
            return
        each_s = forecast.session_s(run, arms, self._sides.clerk("candidate").start_s)
        planned = run.plan.config.calibrate or self._planned(self._left_s() / each_s)
        for line in forecast.lines(run, planned, each_s):
            run.notes.append(line)
            self._say(line)

    def _planned(self, affordable: float) -> int:
        """Sessions that this part of the campaign can have, where the budget allows so many."""
        run = self._run
        affordable = max(run.plan.config.min_sessions, int(affordable))
        if run.bases:
            return affordable
        if self._rebuild.cells:
            return min(max(1, affordable // ALONE_SHARE), FIRST_LOOK)
        return min(affordable, MAX_SESSIONS[run.plan.config.profile])

    def _failed(self, cell: Cell) -> bool:
        outcome, _ = judging.combined(judging.checks(self._run, cell))
        return outcome is Outcome.FAIL

    def _undecided(self, cell: Cell) -> bool:
        run = self._run
        if any(arm in run.lost for arm in run.compared(cell).values()):
            return False
        if run.plan.config.calibrate or not run.bases:
            return True
        # Accepted runs and accuracies say the same after every session; what is beside the cell is asked.
        checks = [check for check in judging.checks(run, cell) if check.rule in judging.BY_SESSION]
        if cells.arm("candidate", cell.trainer, cell, 1) in run.lost:  # no session will bring its efficiency
            checks = [check for check in checks if check.rule != "floor"]
        outcome, _ = judging.combined(checks)
        return outcome is Outcome.INCONCLUSIVE

    def _units(self, chosen: Sequence[Cell]) -> list[tuple[Arm, ...]]:
        run = self._run
        units = cells.units(chosen, {side: base.trainer for side, base in run.bases.items()})
        alive = [tuple(arm for arm in unit if arm not in run.lost) for unit in units]
        return [unit for unit in alive if unit]

    def _never_timed(self, unit: tuple[Arm, ...]) -> bool:
        """Whether an arm has no sample because another that shared its processes broke them: it is owed a session."""
        timed = {window.arm for session in self._run.sessions for window in session.windows}
        return any(arm.id not in timed for arm in unit)

    def _left_s(self) -> float:
        return self._run.plan.config.budget_s - self._run.plan.elapsed_s - self._reserved_s

    @property
    def _reserved_s(self) -> float:
        """For sweeps that are still to come."""
        if self._run.collectives:
            return 0.0
        return all_reduce.COST_S * len({sweep.world_size for sweep in self._run.plan.sweeps})

    def _say_left(self, what: str) -> None:
        run = self._run
        sessions = run.planned - (len(run.sessions) - self._begun)
        left = sessions * run.session_s if run.planned else self._left_s()
        self._say(f"{what}; at most {max(left, 0.0) / 60:.1f} min left")


def _arms(units: Sequence[tuple[Arm, ...]]) -> list[Arm]:
    return list(dict.fromkeys(arm for unit in units for arm in unit))
