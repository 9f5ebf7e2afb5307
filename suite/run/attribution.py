"""Where the time went: times the diagnostic variants of cells with a session's living workers (controller's side).

Nothing that is judged is timed here: it happens when a session's blocks are over. A diagnostic variant that fails costs
its own bar; a candidate that fails in a real training step (`Variant.training`) is lost, as it is in a block.
`suite.verdict.diagnose` says what the variants are and makes bars of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from suite.plan import cells
from suite.plan.cells import PLAIN, Arm, Cell, Side
from suite.processes.failure import WorkerFailure
from suite.records import record
from suite.records.record import interval
from suite.room.conditions import LIMIT_CORES
from suite.run.observations import Observations
from suite.run.session import FIRST_STEP_TIMEOUT_S, PATIENCE, Crew, Say, Sessions
from suite.verdict.diagnose import Growth, Point, Rounds, Waterfall, growth, waterfall
from suite.verdict.explain import About, beside, sentence

# The shortest profile has as many; a t-interval over fewer is too wide to name a cause. Three times as many are a third
# as wide, with the smaller t-quantile.
SESSIONS = {"quick": 4, "full": 12}
WINDOW_S = 0.06
SESSION_S = 6.0  # of a session, which its waterfalls share; each has a round forwards and one backwards at least
MAX_PAIRS = 6  # of such rounds

Whose = Literal["one", "plain", "own"]


class Variant(NamedTuple):
    """A variant of the step, as `suite.rank.arm.TimedArm.probe` takes it.

    Attributes:
        whose: workers: the trainer's on one device, k independent plain ones, or the trainer's on k.
        resident: on a minibatch that stays in memory, without the feed.
        part: on a k-th of it.
        exchange: with the exchange of gradients.
        alone: rank 0 alone.
    """

    whose: Whose
    resident: bool = True
    part: bool = False
    exchange: bool = True
    alone: bool = False

    @property
    def training(self) -> bool:
        """Whether this is the trainer's own `step` on a whole minibatch, which no trainer may fail in."""
        return self.whose != "plain" and self.exchange and not self.part


_VARIANTS: dict[Point, Variant] = {
    "one": Variant("one", resident=False),
    "one_resident": Variant("one"),
    "part": Variant("one", part=True),
    "plain_alone": Variant("plain", alone=True),
    "plain": Variant("plain"),
    "unsynced": Variant("own", exchange=False),
    "resident": Variant("own"),
    "step": Variant("own", resident=False),
}


class Target(NamedTuple):
    """One waterfall: a cell's, for the candidate or a base."""

    cell: Cell
    side: Side

    def arms(self, run: Observations) -> dict[Whose, Arm]:
        """The trainer on one device and on k, and k independent devices."""
        own = run.compared(self.cell)[self.side]
        one, plain = cells.arm(self.side, own.trainer, self.cell, 1), cells.arm(self.side, PLAIN, self.cell)
        return {"one": one, "plain": plain, "own": own}


def targets(run: Observations, chosen: Iterable[Cell], sides: Sequence[Side]) -> list[Target]:
    """The waterfalls that these cells can have; none where nobody asked."""
    if not run.plan.config.explain:
        return []
    several = [c for c in chosen if c.world_size > 1 and not run.plan.config.devices.oversubscribed(c.world_size)]
    return [Target(cell, side) for cell in several for side in sides]


def arms(run: Observations, wanted: Iterable[Target]) -> list[Arm]:
    """Everything that has to live for them."""
    return list(dict.fromkeys(arm for target in wanted for arm in target.arms(run).values()))


