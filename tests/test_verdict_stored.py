"""A candidate against accepted runs: outcomes, what each rests on, and the error rates by seeded simulation."""

from __future__ import annotations

import math

import numpy
import pytest
from scipy import stats

from suite.verdict import ALPHA_FAIL, ALPHA_PASS, MIN_BASELINE_RUNS, Outcome, Verdict
from suite.verdict.stored import KEPT_RUNS, Run, RunSpread, against_pin, against_runs, suspicious

MARGIN = math.log1p(0.05)
HOST = "here"


def runs(*log_t: float, host: str = HOST, sessions: int = 6, log_se: float | None = 0.0) -> list[Run]:
    return [Run(value, sessions, log_se, host) for value in log_t]


def judge(candidate: float, accepted: list[Run], spread: RunSpread | None = None, comparisons: int = 1) -> Verdict:
    return against_runs(Run(candidate, 6, 0.0, HOST), accepted, 0.05, comparisons, spread)


def exceeds(count: int, trials: int, bound: float) -> bool:
    """Whether a rate is surely above its bound: one right rule in a thousand is called wrong."""
    return bool(stats.binomtest(count, trials, bound, alternative="greater").pvalue < 0.001)


def test_without_an_accepted_run_there_is_no_baseline() -> None:
    found = judge(0.0, [])
    assert found.outcome is Outcome.NO_BASELINE
    assert "--scaling-accept" in found.reason


@pytest.mark.parametrize("log_t", [0.0, 0.01, 1.0, -1.0])
def test_a_single_run_decides_nothing_and_says_what_to_do(log_t: float) -> None:
    found = judge(log_t, runs(0.0))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "than the 1 accepted run(s), but how runs differ on this machine is not known from fewer than 3" in (
        found.reason
    )
    assert "accept more runs, or measure a base in the same run (--scaling-against)" in found.reason


@pytest.mark.parametrize("count", [1, 2])
def test_with_calibrates_figure_few_runs_can_fail_and_never_pass(count: int) -> None:
    spread = RunSpread(0.005, 20)
    accepted = runs(*[0.0] * count)
    assert judge(math.log(1.2), accepted, spread).outcome is Outcome.FAIL
    for log_t in (0.0, -0.5):
        found = judge(log_t, accepted, spread)
        assert found.outcome is Outcome.INCONCLUSIVE
        assert "nothing passes on calibrate's figure alone: accept more runs" in found.reason
    assert judge(math.log(1.02), accepted, RunSpread(0.1, 20)).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("seconds", "outcome"), [(1.001, Outcome.PASS), (1.6, Outcome.FAIL), (0.5, Outcome.PASS), (1.06, Outcome.FAIL)]
)
def test_runs_that_agree_decide(seconds: float, outcome: Outcome) -> None:
    accepted = runs(*(math.log(value) for value in (1.0, 1.01, 0.99, 1.0, 1.0)))
    assert judge(math.log(seconds), accepted).outcome is outcome


def test_runs_that_differ_much_do_not_and_say_so() -> None:
    found = judge(math.log(1.1), runs(*(math.log(value) for value in (1.0, 1.1, 0.9, 1.0))))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "runs differ by 8.2% here, too much for stored ones to decide: measure a base" in found.reason


def test_it_says_how_many_runs_would_do() -> None:
    """Three runs that differ by 2 % leave room for 6.7 %, more than the tolerance; five would leave 4.7 %."""
    found = judge(0.0, runs(-0.02, 0.0, 0.02))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "5 accepted runs would decide it, or measure a base" in found.reason
    assert judge(0.0, runs(-0.02, 0.02, -0.02, 0.02, 0.0)).outcome is Outcome.PASS


def test_a_surely_slower_run_by_less_than_half_the_margin_does_not_fail() -> None:
    accepted = runs(0.0, 0.0001, -0.0001, 0.0, 0.0)
    assert judge(0.01, accepted).outcome is Outcome.PASS
    assert judge(0.03, accepted).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [(Outcome.PASS, False), (Outcome.FAIL, True), (Outcome.INCONCLUSIVE, True), (Outcome.NO_BASELINE, False)],
)
def test_whatever_is_compared_and_does_not_pass_is_suspicious(outcome: Outcome, expected: bool) -> None:
    assert suspicious(Verdict(outcome, "")) is expected


@pytest.mark.parametrize(("sd", "df"), [(0.0, 5), (-0.1, 5), (math.nan, 5), (math.inf, 5), (0.1, 0.5), (0.1, math.nan)])
def test_a_spread_that_cannot_be_is_refused(sd: float, df: float) -> None:
    with pytest.raises(
        ValueError, match=r"run spread sd=.*, df=.*: sd must be above 0, df at least 1.*calibrate again"
    ):
        RunSpread(sd, df)


