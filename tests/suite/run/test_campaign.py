"""The decisions of a campaign: how many sessions, over which arms, and when it stops. No process is started."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from suite.cli import calibrate
from suite.plan.cells import PLAIN, Arm, Cell, CollectiveCell
from suite.plan.config import Config
from suite.plan.floors import Floor
from suite.records.record import CellRecord
from suite.room.devices import Devices
from suite.run.attribution import OF_A_SLOWER_CELL, SESSIONS
from suite.run.schedule import MAX_SESSIONS
from suite.verdict import Outcome
from tests.support.campaigns import BASE, EQUAL, NEIGHBOUR, ONE, OWN, SLOWER, TWO, WEAK, World
from tests.support.measurements import AGAINST, BLOCKS, arm, cell, settings


@pytest.fixture
def world() -> World:
    return World()


def against(**changes: Any) -> Config:
    return settings(against=AGAINST, **changes)


def independent(world_size: int) -> Arm:
    return arm(world_size, trainer=PLAIN)


class TestBudget:
    """How many sessions there are."""

    def test_a_short_budget_judges_fewer_cells_and_says_so(self, world: World) -> None:
        run = world.measure(ONE, TWO, WEAK, config=against(budget_s=15.0, fixed=True))
        assert run.comparison.cells == (TWO,)
        [one, two, weak] = world.cells().values()
        advice = re.search(r"no room for them: .*( \(about (\d+) s have room for all\))$", "\n".join(world.said), re.M)
        assert advice
        reason = f"not judged: budget; 15 s are spent on 1 of 3 cells{advice[1]}: "
        reason += "raise --scaling-budget, or select fewer cells"
        assert (one.outcome, one.reason, weak.reason) == ("INCONCLUSIVE", reason, reason)
        assert two.reason != reason
        assert any("no room for them: ddp-lenet-strong-1, ddp-lenet-weak-2" in line for line in world.said)
        enough = World()
        run = enough.measure(ONE, TWO, WEAK, config=against(budget_s=float(advice[2]), fixed=True))
        assert (run.comparison.cells, run.comparison.judged) == ((ONE, TWO, WEAK),) * 2
        assert 15 < int(advice[2]) < 60

    @pytest.mark.parametrize("budget_s", [1.0, 4.0, 12.0, 25.0])
    def test_a_budget_raised_as_advised_has_the_sessions_of_a_fail(self, budget_s: float) -> None:
        """Also where the only session took longer than all of the budget."""

        def judged(budget_s: float) -> CellRecord:
            world = World()
            world.step_s = SLOWER
            world.measure(TWO, config=against(budget_s=budget_s, fixed=True))
            return world.cells()[TWO.id]

        advice = re.search(r"raise the budget by about (\d+) s", judged(budget_s).reason)
        assert advice
        assert judged(budget_s + int(advice[1])).outcome is Outcome.FAIL

    @pytest.mark.parametrize(("fits", "planned", "outcome"), [(3, 4, Outcome.FAIL), (0, 3, Outcome.INCONCLUSIVE)])
    def test_sessions_become_shorter_where_a_users_budget_has_no_room_for_those_of_a_fail(
        self, world: World, fits: int, planned: int, outcome: Outcome
    ) -> None:
        world.step_s, world.session_s, world.fits = SLOWER, (13.0, 9.0), fits
        run = world.measure(TWO, config=against(budget_s=40.0, fixed=True))
        assert (world.fitted, run.planned, world.outcomes()) == ([3], planned, [outcome])

    def test_cells_that_the_first_session_shows_to_take_too_long_are_not_judged(self, world: World) -> None:
        """A step takes two seconds, which nobody knew; what is left is spent on the cell that matters most."""
        world.step_s, world.known_step_s = EQUAL, dict.fromkeys(EQUAL, 2.0)
        run = world.measure(ONE, TWO, WEAK, config=against(budget_s=60.0, fixed=True))
        assert (run.comparison.cells, run.comparison.judged) == ((ONE, TWO, WEAK), (TWO,))
        assert world.timed[0] >= {OWN, BASE, arm(1), arm(2, mode="weak")}
        assert all(timed == {OWN, BASE} for timed in world.timed[1:])
        one, two, weak = world.outcomes()
        assert (one, two, weak) == (Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.INCONCLUSIVE)
        named = [line for line in world.said if line.startswith("plan: not judged, because the budget has no room")]
        [line] = named
        assert line.startswith(
            f"plan: not judged, because the budget has no room for them: {ONE.id}, {WEAK.id} (about "
        )

    @pytest.mark.parametrize(("session_s", "again"), [(6.0, False), (60.0, True)])
    def test_a_first_session_that_takes_far_longer_than_planned_is_a_new_plan(
        self, world: World, session_s: float, again: bool
    ) -> None:
        """Without a base, too, where no outcome depends on it."""
        world.session_s = (session_s,)
        run = world.measure(TWO, config=settings(budget_s=60.0))
        plans = [line for line in run.notes if line.startswith("plan: 1 cell(s)")]
        assert len(plans) == 1 + again
        assert ("about 4 session(s) of 60 s, 4.0 min in all (budget 1.0 min)" in plans[-1]) == again

    def test_cells_that_the_budget_cannot_take_apart_get_no_processes_for_it(self, world: World) -> None:
        """In two seconds of the user's own, one of two waterfalls has room; the largest world size comes first."""
        devices = Devices("cpu", ("cpu",) * 4, (0, 1, 2, 3))
        config = settings(devices=devices, budget_s=2.0, fixed=True)
        run = world.measure(TWO, cell(4), config=config)
        assert world.probed == {0: [("ddp-lenet-strong-4", "candidate")]}
        assert independent(2) not in world.untimed[0]
        assert independent(4) in world.untimed[0]
        assert "plan: not taken apart, because the budget has no room for them: ddp-lenet-strong-2" in run.notes

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
            ((100.0,), {"budget_s": 120.0, "fixed": True}, 1, 1),
            ((10.0, 20.0), {"budget_s": 60.0, "fixed": True}, 6, 3),
            ((10.0,), {"budget_s": 0.1, "fixed": True}, 1, 1),
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
        ("config", "share_s"), [(settings(), 0.0), (against(calibrate=5), 0.0), (against(budget_s=300.0), 10 - 2 * 10)]
    )
    def test_sessions_that_should_be_alike_and_waterfalls_get_no_more_blocks(
        self, world: World, config: Config, share_s: float
    ) -> None:
        """Without a base there is nothing to decide."""
        world.step_s = SLOWER
        world.measure(TWO, config=config)
        assert {round(share, 9) for share in world.shares_s[1:]} == {share_s}

    @pytest.mark.parametrize(
        ("second_s", "budget_s", "next_load_s", "sessions"),
        [(10.0, 39.0, 2.0, 3), (10.0, 39.0, 12.0, 2), (11.0, 30.0, 2.0, 2), (11.0, 30.0, 0.0, 3)],
    )
    def test_whether_a_session_fits_into_a_users_budget_is_asked_with_what_it_waits_for_its_template(
        self, second_s: float, budget_s: float, next_load_s: float, sessions: int
    ) -> None:
        """An equal share of loading is 2 s of each."""
        world = World(session_s=(10.0, second_s), next_load_s=next_load_s)
        world.step_s = {**EQUAL, OWN: 0.52}
        run = world.measure(TWO, config=against(budget_s=budget_s, fixed=True))
        assert len(run.sessions) == sessions

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
        for fixed, budget_s in ((False, 1.0), (True, 1.0), (False, 1e6)):
            config = against(calibrate=7, explain=False, budget_s=budget_s, fixed=fixed)
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

    @pytest.mark.parametrize("floors", [{}, {TWO: Floor(efficiency=0.5)}], ids=["no floor", "floor"])
    def test_floor_adds_the_one_device_arm(self, world: World, floors: dict[Cell, Floor]) -> None:
        world.step_s = EQUAL
        world.measure(TWO, config=against(), floors=floors)
        assert world.timed[0] == {OWN, BASE, *([arm(1)] if floors else [])}

    def test_floor_without_its_one_device_arm_gets_no_more_sessions(self, world: World) -> None:
        world.step_s, world.broken = EQUAL, {0: {arm(1)}}
        run = world.measure(TWO, config=against(budget_s=1000.0), floors={TWO: Floor(efficiency=0.5)})
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


