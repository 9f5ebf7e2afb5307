"""The decisions of a campaign: how many sessions, over which arms, and when it stops. No process is started."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.cli import calibrate
from suite.plan.cells import Arm, Cell
from suite.plan.collectives import CollectiveCell
from suite.plan.config import Config
from suite.plan.floors import Floor
from suite.records.record import CellRecord
from suite.room.devices import Devices
from suite.run import campaign
from suite.run.attribution import SESSIONS
from suite.run.observations import Observations
from suite.verdict import Outcome
from tests.support.campaigns import NEIGHBOUR, World
from tests.support.measurements import AGAINST, BLOCKS, accepted_run, arm, baseline, cell, settings
from tests.support.repositories import Repository

ONE, TWO, WEAK = cell(1), cell(2), cell(2, mode="weak")
OWN, BASE, PIN = arm(2), arm(2, side="base"), arm(2, side="pinned")
ALONE = {arm(1), arm(1, "single")}  # what the figures of two devices need
EQUAL = {arm(1): 1.0, arm(1, side="base"): 1.0, OWN: 0.5, BASE: 0.5}
SLOWER = {**EQUAL, OWN: 5.0}


@pytest.fixture
def world() -> World:
    return World()


def against(**changes: Any) -> Config:
    return settings(against=AGAINST, **changes)


class TestBudget:
    """How many sessions there are."""

    def test_a_short_budget_judges_fewer_cells_and_says_so(self, world: World) -> None:
        run = world.measure(ONE, TWO, WEAK, config=against(budget_s=15.0, min_sessions=1))
        assert run.comparison.cells == (TWO,)
        [one, two, weak] = world.cells().values()
        reason = "not judged: budget; 15 s are spent on 1 of 3 cells: raise --scaling-budget, or select fewer cells"
        assert (one.outcome, one.reason, weak.reason) == ("INCONCLUSIVE", reason, reason)
        assert two.reason != reason
        assert any("no room for them: ddp-lenet-strong-1, ddp-lenet-weak-2" in line for line in world.said)

    @pytest.mark.parametrize("budget_s", [1.0, 4.0, 12.0, 25.0])
    def test_a_budget_raised_as_advised_has_the_sessions_of_a_fail(self, budget_s: float) -> None:
        """Also where the only session took longer than all of the budget."""

        def judged(budget_s: float) -> CellRecord:
            world = World()
            world.step_s = SLOWER
            world.measure(TWO, config=against(budget_s=budget_s, min_sessions=1))
            return world.cells()[TWO.id]

        advice = re.search(r"raise the budget by about (\d+) s", judged(budget_s).reason)
        assert advice
        assert judged(budget_s + int(advice[1])).outcome is Outcome.FAIL

    def test_cells_that_the_first_session_shows_to_take_too_long_are_not_judged(self, world: World) -> None:
        """A step takes two seconds, which nobody knew; what is left is spent on the cell that matters most."""
        world.step_s, world.known_step_s = EQUAL, dict.fromkeys(EQUAL, 2.0)
        run = world.measure(ONE, TWO, WEAK, config=against(budget_s=60.0, min_sessions=1))
        assert (run.comparison.cells, run.comparison.judged) == ((ONE, TWO, WEAK), (TWO,))
        assert world.timed[0] >= {OWN, BASE, arm(1), arm(2, mode="weak")}
        assert all(timed == {OWN, BASE} for timed in world.timed[1:])
        one, two, weak = world.outcomes()
        assert (one, two, weak) == (Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.INCONCLUSIVE)
        named = [line for line in world.said if line.startswith("plan: not judged, because the budget has no room")]
        assert named == [f"plan: not judged, because the budget has no room for them: {ONE.id}, {WEAK.id}"]

    def test_fewer_sessions_than_the_plan_had_are_a_new_plan(self, world: World) -> None:
        world.step_s, world.session_s = EQUAL, (40.0,)
        run = world.measure(TWO, config=against(budget_s=200.0))
        plans = [line for line in world.said if line.startswith("plan: 1 cell(s)")]
        assert run.planned == 5
        assert len(plans) == 2
        assert "about 5 session(s) of 40 s, 3.3 min in all" in plans[1]

    @pytest.mark.parametrize(
        ("session_s", "changes", "planned", "sessions"),
        [
            ((10.0,), {"budget_s": 1e6}, 6, 6),
            ((10.0,), {"budget_s": 1e6, "profile": "full"}, 20, 20),
            ((10.0,), {"budget_s": 50.0}, 5, 5),
            ((100.0,), {"budget_s": 120.0}, 4, 4),
            ((100.0,), {"budget_s": 120.0, "min_sessions": 1}, 1, 1),
            ((10.0, 20.0), {"budget_s": 60.0, "min_sessions": 1}, 6, 3),
            ((10.0,), {"budget_s": 0.1, "min_sessions": 1}, 1, 1),
        ],
        ids=[
            "quick profile",
            "full profile",
            "as many as fit",
            "a profile stretches to the fewest that decide",
            "a user's budget does not stretch",
            "a user's budget is kept where sessions become longer",
            "at least one session",
        ],
    )
    def test_sessions_without_a_base(
        self, world: World, session_s: Sequence[float], changes: dict[str, Any], planned: int, sessions: int
    ) -> None:
        world.session_s = session_s
        run = world.measure(TWO, config=settings(**changes))
        assert (run.planned, len(world.timed)) == (planned, sessions)
        assert world.outcomes() == [Outcome.NO_BASELINE]

    def test_undecided_comparison_uses_the_whole_budget(self, world: World) -> None:
        world.step_s, world.wobble = EQUAL, 0.3
        run = world.measure(TWO, config=against(budget_s=250.0))
        assert (run.planned, len(world.timed)) == (25, 25)
        assert world.outcomes() == [Outcome.INCONCLUSIVE]

    def test_time_that_shorter_sessions_leave_is_shared_by_those_to_come(self, world: World) -> None:
        """A session of the others is short when cells have been decided."""
        world.step_s, world.wobble, world.session_s = EQUAL, 0.3, (10.0, 10.0, 4.0)
        assert world.measure(TWO, config=against(budget_s=60.0, explain=False)).planned == 6
        assert world.shares_s == [0.0, 50 / 5, 40 / 4, 36 / 3, 32 / 2, 28 / 1]

    @pytest.mark.parametrize(
        ("config", "share_s"), [(settings(), 0.0), (against(calibrate=5), 0.0), (against(budget_s=300.0), 10 - 2 * 12)]
    )
    def test_sessions_that_should_be_alike_and_waterfalls_get_no_more_blocks(
        self, world: World, config: Config, share_s: float
    ) -> None:
        """Without a base there is nothing to decide."""
        world.step_s = SLOWER
        world.measure(TWO, config=config)
        assert {round(share, 9) for share in world.shares_s[1:]} == {share_s}

    @pytest.mark.parametrize("extra", [{"training_s": 30.0}, {"counting_s": 30.0}], ids=str)
    def test_training_and_counting_do_not_count_as_the_cost_of_a_session(self, extra: dict[str, float]) -> None:
        world = World(session_s=(40.0, 10.0), **extra)  # type: ignore[arg-type]
        assert world.measure(TWO, config=settings(budget_s=80.0)).planned == 1 + 40 // 10
        assert (world.trained, world.counted) == ([0], [(0, (TWO,))])

    @pytest.mark.parametrize("changes", [{"counters": "off"}, {"explain": False}], ids=["off", "only a verdict"])
    def test_nothing_is_counted_where_it_is_not_wanted(self, world: World, changes: dict[str, Any]) -> None:
        """Calibration and bisection ask for nothing but times."""
        world.measure(TWO, config=settings(**changes))
        assert world.counted == []

    def test_calibration_runs_its_number_of_sessions_and_decides_nothing(self, world: World) -> None:
        world.step_s = SLOWER
        for min_sessions, budget_s in ((4, 1.0), (1, 1.0), (4, 1e6)):
            config = against(calibrate=7, explain=False, budget_s=budget_s, min_sessions=min_sessions)
            assert world.measure(ONE, TWO, config=config).planned == 7
            assert world.timed == [set(EQUAL)] * 7


class TestAgainstANamedBase:
    """Every cell is compared with the base that the user named."""

    def test_run_stops_when_all_cells_are_decided_and_trains_nothing(self, world: World) -> None:
        world.step_s = EQUAL
        run = world.measure(ONE, TWO, config=against(budget_s=1000.0))
        assert world.outcomes() == [Outcome.PASS] * 2
        assert 3 <= len(world.timed) < run.planned == 100
        assert world.trained == []

    def test_decided_cell_drops_out_and_the_others_go_on(self, world: World) -> None:
        world.step_s = {**EQUAL, OWN: 0.515}
        world.measure(ONE, TWO, config=against(budget_s=60.0))
        assert world.outcomes() == [Outcome.PASS, Outcome.FAIL]
        assert len(world.timed) > 3, "a FAIL is confirmed by a session more"
        assert (world.timed[0], world.timed[-1]) == (set(EQUAL), {OWN, BASE})

    @pytest.mark.parametrize("floors", [{}, {TWO: Floor(entry=1, efficiency=0.5)}], ids=["no floor", "floor"])
    def test_floor_adds_the_one_device_arm(self, world: World, floors: dict[Cell, Floor]) -> None:
        world.step_s = EQUAL
        world.measure(TWO, config=against(), floors=floors)
        assert world.timed[0] == {OWN, BASE, *([arm(1)] if floors else [])}

    def test_floor_without_its_one_device_arm_gets_no_more_sessions(self, world: World) -> None:
        world.step_s, world.broken = EQUAL, {0: {arm(1)}}
        run = world.measure(TWO, config=against(budget_s=1000.0), floors={TWO: Floor(entry=1, efficiency=0.5)})
        assert world.outcomes() == [Outcome.INCONCLUSIVE]
        assert len(world.timed) < run.planned, "the comparison with the base is decided"

    def test_missing_commit_is_an_error_without_a_session(self, world: World) -> None:
        world.not_there = {"base"}
        world.measure(ONE, TWO, config=against())
        assert world.outcomes() == [Outcome.ERROR] * 2
        assert world.timed == []

    @pytest.mark.parametrize("lost", [OWN, BASE], ids=["candidate", "base"])
    def test_lost_arm_is_an_error_and_the_others_go_on(self, world: World, lost: Arm) -> None:
        world.step_s, world.broken = EQUAL, {1: {lost}}
        world.measure(ONE, TWO, config=against())
        assert world.outcomes() == [Outcome.PASS, Outcome.ERROR]
        assert not {OWN, BASE} & world.timed[-1]


class TestAgainstAcceptedRuns:
    """Cells next to the rebuilt commits of accepted runs; the first sessions also time what the figures need."""

    @pytest.fixture(autouse=True)
    def _repository(self, world: World, tmp_path: Path) -> None:
        self.world, self.repository = world, Repository(tmp_path / "project")
        self.commit = self.repository.commit({"a.py": "a = 1\n"})

    def measure(self, *cells: Cell, commits: Sequence[str] = (), **changes: Any) -> Observations:
        """Measure against three accepted runs, of the repository's commit unless `commits` has others."""
        commits = commits or [self.commit] * 3
        kept = [
            accepted_run({TWO: s, ONE: 2 * s}, number, commit)
            for number, (s, commit) in enumerate(zip((0.5, 0.501, 0.499), commits, strict=True))
        ]
        return self.world.measure(
            *cells, config=settings(root=self.repository.path, **changes), baseline=baseline(*kept)
        )

    def test_floor_is_not_judged_before_the_comparison_has_a_plan(self) -> None:
        """The efficiency of .5 is far below the floor; after the three sessions of figures no look was planned."""
        self.world.step_s = {arm(1): 1.0, OWN: 1.0, BASE: 1.0, arm(1, side="base"): 1.0}
        kept = [accepted_run({TWO: 1.0}, 0, self.commit)]
        config = settings(root=self.repository.path, budget_s=1000.0)
        floors = {TWO: Floor(entry=1, efficiency=0.9)}
        run = self.world.measure(TWO, config=config, baseline=baseline(*kept), floors=floors)
        assert (len(self.world.timed), run.planned) == (4, 100)
        assert self.world.outcomes() == [Outcome.FAIL]

    @pytest.mark.parametrize(("runs", "extra"), [(4, set()), (5, {arm(1, side="base")})])
    def test_the_accepted_commit_is_timed_on_one_device_to_judge_the_machine(self, runs: int, extra: set[Arm]) -> None:
        kept = [accepted_run({TWO: 0.5}, number, self.commit) for number in range(runs)]
        self.world.measure(TWO, config=settings(root=self.repository.path, budget_s=1000.0), baseline=baseline(*kept))
        assert self.world.timed[-1] == {OWN, BASE} | extra

    def test_a_cell_that_looks_slower_has_no_other_plan(self) -> None:
        """Sessions of figures take all cells apart. In the fourth, before the plan is made, it is the only one."""
        planned = []
        for own in (0.5, 0.6):
            self.world.step_s, self.world.explaining_s = {OWN: own, BASE: 0.5}, 12.0
            planned.append(self.measure(TWO, budget_s=150.0).planned)
        assert planned == [11, 11]

    @pytest.mark.parametrize("own", [0.5, 0.6], ids=["as fast as stored", "slower than stored"])
    @pytest.mark.parametrize(("ratio", "outcome"), [(1.0, Outcome.PASS), (1.2, Outcome.FAIL)])
    def test_rebuilt_commit_decides_whatever_stored_figures_say(
        self, own: float, ratio: float, outcome: Outcome
    ) -> None:
        self.world.step_s = {OWN: own, BASE: own / ratio}
        run = self.measure(TWO, budget_s=1000.0)
        assert self.world.timed == [{OWN, BASE, *ALONE}] * 3 + [{OWN, BASE}] * (len(self.world.timed) - 3)
        assert 4 <= len(self.world.timed) < run.planned, "a clear case ends soon"
        judged = self.world.cells()[TWO.id]
        assert judged.outcome is outcome
        assert [(c.rule, c.outcome, c.counts) for c in judged.checks] == [
            ("time", outcome, True),
            ("stored", Outcome.INCONCLUSIVE, False),
            ("stored", Outcome.INCONCLUSIVE, False),
            ("machine", Outcome.INCONCLUSIVE, False),
        ]
        assert judged.checks[1].ratio is not None
        assert judged.checks[1].ratio.low is not None
        assert judged.checks[1].reason.endswith("the comparison with its rebuilt commit decides")

    def test_the_first_session_counts_and_trains(self) -> None:
        self.world.step_s = {OWN: 0.5, BASE: 0.5}
        run = self.measure(TWO, cell(2, "scratch"))
        assert self.world.counted == [(0, run.plan.cells)]
        assert self.world.trained == [0]

    def test_only_accepted_cells_are_compared(self) -> None:
        self.world.step_s = {OWN: 0.5, BASE: 0.5}
        run = self.measure(ONE, TWO, cell(2, "scratch"))
        assert [line for line in self.world.said if line.startswith("plan:")] == run.notes
        [plan] = (line for line in run.notes if "cell(s)" in line)
        assert plan.startswith("plan: 2 cell(s) against the accepted run run-2, rebuilt")
        assert run.comparison.cells == (ONE, TWO)
        assert self.world.timed[:4] == [{*EQUAL, *ALONE, arm(2, "scratch"), arm(1, "scratch")}] * 3 + [set(EQUAL)]
        assert self.world.outcomes() == [Outcome.PASS, Outcome.PASS, Outcome.NO_BASELINE]

    def test_every_cell_is_compared_with_its_own_of_the_rebuilt_commits(self) -> None:
        """Of the others, one has another pin than the first two cells, one another newest commit, and one both."""
        one, two, three = self.commit, *(self.repository.commit({"a.py": f"a = {n}\n"}) for n in (2, 3))
        later, earlier, apart = (cell(2, trainer) for trainer in ("later", "earlier", "apart"))
        accepted = [(one, [TWO, ONE, earlier])] * 3 + [(two, [later, earlier, apart]), (three, [TWO, ONE, later])]
        kept = [accepted_run(dict.fromkeys(cells, 1.0), n, commit) for n, (commit, cells) in enumerate(accepted)]
        self.world.step_s = {arm(2, "earlier"): 5.0}
        config = settings(root=self.repository.path, budget_s=1000.0)
        run = self.world.measure(TWO, ONE, later, earlier, apart, config=config, baseline=baseline(*kept))
        assert run.comparison.cells == (TWO, ONE, later, earlier)
        pairs = {arm(k, side=side) for k in (1, 2) for side in ("candidate", "base", "pinned")}
        others = {arm(2, "later"), arm(2, "later", "base"), arm(2, "earlier"), arm(2, "earlier", "pinned")}
        assert self.world.timed[3] == pairs | others | {arm(1, "later", "base")}
        passed, slower, undecided = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE
        assert self.world.outcomes() == [passed, passed, passed, slower, undecided]
        [named] = [line for line in self.world.said if "not compared with all of their accepted commits" in line]
        assert f": {later.id}, {earlier.id}, {apart.id}; one run rebuilds those of most cells" in named

    @pytest.mark.parametrize(
        ("budget_s", "of_figures", "sessions"), [(40.0, 1, 4), (90.0, 2, 9), (130.0, 3, 13), (1000.0, 3, 100)]
    )
    def test_every_session_compares_and_most_do_nothing_else(
        self, budget_s: float, of_figures: int, sessions: int
    ) -> None:
        self.world.step_s, self.world.wobble = {OWN: 0.5, BASE: 0.5}, 0.3
        run = self.measure(TWO, budget_s=budget_s)
        assert run.planned == sessions
        assert self.world.timed == [{OWN, BASE, *ALONE}] * of_figures + [{OWN, BASE}] * (sessions - of_figures)

    def test_without_a_commit_to_rebuild_the_budget_narrows_the_figures(self) -> None:
        run = self.measure(TWO, commits=["1" * 40] * 3, budget_s=1e6)
        assert (len(self.world.timed), run.comparison.bases) == (campaign.MAX_SESSIONS["quick"], {})
        assert self.world.outcomes() == [Outcome.INCONCLUSIVE]

    @pytest.mark.parametrize("checked_out", [False, True], ids=["no checkout", "does not build"])
    def test_commit_that_cannot_be_measured_leaves_the_cell_inconclusive(self, checked_out: bool) -> None:
        self.world.not_there, self.world.broken = (set(), {0: {BASE}}) if checked_out else ({"base"}, {})
        self.measure(TWO, budget_s=1e6)
        assert self.world.outcomes() == [Outcome.INCONCLUSIVE]
        assert len(self.world.timed) == 3, "figures; no more sessions for a cell that they cannot decide"
        assert [OWN in timed for timed in self.world.timed] == [True] * 3
        reason = "the commit of run run-2 could not be measured: "
        assert reason in self.world.cells()[TWO.id].reason

    def test_pin_alone_gets_no_session_because_it_cannot_clear_the_cell(self) -> None:
        newest = self.repository.commit({"a.py": "a = 2\n"})
        self.world.broken = {3: {BASE}}
        self.measure(TWO, commits=[self.commit, newest, newest], budget_s=1e6)
        assert [BASE in timed for timed in self.world.timed] == [True] * 4
        assert self.world.timed[3] == {OWN, BASE, PIN}
        assert self.world.outcomes() == [Outcome.INCONCLUSIVE]

    @pytest.mark.parametrize("newest_is_gone", [False, True])
    def test_a_short_budget_judges_fewer_cells_also_where_only_the_pinned_commit_can_be_rebuilt(
        self, newest_is_gone: bool
    ) -> None:
        """A squash-merge may leave the newest accepted commit in no branch."""
        newest = "1" * 40 if newest_is_gone else self.commit
        self.measure(ONE, TWO, commits=[self.commit, newest, newest], budget_s=25.0, min_sessions=1)
        one = self.world.cells()[ONE.id]
        assert one.outcome is Outcome.INCONCLUSIVE
        assert "not judged: budget; 25 s are spent on 1 of 2 cells" in one.reason
        assert ("the commit of run run-2 cannot be rebuilt" in one.reason) == newest_is_gone
        [beyond] = [check for check in one.checks if check.rule != "stored"]
        expected = ("drift", "the pinned run run-0") if newest_is_gone else ("time", "the accepted run run-2")
        assert (beyond.rule, beyond.against.removesuffix(", rebuilt")) == expected

    @pytest.mark.parametrize("lost", [True, False], ids=["a commit that does not build", "no accepted run"])
    def test_a_floor_is_judged_also_where_nothing_is_compared(self, lost: bool) -> None:
        """Of an efficiency of .5; a FAIL takes four sessions."""
        measured = TWO if lost else cell(2, "scratch")
        self.world.step_s = {arm(1): 1.0, arm(1, "scratch"): 1.0, OWN: 1.0, BASE: 1.0, arm(2, "scratch"): 1.0}
        self.world.broken = {0: {BASE}} if lost else {}
        kept = [accepted_run({TWO: 1.0}, 0, self.commit)]
        config = settings(root=self.repository.path, budget_s=1000.0)
        floors = {measured: Floor(entry=1, efficiency=0.9)}
        self.world.measure(TWO, measured, config=config, baseline=baseline(*kept), floors=floors)
        assert self.world.cells()[measured.id].outcome is Outcome.FAIL
        assert self.world.timed[-1] >= {arm(2, measured.trainer), arm(1, measured.trainer)}

    def test_cells_that_will_be_beyond_the_budget_are_in_the_first_plan(self) -> None:
        self.measure(ONE, TWO, budget_s=15.0, min_sessions=1)
        [first, *_] = (number for number, line in enumerate(self.world.said) if "no room for them" in line)
        assert f"for them: {ONE.id}" in self.world.said[first]
        assert not any("in all" in line for line in self.world.said[first + 1 : first + 3]), "in the plan shown first"

    def test_a_cell_beyond_the_budget_keeps_what_its_base_showed(self) -> None:
        """It was measured beside it in the first session, before the budget had no more room."""
        self.world.step_s = {**EQUAL, arm(1): 1.1}
        run = self.measure(ONE, TWO, budget_s=25.0, min_sessions=1)
        one = self.world.cells()[ONE.id]
        assert (run.comparison.over_budget, run.comparison.judged) == ((ONE,), (TWO,))
        assert "not judged: budget; 25 s are spent on 1 of 2 cells" in one.reason
        assert "was not measured here" not in one.reason
        assert one.slowdown is not None
        assert one.slowdown.estimate == pytest.approx(1.1, rel=0.03)

    def test_the_first_session_that_only_compares_needs_less_of_the_budget(self) -> None:
        """After a first session of 20 s, 17 s are left; without the plain trainer on one device, 12 s are enough."""
        self.world.step_s, self.world.session_s = {OWN: 0.5, BASE: 0.5}, (20.0, 12.0)
        self.measure(TWO, budget_s=37.0, min_sessions=1)
        assert len(self.world.timed) == 2

    def test_the_plan_leaves_time_for_training(self) -> None:
        self.measure(TWO, budget_s=300.0)
        said = "\n".join(self.world.said)
        found = re.search(r"about (\d+) session\(s\) of (\d+) s, .* at most ([\d.]+) min of training", said)
        assert found is not None
        sessions, session_s, training_min = map(float, found.groups())
        assert training_min == pytest.approx(3.0)
        assert sessions * session_s <= 300 - 60 * training_min

    def test_lost_cell_is_not_compared(self) -> None:
        self.world.broken = {0: {OWN}}
        self.measure(TWO)
        assert self.world.outcomes() == [Outcome.ERROR]
        assert len(self.world.timed) == 1

    def test_cell_without_accepted_runs_that_another_broke_gets_a_session_more(self) -> None:
        """Strong and weak share their workers; a budget of one second has room for one session."""
        weak = arm(2, mode="weak")
        self.world.broken, self.world.shares = {0: {OWN}}, {weak: OWN}
        self.measure(TWO, WEAK, budget_s=1.0, min_sessions=1)
        assert weak in self.world.timed[1]
        assert OWN not in self.world.timed[1]
        assert self.world.outcomes() == [Outcome.ERROR, Outcome.NO_BASELINE]

    def test_interrupted_run_shows_what_was_accepted(self) -> None:
        self.world.step_s, self.world.interrupted_in = {OWN: 0.6}, 1
        with pytest.raises(KeyboardInterrupt):
            self.measure(TWO)
        judged = self.world.cells()[TWO.id]
        assert judged.outcome is Outcome.INCONCLUSIVE
        assert {check.rule for check in judged.checks} == {"time", "stored", "machine"}

    def test_one_session_is_enough_to_show_the_rebuilt_commit(self) -> None:
        self.world.step_s = {OWN: 0.6, BASE: 0.6}
        self.measure(TWO, budget_s=1.0, min_sessions=1)
        assert self.world.timed == [{OWN, BASE, *ALONE}]
        assert self.world.outcomes() == [Outcome.INCONCLUSIVE]


