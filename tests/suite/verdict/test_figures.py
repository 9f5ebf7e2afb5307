"""Figures of verdicts to the digit, by formulas written down again here. What simulations leave open, these decide."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome
from suite.verdict.paired import FIRST_LOOK, Terms, fewest_alone, paired, spending, surplus
from suite.verdict.spread import KAPPA, MOST_DF, Learned, Middle, Windows, estimate
from tests.support.family import t

COMPARISONS = 4
PLANNED = 5
PEERS = [[Middle(value) for value in (0.0, 0.0001, -0.0001)]]  # another cell of the world size, by session


def spread_over(middle: float, half: float = 0.002) -> Middle:
    """Return a session whose windows differ by so much, the candidate's and the base's alike."""
    windows = [-half, 0.0, half]
    return Middle.of(Windows([middle + each for each in windows], windows))


class TestEstimate:
    """One cell's sessions of variance 0.0007, around 0.04."""

    own = tuple(Middle(value, 0.0001, 4) for value in (0.02, 0.03, 0.07))

    def test_sessions_alone(self) -> None:
        found = estimate(self.own)
        assert (found.mean, found.df, found.sessions) == (pytest.approx(0.04), 2, 3)
        assert found.variance == pytest.approx(0.0007)
        assert found.error == pytest.approx(math.sqrt(0.0007 / 3))

    @pytest.mark.parametrize(
        ("peers", "df", "variance"),
        [
            ([[0.0, 0.1, 0.2]], 4, (2 * 0.01 + 2 * 0.0007) / 4),
            ([[0.0, 0.1, 0.2], [0.0, 0.2]], 5, (2 * 0.01 + 0.02 + 2 * 0.0007) / 5),
            ([[0.0, 0.02, 0.04]], 4, 0.0007),
            ([[0.0], []], 2, 0.0007),
        ],
        ids=["noisier", "two of them", "calmer: never below its own", "without a pair"],
    )
    def test_sessions_with_their_peers(self, peers: list[list[float]], df: float, variance: float) -> None:
        found = estimate(self.own, peers=peers)
        assert (found.df, found.variance) == (df, pytest.approx(variance))

    def test_sessions_with_a_calibration(self) -> None:
        tau2, tau2_var = 0.0016, 1e-6
        predicted = tau2 + 0.0001
        within_var = 2 * 3 * 0.0001**2 / 4 / 9
        df = 2 * predicted**2 / (tau2_var + 2 * tau2**2 / KAPPA + within_var)
        assert 1 < df < MOST_DF
        found = estimate(self.own, Learned(tau2, tau2_var))
        assert found.df == pytest.approx(df + 2)
        assert found.variance == pytest.approx((df * predicted + 2 * 0.0007) / (df + 2))

    def test_a_calibration_does_not_count_where_a_session_has_one_round(self) -> None:
        found = estimate((*self.own[:2], Middle(0.07, None, None)), Learned(0.0016, 1e-6))
        assert found.df == 2