@pytest.mark.parametrize(
    ("setting", "explain", "outcome"),
    [("fail", False, Outcome.FAIL), ("warn", False, Outcome.PASS), ("off", True, Outcome.PASS)],
)
def test_a_bisection_counts_where_counters_decide(world: World, setting: str, explain: bool, outcome: Outcome) -> None:
    """It needs only a verdict, and says nothing of where the time goes."""
    world.step_s, world.operators = EQUAL, {"candidate": 2, "base": 1}
    world.measure(TWO, config=against(counters=setting, explain=explain))
    assert world.outcomes() == [outcome]
    assert bool(world.counted) is (setting == "fail")


def test_time_left_has_room_for_sweeps_and_no_end_while_they_run(world: World) -> None:
    world.step_s = EQUAL
    world.measure(ONE, TWO, sweeps=[CollectiveCell("gloo", 2)], config=against(budget_s=300.0))
    assert any("all_reduce" in line for line in world.said)
    assert not any("past the budget" in line for line in world.said)


def test_sweeps_without_cells_run_although_no_worker_answers(world: World) -> None:
    run = world.measure(sweeps=[CollectiveCell("ring", 2)], versions={})
    assert "plan: 1 sweep of collectives, about 0.1 min" in world.said
    assert (world.swept, run.versions) == ([CollectiveCell("ring", 2)], {})