def test_sweeps_without_cells_run_although_no_worker_answers(world: World) -> None:
    run = world.measure(sweeps=[CollectiveCell("ring", 2)], versions={})
    assert (world.swept, run.versions) == ([CollectiveCell("ring", 2)], {})


class TestAttribution:
    """When waterfalls are measured; they decide nothing."""

    PLAIN = arm(2, trainer="suite.rank.independent:Independent")

    def test_first_sessions_without_a_base_measure_waterfalls_of_several_devices(self, world: World) -> None:
        world.measure(ONE, TWO, config=settings(budget_s=60.0))
        assert world.probed == {number: [(TWO.id, "candidate")] for number in range(SESSIONS["quick"])}
        assert world.untimed[0] == {arm(1), OWN, self.PLAIN}
        assert world.untimed[SESSIONS["quick"]] == set()
        assert self.PLAIN not in world.timed[0]

    @pytest.mark.parametrize(
        ("measured", "config"),
        [
            (TWO, replace(calibrate.itself(settings(), 4), against=None)),
            (ONE, settings()),
            (TWO, settings(devices=Devices("cpu", ("cpu", "cpu"), (0,)))),
        ],
        ids=["calibration", "one device", "oversubscribed"],
    )
    def test_no_waterfall(self, world: World, measured: Cell, config: Config) -> None:
        world.measure(measured, config=config)
        assert world.probed == {}
        oversubscribed = config.devices.oversubscribed(2)
        assert ("oversubscribed" in world.cells()[measured.id].waterfall_note) == oversubscribed

    def test_a_cell_that_fails_by_its_counters_alone_gets_no_waterfall(self, world: World) -> None:
        world.step_s, world.operators = EQUAL, {"candidate": 12, "base": 10}
        world.measure(TWO, config=against(budget_s=300.0, counters="fail"))
        assert world.cells()[TWO.id].reason == "10 → 12 operators a step"
        assert world.outcomes() == [Outcome.FAIL]
        assert world.probed == {}

    def test_failed_cell_is_taken_apart_in_the_sessions_that_decided_it(self, world: World) -> None:
        world.step_s = {**EQUAL, OWN: 1.0, arm(2, mode="weak"): 1.0}
        run = world.measure(ONE, TWO, WEAK, config=against(budget_s=300.0))
        assert world.outcomes() == [Outcome.PASS, Outcome.FAIL, Outcome.PASS]
        assert world.probed == {number: [(TWO.id, "candidate"), (TWO.id, "base")] for number in (1, 2, 3)}
        assert len(run.sessions) == len(world.timed) == 4, "no session of its own"
        assert any("the parts of 1 cell(s) are timed too" in line for line in world.said)
        notes = [judged.waterfall_note for judged in world.cells().values()]
        assert notes[:2] == ["", ""]
        assert "only cells that look slower" in notes[2]

    def test_equal_cells_are_taken_apart_in_the_full_profile_alone(self, world: World) -> None:
        world.step_s = EQUAL
        world.measure(ONE, TWO, config=against(budget_s=300.0))
        assert world.probed == {}
        assert world.untimed == [set()] * len(world.timed)
        world.measure(ONE, TWO, config=against(budget_s=300.0, profile="full"))
        assert list(world.probed) == list(range(len(world.timed)))
        assert world.outcomes() == [Outcome.PASS] * 2

    def test_waterfalls_are_of_the_slowest_cells_and_change_neither_plan_nor_verdict(self, world: World) -> None:
        trainers = ("a", "b", "c", "d")
        measured = [cell(2, name) for name in trainers]
        times = {arm(2, name): 1.0 + number for number, name in enumerate(trainers)}
        world.step_s = {**times, **{arm(2, name, side="base"): 0.5 for name in trainers}}
        world.explaining_s = 5.0
        explained = world.measure(*measured, config=against(budget_s=100.0, min_sessions=1))
        assert {where for where, _ in world.probed[1]} == {each.id for each in measured[1:]}
        outcomes, planned = world.outcomes(), explained.planned
        alone = world.measure(*measured, config=against(budget_s=100.0, min_sessions=1, explain=False))
        assert world.probed == {}
        assert (world.outcomes(), alone.planned, len(alone.sessions)) == (outcomes, planned, len(explained.sessions))

    @pytest.mark.parametrize(("budget_s", "probed"), [(63.0, []), (64.0, [1, 2, 3])])
    def test_a_users_budget_keeps_the_sessions_that_a_fail_needs(
        self, world: World, budget_s: float, probed: list[int]
    ) -> None:
        world.step_s = SLOWER
        world.measure(TWO, config=against(budget_s=budget_s, min_sessions=1))
        assert world.outcomes() == [Outcome.FAIL]
        assert list(world.probed) == probed
        assert ("raise --scaling-budget" in world.cells()[TWO.id].waterfall_note) == (not probed)

    def test_waterfalls_that_take_longer_than_planned_leave_the_sessions_that_a_fail_needs(self, world: World) -> None:
        world.step_s, world.explaining_s = SLOWER, 30.0
        world.measure(TWO, config=against(budget_s=95.0, min_sessions=1))
        assert world.outcomes() == [Outcome.FAIL]
        assert list(world.probed) == [1]

    def test_a_users_budget_has_no_more_time_left_after_longer_sessions_than_planned(self, world: World) -> None:
        """Sessions of 10 s with waterfalls of 12 s: the third begins after 54 of 90 s, with 50 s planned after it."""
        world.step_s, world.explaining_s = SLOWER, 12.0
        world.measure(TWO, config=against(budget_s=90.0, min_sessions=1))
        left_min = re.findall(r"where the time goes; at most (\S+) min left", "\n".join(world.said))
        assert left_min == ["1.2", "1.0", "0.6"]

    @pytest.mark.parametrize(("step_s", "probed"), [(0.5, [1, 2, 3]), (2.0, [])])
    def test_no_process_is_started_for_a_waterfall_that_takes_too_long(
        self, world: World, step_s: float, probed: list[int]
    ) -> None:
        """A session with a base has a tenth of the budget for it, here 30 s."""
        world.step_s, world.known_step_s = SLOWER, {OWN: step_s, BASE: step_s}
        world.measure(TWO, config=against(budget_s=300.0))
        assert world.outcomes() == [Outcome.FAIL]
        assert list(world.probed) == probed
        assert any(world.untimed) == bool(probed)
        assert ("the budget did not leave the" in world.cells()[TWO.id].waterfall_note) == (not probed)

    def test_arm_that_only_a_waterfall_needs_costs_no_decided_cell(self, world: World) -> None:
        """The candidate on one device is decided after three sessions; in the fourth its processes do not start."""
        world.step_s, world.broken, world.wobble = {**EQUAL, OWN: 0.515}, {4: {arm(1)}}, 0.005
        world.measure(ONE, TWO, config=against(budget_s=300.0))
        assert arm(1) in world.untimed[4]
        assert world.outcomes() == [Outcome.PASS, Outcome.FAIL]


