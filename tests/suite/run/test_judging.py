"""What shares a run's error budget, and a cell's outcome from all its rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from suite.plan.cells import Arm, Cell
from suite.plan.floors import Floor
from suite.processes.failure import WorkerFailure
from suite.records.record import CellRecord, CheckRecord, Environment
from suite.room.devices import Devices
from suite.run import judging, results
from suite.run.observations import Comparison, Observations, Session
from suite.verdict import Outcome
from tests.support.measurements import (
    AGAINST,
    WOBBLE,
    accepted_run,
    add_session,
    add_sessions,
    arm,
    baseline,
    calibrated,
    cell,
    forth_and_back,
    run_of,
    settings,
    trained,
)

ONE, TWO, WEAK = cell(1), cell(2), cell(2, mode="weak")
MATRIX = [ONE, TWO, cell(1, mode="weak"), WEAK]
ACCEPTED = baseline(accepted_run({TWO: 0.5}))
EQUAL = {arm(1): 1.0, arm(1, side="base"): 1.0, arm(2): 0.5, arm(2, side="base"): 0.5}
SLOWER = {**EQUAL, arm(2): 0.6}
OLDER = calibrated(0.002, ONE, TWO).model_copy(
    update={"environment": Environment(versions={"torch": "2.14"}, commit="", dirty=False)}
)


def check(rule: str, outcome: Outcome, *, counts: bool = True) -> CheckRecord:
    return CheckRecord(rule=rule, against="it", outcome=outcome, reason=f"{rule} says {outcome}", counts=counts)


def compared(step_s: Mapping[Arm, float], *, count: int = 4, **changes: object) -> Observations:
    """Return a run of cells at 1 and 2 devices with a base that the user named; seconds a step of every arm."""
    run = run_of(ONE, TWO, config=settings(against=AGAINST), **changes)
    run.comparison = Comparison({"base": AGAINST}, run.plan.cells)
    add_sessions(run, step_s, count)
    return run


def with_a_peer(**changes: object) -> Observations:
    """Return a run before its first session in which another trainer shows how sessions at 2 devices scatter."""
    run = run_of(TWO, cell(2, "scratch"), ONE, config=settings(against=AGAINST), **changes)
    run.comparison = Comparison({"base": AGAINST}, run.plan.cells)
    return run


def judged(run: Observations) -> dict[int, CellRecord]:
    return {record.world_size: record for record in results.to_record(run).cells}


class TestAlone:
    """Comparisons that are the only one of their base and world size wait longer for a FAIL."""

    @pytest.mark.parametrize(
        ("measured", "alone", "needed"),
        [
            (MATRIX, 3, 5),  # on one device both modes are one arm, on two they share processes
            ([ONE, TWO], 2, 4),
            ([cell(k) for k in (1, 2, 4, 8)], 4, 5),
            ([*MATRIX, *(cell(k, "scratch") for k in (1, 2))], 0, 4),
        ],
    )
    def test_by_world_size(self, measured: Sequence[Cell], alone: int, needed: int) -> None:
        run = run_of(*measured, config=settings(against=AGAINST))
        run.comparison = Comparison({"base": AGAINST}, tuple(measured))
        assert (run.comparisons_alone, run.sessions_needed) == (alone, needed)
        assert run.sessions_lacking == needed
        for lacking in [*range(needed - 1, 0, -1), 1, 1]:
            run.sessions.append(Session(len(run.sessions)))
            assert run.sessions_lacking == lacking

    def test_what_is_lost_shows_nothing(self) -> None:
        run = run_of(*MATRIX, config=settings(against=AGAINST))
        run.comparison = Comparison({"base": AGAINST}, run.plan.cells)
        run.lost[run.plan.own(WEAK)] = WorkerFailure("candidate", "it died")
        assert run.comparisons_alone == 2

    @pytest.mark.parametrize(("sessions", "outcome"), [(4, Outcome.INCONCLUSIVE), (5, Outcome.FAIL)])
    def test_four_of_them_fail_after_five_sessions(self, sessions: int, outcome: Outcome) -> None:
        measured = [cell(k) for k in (1, 2, 4, 8)]
        run = run_of(*measured, config=settings(against=AGAINST), planned=6)
        run.comparison = Comparison({"base": AGAINST}, tuple(measured))
        slow = {arm(k, side=side): 1.0 + (side == "candidate") for k in (1, 2, 4, 8) for side in ("candidate", "base")}
        add_sessions(run, slow, count=sessions)
        assert judging.against(run, measured[0], "base").outcome is outcome


class TestComparisons:
    """The number by which alpha is divided."""

    @pytest.mark.parametrize(
        ("cells", "changes", "number"),
        [
            (MATRIX, {"config": settings(against=AGAINST)}, 3),
            (MATRIX, {"baseline": ACCEPTED}, 2 * 3 + 2 + 2),
            (MATRIX, {}, 2),
            ([*MATRIX, cell(2, "scratch")], {}, 3),
            (
                MATRIX,
                {
                    "config": settings(against=AGAINST),
                    "floors": dict.fromkeys((TWO, WEAK), Floor(efficiency=0.5)),
                },
                3 + 2,
            ),
            ([ONE], {}, 1),
        ],
        ids=[
            "both modes share one device",
            "rebuilt runs and their pin, the machine, and accuracy",
            "accuracy of each mode above one device",
            "accuracy of each trainer",
            "floors",
            "nothing can fail",
        ],
    )
    def test_number_of_checks_that_can_fail(self, cells: list[object], changes: dict[str, object], number: int) -> None:
        assert judging.comparisons(run_of(*cells, **changes)) == number

    def test_measuring_does_not_change_the_number(self) -> None:
        """A number that grew with the results would not be a budget."""
        run = run_of(*MATRIX)
        before = judging.comparisons(run)
        run.comparison = Comparison({"base": AGAINST, "pinned": AGAINST}, run.plan.cells)
        add_sessions(run, {arm(1): 1.0, arm(2): 1.0})
        run.accuracies.append(trained(0.9, 2))
        assert judging.comparisons(run) == before


class TestCombined:
    """A cell's outcome from those of its rules."""

    @pytest.mark.parametrize(
        ("outcomes", "outcome", "reason"),
        [
            ({"time": "PASS", "floor": "PASS", "accuracy": "FAIL"}, "FAIL", "accuracy says FAIL"),
            (
                {"time": "INCONCLUSIVE", "floor": "FAIL", "accuracy": "FAIL"},
                "FAIL",
                "floor says FAIL; accuracy says FAIL",
            ),
            ({"time": "PASS", "floor": "INCONCLUSIVE"}, "INCONCLUSIVE", "floor says INCONCLUSIVE"),
            ({"time": "PASS", "floor": "PASS"}, "PASS", "time says PASS; floor says PASS"),
            # Without a base there is no PASS, but what other rules find counts.
            ({"floor": "PASS"}, "NO BASELINE", "there is nothing to compare with; floor says PASS"),
            ({"accuracy": "PASS"}, "NO BASELINE", "there is nothing to compare with; accuracy says PASS"),
            ({"floor": "FAIL"}, "FAIL", "floor says FAIL"),
            ({"accuracy": "INCONCLUSIVE"}, "INCONCLUSIVE", "accuracy says INCONCLUSIVE"),
            ({}, "NO BASELINE", "there is nothing to compare with"),
        ],
    )
    def test_gravest_outcome_of_the_checks_that_count_gives_the_reason(
        self, outcomes: dict[str, str], outcome: str, reason: str
    ) -> None:
        superseded = [check("stored", each, counts=False) for each in Outcome]
        checks = [check(rule, Outcome(each)) for rule, each in outcomes.items()]
        assert judging.combined([*superseded, *checks]) == (Outcome(outcome), reason)