def probing(run: Observations, sessions: Sessions, wanted: Sequence[Target], say: Say) -> Callable[[Crew], None]:
    """What is done with a session's workers once its blocks are timed: rounds forwards and backwards for each.

    Where a pair of them would not fit into what is left of the budget the cell goes without, and says so; but not in a
    session that takes place whatever the budget is.
    """

    def probe(crew: Crew) -> None:
        rng = random.Random(f"{run.plan.seed} {crew.session.number}")
        for target in rng.sample(wanted, len(wanted)):
            whose = target.arms(run)
            if whose["own"] in run.lost or whose["one"] in run.lost:
                continue
            points = _points(run, target)
            needed_s = 3 * sum(max(WINDOW_S, sessions.step_s.get(whose["own"], 0.0)) for _ in points)
            left_s = sessions.left_s()
            if crew.session.number >= run.plan.config.min_sessions and needed_s > left_s:
                run.unexplained[target.cell] = f"the budget did not leave the {needed_s:.0f} s it takes"
                continue
            say(f"session {crew.session.number + 1}: where the time goes: {target.cell.id}")
            _Prober(run, crew, target, whose).go(points, rng, min(SESSION_S, left_s) / len(wanted))

    return probe


class _Prober:
    """One target in one session: every variant once to warm it up, then rounds forwards and backwards in turn."""

    def __init__(self, run: Observations, crew: Crew, target: Target, whose: dict[Whose, Arm]) -> None:
        self._run, self._crew, self._target, self._arms = run, crew, target, whose
        self._step_s: dict[Point, float] = {}

    def go(self, points: Sequence[Point], rng: random.Random, allowed_s: float) -> None:
        """Time these variants in an order that is drawn, in as many pairs of rounds as `allowed_s` has room for."""
        order = rng.sample(points, len(points))
        for point in order:
            if (taken := self._window(point, 1, FIRST_STEP_TIMEOUT_S)) is not None:
                self._step_s[point] = max(taken) / 1e9
        round_s = sum(max(WINDOW_S, step_s) for step_s in self._step_s.values())
        pairs = max(1, min(MAX_PAIRS, int(allowed_s / (2 * round_s)))) if round_s else 0
        for number in range(2 * pairs):
            for point in order if number % 2 == 0 else order[::-1]:
                if point in self._step_s:
                    steps = max(1, math.ceil(WINDOW_S / self._step_s[point]))
                    taken = self._window(point, steps, max(20.0, PATIENCE * steps * self._step_s[point]))
                    if taken is not None:
                        self._keep(point, number, steps, taken)

    def _window(self, point: Point, steps: int, timeout_s: float) -> tuple[int, ...] | None:
        """Nanoseconds of the ranks that took part; None where the workers are gone, or go over it.

        A base that fails here was timed in every block before, so what was found beside it stays.
        """
        chosen = _VARIANTS[point]
        arm = self._arms[chosen.whose]
        if (group := self._crew.groups.get(arm)) is None:
            return None
        share = self._target.cell.world_size if chosen.part else 1
        variant = {
            "resident": chosen.resident,
            "share": share,
            "exchange": chosen.exchange,
            "alone": chosen.alone,
        }
        try:
            answers = group.request("probe", timeout_s, name=arm.id, steps=steps, variant=variant)
        except WorkerFailure as failure:
            self._run.unprobed[arm, point] = failure.cause
            if chosen.training and arm.side == "candidate":
                self._run.lost[arm] = failure
            self._crew.drop(group)
            return None
        return tuple(int(answer["duration_ns"]) for answer in answers if answer["duration_ns"] is not None)

    def _keep(self, point: Point, number: int, steps: int, duration_ns: tuple[int, ...]) -> None:
        cell, side = self._target
        probe = record.Probe(cell=cell.id, side=side, point=point, round=number, steps=steps, duration_ns=duration_ns)
        self._crew.session.probes.append(probe)


def _points(run: Observations, target: Target) -> list[Point]:
    whose = target.arms(run)
    own = whose["own"]
    found: list[Point] = []
    for point, variant in _VARIANTS.items():
        arm = whose[variant.whose]
        if point == "part" and target.cell.mode == "weak":
            continue
        if point == "unsynced" and not run.trainers[own.side, own.trainer]["unsynced"]:
            continue
        if (arm, point) not in run.unprobed and arm not in run.lost:
            found.append(point)
    return found


