"""The designs of docs/performance: each rule against numbers made by hand, and the section on few draws."""

from __future__ import annotations

import math

import pytest

from docs.performance import designs
from docs.performance.designs import OF_SESSIONS, OTHERS, POOLS, STEPS, Pool, Sample
from suite.verdict import Middle, Outcome
from tests.golden import RUNS, load

FAIL, PASS, INCONCLUSIVE = Outcome.FAIL, Outcome.PASS, Outcome.INCONCLUSIVE
FAST = [1.0 + n / 1000 for n in range(10)]
SCATTERED = [0.8, 1.5] * 5
CELL = "digits-digits-strong-2"


def sample(number: int, delta: float = 0.0, candidate: list[float] = FAST, base: list[float] = FAST) -> Sample:
    """Return a session of 20 s, half of them in windows, that shows this difference."""
    return Sample(number, Middle(delta), candidate, base, wall_s=20.0, timing_s=10.0)


def slower(factor: float) -> list[float]:
    return [factor * seconds for seconds in FAST]


def sessions(*deltas: float) -> list[Sample]:
    return [sample(number, delta) for number, delta in enumerate(deltas)]


class TestThisSuite:
    """This suite's rule, after every session and at one look."""

    def test_it_stops_at_the_first_decision(self) -> None:
        alike = sessions(*[0.100, 0.101, 0.099, 0.100] * 2)
        assert designs.sequential(alike) == (FAIL, 80.0)
        assert designs.fixed_size(alike) == (FAIL, 160.0)

    @pytest.mark.parametrize("design", OF_SESSIONS.values())
    def test_it_says_where_noise_hides_the_answer(self, design: designs.Design) -> None:
        assert design(sessions(*[0.2, -0.2] * 4)) == (INCONCLUSIVE, 160.0)

    @pytest.mark.parametrize(("delta", "outcome"), [(0.0, PASS), (0.02, PASS), (0.03, FAIL)])
    def test_one_look_is_red_from_half_the_tolerance_on(self, delta: float, outcome: Outcome) -> None:
        assert designs.fixed_size(sessions(*[delta, delta + 0.001] * 4)) == (outcome, 160.0)

    def test_one_look_does_not_pass_a_slow_tail(self) -> None:
        tailed = [Sample(n, Middle(0.0, average=0.04), FAST, FAST, 20.0, 10.0) for n in range(8)]
        assert designs.fixed_size(tailed)[0] is INCONCLUSIVE


class TestPytestBenchmark:
    """`--benchmark-compare-fail` against a stored run."""

    @pytest.mark.parametrize(("factor", "outcome"), [(1.04, PASS), (1.06, FAIL)])
    @pytest.mark.parametrize("check", ["median:5%", "min:5%"])
    def test_its_limit_is_a_share_of_the_stored_figure(self, check: str, factor: float, outcome: Outcome) -> None:
        drawn = [sample(0), sample(1, candidate=slower(factor))]
        assert designs.compare_fail(drawn, check) == (outcome, 10.0)

    def test_each_check_reads_its_own_figure(self) -> None:
        drawn = [sample(0), sample(1, candidate=[min(FAST), *slower(1.2)[1:]])]
        assert designs.compare_fail(drawn, "min:5%")[0] is PASS
        assert designs.compare_fail(drawn, "median:5%")[0] is FAIL

    def test_the_base_is_of_another_session(self) -> None:
        drawn = [sample(0), sample(0, candidate=slower(2)), sample(1, candidate=FAST, base=slower(0.5))]
        assert designs.compare_fail(drawn, "median:5%")[0] is PASS


class TestAsv:
    """`asv continuous`: the factor, the p value, and what it times."""

    @pytest.mark.parametrize(
        ("base", "candidate", "worse"),
        [
            (FAST, slower(1.12), True),
            (FAST, slower(1.08), False),  # p is as small, the factor is not there
            (SCATTERED, [1.2 * seconds for seconds in SCATTERED], False),  # the factor is there, p is not small
            (slower(1.12), FAST, False),
        ],
    )
    def test_it_needs_both_the_factor_and_the_p_value(
        self, base: list[float], candidate: list[float], worse: bool
    ) -> None:
        assert designs.asv_worse(base, candidate, 1.1) is worse

    @pytest.mark.parametrize(("low", "worse"), [([0.5], True), ([0.5, 9.5], False)])
    def test_its_p_value_is_exact_and_two_sided(self, low: list[float], worse: bool) -> None:
        """Of the 184,756 orders of ten and ten samples, 139 have U <= 10 (p = 0.0015) and 193 U <= 11 (p = 0.0021)."""
        base = [float(n) for n in range(1, 11)]
        assert designs.asv_worse(base, [*low, *[100.0] * (10 - len(low))], 1.1) is worse

    def test_it_has_two_processes_of_either_side_and_their_first_samples(self) -> None:
        late = [*FAST[:5], *slower(2)[5:]]
        drawn = [sample(0, candidate=late), sample(1, candidate=late)]
        assert designs.asv_continuous(drawn, 1.05) == (PASS, 30.0)  # half of the windows' 10 s, twice
        assert designs.asv_continuous([sample(n, candidate=slower(2)) for n in range(2)], 1.05, None) == (FAIL, 40.0)


@pytest.mark.parametrize(("factor", "outcome"), [(1.04, PASS), (1.06, FAIL)])
def test_two_runs_are_compared_by_their_means(factor: float, outcome: Outcome) -> None:
    assert designs.two_runs([sample(0), sample(1, candidate=slower(factor))]) == (outcome, 20.0)


@pytest.mark.parametrize("kind", POOLS.values())
class TestPool:
    """The sessions that simulated runs draw from."""

    def test_its_sessions_show_what_the_runs_showed(self, kind: str) -> None:
        alike = [run for run in map(load, RUNS.glob("*.json")) if run["kind"] == kind and run["arms"][0][-1] == STEPS]
        shown = [len(run["sessions"]) * math.log(run["expected"][CELL]["slowdown"][0]) for run in alike]
        values = [each.middle.value for each in Pool.of(kind).samples(1.0)]
        assert math.fsum(values[::2]) == pytest.approx(math.fsum(shown), rel=1e-9)
        assert values[1::2] == pytest.approx([-value for value in values[::2]])

    def test_a_slowdown_is_the_candidates(self, kind: str) -> None:
        pool = Pool.of(kind)
        for before, after in zip(pool.samples(1.0), pool.samples(1.1), strict=True):
            assert after.middle.value - before.middle.value == pytest.approx(math.log(1.1))
            assert (after.middle.variance, after.base) == (pytest.approx(before.middle.variance), before.base)
            assert after.candidate == pytest.approx([1.1 * seconds for seconds in before.candidate])


def test_the_section_has_a_row_for_each_pool_and_design(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(designs, "DRAWS", 20)
    head, line, *rows = [row for row in designs.section().splitlines() if row.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in (head, line, *rows)]
    assert {len(row) for row in cells} == {8}
    assert [row[:2] for row in cells[2:]] == [[pool, name] for pool in POOLS for name in OF_SESSIONS | OTHERS]
    assert [row[6] == "-" for row in cells[2:]] == [name in OTHERS for _ in POOLS for name in OF_SESSIONS | OTHERS]
