"""What a run's error budget is shared by, and what a cell comes to when all its rules have spoken."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from suite.plan.base import Base
from suite.plan.cells import Arm
from suite.plan.floors import Floor
from suite.processes.failure import WorkerFailure
from suite.records.record import CellRecord, CheckRecord
from suite.run import judging, results
from suite.run.observations import Observations
from suite.verdict import Outcome
from tests.support.measurements import (
    WOBBLE,
    accepted_run,
    add_sessions,
    arm,
    baseline,
    calibrated,
    cell,
    measurement,
    settings,
    trained,
)

AGAINST = Base("ref", "v1.0 (1111111)", commit="1" * 40)
MATRIX = [cell(1), cell(2), cell(1, mode="weak"), cell(2, mode="weak")]


def check(rule: str, outcome: Outcome, *, counts: bool = True) -> CheckRecord:
    return CheckRecord(rule=rule, against="it", outcome=outcome, reason=f"{rule} says {outcome}", counts=counts)


def beside(step_s: Mapping[Arm, float], *, count: int = 4, **changes: object) -> Observations:
    """A run of cells at 1 and 2 devices beside a base; seconds a step of every arm."""
    run = measurement(cell(1), cell(2), config=settings(against=AGAINST), **changes)
    run.bases, run.beside = {"base": AGAINST}, list(run.plan.cells)
    add_sessions(run, step_s, count)
    return run


def judged(run: Observations) -> dict[int, CellRecord]:
    """What the record says, by world size."""
    return {found.world_size: found for found in results.to_record(run).cells}


class TestComparisons:
    """The number that alpha is split by."""

    def test_one_device_in_both_modes_is_one_thing(self) -> None:
        """Three arms in four cells, and a pair for the accuracy where no base was named."""
        assert judging.comparisons(measurement(*MATRIX, config=settings(against=AGAINST))) == 3
        assert judging.comparisons(measurement(*MATRIX, config=settings(against=AGAINST))) != len(MATRIX)

    def test_stored_runs_and_their_pin_are_two(self) -> None:
        run = measurement(*MATRIX, baseline=baseline(accepted_run({cell(): 1.0})))
        assert judging.comparisons(run) == 2 * 3 + 2

    def test_accuracy_is_one_a_trainer_mode_and_world_size_above_one(self) -> None:
        assert judging.comparisons(measurement(*MATRIX)) == 2
        assert judging.comparisons(measurement(*MATRIX, cell(2, "scratch"))) == 3

    def test_every_cell_with_a_floor_adds_one(self) -> None:
        floors = {cell(2): Floor(entry=1, efficiency=0.5), cell(2, mode="weak"): Floor(entry=1, efficiency=0.5)}
        assert judging.comparisons(measurement(*MATRIX, config=settings(against=AGAINST), floors=floors)) == 3 + 2

    def test_where_nothing_can_fail_alpha_is_still_divided_by_one(self) -> None:
        assert judging.comparisons(measurement(cell(1))) == 1

    def test_nothing_that_is_measured_changes_it(self) -> None:
        """A number that grew with what was found would not be a budget."""
        run = measurement(*MATRIX)
        before = judging.comparisons(run)
        run.bases, run.beside = {"base": AGAINST, "pinned": AGAINST}, list(run.plan.cells)
        add_sessions(run, {arm(1): 1.0, arm(2): 1.0})
        run.accuracies.append(trained(0.9, 2))
        assert judging.comparisons(run) == before


class TestCombined:
    """A cell's outcome from those of its rules."""

    @pytest.mark.parametrize("outcomes", list(itertools.product(("FAIL", "INCONCLUSIVE", "PASS"), repeat=3)))
    def test_the_gravest_counts_and_says_why(self, outcomes: tuple[str, ...]) -> None:
        checks = [check(rule, Outcome(o)) for rule, o in zip(("time", "floor", "accuracy"), outcomes, strict=True)]
        expected = next(o for o in (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS) if o in outcomes)
        reasons = "; ".join(found.reason for found in checks if found.outcome is expected)
        assert judging.combined(checks) == (expected, reasons)

    def test_what_does_not_count_decides_nothing(self) -> None:
        superseded = [check("stored", outcome, counts=False) for outcome in Outcome]
        assert judging.combined([*superseded, check("time", Outcome.PASS)]) == (Outcome.PASS, "time says PASS")
        assert judging.combined(superseded)[0] is Outcome.NO_BASELINE

    @pytest.mark.parametrize("rule", ["floor", "accuracy"])
    def test_a_cell_does_not_pass_unless_its_time_did(self, rule: str) -> None:
        outcome, reason = judging.combined([check(rule, Outcome.PASS)])
        assert outcome is Outcome.NO_BASELINE
        assert reason == f"there is nothing to compare with; {rule} says PASS"
        assert judging.combined([check(rule, Outcome.PASS), check("time", Outcome.PASS)])[0] is Outcome.PASS

    @pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.INCONCLUSIVE])
    def test_without_a_baseline_other_rules_are_heard_all_the_same(self, outcome: Outcome) -> None:
        assert judging.combined([check("floor", outcome)]) == (outcome, f"floor says {outcome}")

    def test_a_cell_without_any_rule_has_no_baseline(self) -> None:
        assert judging.combined([]) == (Outcome.NO_BASELINE, "there is nothing to compare with")