class TestPaired:
    """Sessions of one round each."""

    def judged(self, *deltas: float, tolerance: float = 0.05, planned: int = PLANNED) -> tuple[Outcome, str]:
        found = paired([Middle(delta) for delta in deltas], Terms(tolerance, COMPARISONS, planned, 60.0))
        return found.outcome, found.reason

    def test_a_fail_gives_its_bound_at_the_look_that_decided(self) -> None:
        deltas = (0.20, 0.21, 0.19, 0.20)
        error = math.sqrt(sum((delta - 0.2) ** 2 for delta in deltas) / 3 / 4)
        low = 0.2 - t(3, ALPHA_FAIL / COMPARISONS * spending(4, PLANNED)) * error
        said = f"{math.expm1(0.2):.1%} slower than the base, at least {math.expm1(low):.1%} slower (99% confidence)"
        assert self.judged(*deltas) == (Outcome.FAIL, said)

    @pytest.mark.parametrize("planned", [3, PLANNED])
    def test_a_pass_gives_its_bound(self, planned: int) -> None:
        """At its look's share of the error."""
        deltas = (0.001, -0.001, 0.000)
        high = t(2, ALPHA_PASS * spending(3, planned)) * 0.001 / math.sqrt(3)
        found = paired([Middle(delta) for delta in deltas], Terms(0.05, COMPARISONS, planned, 60.0))
        assert found.outcome is Outcome.PASS
        assert found.reason.endswith(f"at most {math.expm1(high):.1%} slower (after 3 sessions)")

    @pytest.mark.parametrize(
        ("deltas", "planned", "outcome"),
        [
            ((0.174, 0.20, 0.226, 0.20), PLANNED, Outcome.FAIL),
            ((0.170, 0.20, 0.230, 0.20), PLANNED, Outcome.INCONCLUSIVE),
            ((0.0245, 0.0235, 0.0240, 0.0270), PLANNED, Outcome.INCONCLUSIVE),
            ((0.0250, 0.0250, 0.0251, 0.0180), 4, Outcome.PASS),
            ((0.0245, 0.0235, 0.0240), PLANNED, Outcome.INCONCLUSIVE),
            ((0.0245, 0.0235, 0.0240), 3, Outcome.PASS),
            ((0.0222, 0.0238, 0.0230), PLANNED, Outcome.PASS),
        ],
        ids=[
            "at a quarter more than the error",
            "not even then",
            "below half the tolerance",
            "the last look below it",
            "half the tolerance is possible",
            "and in the last look",
            "it is not",
        ],
    )
    def test_suspicion_needs_half_the_tolerance_and_a_pass_before_the_last_look_excludes_it(
        self, deltas: tuple[float, ...], planned: int, outcome: Outcome
    ) -> None:
        """What the third session makes suspicious may fail by the fourth."""
        assert self.judged(*deltas, planned=planned)[0] is outcome

    @pytest.mark.parametrize(("alone", "sessions"), [(1, 4), (2, 4), (3, 5), (20, 6)])
    def test_cells_alone_wait_for_a_fail_until_two_speeds_are_too_improbable(self, alone: int, sessions: int) -> None:
        """A quarter of the sessions has slow processes of the candidate and fast ones of the base."""
        slow = [spread_over(0.06)] * 8
        ends = [paired(slow[:n], Terms(0.05, alone, 8, 1.0, alone=alone)).outcome for n in range(1, 9)]
        assert ends.index(Outcome.FAIL) + 1 == sessions
        assert alone / 4**sessions <= ALPHA_FAIL
        peers = [[*map(Middle, (0.001, -0.001, 0.0, 0.001))]]
        assert paired(slow[:4], Terms(0.05, 1, 8, 1.0, alone=alone), peers=peers).outcome is Outcome.FAIL

    def test_a_pass_of_a_cell_alone_needs_no_more_sessions_than_any(self) -> None:
        """Three sessions in which processes of two speeds agree by chance are rarer than the error of a PASS."""
        assert fewest_alone(ALPHA_PASS) <= FIRST_LOOK
        ends = [paired([Middle(-0.0112)] * n, Terms(0.05, 1, 8, 1.0)).outcome for n in range(1, 9)]
        assert ends.index(Outcome.PASS) + 1 == FIRST_LOOK

    @pytest.mark.parametrize(
        ("peers", "outcome"),
        [
            ([], Outcome.INCONCLUSIVE),
            ([[]], Outcome.INCONCLUSIVE),
            ([[Middle(0.001)]], Outcome.INCONCLUSIVE),
            ([[None, None, None, Middle(0.001)]], Outcome.INCONCLUSIVE),
            ([[None, Middle(-0.001), None, Middle(0.001)]], Outcome.FAIL),
        ],
    )
    def test_a_peer_that_has_not_been_measured_in_two_sessions_shows_nothing(
        self, peers: list[list[Middle | None]], outcome: Outcome
    ) -> None:
        """One of three cells that are alone in their world sizes waits for its fifth session."""
        assert paired([spread_over(0.06)] * 4, Terms(0.05, 3, 8, 1.0, alone=3), peers=peers).outcome is outcome

    def test_a_decision_stands_whatever_a_peer_shows_later(self) -> None:
        own = [*map(Middle, (0.031, 0.029, 0.030, 0.0302, 0.03))]
        peer = [None, *map(Middle, (0.004, -0.003, 0.002, 0.15))]
        for sessions in (4, 5):
            assert paired(own[:sessions], Terms(0.05, 4, 12, 1.0), peers=[peer[:sessions]]).outcome is Outcome.FAIL

    def test_a_bound_that_is_faster_is_the_least_that_the_candidate_is_faster(self) -> None:
        assert "faster than the base, at least 9.1% faster" in self.judged(-0.101, -0.100, -0.099)[1]

    @pytest.mark.parametrize(("tau2", "outcome"), [(0.0004, Outcome.INCONCLUSIVE), (0.0001, Outcome.FAIL)])
    def test_with_a_calibration_suspicion_is_at_the_looks_share(self, tau2: float, outcome: Outcome) -> None:
        """Of the third session; both cells are slower at the whole error there, and at the fourth look's share."""
        rounds, learned = [spread_over(0.05)] * 4, Learned(tau2, (0.3 * tau2) ** 2)
        assert paired(rounds, Terms(0.05, COMPARISONS, PLANNED, 60.0), learned, PEERS).outcome is outcome

    @pytest.mark.parametrize(("slow", "outcome"), [(0.29, Outcome.PASS), (0.30, Outcome.INCONCLUSIVE)])
    def test_a_pass_asks_that_all_windows_together_are_not_slower_by_three_quarters_of_the_tolerance(
        self, slow: float, outcome: Outcome
    ) -> None:
        """One window of eight is slower: by .0363 on average, or .0375; .75 ln 1.05 is .0366."""
        windows = [0.0] * 8
        sessions = [Middle.of(Windows([0.001 * n, *windows[1:-1], slow], windows)) for n in range(3)]
        found = paired(sessions, Terms(0.05, COMPARISONS, 3, 60.0))
        assert found.outcome is outcome
        if outcome is Outcome.INCONCLUSIVE:
            assert found.reason == (
                "0.0% slower than the base by the faster half of its windows, but 3.8% slower by all of them: some "
                "steps are slower"
            )

    def test_suspicion_needs_a_later_look(self) -> None:
        outcome, reason = self.judged(0.20, 0.21, 0.19)
        assert outcome is Outcome.INCONCLUSIVE
        assert "which one more session has to confirm" in reason or "is possible" in reason

    @pytest.mark.parametrize(("sessions", "more_s"), [(0, 240), (1, 180), (2, 120)])
    def test_too_few_sessions_ask_for_what_a_confirmed_fail_lacks(self, sessions: int, more_s: int) -> None:
        """Not for a whole budget: what the run spent outside these sessions is not known here."""
        said = f"{sessions} session(s) measured, 3 are needed for a decision: raise the budget by about {more_s} s"
        assert self.judged(*[0.1] * sessions) == (Outcome.INCONCLUSIVE, said)

    @pytest.mark.parametrize(("middle", "outcome"), [(0.0243, Outcome.PASS), (0.0250, Outcome.FAIL)])
    def test_a_fail_needs_half_the_tolerance(self, middle: float, outcome: Outcome) -> None:
        assert self.judged(*[middle + 1e-6 * sign for sign in (1, -1, 1, -1)], planned=4)[0] is outcome

    def test_whatever_a_calibration_says_a_fail_takes_four_sessions_and_a_pass_three(self) -> None:
        """Processes of two speeds agree in two sessions of two, and three of three, too often."""
        learned = Learned(0.003**2, 2 * 0.003**4 / 39)
        slow, fast = [
            [spread_over(middle) for middle in (around, around - 0.0005, around + 0.0005, around)]
            for around in (0.06, -0.0112)
        ]
        judged = [
            [paired(rounds[:n], Terms(0.05, COMPARISONS, PLANNED, 60.0), learned, PEERS).outcome for n in (1, 2, 3, 4)]
            for rounds in (slow, fast)
        ]
        unknown = Outcome.INCONCLUSIVE
        assert judged == [[unknown, unknown, unknown, Outcome.FAIL], [unknown, unknown, Outcome.PASS, Outcome.PASS]]

    def test_a_fail_says_its_bound(self) -> None:
        rounds = [spread_over(middle) for middle in (0.20, 0.21, 0.19, 0.20)]
        learned = Learned(1e-6, 1e-14)
        found = paired(rounds, Terms(0.05, COMPARISONS, PLANNED, 60.0), learned, PEERS)
        delta = estimate(rounds, learned, [[middle.value for middle in PEERS[0]]])
        low = delta.mean - t(delta.df, ALPHA_FAIL / COMPARISONS * spending(4, PLANNED)) * delta.error
        assert f"at least {math.expm1(low):.1%} slower" in found.reason

    def test_noisy_peers_keep_a_cell_from_failing(self) -> None:
        rounds = [Middle(delta) for delta in (0.20, 0.21, 0.19, 0.20)]
        assert paired(rounds, Terms(0.05, COMPARISONS, PLANNED, 60.0)).outcome is Outcome.FAIL
        noisy = paired(rounds, Terms(0.05, COMPARISONS, PLANNED, 60.0), peers=[[*map(Middle, (0.0, 0.5, -0.5, 0.3))]])
        assert noisy.outcome is Outcome.INCONCLUSIVE

    @pytest.mark.parametrize(("times", "outcome"), [(1.9, Outcome.INCONCLUSIVE), (2.1, Outcome.FAIL)])
    def test_peers_count_whose_windows_scatter_by_at_most_twice_as_much(self, times: float, outcome: Outcome) -> None:
        """The sessions of a cell whose windows scatter more differ more as well."""
        own = [Middle(delta, 0.001**2, 6) for delta in (0.20, 0.21, 0.19, 0.20)]
        noisy = [Middle(delta, (times * 0.001) ** 2, 6) for delta in (0.0, 0.5, -0.5, 0.3)]
        assert paired(own, Terms(0.05, COMPARISONS, PLANNED, 60.0), peers=[noisy]).outcome is outcome
        quiet = [Middle(delta, (0.001 / times) ** 2, 6) for delta in (0.0, 0.5, -0.5, 0.3)]
        assert paired(own, Terms(0.05, COMPARISONS, PLANNED, 60.0), peers=[quiet]).outcome is outcome

    @pytest.mark.parametrize("deltas", [(0.1, 0.3), (0.1, 0.3, 0.2), (0.20, 0.21, 0.19, 0.20), (0.0, 1e-6, -1e-6)])
    def test_every_verdict_has_the_ratio(self, deltas: tuple[float, ...]) -> None:
        found = paired(
            [Middle(delta) for delta in deltas], Terms(0.05, COMPARISONS, 3 if deltas[0] == 0 else PLANNED, 60.0)
        )
        assert found.ratio is not None
        assert found.ratio.estimate == pytest.approx(math.exp(sum(deltas) / len(deltas)))

    @pytest.mark.parametrize(
        "deltas",
        [(0.00, 0.10, 0.05), (0.01, -0.04, 0.04), (0.02, 0.00, 0.04), (-0.2778, 0.2778, 0.0), (-0.33, 0.33, 0.0)],
        ids=["towards a fail", "a pass", "less than half the tolerance", "60 %", "75 %"],
    )
    def test_advice_is_what_would_decide(self, deltas: tuple[float, ...]) -> None:
        mean, sd, margin = sum(deltas) / 3, float(stats.tstd(deltas)), math.log1p(0.05)

        def half(sessions: int, alpha: float) -> float:
            return t(sessions - 1, alpha * spending(sessions, sessions)) * sd / math.sqrt(sessions)

        alpha, distance = (ALPHA_FAIL / COMPARISONS, mean) if mean > margin / 2 else (ALPHA_PASS, margin - mean)
        needed = next(sessions for sessions in range(4, 10_000) if half(sessions, alpha) < distance)
        reachable = math.ceil(100 * math.expm1(max(mean, 0) + half(3, ALPHA_PASS))) / 100
        outcome, reason = self.judged(*deltas)
        assert outcome is Outcome.INCONCLUSIVE
        assert " is possible: " in reason
        assert f"it needs about {needed - 3:.1f} more minutes, a quieter machine" in reason
        assert reason.endswith(f"or a tolerance of {reachable:.0%}")
        late = paired([Middle(delta) for delta in deltas], Terms(0.05, COMPARISONS, PLANNED, 60.0, overrun_s=120.0))
        assert f"it needs about {needed - 3 + 2:.1f} more minutes" in late.reason

    @pytest.mark.parametrize("deltas", [(0.00, 0.10, 0.05), (0.01, -0.04, 0.04), (-0.33, 0.33, 0.0)])
    @pytest.mark.parametrize("planned", [4, 8, 24])
    def test_what_a_decision_lacks_is_counted_in_the_looks_that_are_planned(
        self, deltas: tuple[float, ...], planned: int
    ) -> None:
        mean, sd, margin = sum(deltas) / 3, float(stats.tstd(deltas)), math.log1p(0.05)
        alpha, distance = (ALPHA_FAIL / COMPARISONS, mean) if mean > margin / 2 else (ALPHA_PASS, margin - mean)
        decides = (
            n for n in range(4, planned + 1) if t(n - 1, alpha * spending(n, planned)) * sd / math.sqrt(n) < distance
        )
        found = paired([Middle(delta) for delta in deltas], Terms(0.05, COMPARISONS, planned, 60.0))
        assert found.outcome is Outcome.INCONCLUSIVE
        assert found.lacking == next(decides, math.inf) - 3

    def test_a_tolerance_that_is_advised_would_pass_the_cell(self) -> None:
        """A PASS also needs an estimate below half of it: at 4 %, the bound of 4.1 % is not enough."""
        sessions = [Middle(delta) for delta in (0.0392, 0.0393, 0.0391)]
        found = paired(sessions, Terms(0.05, COMPARISONS, 3, 60.0))
        assert found.outcome is Outcome.INCONCLUSIVE
        assert found.reason.endswith("a quieter machine, or a tolerance of 9%")
        for tolerance, outcome in ((0.08, Outcome.INCONCLUSIVE), (0.09, Outcome.PASS)):
            assert paired(sessions, Terms(tolerance, COMPARISONS, 3, 60.0)).outcome is outcome

    @pytest.mark.parametrize(
        ("deltas", "planned"),
        [((0.0100, 0.0101, 0.0190), 40), ((0.0100, 0.0101, 0.0280), 40), ((-0.45, 0.45, 0.0), PLANNED)],
        ids=["less", "its own", "more than an option may be"],
    )
    def test_a_tolerance_of_no_use_is_not_advised(self, deltas: tuple[float, ...], planned: int) -> None:
        """The first two runs ended before the last look that was planned, which has most of the error."""
        outcome, reason = self.judged(*deltas, planned=planned)
        assert outcome is Outcome.INCONCLUSIVE
        assert "tolerance" not in reason

    def test_advice_knows_when_there_is_no_sense(self) -> None:
        for deltas, or_else in (((2.0, -2.0, 0.1), ""), ((-0.41, 0.41, 0.0), ", or a tolerance of 100%")):
            outcome, reason = self.judged(*deltas)
            assert outcome is Outcome.INCONCLUSIVE
            quieter = ", a quieter machine" if or_else else ", or a quieter machine"
            assert reason.endswith(f"it needs more time than is sensible{quieter}{or_else}")

    def test_the_share_of_a_look_outside_of_the_plan_is_nothing(self) -> None:
        assert [spending(number, 5) for number in (2, 6)] == [0.0, 0.0]
        assert spending(3, 2) == 1.0

    @pytest.mark.parametrize(("planned", "power"), [(5, 4.0), (9, 4.0), (12, 3.0), (24, 1.5), (100, 1.5)])
    def test_the_more_looks_are_planned_the_more_of_the_error_the_early_ones_have(
        self, planned: int, power: float
    ) -> None:
        shares = [spending(number, planned) for number in range(3, planned + 1)]
        assert shares[0] == pytest.approx((3 / planned) ** power)
        assert shares[-1] == pytest.approx(1 - (1 - 1 / planned) ** power)
        assert sum(shares) == pytest.approx(1)


