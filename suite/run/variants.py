"""Variants of a step (`suite.verdict.diagnose.Point`): which workers run them, and what they are told."""

from __future__ import annotations

from typing import Literal, NamedTuple

from suite.plan import cells
from suite.plan.cells import APART, PLAIN, Arm, Cell, Side
from suite.run.observations import Observations
from suite.verdict.diagnose import Point

WINDOW_S = 0.06
FED_WINDOW_S = 0.2  # with a loader: more minibatches precede a window, and its two ends have more noise
Role = Literal["one", "plain", "own"]


class Variant(NamedTuple):
    """A variant of the step, as `suite.rank.arm.TimedArm.probe` takes it.

    Attributes:
        role: which workers run it: the trainer's on one device, k independent ones, or the trainer's on k. The
            independent ones are plain trainers, or a script's own ranks without any exchange.
        resident: on a minibatch that stays in memory, without the feed.
        part: on a k-th of it.
        exchange: with the exchange of gradients.
        alone: on rank 0 only.
    """

    role: Role
    resident: bool = True
    part: bool = False
    exchange: bool = True
    alone: bool = False

    @property
    def training(self) -> bool:
        """Whether this is the trainer's own `step` on a whole minibatch, which no trainer may fail in."""
        return self.role != "plain" and self.exchange and not self.part


VARIANTS: dict[Point, Variant] = {
    "one": Variant("one", resident=False),
    "one_resident": Variant("one"),
    "part": Variant("one", part=True),
    "plain_alone": Variant("plain", alone=True),
    "plain": Variant("plain"),
    "alone": Variant("plain", alone=True),
    "apart": Variant("plain"),
    "unsynced": Variant("own", exchange=False),
    "resident": Variant("own"),
    "step": Variant("own", resident=False),
}

_POINTS_OF_A_SCRIPT: tuple[Point, ...] = ("one", "one_resident", "alone", "apart", "resident", "step")


class Target(NamedTuple):
    """One waterfall: of a cell, for the candidate or a base."""

    cell: Cell
    side: Side

    def loaders(self, run: Observations, point: Point) -> int:
        """Return how many processes feed a rank in a variant; 0 where it trains on what is in memory."""
        return 0 if VARIANTS[point].resident else run.plan.loaders(self.cell.workload)

    def arms(self, run: Observations) -> dict[Role, Arm]:
        """Return the arms whose workers run the variants."""
        own = run.arms(self.cell)[self.side]
        independent = APART if self.cell.runs_script else PLAIN
        return {"one": own.on_one, "plain": cells.arm(self.side, independent, self.cell), "own": own}

    def window_s(self, run: Observations, point: Point) -> float:
        """Return how long a window of a variant is at least; a script has a loader of its own."""
        fed = self.cell.runs_script and not VARIANTS[point].resident
        return FED_WINDOW_S if fed or self.loaders(run, point) else WINDOW_S


def points_of(run: Observations, target: Target) -> list[Point]:
    """Return the variants that can be timed for a target."""
    by_role = target.arms(run)
    wanted = set(_POINTS_OF_A_SCRIPT if target.cell.runs_script else VARIANTS.keys() - {"alone", "apart"})
    if target.cell.mode == "weak":
        wanted.discard("part")
    if not run.trainers[target.side, by_role["own"].trainer].unsynced:
        wanted.discard("unsynced")
    return [
        point
        for point, variant in VARIANTS.items()
        if point in wanted
        and (by_role[variant.role], point) not in run.unprobed
        and by_role[variant.role] not in run.lost
    ]
