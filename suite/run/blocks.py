"""Blocks: the order in which arms are timed, balanced within one and drawn at random between them; and their number."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from suite.run.timer import MORE_SHARE
from suite.verdict import ALPHA_FAIL, FIRST_LOOK
from suite.verdict.metrics import t_quantile

# A round's SD over that between sessions: 9 % over 1.8 % with two ranks on shared cores (docs/log.md, the quiet room).
ROUND_TO_SESSION = 5.0
LEAST, MOST = 2, 30  # blocks of a session; a block is two rounds

T = TypeVar("T")


def block(units: Sequence[Sequence[T]], rng: random.Random) -> list[T]:
    """Return one block: every arm twice, forwards and then backwards (A B B A), so that a steady drift cancels.

    Args:
        units: groups of arms. A group's members stay neighbours; the order of groups, and of members in a group, is
            drawn for each block.
        rng: the run's own, so that its seed repeats the order.
    """
    shuffled = [rng.sample(list(unit), len(unit)) for unit in rng.sample(list(units), len(units))]
    forwards = [arm for unit in shuffled for arm in unit]
    return forwards + forwards[::-1]


class Costs(NamedTuple):
    """What a session takes.

    Attributes:
        start_s: beside its timing.
        round_s: one window of every arm.
        spare: the share of windows that may be timed again.
    """

    start_s: float
    round_s: float
    spare: float = MORE_SHARE


def count(costs: Costs, budget_s: float, sessions: int, df: float, ended: int = 0) -> int:
    """Return how many blocks a session has for a budget's narrowest interval (docs/verdict.md, "Rounds per session").

    Args:
        costs: of a session.
        budget_s: of all sessions to come.
        sessions: how many must fit, also with the windows that are timed again; where even those with the fewest
            blocks do not, the fewest are returned.
        df: degrees of freedom beside those of the sessions.
        ended: sessions that ended before.
    """
    start_s, round_s, spare = costs

    def half_width(blocks: int) -> float:
        rounds = 2 * blocks
        if sessions * (start_s + rounds * round_s * (1 + spare)) > budget_s:
            return math.inf
        planned = ended + int(budget_s / (start_s + rounds * round_s))
        if planned < FIRST_LOOK:
            return math.inf
        return t_quantile(planned - 1 + df, 1 - ALPHA_FAIL) * math.sqrt((1 + ROUND_TO_SESSION**2 / rounds) / planned)

    return min(range(LEAST, MOST + 1), key=half_width)
