"""How a budget is spent: sessions, blocks, and cells that leave their time to others; and what runs on GPUs take."""

from __future__ import annotations

import math
import random
import re
import statistics
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suite.plan.cells import Cell
from suite.plan.config import Base, Budget
from suite.records.record import CellRecord
from suite.render import lead
from suite.run import blocks, results, schedule
from suite.run.blocks import block
from suite.run.observations import Observations
from suite.run.schedule import BETWEEN, Price, Scatter, SessionPlan, leaving, scatters
from suite.run.timer import MORE_SHARE
from suite.verdict import ALPHA_FAIL, Middle, Outcome
from tests.support.measurements import AGAINST, accepted_run, baseline
from tests.support.repositories import Repository
from tests.support.stub_gpus import SCENES, TRAINERS, Costs, Machine

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


# Seconds on the slow kind of machine, by which processes of a default run start in 2.4 s and warm up in 2, as recorded
# ones do (docs/performance.md); windows as one default run had them beside light work.
SLOW = Costs(
    start_s=0.13, context_s=0.0, communicator_s=0.0, libraries_s=0.02, links_s=0.01, shapes_s=0.01, step_s=0.05,
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
    return dict(zip(run.plan.cells, results.to_record(run).cells, strict=True))


def test_cells_that_leave_say_what_they_would_take() -> None:
    """They are not timed afterwards."""
    machine, run = beside_light_work(0)
    left = run.comparison.left
    assert {(cell.mode, cell.world_size) for cell in left} == {("weak", 2)}
    said = "plan: too noisy to be decided in the rest of the budget, which goes to the other cells: "
    assert said + ", ".join(cell.id for cell in left) in [line for _, line in machine.said]
    judged = outcomes(run)
    for cell in left:
        assert (judged[cell].outcome, judged[cell].sessions) == (Outcome.INCONCLUSIVE, left[cell].sessions)
        assert re.search(r"too noisy for this budget: it needs about \d+\.\d more minutes", judged[cell].reason)


def decided(seed: int) -> int:
    _, run = beside_light_work(seed)
    return sum(cell.outcome in (Outcome.PASS, Outcome.FAIL) for cell in outcomes(run).values())


@pytest.mark.nightly
def test_cells_that_leave_let_more_of_the_others_be_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 24 simulated runs; docs/log.md has the figures."""
    leaving = [decided(seed) for seed in range(24)]
    assert statistics.median(leaving) >= 8
    monkeypatch.setattr(schedule, "HOPELESS", 0.0)
    assert sum(leaving) > sum(map(decided, range(24)))


UNITS = st.lists(st.integers(1, 3), min_size=1, max_size=6).map(
    lambda sizes: [tuple(f"{number}.{member}" for member in range(size)) for number, size in enumerate(sizes)]
)


@given(UNITS, st.integers())
def test_every_arm_is_timed_twice_and_mirrored_so_that_a_steady_drift_cancels(
    units: list[tuple[str, ...]], seed: int
) -> None:
    order = block(units, random.Random(seed))
    assert order == order[::-1]
    assert sorted(order) == sorted(2 * [arm for unit in units for arm in unit])


@given(UNITS, st.integers())
def test_compared_arms_are_neighbours(units: list[tuple[str, ...]], seed: int) -> None:
    order = block(units, random.Random(seed))
    for unit in units:
        places = sorted(order[: len(order) // 2].index(arm) for arm in unit)
        assert places == list(range(places[0], places[0] + len(unit)))


def test_both_starting_orders_occur() -> None:
    rng = random.Random(0)
    assert {block([("a", "b")], rng)[0] for _ in range(20)} == {"a", "b"}


class TestCount:
    """How much of a session is timing."""

    @staticmethod
    def half_width(
        number: int, start_s: float, round_s: float, budget_s: float, df: float = 0.0, ended: int = 0
    ) -> float:
        """In units of the SD between sessions, of a t bound after all sessions that the budget allows."""
        sessions = ended + budget_s // (start_s + 2 * number * round_s)
        variance = 1 + blocks.ROUND_TO_SESSION**2 / (2 * number)
        return float(stats.t.isf(ALPHA_FAIL, sessions - 1 + df)) * math.sqrt(variance / sessions)

    @pytest.mark.parametrize(("df", "ended"), [(0.0, 0), (0.0, 1), (4.0, 0)])
    @pytest.mark.parametrize(
        ("start_s", "round_s", "budget_s"),
        [(2.2, 0.27, 25.0), (2.2, 0.27, 60.0), (5.0, 0.5, 180.0), (17.0, 2.0, 600.0)],
    )
    def test_no_other_number_makes_the_interval_narrower(
        self, start_s: float, round_s: float, budget_s: float, df: float, ended: int
    ) -> None:
        chosen = blocks.count(blocks.Costs(start_s, round_s), budget_s, 1, df, ended)
        widths = {number: self.half_width(number, start_s, round_s, budget_s, df, ended) for number in range(2, 31)}
        assert widths[chosen] == pytest.approx(min(widths.values()))

    @pytest.mark.parametrize(("start_s", "round_s"), [(4.0, 0.24), (9.0, 2.2), (30.0, 8.0)])
    def test_with_many_sessions_it_is_the_number_that_decides_at_the_least_cost(
        self, start_s: float, round_s: float
    ) -> None:
        """Cochran (1977): the cost of a session times its variance."""
        best = blocks.ROUND_TO_SESSION * math.sqrt(start_s / round_s)
        assert 2 * blocks.count(blocks.Costs(start_s, round_s), 1e6, 4, 0.0) == pytest.approx(best, abs=1.0)

    def test_a_short_budget_has_more_sessions_of_fewer_blocks(self) -> None:
        """Four sessions of eleven rounds have a bound a fifth wider than six of six."""
        short, usual = (blocks.count(blocks.Costs(2.2, 0.27), budget_s, 4, 0.0) for budget_s in (24.0, 600.0))
        assert (short, usual) == (3, 7)
        assert self.half_width(short, 2.2, 0.27, 24.0) < 0.9 * self.half_width(usual, 2.2, 0.27, 24.0)

    @pytest.mark.parametrize(("sessions", "budget_s"), [(4, 55.0), (5, 70.0)])
    def test_as_many_sessions_as_a_decision_takes_fit_into_the_budget(self, sessions: int, budget_s: float) -> None:
        """With as many windows as may be timed again."""

        def all_s(number: int) -> float:
            return sessions * (10.0 + number * (1 + MORE_SHARE))

        chosen = blocks.count(blocks.Costs(10.0, 0.5), budget_s, sessions, 0.0)
        assert all_s(chosen) <= budget_s < all_s(chosen + 1)

    @pytest.mark.parametrize(("budget_s", "number"), [(0.0, blocks.LEAST), (1e9, blocks.MOST)])
    def test_a_session_has_several_rounds_and_an_end(self, budget_s: float, number: int) -> None:
        assert blocks.count(blocks.Costs(600.0, 0.24), budget_s, 4, 0.0) == number


FIRST_RUN_S, BESIDE_S = 300.0, 480.0
# Seeds; None are the costs as reasoned.
DRAWS = (None, 0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 6)))

scenes = pytest.mark.parametrize("scene", SCENES, ids=list(SCENES))
bases = pytest.mark.parametrize("base", [None, AGAINST], ids=["first run", "beside a base"])


@cache
def measured(scene: str, base: Base | None = None, seed: int | None = None) -> tuple[Machine, Observations]:
    """Return a machine after a run of its default cells, and the run, both only to read."""
    here = SCENES[scene](Costs() if seed is None else Costs.drawn(seed))
    return here, here.measure(against=base)


@scenes
@bases
@pytest.mark.parametrize("seed", DRAWS)
def test_from_the_first_session_on_the_plan_is_within_twice_of_what_the_run_takes(
    scene: str, base: Base | None, seed: int | None
) -> None:
    """Of what is still to come when it is shown; and where the first plan is kept, that one is.

    Training takes at most what the plan says of it.
    """
    here, run = measured(scene, base, seed)
    assert run.lost == {}
    assert len(run.sessions) >= 4
    shown = here.plans[-1]
    known_at_s = max(shown.at_s, here.ended_s(0))
    left_s = here.now - known_at_s
    assert left_s / 2 <= shown.total_s - known_at_s
    assert shown.least_s - known_at_s <= 2 * left_s


def test_eight_gpus_are_timed_at_every_world_size_in_four_sessions_within_five_minutes() -> None:
    here, run = measured("B")
    timed = {arm.world_size for arm in run.steps}
    assert timed == {1, 2, 4, 8}
    assert all(
        {window.arm for window in session.windows} >= {run.plan.own(each).id for each in run.plan.cells}
        for session in run.sessions[:4]
    )
    assert here.windows_s[3] <= FIRST_RUN_S


def test_a_run_beside_a_named_base_is_over_within_eight_minutes() -> None:
    here, run = measured("B", AGAINST)
    assert len(run.sessions) == run.planned == 4
    assert here.now <= BESIDE_S


@pytest.mark.parametrize("accepted", [1, 5], ids=["too few to judge the machine", "enough"])
def test_a_default_run_beside_accepted_ones_is_over_within_eight_minutes(accepted: int, tmp_path: Path) -> None:
    """Five accepted runs judge the machine, for which the first session takes cells apart."""
    repository, here = Repository(tmp_path), SCENES["B"](Costs())
    commit = repository.commit({"a.py": "a = 1\n"})
    kept = [accepted_run(dict.fromkeys(here.cells(), 0.03), number, commit) for number in range(accepted)]
    run = here.measure(root=repository.path, baseline=baseline(*kept))
    assert list(run.comparison.bases) == ["base"]
    assert bool(run.sessions[0].probes) == (accepted == 5)
    assert here.now <= BESIDE_S


@pytest.mark.parametrize("seed", DRAWS)
def test_what_the_budget_leaves_out_is_named_smallest_world_sizes_first(seed: int | None) -> None:
    """In the plan, and on the first screen, which counts what is beyond six."""
    _, run = measured("B", None, seed)
    apart = {cell for session in run.sessions for cell in session.probes}
    several = [cell for cell in run.plan.cells if cell.world_size > 1]
    assert apart
    late = [cell for cell in several if cell not in apart]
    assert max(cell.world_size for cell in late) <= min(cell.world_size for cell in apart)
    named = [line for line in run.notes if line.startswith("plan: not taken apart")][-1].rpartition(": ")[2]
    assert set(named.split(", ")) == {cell.id for cell in late}
    sizes = [int(each.rpartition("-")[2]) for each in named.split(", ")]
    assert sizes == sorted(sizes)
    facts = {fact.name: fact.lines for fact in lead.facts(results.to_record(run))}
    [line] = [line for line in facts["Held back by"] if line.startswith("not taken apart for lack of time: ")]
    assert all(size == 2 for size in sizes[:6])
    assert line.count("-2, ") >= 5


@scenes
@bases
def test_first_steps_of_a_session_take_less_than_one_after_the_other(scene: str, base: Base | None) -> None:
    """Each process loads its libraries in its first step. From the second session on it is known what fits."""
    here, run = measured(scene, base)
    groups = {arm.processes: len(run.jobs[arm].devices) for arm in run.steps}
    one_by_one_s = sum(here.costs.libraries_s + size * here.costs.links_s for size in groups.values())
    assert len(here.first_steps) == len(run.sessions)
    for session, steps in here.first_steps.items():
        times_s = [at_s for at_s, _ in steps]
        assert max(times_s) - min(times_s) < one_by_one_s * (0.5 if session else 0.7)


def test_first_steps_that_need_half_a_gpu_are_taken_alone_and_none_runs_out_of_memory() -> None:
    here = SCENES["C"](Costs())
    here.step_bytes = here.memory_bytes // 2 + 1
    run = here.measure()
    assert run.lost == {}
    assert {at_once for steps in here.first_steps.values() for _, at_once in steps} == {1}


@pytest.mark.parametrize("name", ["start_s", "context_s", "communicator_s", "libraries_s", "variant_s", "net_s"])
def test_each_cost_is_in_the_plan_after_the_first_session(name: str) -> None:
    """Five times what was reasoned, on eight GPUs."""
    here = SCENES["B"](Costs(**{name: 5 * getattr(Costs(), name)}))
    here.measure()
    assert here.plans[-1].total_s == pytest.approx(here.now, rel=0.15)
