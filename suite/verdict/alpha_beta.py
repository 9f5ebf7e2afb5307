"""The cost of an exchange as a straight line: t = alpha + beta * bytes. Pure: no torch, no pytest.

alpha is the cost of a call however small its message is, beta that of each further byte (Hockney, "The communication
challenge for MPP", Parallel Computing 20(3), 1994). `fit` finds both from a sweep over message sizes; the two
bandwidths are nccl-tests' (its doc/PERFORMANCE.md). docs/diagnosis.md derives the fit and the ring's terms.

Not covered: libraries change their algorithm with the size, and caches end somewhere. A line through all sizes misses
single ones by up to a factor of 2; `Fit.misfit` says how far it misses here.
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
        """Return the line's time for a message."""
        return self.alpha_s + self.beta_s_per_byte * size_bytes

    def misfit(self, sizes_bytes: Sequence[float], times_s: Sequence[float]) -> float:
        """Return the largest factor, at least 1, between the line and a measured time, whichever is larger."""
        factors = [self.time_s(size) / time for size, time in zip(sizes_bytes, times_s, strict=True)]
        return max([1.0, *factors, *(1 / factor for factor in factors)])


@dataclass(frozen=True)
class Fit:
    """A line through a sweep, with 95 % intervals over its rounds.

    The intervals contain what varies from round to round, neither what another set of processes would show nor that the
    line is too simple: that is `misfit`.
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
        sizes_bytes: of the messages.
        samples_s: seconds a call, positive: for every size one value a round, the rounds in the same order for all.

    Raises:
        ValueError: there are fewer than two sizes, or rounds are missing.
    """
    if len(set(sizes_bytes)) < 2:
        raise ValueError(f"sizes {list(sizes_bytes)}: a line needs two different message sizes; sweep more sizes")
    lines = [fit_line(sizes_bytes, times) for times in zip(*samples_s, strict=True)]
    alpha, beta = over_rounds([line.alpha_s for line in lines]), over_rounds([line.beta_s_per_byte for line in lines])
    middles = [time_over_rounds(samples).estimate for samples in samples_s]
    return Fit(alpha, beta, Line(alpha.estimate, beta.estimate).misfit(sizes_bytes, middles))


def fit_line(sizes_bytes: Sequence[int], times_s: Sequence[float]) -> Line:
    """Return the line by least squares on relative errors, (t - line) / line, neither of its parts negative.

    Relative, because a sweep spans four orders of magnitude and its noise is a share of the time: otherwise the large
    messages alone would decide alpha. Relative to the line and not to t, which would give the lowest times the most
    weight. The weights need the line and the line the weights, so they are found in turn (iteratively reweighted least
    squares).

    Args:
        sizes_bytes: of the messages, at least two different ones.
        times_s: seconds of each, positive.
    """
    sizes, times = numpy.asarray(sizes_bytes, dtype=float), numpy.asarray(times_s, dtype=float)
    expected = times
    for _ in range(ITERATIONS):
        alpha, beta = _weighted(sizes, times, 1 / expected)
        expected = alpha + beta * sizes
    return Line(alpha, beta)


def over_rounds(values: Sequence[float], least: float = 0.0) -> Interval:
    """Return the middle of the rounds, which have heavy tails, and its 95 % interval down to `least` at most.

    One round alone has no interval.
    """
    if len(values) == 1:
        return Interval(values[0])
    variance, df = location_variance(values)
    middle, half = location(values), t_quantile(df, 0.975) * math.sqrt(variance)
    return Interval(middle, max(least, middle - half), middle + half)


def time_over_rounds(samples_s: Sequence[float]) -> Interval:
    """Return the middle of positive times, averaged on the logarithm."""
    return over_rounds([math.log(sample) for sample in samples_s], -math.inf).exp


def algbw_gb_per_s(size_bytes: float, time_s: float) -> float:
    """Return nccl-tests' algorithm bandwidth, S / t, in 10^9 bytes a second."""
    return size_bytes / time_s / BYTES_PER_GB


def busbw_gb_per_s(size_bytes: float, time_s: float, world_size: int, collective: str = "all_reduce") -> float:
    """Return nccl-tests' bus bandwidth, in 10^9 bytes a second: algbw x 2 (k - 1) / k of an all_reduce.

    Half of it counts for its halves, reduce_scatter and all_gather, with the bytes of the whole. It is what each rank's
    link carried, so it compares with what the link can do, at any number of ranks. Where a switch adds (NVLink SHARP),
    links carry less, and the value may be above theirs.
    """
    passes = 2 if collective == "all_reduce" else 1
    return algbw_gb_per_s(size_bytes, time_s) * passes * (world_size - 1) / world_size


def _weighted(
    sizes: NDArray[numpy.float64], times: NDArray[numpy.float64], weights: NDArray[numpy.float64]
) -> tuple[float, float]:
    """Return alpha and beta; where one of them would be negative, it is 0 and the other the best without it."""
    beta, alpha = numpy.polyfit(sizes, times, 1, w=weights)
    if alpha < 0:
        return 0.0, float(numpy.average(times / sizes, weights=(weights * sizes) ** 2))
    if beta < 0:
        return float(numpy.average(times, weights=weights**2)), 0.0
    return float(alpha), float(beta)