class TestSurplus:
    """By how much a cell looks slower: more than the noise of its rounds explains, and half the tolerance."""

    windows = (-0.06, -0.02, 0.00, 0.02, 0.06)

    def session(self, mean: float) -> Middle:
        """Return a session whose windows scatter alike on both sides."""
        return Middle.of(Windows([mean + each for each in self.windows], self.windows))

    def test_the_error_of_a_session_by_hand(self) -> None:
        """-.06, -.02 and 0 count: -.06 -.02 0 0 0 has squares .0027200 around -.016, so .00272 / (3 * 2) a side."""
        assert self.session(0.1) == Middle(*map(pytest.approx, (0.1, 2 * 0.00272 / 6, 4, 0.1)))

    @pytest.mark.parametrize("off", [-1e-6, 1e-6])
    def test_the_noise_of_the_windows(self, off: float) -> None:
        """A session of one window shows no noise, and counts for the mean."""
        noise = self.session(0.0)
        assert noise.variance is not None
        assert noise.df is not None
        explained = t(3 * noise.df, 0.01) * math.sqrt(noise.variance / 4)
        assert math.log1p(0.05) / 2 < explained < math.log1p(0.05)
        mean = explained + off
        assert surplus([*[self.session(mean)] * 3, Middle(mean)], 0.05) == (pytest.approx(mean) if off > 0 else 0.0)
        assert surplus([Middle(0.5)], 0.05) == surplus([], 0.05) == 0.0, "noise is not known"

    @pytest.mark.parametrize(("mean", "slower"), [(0.0243, False), (0.0245, True)])
    def test_half_the_tolerance(self, mean: float, slower: bool) -> None:
        assert bool(surplus([spread_over(mean, 1e-6)] * 3, 0.05)) is slower
