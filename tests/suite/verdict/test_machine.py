"""The machine judged by the efficiency of accepted code: outcomes, and error rates by seeded simulation."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import ClassVar

import numpy
import pytest

from suite.verdict.diagnose import CAUSES, NAMING_ERROR
from suite.verdict.machine import cause, machine
from suite.verdict.metrics import Interval, from_values
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome
from suite.verdict.stored import MIN_BASELINE_RUNS, Run
from tests.support.family import exceeds

USUAL = tuple(math.log(value) for value in (0.80, 0.79, 0.81, 0.80, 0.82, 0.78))
TOLERANCE = 0.05


def accepted_runs(
    log_efficiencies: Sequence[float], times: Sequence[float] | None = None, sessions: int = 1
) -> list[Run]:
    """Return accepted runs whose step takes a second, or e to the power of these times."""
    known = zip(log_efficiencies, times or [0.0] * len(log_efficiencies), strict=True)
    return [Run(log_t, sessions, log_efficiency=log_efficiency) for log_efficiency, log_t in known]


def judged(*efficiencies: float, accepted: tuple[float, ...] = USUAL, longer: float = 1.0) -> tuple[Outcome, str]:
    now = [math.log(value) for value in efficiencies]
    verdict = machine(now, longer, accepted_runs(accepted), 12, tolerance=TOLERANCE)
    return verdict.outcome, verdict.reason


def test_a_link_with_a_tenth_of_its_rate_fails_the_machine_and_not_the_code() -> None:
    outcome, reason = judged(0.41, 0.40, 0.42)
    assert outcome is Outcome.FAIL
    assert reason.startswith(
        "the machine, not the code: the accepted commit has efficiency 0.41, and had 0.78 to 0.82 in 6 accepted "
        "runs: at least 4"
    )
    assert reason.endswith(" less (99% confidence)")


@pytest.mark.parametrize(("longer", "outcome"), [(-0.1, Outcome.PASS), (0.02, Outcome.PASS), (0.03, Outcome.FAIL)])
def test_a_fail_needs_a_step_that_is_longer_by_half_the_tolerance(longer: float, outcome: Outcome) -> None:
    found, reason = judged(0.41, 0.40, 0.42, longer=longer)
    assert found is outcome
    assert reason.startswith("gap widened, nothing slower: the accepted commit has efficiency 0.41") is (
        outcome is Outcome.PASS
    )


def test_few_sessions_that_agree_show_less_than_the_many_of_accepted_runs() -> None:
    """Sessions of 3 %, three of them within .05 %, and accepted runs of twenty each."""
    accepted = [math.log(0.8) + each for each in (0, 0.003, -0.003, 0.006, -0.006, 0.008, -0.008, 0.009, -0.009)]
    now = [math.log(0.8) - each for each in (0.0295, 0.0300, 0.0305)]
    as_many, fewer = (
        machine(now, 0.03, accepted_runs(accepted, sessions=sessions), 4, tolerance=TOLERANCE).outcome
        for sessions in (3, 20)
    )
    assert as_many is Outcome.FAIL
    assert fewer is not Outcome.FAIL


@pytest.mark.parametrize(("longer", "outcome"), [(0.1, Outcome.INCONCLUSIVE), (0.6, Outcome.FAIL)])
def test_where_versions_have_changed_a_fail_needs_a_step_that_is_longer_than_hours_differ(
    longer: float, outcome: Outcome
) -> None:
    """A new torch may have made one device faster, and steps of other hours differ by 5 %."""
    steps, efficiencies = (0.0, 0.05, -0.05, 0.06, -0.06, 0.0), [math.log(value) for value in (0.41, 0.40, 0.42)]
    found = machine(efficiencies, longer, accepted_runs(USUAL, steps), 12, tolerance=TOLERANCE, changed=True)
    assert found.outcome is outcome
    assert ("or only one device became faster" in found.reason) is (outcome is Outcome.INCONCLUSIVE)


def test_what_would_decide_is_said() -> None:
    runs = accepted_runs([math.log(efficiency) for efficiency in (0.80, 0.72, 0.88, 0.80, 0.85)])
    now = [math.log(efficiency) for efficiency in (0.79, 0.77, 0.81)]
    found = machine(now, 1.0, runs, 12, tolerance=TOLERANCE)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "it needs more accepted runs, each an hour or more after the one before, a quieter machine" in found.reason
    [tolerance] = re.findall(r"or a tolerance of (\d+)%", found.reason)
    assert machine(now, 1.0, runs, 12, tolerance=int(tolerance) / 100).outcome is Outcome.PASS


def test_a_faster_machine_passes() -> None:
    assert judged(0.99, 0.98, 0.99)[0] is Outcome.PASS


@pytest.mark.parametrize(("between", "within"), [(0.01, 0.005), (0.03, 0.02), (0.005, 0.03)])
def test_error_rates(between: float, within: float) -> None:
    """4,000 runs against ten accepted ones, of four sessions each; three standard errors of the rate are allowed."""
    rng, comparisons, runs = numpy.random.default_rng(1), 4, 4000

    def rate(fallen: float, wrong: Outcome) -> float:
        drawn = rng.normal(rng.normal(0.0, between, (runs, 11, 1)), within, (runs, 11, 4))
        count = 0
        for usual, now in zip(drawn[:, 1:].mean(axis=-1).tolist(), (drawn[:, 0] - fallen).tolist(), strict=True):
            accepted = accepted_runs(usual, sessions=4)
            count += machine(now, 1.0, accepted, comparisons, tolerance=TOLERANCE).outcome is wrong
        return count / runs

    for fallen, wrong, promised in (
        (0.0, Outcome.FAIL, ALPHA_FAIL / comparisons),
        (math.log1p(TOLERANCE), Outcome.PASS, ALPHA_PASS),
    ):
        assert rate(fallen, wrong) <= promised + 3 * math.sqrt(promised / runs)


def test_in_a_disturbed_hour_false_alarms_stay_below_twice_the_promise() -> None:
    """Sessions of 5 %, where nine accepted runs without noise of their own differed by 2 %; 8,000 runs."""
    rng, comparisons, runs, alarms = numpy.random.default_rng(1), 4, 8000, 0
    levels = rng.normal(0.0, 0.02, (runs, 10))
    sessions = rng.normal(levels[:, :1], 0.05, (runs, 12))
    for usual, now in zip(levels[:, 1:].tolist(), sessions.tolist(), strict=True):
        accepted = accepted_runs(usual)
        alarms += machine(now, 1.0, accepted, comparisons, tolerance=TOLERANCE).outcome is Outcome.FAIL
    assert not exceeds(alarms, runs, 2 * ALPHA_FAIL / comparisons)
    assert alarms / runs > ALPHA_FAIL / comparisons, "as promised: say so"


class TestCause:
    """Which part of a step grew most since accepted runs, in units of the ideal step."""

    USUAL = tuple({"overhead": 0.02 + n / 1000, "exchange": 0.20 - n / 500, "feed": 0.01} for n in range(6))
    NOW: ClassVar = {
        "overhead": Interval(0.02, 0.01, 0.03),
        "exchange": Interval(0.85, 0.80, 0.90),
        "feed": Interval(0.01, 0.0, 0.02),
    }

    def named(self, runs: int = 6, **changes: Interval) -> str:
        return cause({**self.NOW, **changes}, [3.0] * 3, self.USUAL[:runs])

    @pytest.mark.parametrize(
        "changes",
        [
            {"exchange": Interval(0.20, 0.15, 0.25)},
            {"exchange": Interval(0.05, 0.04, 0.06)},
            {"exchange": Interval(0.85, 0.10, 1.60)},
            {"exchange": Interval(0.85)},
            {"feed": Interval(0.4, -0.6, 1.4)},
        ],
        ids=["as it was", "less", "too wide", "one session", "another part may have grown more"],
    )
    def test_nothing_is_named_that_no_interval_supports(self, changes: dict[str, Interval]) -> None:
        assert self.named(**changes) == ""

    def test_accepted_runs_count_that_have_the_same_parts(self) -> None:
        """A variant that could not be timed merges two parts, and earlier runs have none."""
        others = [{}, {"overhead + exchange, not separable": 0.2, "feed": 0.0}]
        assert self.named(MIN_BASELINE_RUNS - 1) == cause(self.NOW, [3.0] * 3, others * 3) == ""
        assert self.named(MIN_BASELINE_RUNS).endswith("3 accepted runs")
        assert cause({}, [], [{}] * 6) == ""

    # SDs, as shares of the ideal step: between runs, between sessions of a run, between sessions of this run.
    @pytest.mark.parametrize(
        ("between", "within", "today", "tails"),
        [
            (0.03, 0.01, 0.01, 1),
            (0.0, 0.03, 0.03, 1),
            (0.02, 0.02, 0.02, 1),
            (0.02, 0.02, 0.02, 3),
            (0.02, 0.02, 0.04, 1),
        ],
        ids=["runs differ", "sessions differ", "both", "one value in ten three times as far", "a noisier day"],
    )
    def test_error_rates(self, between: float, within: float, today: float, tails: float) -> None:
        """Six parts, six accepted runs, four sessions a run: a part that did not grow is named in 5 % at most.

        Exchange that grows by half an ideal step is named alone, and in most runs.
        """
        rng, trials, sds = numpy.random.default_rng(2), 600, numpy.array((0.3, 1.0, 3.0, 0.3, 1.0, 0.3))

        def drawn(scatter: float, *shape: int) -> numpy.ndarray:
            return rng.normal(0.0, scatter, shape) * numpy.where(rng.random(shape) < 0.1, tails, 1.0)

        def said(grown: float) -> str:
            of_runs = (drawn(between, 6, 6) + drawn(within, 6, 6, 4).mean(axis=-1)) * sds
            now = (drawn(between, 6, 1) + drawn(today, 6, 4)) * sds[:, None]
            now[list(CAUSES).index("exchange")] += grown
            accepted = [dict(zip(CAUSES, means, strict=True)) for means in of_runs.tolist()]
            figures = map(from_values, now.tolist())
            return cause(dict(zip(CAUSES, figures, strict=True)), [3.0] * 6, accepted)

        assert not exceeds(sum(bool(said(0.0)) for _ in range(trials)), trials, NAMING_ERROR)
        names = [said(0.5) for _ in range(trials)]
        right = sum(name.startswith("cause: exchange") for name in names)
        assert not exceeds(sum(map(bool, names)) - right, trials, NAMING_ERROR)
        assert right > 0.5 * trials