class TestBesideABase:
    """Time in the same sessions."""

    def test_slower_on_two_devices_fails_there_alone(self) -> None:
        found = judged(beside({arm(1): 1.0, arm(1, side="base"): 1.0, arm(2): 0.6, arm(2, side="base"): 0.5}))
        assert found[1].outcome is Outcome.PASS
        assert found[2].outcome is Outcome.FAIL
        assert found[2].reason.startswith("20.1% slower than the base, at least")  # by the third session
        assert found[2].slowdown is not None
        assert found[2].slowdown.estimate == pytest.approx(1.2, rel=2 * WOBBLE)
        assert [(c.rule, c.against) for c in found[2].checks] == [("time", AGAINST.label)]

    def test_the_same_times_pass(self) -> None:
        found = judged(beside({arm(1): 1.0, arm(1, side="base"): 1.0, arm(2): 0.5, arm(2, side="base"): 0.5}))
        assert [found[k].outcome for k in (1, 2)] == [Outcome.PASS, Outcome.PASS]

    def test_an_older_pin_is_the_rule_that_finds_what_creeps(self) -> None:
        """As fast as the last accepted build, a tenth slower than the oldest of its level."""
        times = {arm(2): 0.55, arm(2, side="base"): 0.55, arm(2, side="pinned"): 0.5}
        run = measurement(cell(2), baseline=baseline(accepted_run({cell(2): 0.5})))
        run.bases = {"base": AGAINST, "pinned": Base("ref", "the pin", commit="2" * 40)}
        run.beside = [cell(2)]
        add_sessions(run, times)
        found = judged(run)[2]
        assert {c.rule: c.outcome for c in found.checks} == {"time": Outcome.PASS, "drift": Outcome.FAIL}
        assert found.outcome is Outcome.FAIL

    def test_two_sessions_suffice_where_the_machine_is_known(self) -> None:
        times = {arm(2): 0.6, arm(2, side="base"): 0.5}
        assert judged(beside(times, count=2))[2].outcome is Outcome.INCONCLUSIVE
        learned = {"calibration": calibrated(0.002, cell(1), cell(2)), "planned": 2}
        assert judged(beside({**times, arm(1): 1.0, arm(1, side="base"): 1.0}, count=2, **learned))[1].outcome is (
            Outcome.PASS
        )
        foreign = {**learned, "calibration": calibrated(0.002, cell(1), cell(2), host="another")}
        assert judged(beside({**times, arm(1): 1.0, arm(1, side="base"): 1.0}, count=2, **foreign))[1].outcome is (
            Outcome.INCONCLUSIVE
        )

    def test_a_base_that_was_lost_decides_nothing(self) -> None:
        """Of a rebuilt baseline; where the user named the base, the cell is an ERROR."""
        run = measurement(cell(2), baseline=baseline(accepted_run({cell(2): 0.5})))
        run.bases, run.beside = {"base": AGAINST}, [cell(2)]
        add_sessions(run, {arm(2): 0.5})
        run.lost[arm(2, side="base")] = WorkerFailure("base", "it does not build")
        run.stored[cell(2)] = (check("stored", Outcome.INCONCLUSIVE),)
        found = judged(run)[2]
        assert (found.outcome, found.reason) == (Outcome.INCONCLUSIVE, "stored says INCONCLUSIVE")
        assert [c.rule for c in found.checks] == ["stored"]
        named = beside({arm(1): 1.0, arm(1, side="base"): 1.0, arm(2): 0.5})
        named.lost[arm(2, side="base")] = WorkerFailure("base", "it does not build")
        assert judged(named)[2].outcome is Outcome.ERROR
        assert judged(named)[1].outcome is Outcome.PASS