class TestAgainstABase:
    """Time in the same sessions."""

    def test_cell_that_is_slower_fails_alone(self) -> None:
        cells = judged(compared(SLOWER))
        assert cells[1].outcome is Outcome.PASS
        assert cells[2].outcome is Outcome.FAIL
        assert cells[2].reason.startswith("20.0% slower than the base, ")  # by the fourth session
        assert cells[2].slowdown is not None
        assert cells[2].slowdown.estimate == pytest.approx(1.2, rel=2 * WOBBLE)
        assert [(c.rule, c.against) for c in cells[2].checks] == [("time", AGAINST.label)], "nothing is trained"

    @pytest.mark.parametrize(
        ("known", "outcome"),
        [
            ({}, Outcome.INCONCLUSIVE),
            ({"calibration": calibrated(0.002, ONE, TWO)}, Outcome.PASS),
            ({"calibration": calibrated(0.002, ONE, TWO, host="another")}, Outcome.INCONCLUSIVE),
            ({"calibration": OLDER}, Outcome.INCONCLUSIVE),
        ],
        ids=["never calibrated", "calibrated", "another host", "older versions"],
    )
    def test_a_calibrated_host_decides_sooner(self, known: dict[str, object], outcome: Outcome) -> None:
        """Its sessions differ by 1.2 %, and each cell is alone in its world size."""
        run = compared({}, count=0, planned=6, **known)
        for sign in (1, -1, 1):
            add_session(run, [forth_and_back({**EQUAL, arm(1): math.exp(0.006 * sign)})] * 4)
        assert judged(run)[1].outcome is outcome

    def test_cells_of_a_world_size_show_each_other_how_sessions_scatter(self) -> None:
        """A tenth slower in every session, where the cell beside it moves by 8 % from session to session."""
        run = with_a_peer()
        for sign in (1, -1, 1, -1):
            base = {arm(2, side="base"): 0.5, arm(2, "scratch", "base"): 0.5, arm(1, side="base"): 1.0}
            moved = {arm(2): 0.55, arm(2, "scratch"): 0.5 * (1 + 0.08 * sign), arm(1): 1.1}
            add_sessions(run, {**base, **moved}, count=1)
        outcomes = {cell.id: cell.outcome for cell in results.to_record(run).cells}
        assert outcomes[TWO.id] is Outcome.INCONCLUSIVE
        assert outcomes[ONE.id] is Outcome.FAIL, "one device is another matter"

    def test_lost_rebuilt_commit_leaves_the_stored_check(self) -> None:
        run = run_of(TWO, baseline=ACCEPTED, stored={TWO: (check("stored", Outcome.INCONCLUSIVE),)})
        run.comparison = Comparison({"base": AGAINST}, (TWO,))
        add_sessions(run, {arm(2): 0.5})
        run.lost[arm(2, side="base")] = WorkerFailure("base", "it does not build")
        record = judged(run)[2]
        assert (record.outcome, record.reason) == (Outcome.INCONCLUSIVE, "stored says INCONCLUSIVE")
        assert [c.rule for c in record.checks] == ["stored"]

    def test_a_fail_stands_although_its_base_is_lost_later(self) -> None:
        """A base on one device may still be timed for the machine when its own cell has been decided."""
        run = run_of(TWO, baseline=ACCEPTED, stored={TWO: (check("stored", Outcome.PASS),)})
        run.comparison = Comparison({"base": AGAINST}, (TWO,))
        add_sessions(run, {arm(2): 0.6, arm(2, side="base"): 0.5}, count=6)
        run.planned = 6
        before = judged(run)[2].outcome
        run.lost[arm(2, side="base")] = WorkerFailure("base", "it died")
        assert [before, judged(run)[2].outcome] == [Outcome.FAIL, Outcome.FAIL]


