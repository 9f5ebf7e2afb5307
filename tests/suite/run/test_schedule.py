"""How a budget is spent: how many sessions, and which cells leave their time to others."""

from __future__ import annotations

import math
import random
import re

import pytest

from suite.plan.cells import Cell
from suite.plan.config import Budget
from suite.records.record import CellRecord
from suite.run import results, schedule
from suite.run.observations import Observations
from suite.run.schedule import BETWEEN, Price, Scatter, SessionPlan, leaving, scatters
from suite.verdict import Middle, Outcome
from tests.support.measurements import AGAINST
from tests.support.stub_gpus import TRAINERS, Costs, Machine

MARGIN = math.log1p(0.05)
QUIET, NOISY = Scatter(0.01**2, BETWEEN**2, 4, 2), Scatter(0.15**2, BETWEEN**2, 4, 2)


@pytest.mark.parametrize(
    ("plan", "affordable", "sessions"),
    [
        (SessionPlan(Budget(180), 4, "quick"), 2.5, 4),
        (SessionPlan(Budget(180, fixed=True), 4, "quick"), 2.5, 2),
        (SessionPlan(Budget(180), 4, "quick"), 9.9, 9),
        (SessionPlan(Budget(180), 0, "quick"), 9.9, 6),
        (SessionPlan(Budget(180), 0, "full"), 99.0, 20),
    ],
    ids=[
        "a profile stretches",
        "the user's does not",
        "as many as fit",
        "figures need few",
        "in the full profile more",
    ],
)
def test_sessions(plan: SessionPlan, affordable: float, sessions: int) -> None:
    assert plan.sessions(affordable) == sessions


def test_a_session_has_its_share_of_what_is_left() -> None:
    compares = SessionPlan(Budget(180), 4, "quick")
    assert compares.share_s(100.0, 4) == 25.0
    assert compares.share_s(100.0, 0) == SessionPlan(Budget(180), 0, "quick").share_s(100.0, 4) == 0.0
    assert SessionPlan(Budget(180), 4, "quick", exactly=7).share_s(100.0, 4) == 0.0


def test_what_windows_show_is_a_cells_own_and_what_sessions_add_is_that_of_all() -> None:
    rng = random.Random(1)

    def sessions(within: float) -> list[Middle]:
        return [Middle(rng.gauss(0.0, math.hypot(within, 0.02)), within**2, 20) for _ in range(400)]

    known = scatters({"quiet": sessions(0.01), "noisy": sessions(0.1)}, rounds=6)
    assert known["quiet"].between == known["noisy"].between == pytest.approx(0.02**2, rel=0.3)
    assert known["noisy"].within == pytest.approx(0.1**2, rel=0.01)
    assert known["quiet"].rounds == 6


def test_nothing_is_known_of_cells_with_one_window_a_session() -> None:
    assert scatters({"one": [Middle(0.1), Middle(0.2)]}, rounds=1) == {}


def test_more_sessions_and_more_rounds_decide_more() -> None:
    usual = Scatter(0.06**2, 0.01**2, 4, 2)
    few, more, longer = (usual.passes(price, MARGIN) for price in (Price(2, 4), Price(6, 4), Price(2, 20)))
    assert few < longer < 1
    assert few < more < 1
    assert QUIET.passes(Price(2, 4), MARGIN) > 0.95
    assert NOISY.passes(Price(2, 4), MARGIN) < 0.2


def test_how_many_sessions_a_cell_needs() -> None:
    needed = NOISY.needed(8, MARGIN)
    assert needed is not None
    assert NOISY.passes(Price(needed - 2, 8), MARGIN) >= 0.5 > NOISY.passes(Price(needed - 3, 8), MARGIN)


def bought(kept: list[str]) -> Price:
    """Return a price of which every cell that leaves is worth four rounds of the others."""
    return Price(3, 4 + 4 * (6 - len(kept)))


CELLS = {f"cell-{number}": Scatter((0.02 * 1.7**number) ** 2, 0.01**2, 4, 2) for number in range(6)}


def test_the_noisiest_leave_where_more_of_the_others_are_decided_for_it() -> None:
    gone = leaving(CELLS, (), bought, MARGIN)
    assert gone
    assert set(gone) == set(list(CELLS)[-len(gone) :])

    def expected(kept: list[str]) -> float:
        return sum(CELLS[key].passes(bought(kept), MARGIN) for key in kept)

    assert expected([key for key in CELLS if key not in gone]) > expected(list(CELLS))


def test_who_may_not_leave_stays() -> None:
    assert leaving(CELLS, CELLS, bought, MARGIN) == []


def test_nobody_leaves_where_nothing_is_won_by_it() -> None:
    assert leaving(CELLS, (), lambda kept: Price(3, 4), MARGIN) == []
    assert leaving({"alone": NOISY}, (), bought, MARGIN) == []


# Seconds on the slow kind of machine, by which a session of a default run takes 35 s, as recorded ones did; and windows
# by which a run without the rule decides five of twelve cells, as one did beside light work.
SLOW = Costs(
    start_s=0.7, context_s=0.0, communicator_s=0.0, libraries_s=0.02, links_s=0.01, shapes_s=0.01, step_s=0.05,
    window_s=0.01, end_s=0.5,
)  # fmt: skip
BUSY = {
    (trainer, mode, k): 0.055 if k == 1 else {"strong": 0.09, "weak": 0.30}[mode]
    for trainer in TRAINERS
    for mode in ("strong", "weak")
    for k in (1, 2)
}


def beside_light_work(seed: int) -> tuple[Machine, Observations]:
    """Run twelve cells beside a base within three minutes."""
    machine = Machine(2, 2, SLOW, kind="cpu", spread=0.006, noise=BUSY, rng=random.Random(seed))
    return machine, machine.measure(against=AGAINST, counters="off")


def outcomes(run: Observations) -> dict[Cell, CellRecord]:
    """Return the cells of a run's record."""
    return dict(zip(run.plan.cells, results.to_record(run).cells, strict=True))


def test_cells_that_leave_say_what_they_would_take() -> None:
    """They are timed in two sessions and no more."""
    machine, run = beside_light_work(0)
    left = run.comparison.left
    assert {(cell.mode, cell.world_size) for cell in left} == {("weak", 2)}
    said = "plan: too noisy to be decided in the rest of the budget, which goes to the other cells: "
    assert said + ", ".join(cell.id for cell in left) in [line for _, line in machine.said]
    judged = outcomes(run)
    for cell in left:
        assert (judged[cell].outcome, judged[cell].sessions) == (Outcome.INCONCLUSIVE, 2)
        assert re.search(r"too noisy for this budget: it needs about \d+\.\d more minutes", judged[cell].reason)


def decided(seed: int) -> int:
    """Return how many of twelve cells are decided."""
    _, run = beside_light_work(seed)
    return sum(cell.outcome in (Outcome.PASS, Outcome.FAIL) for cell in outcomes(run).values())


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_cells_that_leave_let_more_of_the_others_be_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over eight simulated runs; docs/log.md has the figures."""
    with_them = sum(map(decided, range(8)))
    monkeypatch.setattr(schedule, "HOPELESS", 0.0)
    assert with_them > sum(map(decided, range(8)))