def test_the_number_of_runs_that_are_kept_is_the_smallest_within_a_fifth_of_the_best_bound() -> None:
    def bound(count: int) -> float:
        return float(stats.t.ppf(1 - ALPHA_PASS, count - 1)) * math.sqrt(1 + 1 / count)

    best = float(stats.norm.ppf(1 - ALPHA_PASS))
    assert bound(KEPT_RUNS) <= 1.2 * best < bound(KEPT_RUNS - 1)


@pytest.mark.parametrize("count", [MIN_BASELINE_RUNS, 5, KEPT_RUNS])
@pytest.mark.parametrize("sd", [0.01, 0.03, 0.08])
def test_both_errors_keep_their_bounds_at_any_noise(count: int, sd: float) -> None:
    rng = numpy.random.default_rng([count, int(sd * 1000)])
    logs = rng.normal(0, sd, size=(3000, count + 1))
    alarms = sum(judge(row[0], runs(*row[1:])).outcome is Outcome.FAIL for row in logs)
    missed = sum(judge(row[0] + MARGIN, runs(*row[1:])).outcome is Outcome.PASS for row in logs)
    assert not exceeds(alarms, 3000, ALPHA_FAIL)
    assert not exceeds(missed, 3000, ALPHA_PASS)


def test_an_interval_for_the_mean_would_alarm_too_often() -> None:
    """The bound that forgets that the new run has a spread of its own, on the same kind of draws."""
    logs = numpy.random.default_rng(3).normal(0, 0.08, size=(3000, 6))
    error = logs[:, 1:].std(axis=1, ddof=1) / math.sqrt(5)
    low = logs[:, 0] - logs[:, 1:].mean(axis=1) - stats.t.ppf(1 - ALPHA_FAIL, 4) * error
    assert exceeds(int((low > MARGIN / 2).sum()), 3000, ALPHA_FAIL)


def test_the_alarms_of_a_whole_run_share_one_budget() -> None:
    rng = numpy.random.default_rng(12)
    cells, trials = 12, 500
    logs = rng.normal(0, 0.05, size=(trials, cells, 6))
    alarms = sum(any(judge(c[0], runs(*c[1:]), None, cells).outcome is Outcome.FAIL for c in run) for run in logs)
    alone = sum(any(judge(c[0], runs(*c[1:])).outcome is Outcome.FAIL for c in run) for run in logs)
    assert not exceeds(alarms, trials, ALPHA_FAIL)
    assert exceeds(alone, trials, ALPHA_FAIL)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_alarms_keep_their_bound_where_calibrates_figure_is_right(count: int) -> None:
    rng = numpy.random.default_rng(count)
    sd, df, trials = 0.03, 8, 3000
    logs = rng.normal(0, sd, size=(trials, count + 1))
    learned = sd * numpy.sqrt(rng.chisquare(df, trials) / df)
    found = [judge(row[0], runs(*row[1:]), RunSpread(s, df)) for row, s in zip(logs, learned, strict=True)]
    assert not exceeds(sum(verdict.outcome is Outcome.FAIL for verdict in found), trials, ALPHA_FAIL)


def test_calibrates_figure_makes_a_suspicion_possible_that_three_runs_alone_cannot_have() -> None:
    rng = numpy.random.default_rng(21)
    logs = rng.normal(0, 0.02, size=(300, 4))
    alone = sum(judge(row[0] + math.log(1.1), runs(*row[1:])).outcome is Outcome.FAIL for row in logs)
    helped = sum(
        judge(row[0] + math.log(1.1), runs(*row[1:]), RunSpread(0.02, 20)).outcome is Outcome.FAIL for row in logs
    )
    assert helped > 2 * alone


def test_a_figure_learned_in_a_quiet_hour_lets_nothing_through() -> None:
    """Runs differ by 4 %, calibrate saw 1 %: the bound for PASS keeps, which pooling both estimates would not have."""
    rng = numpy.random.default_rng(5)
    trials, spread = 3000, RunSpread(0.01, 20)
    logs = rng.normal(0, 0.04, size=(trials, 4))
    passed = sum(judge(row[0] + MARGIN, runs(*row[1:]), spread).outcome is Outcome.PASS for row in logs)
    assert not exceeds(passed, trials, ALPHA_PASS)
    variance = (2 * logs[:, 1:].var(axis=1, ddof=1) + 20 * 0.01**2) / 22
    high = logs[:, 0] + MARGIN - logs[:, 1:].mean(axis=1) + stats.t.ppf(0.95, 22) * numpy.sqrt(variance * 4 / 3)
    assert exceeds(int((high < MARGIN).sum()), trials, ALPHA_PASS)


