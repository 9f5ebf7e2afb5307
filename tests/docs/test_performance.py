"""The scripts of docs/performance: designs of a gate, how the suite's cost grows, and loops beside the reference."""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path

import pytest
import torch

from docs.performance import designs, growth, steps, stub_ranks
from docs.performance.__main__ import PAGE
from docs.performance.designs import OF_SESSIONS, OTHERS, POOLS, STEPS, Pool, Sample
from reference.models.init import build
from reference.trainers.single import Single
from suite.rank.commands import COMMANDS
from suite.records import history
from suite.records.record import Session
from suite.verdict import Middle, Outcome
from tests.golden import RUNS, load
from tests.support import records

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


WINDOW = {"arm": "candidate:ddp:lenet:strong:1", "block": 0}


def test_a_power_has_its_exponent_and_what_is_not_above_0_has_none() -> None:
    rows = [(3 * size, size**2, 7.0, size - 2) for size in (2, 4, 8)]
    linear, square, constant, none = growth.exponents((2, 4, 8), rows)
    assert (linear, square, constant) == pytest.approx((1.0, 2.0, 0.0))
    assert none is None


def test_a_table_says_what_each_more_takes_where_a_fixed_cost_hides_it() -> None:
    text = growth.table(("ranks", "s", "MB"), (10, 1_000), [(5.0, 90.0), (7.97, 90.0)], "rank")
    lines = text.splitlines()
    assert lines[2:4] == ["| 10 | 5.00 | 90.0 |", "| 1,000 | 7.97 | 90.0 |"]
    assert lines[4].startswith("| exponent | 0.10 | ")
    assert lines[5] == "| each more rank | 0.00300 | 0 |"


def test_a_table_of_one_size_has_no_exponent() -> None:
    assert len(growth.table(("ranks", "s"), (2,), [(5.0,)], "rank").splitlines()) == 3


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (0.00123, "0.00123"), (0.5, "0.500"), (12.34, "12.3"), (1234.4, "1,234")]
)
def test_a_figure_has_three_digits(value: float, shown: str) -> None:
    assert growth.figure(value) == shown


def test_the_parts_of_a_session_leave_out_its_windows_and_probes() -> None:
    """Also a window that was taken again, and of all of them the time of the slowest rank."""
    seconds = {"waiting_s": 1, "starting_s": 2, "warming_s": 3, "timing_s": 10, "counting_s": 0.5}
    windows = [
        {**WINDOW, "duration_ns": [2e9, 3e9], "first": {"duration_ns": [4e9, 1e9]}},
        {**WINDOW, "duration_ns": [1e9, 1e9]},
    ]
    probe = {"cell": "c", "side": "candidate", "point": "step", "round": 0, "steps": 1, "duration_ns": [2e9]}
    content = {"number": 0, "started_utc": records.STARTED, "wall_s": 20, "windows": windows, "probes": [probe]}
    parts = growth.parts_s(Session.model_validate(content | seconds))
    assert dict(zip(growth.PARTS, parts, strict=True)) == pytest.approx(
        {"start s": 3, "warm-up s": 3, "counting s": 0.5, "between windows s": 2, "rest s": 1.5}
    )


def test_copies_of_a_record_are_a_history(tmp_path: Path) -> None:
    machine = tmp_path / records.KEY
    growth.keep_copies(machine, records.run_of(), 3)
    found = history.read(machine)
    assert found.skipped == ()
    assert [run.started_utc[:10] for run in found.runs] == ["2020-01-01", "2020-01-02", "2020-01-03"]


def test_a_process_is_watched_with_those_below_it(tmp_path: Path) -> None:
    spin = "sum(range(10**7))"
    below = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    seen = growth.watched([sys.executable, "-c", f"{below}; x = bytearray(50_000_000); {spin}"], tmp_path)
    assert seen.cpu_s > 0.05
    assert seen.below_s > 0.05
    assert 50 < seen.peak_mb < 200
    assert seen.descriptors >= 3


def test_a_process_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="it ended with status 3"):
        growth.watched([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)


def test_ranks_that_only_answer_know_commands_of_real_ones() -> None:
    assert stub_ranks.COMMANDS.keys() <= COMMANDS.keys()


def test_the_page_has_the_heading() -> None:
    assert f"## {growth.TITLE}\n" in PAGE.read_text(encoding="utf-8")


CPU = torch.device("cpu")


@pytest.mark.parametrize("k", [1, 2])
def test_the_books_loop_updates_every_replica_as_one_device_does(k: int) -> None:
    net = build("lenet", "xavier").double()
    X, y = torch.rand(8, 1, 28, 28, dtype=torch.float64), torch.randint(10, (8,))
    book, single = steps.Book(net, k, 0.1), Single(net, [CPU], lr=0.1)
    for _ in range(2):
        book.step(X, y, 8)
        single.step(X, y, 8)
    for replica in book.replicas:
        torch.testing.assert_close(list(replica.parameters()), list(single.net.parameters()), rtol=0, atol=1e-12)


def test_the_error_of_a_wrong_gradient_is_its_size() -> None:
    net = build("lenet", "xavier")
    X, y = torch.rand(8, 1, 28, 28), torch.randint(10, (8,))
    exact = steps._gradient(copy.deepcopy(net).double(), X.double(), y)
    assert steps._error(steps.Book(net, 1, steps.HUGE_LR), net, exact, X, y) < 1e-5
    assert steps._error(steps.Book(net, 1, 2 * steps.HUGE_LR), net, exact, X, y) == pytest.approx(1, rel=1e-4)


@pytest.mark.nightly
def test_every_loop_is_timed_and_the_tables_say_what_is_not_installed() -> None:
    found = steps.measure(steps.Setting("lenet", batch=8, windows=1), sessions=1)
    assert found.ratios.keys() == {loop.name for group in steps.GROUPS.values() for loop in group}
    assert all(math.isfinite(ratio.estimate) for ratio in found.ratios.values())
    assert found.errors.keys() == {loop.name for loop in steps.ONE_PROCESS}
    assert all(name in found.markdown for name in (*found.ratios, *steps.LIBRARIES))
