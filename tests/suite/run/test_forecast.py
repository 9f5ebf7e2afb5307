"""What a run says before it begins."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from suite.plan.cells import Arm, Cell, CollectiveCell
from suite.plan.config import Base
from suite.plan.floors import Floor
from suite.records.calibration import promise
from suite.room.devices import Devices
from suite.run import forecast
from suite.run.blocks import LEAST, MOST
from suite.run.observations import Comparison, Observations, Session
from tests.support.measurements import AGAINST, QUIET, arm, calibrated, cell, job, run_of, settings

ONE, TWO, WEAK = cell(1), cell(2), cell(2, mode="weak")
CELLS = (ONE, TWO)
SURE = calibrated(0.01, ONE, TWO, WEAK)
UNKNOWN = "plan: the smallest slowdown that this run finds is not known, because it depends on the SD of sessions "
UNKNOWN += "here ("
EACH = forecast.Length(10.0, 8)
NOW = {"clock": lambda: 0.0, "begun_s": 0.0}


def compared(**changes: object) -> Observations:
    """Return a run of two cells with a base that the user named."""
    return run_of(
        *CELLS,
        **{"config": settings(against=AGAINST), "comparison": Comparison({"base": AGAINST}, CELLS), **NOW, **changes},
    )


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, "plan: 2 cell(s) against v1.0 (1111111), about 6 session(s) of 10 s, 1.0 min in all (budget 2.0 min); 2 "),
        ({"clock": lambda: 120.0}, "plan: 2 cell(s) against v1.0 (1111111), about 6 session(s) of 10 s, 3.0 min in "),
        (
            {"comparison": Comparison({"base": AGAINST, "pinned": Base("ref", "the pin", commit="2" * 40)}, CELLS[1:])},
            "plan: 1 cell(s) against v1.0 (1111111), the pin, about 6 session(s)",
        ),
    ],
    ids=["at the start", "two minutes later", "rebuilt commits of one cell"],
)
def test_plan_names_cells_bases_sessions_minutes_and_checks(changes: dict[str, object], first: str) -> None:
    line = forecast.lines(compared(**changes), 6, EACH)[0]
    assert line.startswith(first)
    assert line.endswith(" (budget 2.0 min); 2 checks can fail")


def test_one_check_is_not_several() -> None:
    alone = Comparison({"base": AGAINST}, CELLS[:1])
    run = run_of(*CELLS[:1], **{"config": settings(against=AGAINST), "comparison": alone, **NOW})
    assert forecast.lines(run, 6, EACH)[0].endswith("; 1 check can fail")


@pytest.mark.parametrize(("kind", "said"), [("cpu", 0), ("cuda", 1)])
def test_lenet_is_said_to_say_little_about_gpus(kind: str, said: int) -> None:
    config = settings(devices=Devices(kind, (f"{kind}:0", f"{kind}:1"), ()))
    lines = forecast.lines(compared(comparison=Comparison(), config=config), 6, EACH)[1:]
    assert [line.startswith("plan: lenet: LeNet is too small for a GPU: ") for line in lines].count(True) == said


@pytest.mark.parametrize(("kind", "sessions", "said"), [("cuda", 0, True), ("cuda", 1, False), ("cpu", 0, False)])
def test_plan_says_what_it_does_not_know_of_gpus_before_the_first_session(kind: str, sessions: int, said: bool) -> None:
    config = settings(devices=Devices(kind, (f"{kind}:0", f"{kind}:1"), ()))
    run = compared(comparison=Comparison(), config=config, sessions=[Session(n) for n in range(sessions)])
    unknown = (
        "plan: contexts, communicators and first steps on GPUs are not in it; the first session shows what they take"
    )
    assert (unknown in forecast.lines(run, 6, EACH)) == said


def test_plan_names_what_is_not_taken_apart_smallest_world_sizes_first() -> None:
    run = compared(comparison=Comparison())
    run.late_s, run.unexplained = {cell(4): 9.0, TWO: 3.0}, {cell(8): "ddp needs two devices"}
    named = "plan: not taken apart, because the budget has no room for them: ddp-lenet-strong-2, ddp-lenet-strong-4"
    assert forecast.lines(run, 6, EACH)[1:] == [named]


@pytest.mark.parametrize(
    ("now", "wrong"),
    [
        (forecast.Shown(4, 100.0, 150.0), False),
        (forecast.Shown(6, 194.0, 194.0), False),
        (forecast.Shown(4, 196.0, 196.0), True),
        (forecast.Shown(4, 77.0, 77.0), False),
        (forecast.Shown(4, 76.0, 76.0), True),
        (forecast.Shown(4, 100.0, 150.0, (TWO,)), True),
    ],
    ids=["the same", "a little longer", "longer", "training took no time", "shorter", "less is taken apart"],
)
def test_a_plan_is_wrong_where_the_time_is_far_from_it_or_more_is_left_out(now: forecast.Shown, wrong: bool) -> None:
    """It had between 100 and 150 s."""
    assert forecast.Shown(4, 100.0, 150.0).is_wrong(now) == wrong


@pytest.mark.parametrize("changes", [{"comparison": Comparison()}, {"config": settings(against=AGAINST, calibrate=12)}])
def test_nothing_is_promised_without_a_base_or_while_calibrating(changes: dict[str, object]) -> None:
    assert len(forecast.lines(compared(**changes), 6, EACH)) == 1


@pytest.mark.parametrize(
    ("calibration", "planned", "says"),
    [
        (None, 6, UNKNOWN + "it was never calibrated; python -m suite calibrate measures it): in 95% of runs "),
        (None, 2, "plan: this budget is too short to promise that any slowdown is found; "),
        (calibrated(0.01, CELLS[0]), 6, UNKNOWN + "not every cell was "),
        (calibrated(0.01, *CELLS, host="another"), 6, UNKNOWN + "the calibration is of another host; "),
        (calibrated(2.0, *CELLS), 6, "plan: this budget is too short to promise that any slowdown is found; raise it"),
        (calibrated(0.005, *CELLS), 2, "plan: this budget is too short to promise that any slowdown is found; "),
    ],
    ids=["never calibrated", "and two sessions", "one of two cells", "another host", "noise", "two sessions"],
)
def test_no_promise_without_a_calibration_or_in_a_short_budget(calibration: object, planned: int, says: str) -> None:
    assert forecast.lines(compared(calibration=calibration), planned, EACH)[1].startswith(says)


@pytest.mark.parametrize(
    ("cells", "calibration", "planned", "says"),
    [
        (
            CELLS,
            None,
            6,
            "after 3 sessions, the fewest, it does not exclude a slow mode in fewer than 63% of them, and after all 6 "
            "in fewer than 39%",
        ),
        ((TWO, WEAK), SURE, 25, "after 3 sessions, the fewest, .* 63% of them, and after all 25 in fewer than 11%"),
        (CELLS, SURE, 25, "after 3 sessions, the fewest, .* 63% of them, and after all 25 in fewer than 11%"),
        (CELLS, None, 3, "after 3 sessions, the fewest, .* 63% of them"),
        (CELLS, None, 1, "after 3 sessions, the fewest, .* 63% of them"),
    ],
    ids=["six sessions", "calibrated", "each alone in its world size", "three sessions", "too few"],
)
def test_plan_says_which_slow_modes_the_first_and_the_last_pass_do_not_exclude(
    cells: tuple[Cell, ...], calibration: object, planned: int, says: str
) -> None:
    """A cell may pass after three sessions; all of them miss a mode of probability .63 in one run of twenty."""
    run = compared(calibration=calibration, comparison=Comparison({"base": AGAINST}, cells))
    said = forecast.lines(run, planned, EACH)[2]
    assert re.fullmatch(f"plan: a PASS is about the mean over processes: {says}", said)


@pytest.mark.parametrize(
    ("planned", "changes", "said"),
    [
        (2, {}, True),
        (4, {}, False),
        (2, {"floors": {}}, False),
        (2, {"comparison": Comparison({"base": AGAINST}, CELLS)}, True),
    ],
    ids=["too few", "enough", "no floor", "too few with a base"],
)
def test_plan_says_where_no_efficiency_can_fail_its_floor(planned: int, changes: dict[str, object], said: bool) -> None:
    floors = {TWO: Floor(efficiency=0.9)}
    lines = forecast.lines(run_of(*CELLS, **{"floors": floors, **NOW, **changes}), planned, EACH)
    short = f"plan: {planned} session(s) are too few to fail an efficiency below its floor, which takes 4; raise "
    assert [line.startswith(short) for line in lines].count(True) == said


def test_plan_without_a_calibration_says_what_is_found_at_two_sds() -> None:
    small, large = (100 * promise(sd, 2, 6, 0.05) for sd in (0.01, 0.03))
    said = f"in 95% of runs {small:.1f}% or more if it is 1%, {large:.1f}% or more if it is 3%"
    assert forecast.lines(compared(calibration=None), 6, EACH)[1].endswith(said)


def promised(run: Observations, rounds: int = EACH.rounds) -> float:
    """Return the slowdown, in percent, that a plan of six sessions of so many rounds promises."""
    said = re.fullmatch(
        r"plan: a slowdown is found, by this machine's calibration: of (.+)% or more in 50%, of (.+)% or more in 80%, "
        r"of (.+)% or more in 95% of runs",
        forecast.lines(run, 6, EACH._replace(rounds=rounds))[1],
    )
    assert said is not None
    half, most, nearly_all = map(float, said.groups())
    assert half <= most <= nearly_all
    return nearly_all


def test_promise_is_that_of_the_noisiest_cell() -> None:
    quiet, loud = calibrated(0.005, CELLS[0]), calibrated(0.02, CELLS[1])
    run = compared(calibration=quiet.model_copy(update={"entries": quiet.entries + loud.entries}))
    assert promised(run) == pytest.approx(100 * promise(0.02, 2, 6, 0.05), abs=0.05)
    assert promised(run) > 100 * promise(0.005, 2, 6, 0.05) + 1


def test_fewer_rounds_than_were_calibrated_promise_less() -> None:
    """Two rounds instead of eight have twice their noise, and the same spread of processes; more promise no more."""
    known = calibrated(0.02, *CELLS)
    noisy = known.entries[0].spread.model_copy(update={"errors": (0.01,) * 12})
    entries = tuple(entry.model_copy(update={"spread": noisy}) for entry in known.entries)
    run = compared(calibration=known.model_copy(update={"entries": entries}))
    assert promised(run, 32) == promised(run, 8) == pytest.approx(100 * promise(0.02, 2, 6, 0.05), abs=0.05)
    assert promised(run, 2) == pytest.approx(100 * promise(math.hypot(noisy.tau, 0.02), 2, 6, 0.05), abs=0.05)


class TestSessionSeconds:
    """How long a session takes, from one worker's start."""

    OWN, WEAK, BASE = arm(2), arm(2, mode="weak"), arm(2, side="base")

    def working_s(
        self,
        *arms: Arm,
        untimed: Sequence[Arm] = (),
        loading_s: float = 0.0,
        rank_s: float = 4.0,
        processes: str = "one",
    ) -> float:
        jobs = {each: replace(job(each), processes=processes) for each in (*arms, *untimed)}
        run = run_of(cell(2), jobs=jobs)
        timing_s = (1 + 2 * LEAST) * forecast.WINDOW_S * len(arms)  # and a window of each to warm up
        length = forecast.session(run, arms, untimed, 0.0, forecast.Known(loading_s, rank_s, {}, {}))
        return length.wall_s - forecast.ENDING_S - timing_s

    @pytest.fixture(autouse=True)
    def _two_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forecast, "usable_cores", lambda: 2)

    def test_every_process_starts_and_modes_share_theirs(self) -> None:
        """Two at the same time on two cores; one alone takes as long."""
        assert self.working_s(self.OWN) == pytest.approx(4.0)
        assert self.working_s(self.OWN, self.WEAK) == pytest.approx(4.0)
        assert self.working_s(self.OWN, self.BASE) == pytest.approx(4.0)
        assert self.working_s(self.OWN, self.BASE, arm(1)) == pytest.approx(6.0)
        assert self.working_s(self.OWN, rank_s=8.0) == pytest.approx(8.0)
        assert self.working_s(self.OWN, self.BASE, processes="per-device") == pytest.approx(8.0)
        assert self.working_s(self.OWN, untimed=[self.BASE, arm(1)]) == pytest.approx(6.0)

    def test_templates_load_torch_once_for_all_processes(self) -> None:
        one, three = (self.working_s(*arms, loading_s=3.0) for arms in ([self.OWN], [self.OWN, self.BASE, arm(1)]))
        assert three - one == pytest.approx(2.0)
        assert one == pytest.approx(3.0 + 4.0)

    def test_a_window_has_a_whole_step(self) -> None:
        run = run_of(cell(2), jobs={timed: job(timed) for timed in (self.OWN, self.BASE)})

        def session_s(**step_s: float) -> float:
            known = forecast.Known(3.0, 0.4, {self.OWN: step_s.get("own", 0.0)}, {})
            return forecast.session(run, [self.OWN, self.BASE], [], 0.0, known).wall_s

        assert session_s(own=0.001) == session_s()
        assert session_s(own=2.0) - session_s() == pytest.approx((1 + 2 * LEAST) * (2.0 - forecast.WINDOW_S))

    def test_windows_on_gpus_follow_untimed_steps(self) -> None:
        def session_s(kind: str) -> float:
            devices = Devices(kind, (f"{kind}:0", f"{kind}:1"), ())
            run = run_of(cell(2), jobs={self.OWN: job(self.OWN)}, config=settings(devices=devices))
            return forecast.session(run, [self.OWN], [], 0.0, forecast.Known(3.0, 0.4, {}, {})).wall_s

        assert session_s("cuda") - session_s("cpu") == pytest.approx((1 + 2 * LEAST) * forecast.LEAD_IN_S)

    def test_what_the_last_session_took_is_known_of_others(self) -> None:
        """Starting took twice what was reasoned, warming up three times, a round four times, and the end 9 s."""
        run = run_of(cell(2), jobs={each: replace(job(each), processes="one") for each in (self.OWN, self.BASE)})
        sides = SimpleNamespace(loading_s=0.0, forks=False, start_s=5.0)
        lengths = forecast.Lengths(run, sides, SimpleNamespace(step_s={}, cold_s={}))  # type: ignore[arg-type]
        before_s = lengths.of([self.OWN, self.BASE], [], 0.0).wall_s
        last = Session(0, starting_s=10.0, warming_s=0.72, timing_s=9.6, filling_s=4.8, conditions=[QUIET] * 5)
        last.wall_s = 10.0 + 0.72 + 9.6 + 9.0
        run.sessions.append(last)
        lengths.learn([self.OWN, self.BASE], [])
        assert before_s == pytest.approx(5.0 + (1 + 2 * LEAST) * 0.24 + forecast.ENDING_S)
        assert lengths.of([self.OWN, self.BASE], [], 0.0).wall_s == pytest.approx(10.0 + 0.72 + 2 * LEAST * 0.96 + 9.0)
        assert lengths.of([self.OWN], [], 0.0).wall_s == pytest.approx(10.0 + 0.36 + 2 * LEAST * 0.48 + 9.0)
        assert lengths.of([], [], 0.0) == forecast.Length(0.0, 0)

    def test_a_session_that_timed_nothing_teaches_nothing(self) -> None:
        run = run_of(cell(2), jobs={self.OWN: job(self.OWN)})
        sides = SimpleNamespace(loading_s=0.0, forks=False, start_s=5.0)
        lengths = forecast.Lengths(run, sides, SimpleNamespace(step_s={}, cold_s={}))  # type: ignore[arg-type]
        before = lengths.of([self.OWN], [], 0.0)
        run.sessions.append(Session(0, starting_s=50.0, wall_s=60.0))
        lengths.learn([self.OWN], [])
        assert lengths.of([self.OWN], [], 0.0) == before

    @pytest.mark.parametrize(("budget_s", "blocks"), [(0.0, LEAST), (1e6, MOST)])
    def test_a_session_has_the_rounds_that_its_time_and_the_budget_give(self, budget_s: float, blocks: int) -> None:
        run = run_of(cell(2), jobs={self.OWN: job(self.OWN)})
        length = forecast.session(run, [self.OWN], [], budget_s, forecast.Known(60.0, 0.4, {}, {}))
        assert length.rounds == 2 * blocks


