"""What scaling to expect: at the world sizes that were measured, and at larger ones. Pure: no torch, no pytest.

A step is compute and exchange. Compute comes from the bars of a measured waterfall without its exchange, the exchange
from the alpha and beta of the run's own sweep: a ring's all_reduce sends 2 (k - 1) messages of a k-th of the bytes.
Where k was measured, the expected efficiency is shown next to the measured one, as a test of the model. Beyond, the
same formulas give a projection: what follows from the assumptions that come with it, not what a larger machine does.

No sweep of torch.distributed describes the exchange of a trainer that drives all devices from one process. What such a
process does device by device is projected from the waterfall alone, so nothing independent tests it where k was
measured. docs/diagnosis.md derives the formulas. They are evaluated at the estimates: only the exchange has an
interval, that of alpha and beta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from suite.communication.alpha_beta import BYTES_PER_GB
from suite.plan import cells
from suite.plan.cells import Cell
from suite.records.record import ArmRecord, CellRecord, CollectiveRecord, Record
from suite.verdict.metrics import Interval

WORLD_SIZES = (4, 8, 16, 32, 64)  # the documents' three, and beyond
BACKENDS = ("nccl", "gloo")  # what the processes of a trainer talk through
MOST_SWEEPS = 100  # a record from elsewhere may have any number of sweeps
# Bars that grow with the work on a device; all others stay as they are, however many devices.
PROPORTIONAL = frozenset(("contention", "imbalance", "feed"))
SMALL_BATCH, EXCHANGE = ("small batch",), ("exchange",)
SERIAL = ("overhead", *EXCHANGE)  # what one process that drives all devices does in turn


@dataclass(frozen=True)
class Expectation:
    """One world size.

    Attributes:
        world_size: k.
        batch: samples on a device.
        exchange_s: an all_reduce of the gradients, whether or not anything hides it; with the interval of alpha and
            beta, which is over the sweep's rounds.
        step_s: a step.
        efficiency: E_k.
        measured: E_k where it was measured.
    """

    world_size: int
    batch: int
    exchange_s: Interval
    step_s: float
    efficiency: float
    measured: Interval | None = None


@dataclass(frozen=True)
class Projection:
    """One trainer on one workload in one mode.

    Attributes:
        reason: what is missing, where nothing can be projected; otherwise empty.
        expected: at the world sizes that were measured: the measured compute, and an exchange that nothing hides; empty
            where one process drives all devices.
        projected: at larger world sizes, from the largest that was measured.
        assumptions: sentences to be shown wherever `projected` is.
    """

    trainer: str
    workload: str
    mode: str
    reason: str = ""
    expected: tuple[Expectation, ...] = ()
    projected: tuple[Expectation, ...] = ()
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Step:
    """A model of a step at any world size.

    Attributes:
        world_size: where it was measured, at least 2.
        global_batch: there.
        gradient_bytes: of one replica.
        one_s: seconds a step of one device, on the whole batch (weak: on its own).
        bars: seconds of each bar of the waterfall, by its causes.
        sweep: of the links between the devices; None where one process drives all of them.
    """

    mode: str
    world_size: int
    global_batch: int
    gradient_bytes: int
    one_s: float
    bars: Mapping[tuple[str, ...], float]
    sweep: CollectiveRecord | None

    def expect(self, k: int, *, calibrated: bool) -> Expectation:
        """Return what to expect at k devices.

        Args:
            k: any world size.
            calibrated: whether what the measured exchange added to the step, beyond or below the bare one, is carried
                over; otherwise nothing hides the exchange and nothing is added to it.

        Raises:
            ValueError: the figures are not those of a step.
        """
        exchange_s = self.exchange_s(k)
        step_s = self.compute_s(k) + (self.exposed_s(k) if calibrated else exchange_s.estimate)
        ideal_s = self.one_s / k if self.mode == "strong" else self.one_s
        ends = (exchange_s.estimate, exchange_s.low or 0.0, exchange_s.high or 0.0)
        if not (0 < step_s < math.inf and ideal_s > 0 and all(map(math.isfinite, ends))):
            raise ValueError(f"a step takes {step_s} s: expected a time above 0; measure it again")
        return Expectation(k, self.batch(k), exchange_s, step_s, ideal_s / step_s)

    def batch(self, k: int) -> int:
        """Return the samples on a device, rounded up."""
        return -(-self.global_batch // (k if self.mode == "strong" else self.world_size))

    def compute_s(self, k: int) -> float:
        """Return a step without its exchange."""
        rest = {bar: s for bar, s in self.bars.items() if bar != SMALL_BATCH and not self._exchange.intersection(bar)}
        proportional = sum(seconds for bar, seconds in rest.items() if PROPORTIONAL.issuperset(bar))
        constant = sum(seconds for bar, seconds in rest.items() if not PROPORTIONAL.issuperset(bar))
        return self._share_s(k) * (1 + proportional / self._share_s(self.world_size)) + constant

    def exchange_s(self, k: int) -> Interval:
        """Return the bare all_reduce; of one process all that it does in turn, which every further device repeats."""
        if self.sweep is not None:
            return _ring_s(self.sweep, k, self.gradient_bytes)
        serial_s = sum(max(0.0, seconds) for bar, seconds in self.bars.items() if self._exchange.intersection(bar))
        return Interval(serial_s * (k - 1) / (self.world_size - 1))

    def exposed_s(self, k: int) -> float:
        """Return what the exchange adds to a step.

        Where it was measured it added more than the bare one takes, or less. More: the rest (copies, waking up, waiting
        for one another) stays as it is. Less: that was hidden behind the compute, and as much is behind every second
        of it.
        """
        bare_s = self.exchange_s(k).estimate
        if self.sweep is None or EXCHANGE not in self.bars:
            return bare_s
        if (beyond_s := self.beyond_s()) >= 0:
            return bare_s + beyond_s
        return max(0.0, bare_s + beyond_s * self.compute_s(k) / self.compute_s(self.world_size))

    def beyond_s(self) -> float:
        """Return how much more the exchange added to the measured step than the bare one takes."""
        return max(0.0, self.bars[EXCHANGE]) - self.exchange_s(self.world_size).estimate

    @property
    def _exchange(self) -> frozenset[str]:
        return frozenset(SERIAL if self.sweep is None else EXCHANGE)

    def _share_s(self, k: int) -> float:
        """Return one device's step on its share, from a line through its times on the whole batch and on a part."""
        if self.mode == "weak":
            return self.one_s
        small_s = max(0.0, self.bars.get(SMALL_BATCH, 0.0))
        fixed_s = small_s * self.world_size / (self.world_size - 1)
        return self.one_s / k + fixed_s * (1 - 1 / k)


