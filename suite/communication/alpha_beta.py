"""What an exchange costs, as a straight line: t = alpha + beta * bytes. Pure: no torch, no pytest.

alpha is what a call costs however small its message is, beta what each further byte costs (Hockney, "The communication
challenge for MPP", Parallel Computing 20(3), 1994). `fit` finds both from a sweep over message sizes; the two
bandwidths are nccl-tests' (its doc/PERFORMANCE.md). docs/communication.md derives the fit and the ring's terms.

Not covered: that libraries change their algorithm with the size, and caches end somewhere. A line that has to pass for
all sizes misses single ones by up to a factor of 2; how far it misses here is `Fit.misfit`, and belongs beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from suite.verdict.metrics import Interval, location, location_variance, t_quantile

BYTES_PER_GB = 1e9
ITERATIONS = 8  # weights settle within four, to a thousandth


@dataclass(frozen=True)
class Line:
    """Seconds of a call by its bytes."""

    alpha_s: float
    beta_s_per_byte: float

    def time_s(self, size_bytes: float) -> float:
        """What the line says of a message."""
        return self.alpha_s + self.beta_s_per_byte * size_bytes

    def misfit(self, sizes_bytes: Sequence[float], times_s: Sequence[float]) -> float:
        """The largest factor, at least 1, between the line and a measured time, whichever of them is larger.

        Raises:
            ZeroDivisionError: the line, or a time, is zero.
        """
        factors = [self.time_s(size) / time for size, time in zip(sizes_bytes, times_s, strict=True)]
        return max([1.0, *factors, *(1 / factor for factor in factors)])


@dataclass(frozen=True)
class Fit:
    """A line through a sweep; 95 % intervals over its rounds, so with what varies from round to round and no more.

    Neither what another set of processes would show is in them, nor that the line is too simple: that is `misfit`.
    """

    alpha_s: Interval
    beta_s_per_byte: Interval
    misfit: float

    @property
    def line(self) -> Line:
        """The estimates."""
        return Line(self.alpha_s.estimate, self.beta_s_per_byte.estimate)


def fit(sizes_bytes: Sequence[int], samples_s: Sequence[Sequence[float]]) -> Fit:
    """Fit a line in every round and take the middle of the rounds.

    Args:
        sizes_bytes: of the messages, two different ones at least.
        samples_s: seconds a call: for every size one value a round, the rounds in the same order for all sizes.

    Raises:
        ValueError: there are too few sizes, rounds are missing, or a time is not positive.
    """
    if len(set(sizes_bytes)) < 2:
        raise ValueError(
            f"sizes {list(sizes_bytes)}: a line needs two different message sizes at least; sweep more sizes"
        )
    counts = [len(samples) for samples in samples_s]
    if len(counts) != len(sizes_bytes) or len(set(counts)) > 1 or not counts[0]:
        raise ValueError(
            f"{len(sizes_bytes)} sizes with {counts} samples: every size needs one sample of every round, "
            "one round at least"
        )
    for size, samples in zip(sizes_bytes, samples_s, strict=True):
        if not all(0 < sample < math.inf for sample in samples):
            raise ValueError(f"size {size} has the times {list(samples)}: they must be positive numbers of seconds")
    lines = [fit_line(sizes_bytes, times) for times in zip(*samples_s, strict=True)]
    alpha, beta = (
        _not_negative(over_rounds(values))
        for values in ([line.alpha_s for line in lines], [line.beta_s_per_byte for line in lines])
    )
    middles = [time_over_rounds(samples).estimate for samples in samples_s]
    return Fit(alpha, beta, Line(alpha.estimate, beta.estimate).misfit(sizes_bytes, middles))


def fit_line(sizes_bytes: Sequence[int], times_s: Sequence[float]) -> Line:
    """The line by least squares on relative errors, (t - line) / line, neither of its parts negative.

    Relative, because a sweep spans four orders of magnitude and its noise is a share of the time: otherwise the large
    messages alone would decide, and alpha would be what is left of their noise. To the line and not to t, which would
    give the lowest times the most weight and pull the line below a noisy machine's. The weights need the line and the
    line the weights, so they are found in turn (iteratively reweighted least squares).

    Args:
        sizes_bytes: of the messages, two different ones at least.
        times_s: seconds of each, positive.
    """
    sizes, times = numpy.asarray(sizes_bytes, dtype=float), numpy.asarray(times_s, dtype=float)
    expected = times
    for _ in range(ITERATIONS):
        alpha, beta = _weighted(sizes, times, 1 / expected)
        expected = alpha + beta * sizes
    return Line(alpha, beta)


def over_rounds(values: Sequence[float]) -> Interval:
    """The middle of the rounds with its 95 % interval; one round alone has none. Rounds have heavy tails."""
    if len(values) == 1:
        return Interval(values[0])
    variance, df = location_variance(values)
    middle, half = location(values), t_quantile(df, 0.975) * math.sqrt(variance)
    return Interval(middle, middle - half, middle + half)


def time_over_rounds(samples_s: Sequence[float]) -> Interval:
    """The same for times, on the logarithm."""
    found = over_rounds([math.log(sample) for sample in samples_s])
    if found.low is None or found.high is None:
        return Interval(math.exp(found.estimate))
    return Interval(math.exp(found.estimate), math.exp(found.low), math.exp(found.high))


def algbw_gb_per_s(size_bytes: float, time_s: float) -> float:
    """nccl-tests' algorithm bandwidth, S / t, in 10^9 bytes a second."""
    return size_bytes / time_s / BYTES_PER_GB


def busbw_gb_per_s(size_bytes: float, time_s: float, world_size: int) -> float:
    """nccl-tests' bus bandwidth of an all_reduce, algbw x 2 (k - 1) / k, in 10^9 bytes a second.

    What each rank's link carried, so that it compares with what the link can do, at any number of ranks.
    """
    return algbw_gb_per_s(size_bytes, time_s) * 2 * (world_size - 1) / world_size


def _weighted(
    sizes: NDArray[numpy.float64], times: NDArray[numpy.float64], weights: NDArray[numpy.float64]
) -> tuple[float, float]:
    """Alpha and beta. Where the best line has a negative part, the best one without lies on the border."""
    beta, alpha = numpy.polyfit(sizes, times, 1, w=weights)
    if alpha < 0:
        return 0.0, float(numpy.average(times / sizes, weights=(weights * sizes) ** 2))
    if beta < 0:
        return float(numpy.average(times, weights=weights**2)), 0.0
    return float(alpha), float(beta)


def _not_negative(found: Interval) -> Interval:
    return Interval(found.estimate, None if found.low is None else max(0.0, found.low), found.high)