@pytest.mark.parametrize(
    ("budget_s", "kept"), [(1e6, (ONE, TWO, WEAK)), (80.0, (TWO, WEAK)), (40.0, (TWO,)), (0.0, (TWO,))]
)
def test_cells_on_one_device_are_left_out_of_a_short_budget_first(budget_s: float, kept: tuple[Cell, ...]) -> None:
    """At 10 s a cell and four sessions."""
    assert forecast.carried((ONE, TWO, WEAK), 4, lambda some: 10.0 * len(some), budget_s) == kept


HOSTS = Devices("cuda", tuple(f"cuda:{number % 8}" for number in range(1024)), (), hosts=128)


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({}, 2 * 1024 + 2),
        ({"explain": False}, 2 * 1024),
        ({"against": AGAINST}, 2 * (2 * 1024 + 2)),
    ],
    ids=["waterfalls have as many plain ranks", "a rank of gloo", "with a base"],
)
def test_controller_connects_with_every_rank_and_ranks_of_gloo_with_one_another(
    changes: dict[str, object], ranks: int
) -> None:
    plan = run_of(cell(1024), config=settings(devices=HOSTS, **changes)).plan
    assert forecast.descriptors(plan) == ranks + 128 + forecast.SPARE


def test_sweep_of_more_ranks_than_the_cells_have_counts() -> None:
    plan = run_of(cell(1), sweeps=(CollectiveCell("gloo", 64),)).plan
    assert forecast.descriptors(plan) == 2 * 64 + 1 + forecast.SPARE