def project(record: Record, world_sizes: Sequence[int] = WORLD_SIZES) -> tuple[Projection, ...]:
    """Return expectation and projection of everything that was measured on several devices.

    Args:
        record: with waterfalls, efficiencies, gradient sizes and sweeps; where one is missing, the `reason` says so.
        world_sizes: to project to; only those above the measured ones count, and in strong scaling up to the batch.

    Returns:
        One for each trainer, workload and mode; empty where nothing was measured on several devices.
    """
    groups: dict[tuple[str, str, str], list[CellRecord]] = {}
    for cell in sorted(record.cells, key=lambda cell: cell.world_size):
        if cell.world_size > 1:
            groups.setdefault((cell.trainer, cell.workload, cell.mode), []).append(cell)
    arms = {arm.id: arm for arm in record.arms}
    swept = [
        each
        for each in record.collectives
        if each.collective == "all_reduce" and each.algorithm in BACKENDS and each.world_size > 1
    ][:MOST_SWEEPS]
    projections = []
    for names, measured in groups.items():
        projection = Projection(*names)
        try:
            projection = _project(projection, measured, arms, swept, world_sizes)
        except (ValueError, ArithmeticError):  # a record from elsewhere may hold any number
            projection = replace(projection, reason="the record's figures are no times that a step could have")
        projections.append(projection)
    return tuple(projections)


def _project(
    empty: Projection,
    measured: Sequence[CellRecord],
    arms: Mapping[str, ArmRecord],
    swept: Sequence[CollectiveRecord],
    world_sizes: Sequence[int],
) -> Projection:
    models = [(cell, _step(cell, arms, swept)) for cell in measured]
    steps = [(cell, step) for cell, step in models if isinstance(step, _Step)]
    if not steps:
        return replace(empty, reason=str(models[-1][1]))
    largest = steps[-1][1]
    most = largest.global_batch if largest.mode == "strong" else math.inf
    beyond = [k for k in world_sizes if largest.world_size < k <= most]
    projected = tuple(largest.expect(k, calibrated=True) for k in beyond)
    expected = []
    for cell, step in steps:
        if step.sweep is not None:
            known = cell.efficiency
            efficiency = None if known is None else Interval(known.estimate, known.low, known.high)
            expected.append(replace(step.expect(step.world_size, calibrated=False), measured=efficiency))
    assumptions = tuple(_assumptions(largest, _misfit(largest, swept)))
    return replace(empty, expected=tuple(expected), projected=projected, assumptions=assumptions)


