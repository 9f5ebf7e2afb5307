"""The figures of a report, each defined once (docs/metrics.md says the same in words). Pure: no torch, no pytest.

All inference is over sessions. Rounds of one session share processes, placement and memory layout, so they are averaged
first, and a session counts as one observation.
"""

from __future__ import annotations

import bisect
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

MOST_OBSERVATIONS = 1000  # sessions or seed pairs; more are never advised


@dataclass(frozen=True)
class Interval:
    """An estimate and its two-sided 95 % confidence interval; without one (a single session) low and high are None.

    A record keeps it as it is, and refuses a file's that has other fields, or numbers that are not finite.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid", "allow_inf_nan": False}
    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def exp(self) -> Interval:
        """The interval of a quantity, from that of its logarithm."""
        low, high = (None if end is None else math.exp(end) for end in (self.low, self.high))
        return Interval(math.exp(self.estimate), low, high)


@functools.lru_cache(maxsize=4096)
def t_quantile(df: float, probability: float) -> float:
    """Return the quantile of Student's t distribution; infinite at a probability of 1."""
    from scipy.special import stdtrit  # takes half a second to load, which --help and --collect-only do without

    return math.inf if probability >= 1 else float(stdtrit(df, probability))


def variance(values: Sequence[float]) -> float:
    """Return the variance behind at least two values; `statistics.variance` adds fractions, for 30 times longer."""
    mean = math.fsum(values) / len(values)
    return math.fsum([(value - mean) ** 2 for value in values]) / (len(values) - 1)


def mean_and_standard_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of at least two values, and its standard error."""
    return math.fsum(values) / len(values), math.sqrt(variance(values) / len(values))


def from_logs(logs: Sequence[float]) -> Interval:
    """Return a t-interval over sessions for a positive quantity, from its logarithm in each session; at least one."""
    return from_values(logs).exp


def from_values(values: Sequence[float]) -> Interval:
    """Return a t-interval over sessions for any quantity, from its value in each session; at least one."""
    if len(values) == 1:
        return Interval(values[0])
    mean, error = mean_and_standard_error(values)
    half = t_quantile(len(values) - 1, 0.975) * error
    return Interval(mean, mean - half, mean + half)


def difference(minuend: Interval, subtrahend: Interval) -> Interval:
    """Return the difference of two means over different sessions; without an interval where one of them has none.

    Banerjee (1961): the root of the sum of squares of both halves covers at least 95 %, whatever the two variances are.
    """
    estimate = minuend.estimate - subtrahend.estimate
    if minuend.low is None or subtrahend.low is None:
        return Interval(estimate)
    half = math.hypot(minuend.estimate - minuend.low, subtrahend.estimate - subtrahend.low)
    return Interval(estimate, estimate - half, estimate + half)


def location(values: Sequence[float]) -> float:
    """Return the middle of differences between windows: their mean without the lowest and the highest quarter."""
    cut = len(values) // 4
    middle = sorted(values)[cut : len(values) - cut]
    return math.fsum(middle) / len(middle)


def location_variance(values: Sequence[float]) -> tuple[float, int]:
    """Return the variance of `location`, estimated from at least two values, and its degrees of freedom.

    Tukey and McLaughlin (1963): a trimmed mean varies as the winsorised sample does, in which every value that was cut
    counts as the outermost one that was kept. With h values kept it is the sum of squares / (h (h - 1)), on h - 1.
    """
    cut = len(values) // 4
    kept = sorted(values)[cut : len(values) - cut]
    return _winsorised_variance([*[kept[0]] * cut, *kept, *[kept[-1]] * cut], len(kept))


def faster_half(values: Sequence[float]) -> float:
    """Return the mean of the lower half of windows' times.

    What disturbs a window makes it longer, so the shorter ones are nearer to what the code takes. Two arms are compared
    by the faster half of each, from as many windows of both (docs/adr/0003).
    """
    return statistics.fmean(sorted(values)[: half_of(len(values))])


def faster_half_variance(values: Sequence[float]) -> tuple[float, int]:
    """Return the variance of `faster_half`, estimated from at least two values, and its degrees of freedom.

    As that of `location`, cut at the slow end alone.
    """
    return _winsorised_variance(winsorised(values), half_of(len(values)))


def jackknife_variance(without: Sequence[float]) -> tuple[float, int]:
    """Return the variance of what the middles or faster halves of several arms give, and its degrees of freedom.

    Quenouille and Tukey's jackknife, (n - 1) / n times the sum of squares, for windows of n >= 2 rounds. No arm has to
    be independent of another one.

    Args:
        without: the result without each of the rounds.
    """
    count = len(without)
    return (count - 1) ** 2 / count * variance(without), half_of(count) - 1


def winsorised(values: Sequence[float]) -> list[float]:
    """Return the sorted values, with those of the slower half set to the slowest of the faster one."""
    kept = sorted(values)[: half_of(len(values))]
    return kept + kept[-1:] * (len(values) - len(kept))


def half_of(count: int) -> int:
    """Return how many of so many windows are the faster half: two at least, where there are two."""
    return max(min(count, 2), math.ceil(count / 2))


def _winsorised_variance(adjusted: Sequence[float], kept: int) -> tuple[float, int]:
    return variance(adjusted) * (len(adjusted) - 1) / (kept * (kept - 1)), kept - 1


def observations_needed(measured: int, enough: Callable[[int], bool]) -> int | None:
    """Return the smallest number above `measured` that is enough; None where `MOST_OBSERVATIONS` are not.

    More than enough must be enough.
    """
    numbers = range(measured + 1, MOST_OBSERVATIONS)
    index = bisect.bisect_left(numbers, True, key=enough)
    return numbers[index] if index < len(numbers) else None


def log_step_s(duration_ns: int, steps: int) -> float:
    """Return ln of the seconds of one step, from a window of so many steps."""
    return math.log(duration_ns / steps / 1e9)


def log_efficiency(log_ratio: float, mode: str, world_size: int) -> float:
    """Return ln of E_k = R_k / (k R_1), from ln(t_1 / t_k); in strong scaling one batch is shared."""
    return log_ratio - (math.log(world_size) if mode == "strong" else 0.0)


def log_speedup(log_ratio: float, mode: str, world_size: int) -> float:
    """Return ln of R_k over the R of the plain single-device trainer, from ln(t_single / t_k)."""
    return log_ratio + (math.log(world_size) if mode == "weak" else 0.0)


def sec_per_epoch(step_s: float, samples: int, global_batch: int) -> float:
    """Return the seconds of one pass over `samples`, the short last batch counted by its samples."""
    return samples / global_batch * step_s