class TestLosses:
    """What cannot be measured."""

    def test_arm_whose_processes_another_broke_gets_a_session_more(self, world: World) -> None:
        """Strong and weak share their workers; a budget of one second has room for one session."""
        weak = arm(2, mode="weak")
        world.broken, world.shares = {0: {OWN}}, {weak: OWN}
        world.measure(TWO, WEAK, config=settings(budget_s=1.0, min_sessions=1))
        assert world.timed[1] == {weak, arm(1), arm(1, "single")}
        assert world.outcomes() == [Outcome.ERROR, Outcome.NO_BASELINE]

    @pytest.mark.parametrize(("number", "sessions", "trained"), [(0, 4, [0, 0]), (1, 4, [0])])
    def test_session_that_does_not_count_is_repeated_in_the_same_budget(
        self, world: World, number: int, sessions: int, trained: list[int]
    ) -> None:
        world.discarded_in = number
        run = world.measure(TWO, config=settings(budget_s=50.0, min_sessions=1))
        assert [session.number for session in run.sessions] == list(range(sessions))
        assert world.trained == trained
        assert world.outcomes() == [Outcome.NO_BASELINE]

    def test_arm_that_failed_in_a_session_that_does_not_count_is_lost(self, world: World) -> None:
        world.discarded_in, world.broken = 0, {0: {OWN}}
        world.measure(TWO)
        assert len(world.timed) == 1
        assert world.outcomes() == [Outcome.ERROR]

    def test_run_ends_when_every_arm_is_lost(self, world: World) -> None:
        world.broken = {0: {OWN, arm(1), arm(1, "single")}}
        world.measure(TWO, config=settings(budget_s=1e6))
        assert len(world.timed) == 1

    def test_interrupt_keeps_what_was_timed(self, world: World) -> None:
        world.interrupted_in = 1
        with pytest.raises(KeyboardInterrupt):
            world.measure(TWO)
        assert [len({w.block for w in session.windows}) for session in world.run.sessions] == [BLOCKS, 1]
        assert world.outcomes() == [Outcome.NO_BASELINE]

    def test_other_users_of_the_machine_are_named_first(self, world: World) -> None:
        assert list(world.measure(TWO).neighbours) == [NEIGHBOUR]
        assert world.said[0] == f"in use by others: {NEIGHBOUR}"
