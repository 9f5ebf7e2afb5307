"""Counting within a run: when and of which arms, what it costs where it fails, what a change leads to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from suite.plan.config import Base
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Counted, Tally
from suite.records import baselines
from suite.records.baselines import Baseline
from suite.records.counters import Counters, merged
from suite.records.record import CellRecord, CheckRecord
from suite.run import counting, results
from suite.run.groups import Groups
from suite.run.observations import Comparison, Observations
from suite.run.session import Sessions
from suite.verdict import Outcome
from tests.support.measurements import (
    AGAINST,
    COMMIT,
    accepted_run,
    add_sessions,
    arm,
    baseline,
    cell,
    run_of,
    settings,
)

TWO = cell(2)
OWN, BASE = arm(2), arm(2, side="base")
TORCH = "torch 2.15.0, definitions 1"
BYTES = 516_272
ACCUMULATION = ": as when accumulation no longer skips its exchange"


def answer(all_reduces: int = 1, made_with: str = TORCH, **least_and_most: tuple[int, int]) -> Counted:
    """Return what a rank answers whose step calls all_reduce this often, and has these other counters."""
    tallies = [
        Tally("all_reduce", "float32", "calls", all_reduces, all_reduces),
        Tally("all_reduce", "float32", "bytes", all_reduces * BYTES, all_reduces * BYTES),
        *(Tally(what, "", "calls", *bounds) for what, bounds in least_and_most.items()),
    ]
    return Counted(made_with, counting.STEPS, tuple(tallies))


def counters(*arguments: Any, **least_and_most: Any) -> Counters:
    return merged([answer(*arguments, **least_and_most)] * 2)


class Scripted:
    """Replaces a group of two workers that count what they are told to."""

    def __init__(self, answers: Mapping[str, Counted | None]) -> None:
        self.answers, self.asked, self.deadlines = answers, list[str](), list[float]()

    def request(self, kind: type, command: str, timeout_s: float, *, name: str, steps: int) -> list[Counted]:
        assert (kind, command, steps) == (Counted, "count", counting.STEPS)
        self.deadlines.append(timeout_s)
        self.asked.append(name)
        told = self.answers[name]
        if told is None:
            raise WorkerFailure("group", "rank 1 was killed by SIGSEGV")
        return [told] * 2


def compared(own: Any, base: Any, *, step_s: float = 0.05, **changes: Any) -> tuple[Observations, Scripted, Groups]:
    """Return a run with a base after its first session, which counted, and the workers that did."""
    run = run_of(TWO, config=settings(against=AGAINST, **changes))
    run.comparison = Comparison({"base": AGAINST}, run.plan.cells)
    add_sessions(run, {OWN: 0.5, BASE: 0.5})
    group = Scripted({OWN.id: own, BASE.id: base})
    groups = Groups(run.sessions[0], dict.fromkeys((OWN, BASE), group))  # type: ignore[arg-type]
    sessions = Sessions(run, {}, None, None, lambda: 0.0, lambda line: None)  # type: ignore[arg-type]
    sessions.step_s = {OWN: step_s, BASE: step_s}
    counting.counting(run, sessions, (TWO,), lambda line: None)(groups)
    return run, group, groups


def only(run: Observations) -> CellRecord:
    [record] = results.to_record(run).cells
    return record


def counted(record: CellRecord) -> CheckRecord:
    [check] = [check for check in record.checks if check.rule == "counters"]
    return check


class TestInASession:
    """Of which arms, and what a failure costs."""

    def test_both_sides_of_a_cell_are_counted_and_kept(self) -> None:
        run, group, _ = compared(answer(2), answer(1))
        assert group.asked == [OWN.id, BASE.id]
        assert only(run).counters == {"candidate": counters(2), "base": counters(1)}

    def test_an_arm_is_counted_once_in_a_run(self) -> None:
        run, group, groups = compared(answer(2), answer(1))
        counting.counting(run, None, (TWO,), print)(groups)  # type: ignore[arg-type]
        assert len(group.asked) == 2

    @pytest.mark.parametrize(("step_s", "deadline_s"), [(0.05, 60.0), (1.4, 112.0)])
    def test_it_has_what_is_left_of_the_budget_or_the_deadline_of_its_steps(
        self, step_s: float, deadline_s: float
    ) -> None:
        _, group, _ = compared(answer(2), answer(1), step_s=step_s, budget_s=30.0)
        assert group.deadlines == pytest.approx([deadline_s] * 2)

    @pytest.mark.parametrize(("setting", "outcome"), [("warn", Outcome.PASS), ("fail", Outcome.INCONCLUSIVE)])
    def test_an_arm_that_fails_keeps_its_times_and_says_why(self, setting: str, outcome: Outcome) -> None:
        run, _, _ = compared(None, answer(1), counters=setting)
        record = only(run)
        assert (record.outcome, run.lost) == (outcome, {})
        assert ("could not both be counted: rank 1 was killed" in record.reason) == (setting == "fail")
        assert record.why("counters") == "rank 1 was killed by SIGSEGV"
        assert run.uncounted[BASE] == "its workers had ended before its steps were counted", "here both share a group"

    def test_an_arm_that_a_later_comparison_counts_needs_no_reason_any_more(self) -> None:
        run, _, _ = compared(answer(1), answer(1), counters="fail", step_s=7.0)
        sessions = Sessions(run, {}, None, None, lambda: 0.0, lambda line: None)  # type: ignore[arg-type]
        group: Any = Scripted({OWN.id: answer(1), BASE.id: answer(1)})
        counting.counting(run, sessions, (TWO,), print)(Groups(run.sessions[1], {OWN: group, BASE: group}))
        assert (only(run).outcome, only(run).why("counters")) == (Outcome.PASS, "")

    def test_steps_that_are_too_long_are_not_counted(self) -> None:
        """A fifth of 120 s holds no four steps of 7 s."""
        run, group, _ = compared(answer(2), answer(1), step_s=7.0)
        assert group.asked == []
        assert only(run).why("counters") == "it takes 28 s, and counting has a fifth of the budget"


class TestAgainstABase:
    """What a change leads to."""

    def test_equal_steps_are_said_to_be_equal(self) -> None:
        run, _, _ = compared(answer(1), answer(1))
        record = only(run)
        check = counted(record)
        assert (check.against, check.outcome, check.counts) == (AGAINST.label, Outcome.PASS, False)
        assert check.reason == "a step does the same"
        assert (record.outcome, record.warning) == (Outcome.PASS, "")

    @pytest.mark.parametrize(
        ("setting", "own", "outcome", "warned"),
        [
            ("warn", 2, Outcome.PASS, True),
            ("fail", 2, Outcome.FAIL, False),
            ("fail", 0, Outcome.PASS, True),
        ],
    )
    def test_more_fails_where_that_was_asked_for_and_everything_else_warns(
        self, setting: str, own: int, outcome: Outcome, warned: bool
    ) -> None:
        run, _, _ = compared(answer(own), answer(1), counters=setting)
        record = only(run)
        more = f"1 → {own} all_reduce a step, " + (f"+516.3 kB{ACCUMULATION}" if own else "-516.3 kB")
        assert record.outcome is outcome
        assert record.reason == more if outcome is Outcome.FAIL else "slower" in record.reason
        assert record.warning == (f"what a step does changed against {AGAINST.label}: {more}" if warned else "")

    def test_other_versions_are_shown_and_never_fail(self) -> None:
        run, _, _ = compared(answer(2), answer(1, "torch 2.9.0, definitions 1"), counters="fail")
        record = only(run)
        check = counted(record)
        assert check.reason.startswith(f"counted with torch 2.9.0, definitions 1 there and {TORCH} here, which may")
        assert check.reason.endswith(f": 1 → 2 all_reduce a step, +516.3 kB{ACCUMULATION}")
        assert (record.outcome, record.warning) == (Outcome.PASS, "")

    def test_what_is_not_reproducible_decides_nothing(self) -> None:
        run, _, _ = compared(answer(operator=(200, 210)), answer(operator=(100, 100)), counters="fail")
        record = only(run)
        check = counted(record)
        reason = "a step does the same; not compared, because it is not reproducible: operators (200 to 210 a step)"
        assert (check.outcome, check.reason) == (Outcome.PASS, reason)


def stored(run: Counters | None) -> Baseline:
    """Return a baseline of one accepted run with these counters."""
    kept = accepted_run({TWO: 0.5})
    cells = tuple(each.model_copy(update={"counters": run}) for each in kept.cells)
    return baseline(kept.model_copy(update={"cells": cells}))


class TestAgainstAcceptedRuns:
    """Stored counters, which need no measuring again."""

    def run(self, accepted: Baseline, own: Counters, base: Counters | None = None) -> CellRecord:
        run = run_of(TWO, baseline=accepted, config=settings(counters="fail"))
        run.comparison = Comparison({"base": Base("ref", "rebuilt", commit=COMMIT)} if base else {}, run.plan.cells)
        add_sessions(run, {OWN: 0.5, BASE: 0.5})
        run.counters |= {OWN: own} | ({BASE: base} if base else {})
        return only(run)

    def test_a_step_that_does_more_than_the_accepted_one_fails(self) -> None:
        record = self.run(stored(counters(1)), counters(2))
        assert (record.outcome, record.reason) == (Outcome.FAIL, f"1 → 2 all_reduce a step, +516.3 kB{ACCUMULATION}")
        assert counted(record).against == "the accepted run run-0"

    def test_a_step_that_cannot_be_counted_is_not_clear_of_the_accepted_one(self) -> None:
        run = run_of(TWO, baseline=stored(counters(1)), config=settings(counters="fail"))
        run.comparison = Comparison({}, run.plan.cells)
        add_sessions(run, {OWN: 0.5})
        run.uncounted[OWN] = "rank 1 was killed"
        check = counted(only(run))
        assert (check.outcome, check.against) == (Outcome.INCONCLUSIVE, "the accepted run run-0")

    def test_a_run_that_was_accepted_before_there_were_counters_says_nothing(self) -> None:
        assert [c.rule for c in self.run(stored(None), counters(2)).checks] == []

    def test_a_rebuilt_commit_replaces_its_stored_counters(self) -> None:
        record = self.run(stored(counters(1)), counters(2), counters(2))
        assert [(c.against, c.outcome) for c in record.checks if c.rule == "counters"] == [("rebuilt", Outcome.PASS)]

    def test_accepting_a_run_keeps_what_its_steps_do(self) -> None:
        run = run_of(TWO)
        add_sessions(run, {OWN: 0.5})
        run.counters[OWN] = counters(1)
        grown = baselines.accept(run.plan.baseline, results.to_record(run), slower=False)
        assert [kept.counters for kept in grown.runs[0].cells] == [counters(1)]
        assert Baseline.model_validate_json(grown.model_dump_json()) == grown

    def test_accepting_more_calls_drops_no_earlier_run(self) -> None:
        """They describe the same level of time, and stay the pin against slow creep."""
        run = run_of(TWO, baseline=stored(counters(1)), config=settings(counters="fail"))
        add_sessions(run, {OWN: 0.5})
        run.counters[OWN] = counters(2)
        record = results.to_record(run)
        assert record.cells[0].outcome is Outcome.FAIL
        assert len(baselines.accept(run.plan.baseline, record, slower=True).runs) == 2
