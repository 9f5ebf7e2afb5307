"""Every figure against a case worked by hand, and the line through a sweep: what moves alpha and what beta."""

from __future__ import annotations

import math

import numpy
import pytest
from scipy import stats

from suite.plan.cells import SIZES_BYTES
from suite.verdict import alpha_beta, metrics
from suite.verdict.alpha_beta import Line, algbw_gb_per_s, busbw_gb_per_s, fit, fit_line
from suite.verdict.metrics import Interval


@pytest.mark.parametrize(("mode", "two_s"), [("strong", 0.5), ("weak", 1.0)])
def test_efficiency_is_perfect_when_two_devices_take_half_or_twice_the_batch_as_long(mode: str, two_s: float) -> None:
    assert math.exp(metrics.log_efficiency(math.log(1.0 / two_s), mode, 2)) == pytest.approx(1.0)


def test_speedup_is_k_times_the_efficiency_of_the_same_trainer() -> None:
    for mode in ("strong", "weak"):
        ratio = metrics.log_speedup(0.2, mode, 4) - metrics.log_efficiency(0.2, mode, 4)
        assert math.exp(ratio) == pytest.approx(4)


def test_the_short_last_batch_counts_by_its_samples() -> None:
    # 60,000 / 256 is 234 batches and one of 96: 234.375 steps' worth of samples, not 235.
    assert metrics.sec_per_epoch(1.0, 60_000, 256) == 234.375


def test_the_interval_is_students_t_on_logarithms() -> None:
    values = [1.0, 1.1, 1.3, 0.9]
    found = metrics.from_logs([math.log(value) for value in values])
    low, high = stats.t.interval(0.95, 3, loc=numpy.mean(numpy.log(values)), scale=stats.sem(numpy.log(values)))
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_one_session_gives_an_estimate_and_no_interval() -> None:
    assert metrics.from_logs([math.log(2.0)]) == Interval(pytest.approx(2.0))


def test_the_time_of_a_window_is_divided_by_its_steps() -> None:
    assert math.exp(metrics.log_step_s(200_000_000, steps=10)) == pytest.approx(0.02)


def test_the_middle_of_a_session_leaves_out_its_extremes() -> None:
    assert metrics.location([1.0, 2.0, 3.0, 1000.0]) == 2.5
    assert metrics.location([1.0, 2.0, 6.0]) == 3.0, "too few to leave any out"


ALPHA_S, BETA_S_PER_BYTE = 50e-6, 1e-9
LINE = Line(ALPHA_S, BETA_S_PER_BYTE)

# In-place microseconds of all_reduce_perf on 8 GPUs (float sum), as kvcache-ai/Mooncake#3484 prints them.
PUBLISHED_US = {
    32768: 17.95,
    65536: 18.25,
    131072: 18.43,
    262144: 19.27,
    524288: 20.48,
    1048576: 27.49,
    2097152: 40.36,
    4194304: 52.85,
    8388608: 80.46,
    16777216: 120.47,
    33554432: 195.40,
}


def swept(line: Line, noise: float = 0.0, rounds: int = 8, seed: int = 0) -> list[list[float]]:
    """Samples of all sizes whose noise is a share of the time, as a machine's is."""
    drawn = numpy.random.default_rng(seed).normal(size=(len(SIZES_BYTES), rounds))
    return [
        [line.time_s(size) * math.exp(noise * value) for value in row]
        for size, row in zip(SIZES_BYTES, drawn, strict=True)
    ]


def test_times_on_a_line_give_that_line() -> None:
    found = fit(SIZES_BYTES, swept(LINE))
    assert found.alpha_s.estimate == pytest.approx(ALPHA_S)
    assert found.beta_s_per_byte.estimate == pytest.approx(BETA_S_PER_BYTE)
    assert found.line.time_s(2**20) == pytest.approx(ALPHA_S + 2**20 * BETA_S_PER_BYTE)
    assert found.misfit == pytest.approx(1.0)


def test_a_delay_shows_in_alpha_and_a_limited_rate_in_beta() -> None:
    """200 us more a call, as a waiting scheduler adds; a tenth of the bandwidth, as a limited link has."""
    before, delayed, limited = (
        fit(SIZES_BYTES, swept(line, 0.02))
        for line in (LINE, Line(ALPHA_S + 200e-6, BETA_S_PER_BYTE), Line(ALPHA_S, 10 * BETA_S_PER_BYTE))
    )
    assert delayed.alpha_s.estimate - before.alpha_s.estimate == pytest.approx(200e-6, rel=0.1)
    assert delayed.beta_s_per_byte.estimate == pytest.approx(before.beta_s_per_byte.estimate, rel=0.05)
    assert limited.beta_s_per_byte.estimate / before.beta_s_per_byte.estimate == pytest.approx(10, rel=0.05)
    assert limited.alpha_s.estimate == pytest.approx(before.alpha_s.estimate, rel=0.2)