def test_runs_of_one_other_host_say_nothing_about_this_ones_level() -> None:
    found = judge(0.3, runs(*[0.001 * n for n in range(9)], host="there"), RunSpread(0.01, 20))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert (
        "all of other hosts, and how hosts differ is not known from fewer than 3 of them: accept more" in found.reason
    )
    nameless = judge(0.3, runs(*[0.001 * n for n in range(9)]))
    assert nameless.outcome is Outcome.FAIL


def test_runs_of_another_host_show_how_runs_differ_and_not_at_which_level() -> None:
    """This host is 30 % slower than the other and always was: its own run gives the level, the other's the spread."""
    there = runs(0.0, 0.01, -0.01, 0.005, -0.005, host="there")
    here = runs(0.26)
    assert judge(0.26, here).outcome is Outcome.INCONCLUSIVE
    assert judge(0.26, there + here).outcome is Outcome.PASS
    assert judge(0.36, there + here).outcome is Outcome.FAIL
    assert judge(0.0, there + here).outcome is Outcome.PASS


def test_hosts_that_live_for_one_job_are_the_unit_themselves() -> None:
    """Levels differ by 3 % between hosts: with hosts as the unit the bounds keep; with a host's runs as such, not."""
    rng = numpy.random.default_rng(6)
    trials, alarms, missed, wrong = 2000, 0, 0, 0
    for _ in range(trials):
        levels = rng.normal(0, 0.03, 5)
        accepted = [
            Run(level + rng.normal(0, 0.003), 6, 0.0, f"host {number}")
            for number, level in enumerate(levels[1:])
            for _ in range(3)
        ]
        new = levels[0] + rng.normal(0, 0.003)
        alarms += judge(new, accepted).outcome is Outcome.FAIL
        missed += judge(new + MARGIN, accepted).outcome is Outcome.PASS
        wrong += judge(new, [Run(run.log_t, 6, 0.0, HOST) for run in accepted]).outcome is Outcome.FAIL
    assert not exceeds(alarms, trials, ALPHA_FAIL)
    assert not exceeds(missed, trials, ALPHA_PASS)
    assert exceeds(wrong, trials, ALPHA_FAIL)


def test_hosts_are_the_unit_where_no_host_has_runs_enough() -> None:
    """One run on each of four hosts, this one among them, decides as four runs of one host would."""
    accepted = [Run(0.001 * number, 6, 0.0, host) for number, host in enumerate((HOST, "b", "c", "d"))]
    assert judge(0.0, accepted).outcome is Outcome.PASS
    assert judge(0.1, accepted).outcome is Outcome.FAIL


def test_the_newest_run_of_a_host_stands_for_it() -> None:
    accepted = [Run(level, 6, 0.0, host) for level in (0.5, 0.001, 0.0) for host in ("b", "c", "d", "e")]
    assert judge(0.0, accepted).outcome is Outcome.PASS
    assert judge(0.5, accepted).outcome is Outcome.FAIL


def test_calibrates_figure_says_nothing_about_how_hosts_differ() -> None:
    accepted = [Run(0.1 * number, 6, 0.0, f"host {number}") for number in range(4)]
    assert judge(0.35, accepted, RunSpread(0.001, 50)).outcome is Outcome.INCONCLUSIVE
    assert judge(0.35, runs(0.15), RunSpread(0.001, 50)).outcome is Outcome.FAIL


def test_a_run_of_fewer_sessions_carries_its_own_error() -> None:
    """Sessions differ by 6 % and runs by nothing else; accepted runs had 20 sessions, the candidate has 3."""
    rng = numpy.random.default_rng(7)
    trials, alarms, wrong = 2000, 0, 0
    for _ in range(trials):
        accepted = [Run(s.mean(), 20, s.std(ddof=1) / math.sqrt(20), HOST) for s in rng.normal(0, 0.06, (6, 20))]
        own = rng.normal(0, 0.06, 3)
        error = own.std(ddof=1) / math.sqrt(3)
        alarms += against_runs(Run(own.mean(), 3, error, HOST), accepted, 0.05, 1).outcome is Outcome.FAIL
        wrong += against_runs(Run(own.mean(), 20, error, HOST), accepted, 0.05, 1).outcome is Outcome.FAIL
    assert not exceeds(alarms, trials, ALPHA_FAIL)
    assert exceeds(wrong, trials, ALPHA_FAIL)