class TestSlowTail:
    """A warning where some rounds became slow and the middle did not."""

    def run(self, *slow: int) -> CellRecord:
        """Return a cell of ten sessions in which these blocks of the candidate are a third slower."""
        run = run_of(TWO, config=settings(against=AGAINST))
        run.comparison = Comparison({"base": AGAINST}, run.plan.cells)
        for number in range(10):
            equal = {arm(2): 0.5 * (1 + 0.001 * (-1) ** number), arm(2, side="base"): 0.5}
            late = {**equal, arm(2): 0.66}
            add_session(run, [forth_and_back(late if block in slow else equal) for block in range(16)])
        return judged(run)[2]

    def test_tail_is_named_beside_a_pass(self) -> None:
        record = self.run(2, 9)
        assert record.outcome is Outcome.PASS
        assert record.tail is not None
        assert record.tail.low is not None
        assert record.tail.low > 1.01
        [said] = record.cautions
        assert said.startswith("a slow tail grew: the slowest tenth of its rounds is 32.0% slower than the base's")
        assert record.warning == said
        equal = self.run()
        assert equal.tail is not None
        assert (equal.tail.estimate, equal.cautions) == (pytest.approx(1.0), ())


class TestWidenedGap:
    """A warning where efficiency fell although no cell became slower."""

    @pytest.mark.parametrize(
        ("one_s", "two_s", "planned", "outcome", "warned"),
        [
            (0.9, 0.5, 4, Outcome.PASS, True),
            (1.0, 0.5, 4, Outcome.PASS, False),
            (0.99, 0.5, 4, Outcome.PASS, False),
            (1.0, 0.6, 4, Outcome.FAIL, False),
            (0.9, 0.512, 20, Outcome.INCONCLUSIVE, False),  # 2.4 %: a PASS before the twentieth session needs less
        ],
        ids=["one device faster", "equal", "less than half the tolerance", "two devices slower", "undecided"],
    )
    def test_warning(self, one_s: float, two_s: float, planned: int, outcome: Outcome, warned: bool) -> None:
        cells = judged(compared({**EQUAL, arm(1): one_s, arm(2): two_s}, planned=planned))
        warning = "efficiency is 10.0% below the base's: gap widened, nothing slower" if warned else ""
        assert (cells[2].outcome, cells[2].warning, cells[1].warning) == (outcome, warning, "")

    @pytest.mark.parametrize(("apart", "warned"), [(0.003, True), (0.011, False)])
    def test_it_has_the_error_of_warnings(self, apart: float, warned: bool) -> None:
        """A gap that widens by 3.1 % on average; at 5 % the second one would be warned of too."""
        run = compared({}, count=0, planned=4)
        for step, two in ((1, 0.001), (-1, 0.0), (0, 0.002)):
            one = -0.031 + two + apart * step
            add_session(run, [forth_and_back({**EQUAL, arm(1): math.exp(one), arm(2): 0.5 * math.exp(two)})] * 4)
        assert judged(run)[2].outcome is Outcome.PASS
        assert bool(judged(run)[2].warning) is warned

    def test_oversubscribed_devices_are_not_judged_for_efficiency(self) -> None:
        shared = settings(against=AGAINST, devices=Devices("cpu", ("cpu", "cpu"), (0, 0)))
        run = run_of(ONE, TWO, config=shared, comparison=Comparison({"base": AGAINST}, (ONE, TWO)))
        add_sessions(run, {**EQUAL, arm(1): 0.9, arm(2): 0.5})
        assert (judged(run)[2].outcome, judged(run)[2].warning) == (Outcome.PASS, "")


