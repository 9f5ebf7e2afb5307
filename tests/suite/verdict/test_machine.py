"""The machine judged by the efficiency of accepted code: outcomes, and error rates by seeded simulation."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import ClassVar

import numpy
import pytest
from scipy import stats

from suite.verdict.diagnose import CAUSES, NAMING_ERROR
from suite.verdict.machine import cause, machine
from suite.verdict.metrics import Interval, from_values
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome
from suite.verdict.stored import ENOUGH_RUNS, MIN_BASELINE_RUNS, Run
from tests.support.family import exceeds, t

USUAL = tuple(math.log(value) for value in (0.80, 0.79, 0.81, 0.80, 0.82, 0.78))
TOLERANCE, COMPARISONS = 0.05, 4


def accepted_runs(
    log_efficiencies: Sequence[float], times: Sequence[float] | None = None, sessions: int = 1
) -> list[Run]:
    """Return accepted runs whose step takes a second, or e to the power of these times."""
    known = zip(log_efficiencies, times or [0.0] * len(log_efficiencies), strict=True)
    return [Run(log_t, sessions, log_efficiency=log_efficiency) for log_efficiency, log_t in known]


def judged(*efficiencies: float, accepted: tuple[float, ...] = USUAL, longer: float = 1.0) -> tuple[Outcome, str]:
    now = [math.log(value) for value in efficiencies]
    verdict = machine(now, longer, accepted_runs(accepted), COMPARISONS, tolerance=TOLERANCE)
    return verdict.outcome, verdict.reason


STEADY = tuple(math.log(0.8) + 0.0005 * (-1) ** number for number in range(8))


@pytest.mark.parametrize("efficiencies", [(0.41, 0.40, 0.42), (0.20, 0.22, 0.24, 0.22)], ids=["runs", "sessions"])
def test_a_fail_names_the_machine_and_gives_its_bound(efficiencies: tuple[float, ...]) -> None:
    """With the spread of runs, or of this run's sessions: whichever is larger, and its degrees of freedom."""
    now = [math.log(value) for value in efficiencies]
    runs, sessions = stats.tvar(USUAL), stats.tvar(now) / len(now)
    larger, df = (runs, 5) if runs > sessions else (sessions, len(now) - 1)
    shortfall = sum(USUAL) / 6 - sum(now) / len(now)
    low = shortfall - t(df, ALPHA_FAIL / COMPARISONS) * math.sqrt(larger + runs / 6)
    outcome, reason = judged(*efficiencies)
    assert outcome is Outcome.FAIL
    assert reason == (
        f"the machine, not the code: the accepted commit has efficiency {math.exp(sum(now) / len(now)):.2f}, and had "
        f"0.78 to 0.82 in 6 accepted runs: at least {-math.expm1(-low):.1%} less (99% confidence)"
    )


@pytest.mark.parametrize(
    ("efficiency", "said", "outcome"),
    [
        (0.80, "", Outcome.PASS),
        (0.785, ": neither clearly equal nor clearly less, because runs differ that much", Outcome.INCONCLUSIVE),
    ],
)
def test_a_pass_excludes_the_tolerance(efficiency: float, said: str, outcome: Outcome) -> None:
    had = f"the accepted commit has efficiency {efficiency:.2f}, and had 0.78 to 0.82 in 6 accepted runs"
    found, reason = judged(*[efficiency] * 3)
    assert (found, reason.partition(": it needs")[0]) == (outcome, f"{had}{said}")


def test_fewer_runs_or_sessions_than_are_needed_decide_nothing() -> None:
    few = f"{ENOUGH_RUNS - 1} accepted run(s) of this host, an hour or more apart, have it: {ENOUGH_RUNS} are needed"
    assert judged(0.4, 0.4, 0.4, accepted=STEADY[: ENOUGH_RUNS - 1]) == (Outcome.INCONCLUSIVE, few)
    assert judged(0.4, 0.4, 0.4, accepted=STEADY[:ENOUGH_RUNS])[0] is Outcome.FAIL
    short = "the accepted commit was measured on one device and on several in 2 session(s) of this run: 3 are needed"
    assert judged(0.4, 0.4, accepted=STEADY) == (Outcome.INCONCLUSIVE, short)


@pytest.mark.parametrize(
    ("efficiency", "outcome"), [(0.77, Outcome.FAIL), (0.785, Outcome.PASS), (0.79, Outcome.PASS), (0.99, Outcome.PASS)]
)
def test_a_fail_needs_half_the_tolerance(efficiency: float, outcome: Outcome) -> None:
    assert judged(efficiency, efficiency + 0.0005, efficiency - 0.0005, accepted=STEADY)[0] is outcome


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

    had = (1.00, 1.10, 1.20)
    further = t(2, 0.025) * 0.1 * math.sqrt(1 + 1 / 3)

    def said(self, grown: float, half: float, others: int) -> str:
        """Return what is said of a part that grew so much, next to others that did not, each within `half`."""
        names = ["exchange", *[f"other {number}" for number in range(others)]]
        middle = sum(self.had) / 3
        now = {name: Interval(middle, middle - half, middle + half) for name in names}
        now["exchange"] = Interval(middle + grown, middle + grown - half, middle + grown + half)
        return cause(now, [30.0] * len(names), [dict.fromkeys(names, value) for value in self.had])

    def test_the_growth_has_the_intervals_of_both_sides(self) -> None:
        half = math.hypot(0.3, self.further)
        expected = f"takes {5:.0%} [{5 - half:.0%}, {5 + half:.0%}] of an ideal step more than in 3 accepted runs"
        assert self.said(5.0, 0.3, 1) == f"cause: exchange, which {expected}"

    @pytest.mark.parametrize("off", [-0.001, 0.001])
    def test_parts_share_an_error_at_the_degrees_of_freedom_of_the_runs(self, off: float) -> None:
        """The lower bound of the growth of one of four parts is just below zero, and just above it."""
        half = math.hypot(0.3, self.further)
        needed = half / t(2, 0.025) * t(2, 0.05 / 4)
        assert bool(self.said(needed * (1 + off), 0.3, 3)) is (off > 0)

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