def _step(cell: CellRecord, arms: Mapping[str, ArmRecord], swept: Sequence[CollectiveRecord]) -> _Step | str:
    """Return the model of a cell's step, or what the record lacks for it."""
    wanted = Cell(*cell.place)
    arm = arms.get(cells.arm("candidate", cell.trainer, wanted).id)
    if arm is None:
        return f"{cell.id} was not timed"
    waterfall = cell.own_waterfall
    if waterfall is None:
        return f"{cell.id} has no waterfall: {cell.why('waterfall') or 'its step was not taken apart'}"
    sweep = None
    if arm.processes != "one":
        if not arm.gradient_bytes:
            return f"how many bytes of gradients {cell.id} exchanges is not known"
        sweep = next((each for each in swept if each.world_size == cell.world_size), None)
        if sweep is None:
            where = f"on {cell.world_size} devices: select its items as well (test_all_reduce)"
            return f"no all_reduce of torch.distributed was swept {where}"
        if sweep.error:
            return f"the sweep of all_reduce failed: {sweep.error}"
    return _Step(
        mode=cell.mode,
        world_size=cell.world_size,
        global_batch=arm.global_batch,
        gradient_bytes=arm.gradient_bytes,
        one_s=waterfall.ideal_s.estimate * (cell.world_size if cell.mode == "strong" else 1),
        bars={bar.causes: bar.step_s.estimate for bar in waterfall.bars},
        sweep=sweep,
    )


def _ring_s(sweep: CollectiveRecord, k: int, size_bytes: float) -> Interval:
    """Return the time of an all_reduce in a ring of k devices with the links of a sweep.

    Raises:
        ValueError: the sweep has no line.
    """
    alpha, beta = sweep.alpha_s, sweep.beta_s_per_byte
    if alpha is None or beta is None:
        raise ValueError(f"the sweep of {sweep.algorithm} on {sweep.world_size} devices has no line: sweep more sizes")
    messages = (k - 1) / (sweep.world_size - 1)
    sent_bytes = messages * sweep.world_size / k * size_bytes
    low, high = (
        None if a is None or b is None else messages * a + sent_bytes * b
        for a, b in ((alpha.low, beta.low), (alpha.high, beta.high))
    )
    return Interval(messages * alpha.estimate + sent_bytes * beta.estimate, low, high)


def _misfit(step: _Step, swept: Sequence[CollectiveRecord]) -> float:
    """Return the largest factor by which the line misses its sizes, or the ring the sweeps at other world sizes."""
    sweep, size = step.sweep, step.gradient_bytes
    if sweep is None:
        return 1.0
    pairs = [(_ring_s(sweep, sweep.world_size, point.size_bytes), point.time_s.estimate) for point in sweep.points]
    for other in swept:
        if other.algorithm == sweep.algorithm and not other.error:
            pairs.append((_ring_s(sweep, other.world_size, size), _ring_s(other, other.world_size, size).estimate))
    factors = [expected.estimate / time_s for expected, time_s in pairs]
    return max(*factors, *(1 / factor for factor in factors))


def _assumptions(step: _Step, misfit: float) -> list[str]:
    k, exchange_s = step.world_size, step.exchange_s(step.world_size).estimate
    share = (
        f"Every device keeps its batch of {step.batch(k)}."
        if step.mode == "weak"
        else f"The global batch stays {step.global_batch}, so a device's share shrinks until it is 1; a line through "
        f"one device's times on the whole batch and on 1/{k} of it says what that takes."
    )
    common = [
        f"A projection from {k} devices, not a measurement. It is only as good as the assumptions below.",
        "Contention, imbalance and waiting for data grow with the work on a device.",
        share,
    ]
    if step.sweep is None:
        return [
            *common,
            "One process drives all devices: what it does in turn, and what goes through the first one, took "
            f"{exchange_s * 1e3:.2g} ms of the step (overhead and exchange), and as much again comes with every "
            f"{k - 1} further device(s).",
        ]
    message_s = _ring_s(step.sweep, 2, 0).estimate / 2
    byte_s = _ring_s(step.sweep, 2, 1).estimate - 2 * message_s
    speed = f" and {1 / byte_s / BYTES_PER_GB:.2g} GB/s" if byte_s > 0 else ""
    if EXCHANGE not in step.bars:
        exposed = "Nothing of the exchange is hidden: what it added to the step could not be told apart."
    elif (beyond_s := step.beyond_s()) >= 0:
        more = f"{beyond_s * 1e3:.2g} ms more"
        exposed = f"The step spent {more} on its exchange than the bare all_reduce takes; that stays."
    else:
        exposed = (
            f"{-beyond_s * 1e3:.2g} ms of the exchange were hidden behind {step.compute_s(k) * 1e3:.3g} ms of compute, "
            "and as much is behind every such stretch of it."
        )
    return [
        *common,
        "The trainer's own overhead stays.",
        f"Every link is like those between the {step.sweep.world_size} devices of the {step.sweep.algorithm} sweep: "
        f"{message_s * 1e6:.4g} µs a message{speed}. Where what was swept can test that, it is wrong by a factor of up "
        f"to {misfit:.2g}.",
        f"The {step.gradient_bytes / 1e6:.3g} MB of gradients go around one ring, in one all_reduce a step: "
        "2 (k - 1) messages of a k-th.",
        exposed,
    ]