def waterfalls(run: Observations, cell: Cell) -> tuple[record.WaterfallRecord, ...]:
    """A cell's waterfall, and its base's where that was timed too."""
    rounds = {side: [_rounds(session.probes, cell, side) for session in run.sessions] for side in run.compared(cell)}
    grown = None
    if "base" in rounds:
        grown = growth(rounds["candidate"], rounds["base"], mode=cell.mode, world_size=cell.world_size)
    made = {side: waterfall(of, mode=cell.mode, world_size=cell.world_size) for side, of in rounds.items()}
    return tuple(_to_record(run, cell, side, found, grown) for side, found in made.items() if found is not None)


def note(run: Observations, cell: Cell) -> str:
    """Why a cell has no waterfall; empty where it has one, or needs none."""
    if cell.world_size == 1 or any(probe.cell == cell.id for session in run.sessions for probe in session.probes):
        return ""
    if run.plan.config.devices.oversubscribed(cell.world_size):
        return "oversubscribed devices say nothing about scaling"
    if cell in run.unexplained:
        return run.unexplained[cell]
    if cell in run.beside:
        return "beside a base only what fails is taken apart; without --scaling-against every cell is"
    return "; ".join(cause for (arm, _), cause in run.unprobed.items() if arm == run.plan.own(cell))


def _rounds(probes: Sequence[record.Probe], cell: Cell, side: Side) -> Rounds:
    """Seconds a step of the ranks in every window.

    Blocks time "one" and "step" as well, and in more windows, but earlier: what disturbs them would be taken for the
    difference between "step" and "resident", which is the feed.
    """
    found: dict[Point, list[Sequence[float]]] = {}
    for probe in probes:
        if (probe.cell, probe.side) == (cell.id, side):
            step_s = tuple(duration / probe.steps / 1e9 for duration in probe.duration_ns)
            found.setdefault(probe.point, []).append(step_s)
    return found


def _to_record(
    run: Observations, cell: Cell, side: Side, made: Waterfall, grown: Growth | None
) -> record.WaterfallRecord:
    target = Target(cell, side)
    own = target.arms(run)["own"]
    shares = [c.foreign for session in run.sessions for c in session.conditions if c.foreign is not None]
    foreign = fmean(shares or [0.0])
    about = About(
        trainer=cells.short(own.trainer),
        model=run.plan.workload(cell.workload).model.rpartition(":")[2],
        world_size=cell.world_size,
        batch=-(-run.orders[own]["global_batch"] // cell.world_size),
        gradient_bytes=run.gradient_bytes.get(own, 0),
        foreign_cores=foreign if foreign > LIMIT_CORES else None,
    )
    return record.WaterfallRecord(
        side=side,
        sessions=made.sessions,
        ideal_s=interval(made.ideal_s),
        measured_s=interval(made.measured_s),
        bars=tuple(record.BarRecord(causes=bar.causes, step_s=interval(bar.step_s)) for bar in made.bars),
        sentence=sentence(made, about) if side != "candidate" or grown is None else beside(made, about, grown),
        notes=tuple(_notes(run, target, made)),
    )


def _notes(run: Observations, target: Target, made: Waterfall) -> Iterable[str]:
    """Why causes could not be told apart."""
    whose = target.arms(run)
    if any("overhead" in bar.causes and len(bar.causes) > 1 for bar in made.bars):
        trainer = whose["own"].trainer
        if not run.trainers[target.side, trainer]["unsynced"]:
            yield f"{cells.short(trainer)} has no step_unsynced, so its overhead and its exchange are one bar"
    for (arm, point), cause in run.unprobed.items():
        if arm in whose.values():
            yield f"{point} of {arm.id} could not be timed: {cause}"
    if whose["plain"] in run.lost:
        yield f"{target.cell.world_size} independent devices could not be timed: {run.lost[whose['plain']].cause}"