def test_large_messages_do_not_drown_alpha() -> None:
    """Five per cent of the largest time is seventeen times alpha; without weights alpha is that noise."""
    noisy = [swept(LINE, 0.05, seed=seed) for seed in range(20)]
    unweighted = [numpy.polyfit(SIZES_BYTES, numpy.mean(samples, axis=1), 1)[1] for samples in noisy]
    assert max(abs(fit(SIZES_BYTES, samples).alpha_s.estimate / ALPHA_S - 1) for samples in noisy) < 0.1
    assert numpy.median([abs(alpha / ALPHA_S - 1) for alpha in unweighted]) > 0.1


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """95 % over rounds; simulated with 5 % noise, more than the rounds of a quiet machine have."""
    found = [fit(SIZES_BYTES, swept(LINE, 0.05, seed=seed)) for seed in range(300)]
    for intervals, truth in (
        ([each.alpha_s for each in found], ALPHA_S),
        ([each.beta_s_per_byte for each in found], BETA_S_PER_BYTE),
    ):
        covered = [
            each.low <= truth <= each.high for each in intervals if each.low is not None and each.high is not None
        ]
        assert len(covered) == 300
        assert 0.90 <= numpy.mean(covered) <= 0.99


def test_one_disturbed_round_moves_little() -> None:
    """The middle of the rounds; their mean would be half as large again."""
    samples = [[*row[:-1], 5 * row[-1]] for row in swept(LINE, 0.02)]
    found = fit(SIZES_BYTES, samples)
    assert found.beta_s_per_byte.estimate == pytest.approx(BETA_S_PER_BYTE, rel=0.05)
    assert numpy.mean([fit_line(SIZES_BYTES, times).beta_s_per_byte for times in zip(*samples, strict=True)]) > 1.4e-9


def test_a_single_round_has_no_interval() -> None:
    assert fit(SIZES_BYTES, swept(LINE, rounds=1)).alpha_s == Interval(pytest.approx(ALPHA_S))


def test_the_misfit_is_the_factor_by_which_a_change_of_algorithm_is_missed() -> None:
    """Twice as slow a byte from 1 MiB on, as where a library or a cache changes: no line is near both."""
    times = [LINE.time_s(size) * (1 if size < 2**20 else 2) for size in SIZES_BYTES]
    found = fit(SIZES_BYTES, [[time] for time in times])
    assert 1.2 < found.misfit < 2
    assert Line(1.0, 0.0).misfit([1, 1], [0.5, 1.25]) == 2, "too slow and too fast count alike"


def test_published_times_of_eight_gpus_are_missed_by_less_than_twice() -> None:
    """What a line can be expected to do: within a factor of 2 from 32 kB to 34 MB, and not much better."""
    found = fit(list(PUBLISHED_US), [[time * 1e-6] for time in PUBLISHED_US.values()])
    assert 1.1 < found.misfit < 2
    assert 10e-6 < found.alpha_s.estimate < 25e-6


def test_neither_part_is_negative() -> None:
    """Faster than proportional, and faster with more bytes: the best of the lines that can be."""
    convex = fit_line([1, 2, 4], [1.0, 4.0, 16.0])
    assert (convex.alpha_s, convex.beta_s_per_byte) == (0, pytest.approx((1 + 2 + 4) / 3)), "each as far off as t is"
    falling = fit_line([1, 2, 4], [3.0, 2.0, 1.0])
    assert (falling.alpha_s, falling.beta_s_per_byte) == (pytest.approx(2.0), 0)


def test_a_noisy_machine_does_not_pull_the_line_down() -> None:
    """40 % noise: weights by the measured times themselves would give an eighth of alpha away."""
    samples = swept(LINE, 0.4, rounds=400)
    mean = math.exp(0.4**2 / 2)  # of a log-normal share
    found = [fit_line(SIZES_BYTES, times) for times in zip(*samples, strict=True)]
    pulled = [
        numpy.polyfit(SIZES_BYTES, times, 1, w=1 / numpy.asarray(times))[1] for times in zip(*samples, strict=True)
    ]
    assert numpy.mean([line.alpha_s for line in found]) == pytest.approx(mean * ALPHA_S, rel=0.1)
    assert numpy.mean([line.beta_s_per_byte for line in found]) == pytest.approx(mean * BETA_S_PER_BYTE, rel=0.1)
    assert numpy.mean(pulled) < 0.9 * mean * ALPHA_S


def test_alphas_interval_does_not_reach_below_zero() -> None:
    found = fit(SIZES_BYTES, swept(Line(1e-9, BETA_S_PER_BYTE), 0.2))
    assert found.alpha_s.low == 0


def test_a_line_needs_two_sizes() -> None:
    with pytest.raises(ValueError, match=r"sizes \[4096, 4096\]: a line needs two different message sizes"):
        fit([4096, 4096], [[1.0], [1.0]])


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """The published row: 16,777,216 bytes in 120.47 us on 8 GPUs are printed as 139.26 and 243.71 GB/s."""
    size, time_s = 16777216, PUBLISHED_US[16777216] * 1e-6
    assert algbw_gb_per_s(size, time_s) == pytest.approx(139.26, abs=0.01)
    assert busbw_gb_per_s(size, time_s, 8) == pytest.approx(243.71, abs=0.01)
    assert busbw_gb_per_s(size, time_s, 2) == pytest.approx(algbw_gb_per_s(size, time_s)), "one of two links each way"


def test_times_are_averaged_on_the_logarithm() -> None:
    found = alpha_beta.time_over_rounds([1.0, 4.0])
    assert found.estimate == pytest.approx(2.0)
    assert found.low is not None
    assert found.low > 0