class TestAttribution:
    """When waterfalls are measured; they decide nothing."""

    @pytest.mark.parametrize("profile", ["quick", "full"])
    def test_first_sessions_without_a_base_measure_waterfalls_of_several_devices(
        self, world: World, profile: str
    ) -> None:
        run = world.measure(ONE, TWO, config=settings(budget_s=600.0, profile=profile))
        explained = min(SESSIONS, MAX_SESSIONS[profile])
        assert len(run.sessions) == MAX_SESSIONS[profile]
        assert world.probed == {number: [(TWO.id, "candidate")] for number in range(explained)}
        assert world.untimed[:explained] == [{arm(1), OWN, independent(2)}] * explained
        assert not any(world.untimed[explained:])
        assert independent(2) not in world.timed[0]

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
        assert ("oversubscribed" in world.cells()[measured.id].why("waterfall")) == oversubscribed

    def test_a_cell_that_fails_by_its_counters_alone_gets_no_waterfall(self, world: World) -> None:
        world.step_s, world.operators = EQUAL, {"candidate": 12, "base": 10}
        world.measure(TWO, config=against(budget_s=300.0, counters="fail"))
        assert world.cells()[TWO.id].reason == "10 → 12 operators a step"
        assert world.outcomes() == [Outcome.FAIL]
        assert world.probed == {}

    def test_failed_cell_is_taken_apart_in_the_sessions_that_decided_it(self, world: World) -> None:
        world.step_s = {**EQUAL, OWN: 1.0, arm(2, "scratch"): 1.0}
        run = world.measure(ONE, TWO, cell(2, "scratch"), config=against(budget_s=300.0))
        assert world.outcomes() == [Outcome.PASS, Outcome.FAIL, Outcome.PASS]
        taken_apart = range(1, 1 + OF_A_SLOWER_CELL["quick"])
        assert world.probed == {number: [(TWO.id, "candidate"), (TWO.id, "base")] for number in taken_apart}
        assert len(run.sessions) == len(world.timed) == 4, "no session of its own"
        assert any("the parts of 1 cell(s) are timed too" in line for line in world.said)
        notes = [judged.why("waterfall") for judged in world.cells().values()]
        assert notes[:2] == ["", ""]
        assert "only cells that look slower" in notes[2]

    def test_equal_cells_are_taken_apart_in_the_full_profile_alone(self, world: World) -> None:
        world.step_s = EQUAL
        world.measure(ONE, TWO, config=against(budget_s=300.0))
        assert world.probed == {}
        assert world.untimed == [set()] * len(world.timed)
        world.measure(ONE, TWO, config=against(budget_s=300.0, profile="full"))
        assert world.probed.keys() >= set(range(len(world.timed)))
        assert world.outcomes() == [Outcome.PASS] * 2

    def test_the_full_profile_takes_decided_cells_apart_in_what_is_left_of_the_budget(self, world: World) -> None:
        world.step_s = EQUAL
        quick = world.measure(TWO, config=against(budget_s=900.0)).sessions
        full = world.measure(TWO, config=against(budget_s=900.0, profile="full")).sessions
        assert len(quick) < len(full) == len(world.probed) == OF_A_SLOWER_CELL["full"]
        assert [bool(session.windows) for session in full] == [number < len(quick) for number in range(len(full))]
        assert world.outcomes() == [Outcome.PASS]
        world.measure(TWO, config=against(budget_s=100.0, profile="full"))
        assert len(quick) <= len(world.probed) < OF_A_SLOWER_CELL["full"]

    def test_waterfalls_are_of_the_slowest_cells_and_change_neither_plan_nor_verdict(self, world: World) -> None:
        trainers = ("a", "b", "c", "d")
        measured = [cell(2, name) for name in trainers]
        times = {arm(2, name): 1.0 + number for number, name in enumerate(trainers)}
        world.step_s = {**times, **{arm(2, name, side="base"): 0.5 for name in trainers}}
        world.explaining_s = 5.0
        explained = world.measure(*measured, config=against(budget_s=130.0, fixed=True))
        assert {where for where, _ in world.probed[1]} == {each.id for each in measured[1:]}
        outcomes, planned = world.outcomes(), explained.planned
        alone = world.measure(*measured, config=against(budget_s=130.0, fixed=True, explain=False))
        assert world.probed == {}
        assert (world.outcomes(), alone.planned, len(alone.sessions)) == (outcomes, planned, len(explained.sessions))

    @pytest.mark.parametrize(("budget_s", "probed"), [(129.0, []), (130.0, [1, 2, 3])])
    def test_a_users_budget_is_for_the_decision_and_a_whole_waterfall_or_for_the_decision(
        self, world: World, budget_s: float, probed: list[int]
    ) -> None:
        world.step_s = SLOWER
        world.measure(TWO, config=against(budget_s=budget_s, fixed=True))
        assert world.outcomes() == [Outcome.FAIL]
        assert list(world.probed) == probed
        assert ("raise --scaling-budget" in world.cells()[TWO.id].why("waterfall")) == (not probed)

    def test_waterfalls_that_take_longer_than_planned_leave_the_sessions_that_a_fail_needs(self, world: World) -> None:
        world.step_s, world.explaining_s = SLOWER, 30.0
        world.measure(TWO, config=against(budget_s=150.0, fixed=True))
        assert world.outcomes() == [Outcome.FAIL]
        assert list(world.probed) == [1]

    @pytest.mark.parametrize(("wobble", "probed"), [(0.0, [1, 2, 3]), (0.06, [1, 2])])
    def test_a_users_budget_keeps_the_sessions_that_a_noisy_cell_seems_to_need(
        self, world: World, wobble: float, probed: list[int]
    ) -> None:
        """After three sessions, two of them with a waterfall, 60 of 130 s are left: four with another one."""
        world.step_s, world.wobble, world.explaining_s = {**EQUAL, OWN: 0.55}, wobble, 20.0
        world.measure(TWO, config=against(budget_s=130.0, fixed=True))
        assert list(world.probed) == probed

    def test_progress_says_how_many_cells_are_decided_and_how_much_of_a_users_budget_is_left(
        self, world: World
    ) -> None:
        """Sessions of 10 s with waterfalls of 12 s: the third begins after 54 of 130 s, with 90 s planned after it."""
        world.step_s, world.explaining_s = SLOWER, 12.0
        world.measure(TWO, config=against(budget_s=130.0, fixed=True))
        said = re.findall(r"where the time goes; (.*?) decided; at most (\S+) min left", "\n".join(world.said))
        assert said == [("0 of 1 cell", left_min) for left_min in ("1.8", "1.6", "1.3")]

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
        assert ("the budget did not leave the" in world.cells()[TWO.id].why("waterfall")) == (not probed)

    def test_arm_that_only_a_waterfall_needs_costs_no_decided_cell(self, world: World) -> None:
        """The candidate on one device is decided after three sessions; in the fourth its processes do not start."""
        world.step_s, world.broken, world.wobble = {**EQUAL, OWN: 0.515}, {4: {arm(1)}}, 0.005
        world.measure(ONE, TWO, config=against(budget_s=300.0, profile="full"))
        assert arm(1) in world.untimed[4]
        assert world.outcomes() == [Outcome.PASS, Outcome.FAIL]


class TestLosses:
    """What cannot be measured."""

    def test_arm_whose_processes_another_broke_gets_a_session_more(self, world: World) -> None:
        """Strong and weak share their workers; a budget of one second has room for one session."""
        weak = arm(2, mode="weak")
        world.broken, world.shares = {0: {OWN}}, {weak: OWN}
        world.measure(TWO, WEAK, config=settings(budget_s=1.0, fixed=True))
        assert world.timed[1] == {weak, arm(1), arm(1, "single")}
        assert world.outcomes() == [Outcome.ERROR, Outcome.NO_BASELINE]

    @pytest.mark.parametrize(("number", "sessions", "trained"), [(0, 4, [0, 0]), (1, 4, [0])])
    def test_session_that_does_not_count_is_repeated_in_the_same_budget(
        self, world: World, number: int, sessions: int, trained: list[int]
    ) -> None:
        world.discarded_in = number
        run = world.measure(TWO, config=settings(budget_s=50.0, fixed=True))
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
        assert world.said[0] == f"room check: {NEIGHBOUR}"