class TestFloors:
    """Efficiency against a configured minimum, without any baseline."""

    def run_with_floor(self, efficiency: float, **changes: object) -> Observations:
        return run_of(TWO, floors={TWO: Floor(efficiency=efficiency)}, **changes)

    @pytest.mark.parametrize(
        ("floor", "count", "outcome"),
        [
            (0.9, 4, Outcome.FAIL),
            (0.8, 4, Outcome.NO_BASELINE),
            (0.5, 4, Outcome.NO_BASELINE),
            (0.5, 2, Outcome.INCONCLUSIVE),
            (0.9, 5, Outcome.FAIL),  # a session more than planned, for an arm whose processes another broke
        ],
    )
    def test_floor_fails_a_cell_and_never_passes_it(self, floor: float, count: int, outcome: Outcome) -> None:
        """Efficiency is 0.8."""
        run = self.run_with_floor(floor)
        add_sessions(run, {arm(1): 0.8, arm(2): 0.5}, count)
        assert judged(run)[2].outcome is outcome
        assert [c.rule for c in judged(run)[2].checks] == ["floor"]

    def test_a_fail_below_the_floor_is_confirmed_by_another_session(self) -> None:
        """Three make the cell suspicious. One more like them confirms that, and three that are not do not."""
        for on_one_s, count, outcome in ((0.8, 1, Outcome.FAIL), (1.2, 3, Outcome.INCONCLUSIVE)):
            run = self.run_with_floor(0.9, planned=6)
            add_sessions(run, {arm(1): 0.8, arm(2): 0.5}, count=3)
            assert judged(run)[2].outcome is Outcome.INCONCLUSIVE
            add_sessions(run, {arm(1): on_one_s, arm(2): 0.5}, count)
            assert judged(run)[2].outcome is outcome

    @pytest.mark.parametrize("ended_s", [0.0, 1e5])
    def test_an_undecided_floor_says_by_how_much_to_raise_the_budget(self, ended_s: float) -> None:
        """By two sessions, and by what the sessions took beyond the budget."""
        run = self.run_with_floor(0.9, planned=6, begun_s=0.0, clock=lambda: ended_s)
        add_sessions(run, {arm(1): 0.8, arm(2): 0.5}, count=2)
        assert bool(run.plan.overrun_s) == bool(ended_s)
        more = f"add {math.ceil(2 * run.session_s + run.plan.overrun_s)} s to the budget"
        assert judged(run)[2].reason.endswith(f"needs 3; {more}, or use a quieter machine or a larger tolerance")


@pytest.mark.parametrize(("one", "two", "red"), [(0.91, 0.73, True), (0.91, 0.89, False), (0.73, 0.91, False)])
def test_lost_accuracy_fails_the_cell_whose_net_it_is(one: float, two: float, red: bool) -> None:
    """The book's figures, as a record has them: one seed pair, of weak scaling."""
    run = run_of(*MATRIX)
    add_sessions(run, {arm(1): 1.0, arm(2): 0.5, arm(2, mode="weak"): 0.5})
    run.accuracies += [trained(one, 1), trained(two, 2, mode="weak")]
    cells = results.to_record(run).cells
    expected = Outcome.FAIL if red else Outcome.NO_BASELINE
    assert [c.outcome for c in cells] == [Outcome.NO_BASELINE, Outcome.NO_BASELINE, Outcome.NO_BASELINE, expected]
    assert [[c.rule for c in f.checks] for f in cells] == [[], [], [], ["accuracy"]]
    assert [f.accuracy for f in cells] == [one, None, one, two]
