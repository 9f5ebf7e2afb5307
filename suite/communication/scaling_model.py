"""A model of a training step at any world size, from one that was measured; with error bars. Pure.

A step is compute and exchange. Compute comes from the bars of a measured waterfall without its exchange, the exchange
from what a message and a byte take on a link: a ring's all_reduce sends 2 (k - 1) messages of a k-th of the bytes.
Where one process drives all devices, what it does in turn (dispatch, and the traffic through the first device) grows
with every further one instead. docs/communication.md derives both; `suite.communication.projection` fills the model
from a record and says what it assumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from suite.verdict.metrics import Interval

# Bars that grow with the work on a device; everything else of the compute stays as it is, however many devices.
PROPORTIONAL = frozenset(("contention", "imbalance", "feed"))
SMALL_BATCH, EXCHANGE = ("small batch",), ("exchange",)
SERIAL = ("overhead", *EXCHANGE)  # what one process that drives all devices does in turn

Values = Mapping[Hashable, float]
Inputs = Mapping[Hashable, Interval]


@dataclass(frozen=True)
class Expectation:
    """One world size.

    Attributes:
        world_size: k.
        batch: samples on a device.
        exchange_s: an all_reduce of the gradients, whether anything hides it or not.
        step_s: a step.
        efficiency: E_k.
        measured: E_k where it was measured.
    """

    world_size: int
    batch: int
    exchange_s: Interval
    step_s: Interval
    efficiency: Interval
    measured: Interval | None = None


@dataclass(frozen=True)
class StepModel:
    """A step's time at any world size.

    Attributes:
        mode: "strong" or "weak".
        world_size: where it was measured, at least 2.
        global_batch: there.
        gradient_bytes: of one replica.
        bars: causes of each bar of the waterfall.
        one_process: whether one process drives all devices. Then "growing" is the share of its serial part, the bars of
            overhead and exchange, that grows with the number of further devices, and nothing on a link is asked.
        inputs: all that is uncertain, by name: "one", seconds a step of one device on the whole batch (weak: on its
            own); every bar, by its causes; "message" and "byte", seconds on a link; "misfit", the factor by which the
            exchange may miss; "growing", the share of what an exchange costs beyond the bare one that grows with it.
    """

    mode: str
    world_size: int
    global_batch: int
    gradient_bytes: int
    bars: tuple[tuple[str, ...], ...]
    inputs: Inputs = field(repr=False)
    one_process: bool = False

    @property
    def exposed(self) -> bool:
        """Whether the exchange's part of the measured step is known by itself."""
        return EXCHANGE in self.bars

    @property
    def middle(self) -> Values:
        """The estimates of all inputs."""
        return {name: found.estimate for name, found in self.inputs.items()}

    def batch(self, k: int) -> int:
        """Samples on a device, rounded up."""
        return -(-self.global_batch // (k if self.mode == "strong" else self.world_size))

    def expect(self, k: int, *, calibrated: bool) -> Expectation:
        """At k devices.

        Args:
            k: any world size.
            calibrated: whether what the measured step took more, or less, than the bare exchange is carried over;
                otherwise nothing hides the exchange and nothing is added to it.

        Raises:
            ValueError: the inputs are no times.
        """

        def step_s(at: Values) -> float:
            return self.compute_s(at, k) + (self.exposed_s(at, k) if calibrated else self.exchange_s(at, k))

        # The ends are found on the logarithm, so that no error bar reaches below zero.
        return Expectation(
            world_size=k,
            batch=self.batch(k),
            exchange_s=propagated(lambda at: self.exchange_s(at, k), self.inputs),
            step_s=_exp(propagated(lambda at: math.log(step_s(at)), self.inputs)),
            efficiency=_exp(propagated(lambda at: math.log(self.ideal_s(at, k) / step_s(at)), self.inputs)),
        )

    def ideal_s(self, at: Values, k: int) -> float:
        """A k-th of one device's step in strong scaling, all of it in weak."""
        return at["one"] / k if self.mode == "strong" else at["one"]

    def compute_s(self, at: Values, k: int) -> float:
        """A step without its exchange."""
        rest = [bar for bar in self.bars if bar != SMALL_BATCH and not self._not_compute.intersection(bar)]
        proportional = sum(at[bar] for bar in rest if PROPORTIONAL.issuperset(bar))
        constant = sum(at[bar] for bar in rest if not PROPORTIONAL.issuperset(bar))
        return self._share_s(at, k) * (1 + proportional / self._share_s(at, self.world_size)) + constant

    def exchange_s(self, at: Values, k: int) -> float:
        """The bare all_reduce; of one process all that it does in turn."""
        if self.one_process:
            return self._serial_s(at, k)
        return at["misfit"] * self._ring_s(at, k)

    def exposed_s(self, at: Values, k: int) -> float:
        """What the exchange adds to a step.

        Where it was measured it added more than the bare one takes, or less. More: the rest (copies, waking up, waiting
        for one another) stays as it is, or grows as the exchange does. Less: that was hidden behind the compute, and as
        much is behind every second of it.
        """
        if self.one_process or not self.exposed:
            return self.exchange_s(at, k)
        beyond = max(0.0, at[EXCHANGE]) - self._ring_s(at, self.world_size)
        if beyond >= 0:
            grown = self._ring_s(at, k) / self._ring_s(at, self.world_size)
            return self.exchange_s(at, k) + beyond * (1 + at["growing"] * (grown - 1))
        hidden = -beyond * self.compute_s(at, k) / self.compute_s(at, self.world_size)
        return max(0.0, self.exchange_s(at, k) - hidden)

    @property
    def _not_compute(self) -> frozenset[str]:
        return frozenset(SERIAL if self.one_process else EXCHANGE)

    def _serial_s(self, at: Values, k: int) -> float:
        """The parts of a step that one process goes through device by device, or sends through the first one."""
        measured = sum(max(0.0, at[bar]) for bar in self.bars if self._not_compute.intersection(bar))
        return measured * (1 + at["growing"] * ((k - 1) / (self.world_size - 1) - 1))

    def _share_s(self, at: Values, k: int) -> float:
        """One device's step on its share of the batch: a line through its times on the whole batch and on a part."""
        if self.mode == "weak":
            return at["one"]
        small = max(0.0, at.get(SMALL_BATCH, 0.0))  # no batch is so small that it costs less than nothing
        fixed = small * self.world_size / (self.world_size - 1)
        return at["one"] / k + fixed * (1 - 1 / k)

    def _ring_s(self, at: Values, k: int) -> float:
        return 2 * (k - 1) * (at["message"] + self.gradient_bytes / k * at["byte"])


def propagated(function: Callable[[Values], float], inputs: Inputs) -> Interval:
    """A function of uncertain inputs: each is moved to its ends alone, and the shifts are added in quadrature.

    That is the usual propagation of independent errors (JCGM 100, the "GUM"), with the function itself in the place of
    its derivatives, so that one-sided inputs stay one-sided.

    Raises:
        ValueError: the function is not defined, or not finite, somewhere on the way.
    """
    at = {name: found.estimate for name, found in inputs.items()}
    middle = _finite(function(at))
    below = above = 0.0
    for name, found in inputs.items():
        shifts = [_finite(function({**at, name: end})) - middle for end in (found.low, found.high) if end is not None]
        below += min(0.0, *shifts) ** 2
        above += max(0.0, *shifts) ** 2
    return Interval(middle, middle - math.sqrt(below), middle + math.sqrt(above))


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"a step comes out as {value}: the inputs must be finite times, as a run measures them")
    return value


def _exp(found: Interval) -> Interval:
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    return Interval(math.exp(found.estimate), low, high)