class TestWidenedGap:
    """Efficiency fell although nothing became slower."""

    def test_one_device_became_faster(self) -> None:
        found = judged(beside({arm(1): 0.9, arm(1, side="base"): 1.0, arm(2): 0.5, arm(2, side="base"): 0.5}))
        assert [found[k].outcome for k in (1, 2)] == [Outcome.PASS, Outcome.PASS]
        assert found[2].warning == "efficiency is 10.0% below the base's: the gap widened, nothing is slower"
        assert found[1].warning == ""

    def test_k_devices_became_slower(self) -> None:
        found = judged(beside({arm(1): 1.0, arm(1, side="base"): 1.0, arm(2): 0.6, arm(2, side="base"): 0.5}))
        assert (found[2].outcome, found[2].warning) == (Outcome.FAIL, "")

    def test_nothing_is_said_of_k_devices_while_it_is_open_whether_they_are_slower(self) -> None:
        run = beside({arm(1): 0.9, arm(1, side="base"): 1.0, arm(2): 0.52, arm(2, side="base"): 0.5})
        run.planned = 20  # 4 % after four sessions of twenty: too early for either
        found = judged(run)
        assert found[2].outcome is Outcome.INCONCLUSIVE
        assert found[2].warning == ""

    @pytest.mark.parametrize("one", [1.0, 0.99], ids=["the same", "less than half the tolerance"])
    def test_less_is_no_news(self, one: float) -> None:
        assert not judged(beside({arm(1): one, arm(1, side="base"): 1.0, arm(2): 0.5, arm(2, side="base"): 0.5}))[
            2
        ].warning

    def test_it_needs_the_one_device_cell_beside_its_base(self) -> None:
        run = beside({arm(1): 0.9, arm(2): 0.5, arm(2, side="base"): 0.5})
        assert judging.warning(run, cell(2)) == ""


class TestFloors:
    """Efficiency against a configured one, without any baseline."""

    @pytest.mark.parametrize(
        ("floor", "outcome"), [(0.9, Outcome.FAIL), (0.8, Outcome.NO_BASELINE), (0.5, Outcome.NO_BASELINE)]
    )
    def test_it_fails_a_cell_and_passes_none(self, floor: float, outcome: Outcome) -> None:
        """Efficiency is 0.8."""
        run = measurement(cell(2), floors={cell(2): Floor(entry=1, efficiency=floor)})
        add_sessions(run, {arm(1): 0.8, arm(2): 0.5})
        found = judged(run)[2]
        assert found.outcome is outcome
        assert [c.rule for c in found.checks] == ["floor"]

    def test_too_few_sessions_are_inconclusive(self) -> None:
        run = measurement(cell(2), floors={cell(2): Floor(entry=1, efficiency=0.5)})
        add_sessions(run, {arm(1): 0.8, arm(2): 0.5}, count=2)
        assert judged(run)[2].outcome is Outcome.INCONCLUSIVE

    def test_sessions_before_a_rebuilt_baseline_are_looks_of_the_same_plan(self) -> None:
        """Three alone, which fail it, and three beside the rebuilt one, on a machine that has become quiet."""
        run = measurement(cell(2), floors={cell(2): Floor(entry=1, efficiency=0.9)}, alone=3, planned=3)
        add_sessions(run, {arm(1): 0.8, arm(2): 0.5}, count=3)
        assert judged(run)[2].outcome is Outcome.FAIL
        add_sessions(run, {arm(1): 1.2, arm(2): 0.5}, count=3)
        assert judged(run)[2].outcome is Outcome.INCONCLUSIVE

    def test_a_session_more_than_was_planned_takes_no_verdict_back(self) -> None:
        """One is owed to an arm whose processes another had broken."""
        run = measurement(cell(2), floors={cell(2): Floor(entry=1, efficiency=0.9)}, planned=4)
        add_sessions(run, {arm(1): 0.8, arm(2): 0.5}, count=5)
        assert judged(run)[2].outcome is Outcome.FAIL


class TestAccuracy:
    """The book's figures, as a record has them: one seed pair."""

    @pytest.mark.parametrize(("one", "two", "red"), [(0.91, 0.73, True), (0.91, 0.89, False), (0.73, 0.91, False)])
    def test_the_books_loss_turns_the_cell_red(self, one: float, two: float, red: bool) -> None:
        run = measurement(*MATRIX)
        add_sessions(run, {arm(1): 1.0, arm(2): 0.5, arm(2, mode="weak"): 0.5})
        run.accuracies += [trained(one, 1), trained(two, 2, mode="weak")]
        found = results.to_record(run).cells
        expected = Outcome.FAIL if red else Outcome.NO_BASELINE
        assert [c.outcome for c in found] == [Outcome.NO_BASELINE, Outcome.NO_BASELINE, Outcome.NO_BASELINE, expected]
        assert [[c.rule for c in f.checks] for f in found] == [[], [], [], ["accuracy"]]
        assert [f.accuracy for f in found] == [one, None, one, two], "strong scaling's is another net's"

    def test_beside_a_base_none_is_trained_and_none_is_asked(self) -> None:
        run = beside({arm(1): 1.0, arm(1, side="base"): 1.0, arm(2): 0.5, arm(2, side="base"): 0.5})
        assert [c.rule for c in judged(run)[2].checks] == ["time"]