def test_a_single_session_is_not_held_against_runs_of_many() -> None:
    found = against_runs(Run(0.0, 1, None, HOST), runs(0.0, 0.001, -0.001), 0.05, 1)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "but it was measured in 1 session(s), accepted runs in up to 6: raise the budget" in found.reason


def judge_pin(candidate: float, pin: float, accepted: list[Run], spread: RunSpread | None = None) -> Verdict:
    return against_pin(Run(candidate, 6, 0.0, HOST), Run(pin, 6, 0.0, HOST), accepted, 0.05, 1, spread)


def test_what_crept_is_seen_against_the_pin_and_not_against_the_newest_runs() -> None:
    """Half a percent a week, sixteen weeks: runs agree within 1.4 %, and the pin is 8 % away."""
    newest = runs(*(0.005 * week for week in range(7, 16)))
    assert judge(0.08, newest).outcome is not Outcome.FAIL
    found = judge_pin(0.08, 0.0, newest)
    assert found.outcome is Outcome.FAIL
    assert judge_pin(0.0, 0.0, newest).outcome is Outcome.PASS


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("count", [MIN_BASELINE_RUNS, KEPT_RUNS])
def test_both_errors_keep_their_bounds_against_the_pin(count: int, inside: bool) -> None:
    """Whether the pin is one of the newest runs or older than all."""
    rng = numpy.random.default_rng(count)
    logs = rng.normal(0, 0.03, size=(3000, count + 2))
    newest = [runs(*(row[1:-1] if inside else row[2:])) for row in logs]
    alarms = sum(
        judge_pin(row[0], row[1], near).outcome is Outcome.FAIL for row, near in zip(logs, newest, strict=True)
    )
    missed = sum(
        judge_pin(row[0] + MARGIN, row[1], near).outcome is Outcome.PASS for row, near in zip(logs, newest, strict=True)
    )
    assert not exceeds(alarms, 3000, ALPHA_FAIL)
    assert not exceeds(missed, 3000, ALPHA_PASS)


def test_a_pin_taken_for_a_level_without_error_would_alarm_too_often() -> None:
    logs = numpy.random.default_rng(13).normal(0, 0.03, size=(3000, KEPT_RUNS + 2))
    sd = logs[:, 2:].std(axis=1, ddof=1)
    low = logs[:, 0] - logs[:, 1] - stats.t.ppf(1 - ALPHA_FAIL, KEPT_RUNS - 1) * sd
    assert exceeds(int(((low > 0) & (logs[:, 0] - logs[:, 1] > MARGIN / 2)).sum()), 3000, ALPHA_FAIL)


def test_a_pin_alone_decides_nothing_and_with_calibrates_figure_passes_nothing() -> None:
    assert judge_pin(0.2, 0.0, runs(0.0)).outcome is Outcome.INCONCLUSIVE
    assert judge_pin(0.2, 0.0, runs(0.0), RunSpread(0.01, 20)).outcome is Outcome.FAIL
    assert judge_pin(0.0, 0.0, runs(0.0), RunSpread(0.001, 20)).outcome is Outcome.INCONCLUSIVE
    assert judge_pin(0.0, 0.0, []).outcome is Outcome.NO_BASELINE


def test_a_pin_of_another_host_or_of_one_session_is_no_level() -> None:
    newest = runs(0.0, 0.001, -0.001)
    other = against_pin(Run(0.2, 6, 0.0, HOST), Run(0.0, 6, 0.0, "there"), newest, 0.05, 1)
    assert other.outcome is Outcome.INCONCLUSIVE
    assert "than the pinned run, which is another host's: measure a base" in other.reason
    short = against_pin(Run(0.2, 6, 0.0, HOST), Run(0.0, 1, None, HOST), newest, 0.05, 1)
    assert short.outcome is Outcome.INCONCLUSIVE
    assert "but the pin was measured in 1 session(s), accepted runs in up to 6: accept more runs, or" in short.reason


def test_a_pin_of_fewer_sessions_carries_its_own_error() -> None:
    newest, new = runs(0.0, 0.001, -0.001, 0.0, 0.0), Run(0.06, 6, 0.0, HOST)
    assert against_pin(new, Run(0.0, 3, 0.001, HOST), newest, 0.05, 1).outcome is Outcome.FAIL
    assert against_pin(new, Run(0.0, 3, 0.05, HOST), newest, 0.05, 1).outcome is Outcome.INCONCLUSIVE
