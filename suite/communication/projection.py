"""What scaling is to be expected: at the world sizes that were measured, and at those nobody has. Pure.

Compute is the measured waterfall without its exchange; the exchange is a ring's all_reduce of the gradient's bytes at
the alpha and beta of the run's own sweep (`suite.communication.scaling_model`). Where k was measured the two stand
beside the measured efficiency, as a test of the model; beyond, the same is carried on, and that is a projection: it
says what follows from the assumptions that come with it, not what a larger machine does.

Trainers that drive all devices from one process have an exchange that no sweep of torch.distributed describes. What
their process does in turn is projected from the waterfall alone, and nothing independent stands beside it where k was
measured. docs/communication.md derives the formulas and has the error bars' meaning.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from suite.communication.alpha_beta import BYTES_PER_GB, Line
from suite.communication.scaling_model import EXCHANGE, Expectation, StepModel
from suite.plan import cells
from suite.plan.cells import Cell
from suite.records.record import ArmRecord, CellRecord, CollectiveRecord, IntervalRecord, Record, WaterfallRecord
from suite.verdict.metrics import Interval

WORLD_SIZES = (4, 8, 16, 32, 64)  # the documents' three, and beyond
BACKENDS = ("nccl", "gloo")  # what the processes of a trainer talk through
MOST = 100  # trainers, workloads and modes of a record, and sweeps: a record from elsewhere may have ten thousand
NO_TIMES = "the record's figures are no times that a step could have"


@dataclass(frozen=True)
class Projection:
    """One trainer on one workload in one mode.

    Attributes:
        trainer, workload, mode: as in its cells.
        reason: why there is nothing else; empty where there is.
        algorithm: whose alpha and beta they are; empty where one process drives all devices.
        gradient_bytes: of one replica.
        misfit: the largest factor by which the line and the ring's terms miss what was swept.
        expected: at the world sizes that were measured: the measured compute, and an exchange that nothing hides; none
            where one process drives all devices.
        projected: at world sizes that were not measured, from the largest that was.
        assumptions: in sentences; to be shown wherever `projected` is.
    """

    trainer: str
    workload: str
    mode: str
    reason: str = ""
    algorithm: str = ""
    gradient_bytes: int = 0
    misfit: float = 1.0
    expected: tuple[Expectation, ...] = ()
    projected: tuple[Expectation, ...] = ()
    assumptions: tuple[str, ...] = ()


class _Impossible(ValueError):
    """There is nothing to project from."""


@dataclass(frozen=True)
class _Sweep:
    """What a sweep says of a link: a ring's alpha is 2 (k - 1) messages, its beta 2 (k - 1) / k bytes.

    Attributes:
        algorithm, world_size: whose.
        line: through its sizes.
        message_s, byte_s: on one link.
        misfit: the largest factor between the line and a size that was swept.
    """

    algorithm: str
    world_size: int
    line: Line
    message_s: Interval
    byte_s: Interval
    misfit: float

    def ring(self, k: int) -> Line:
        """The line at k devices of the same links."""
        messages = 2 * (k - 1)
        return Line(messages * self.message_s.estimate, messages / k * self.byte_s.estimate)


def project(record: Record, world_sizes: Sequence[int] = WORLD_SIZES) -> tuple[Projection, ...]:
    """Expectation and projection of everything that was measured on several devices.

    Args:
        record: with waterfalls, efficiencies, gradient sizes and sweeps; where one is missing, the `reason` says so.
        world_sizes: to project to; those that were measured are left out, and in strong scaling those above the batch.

    Returns:
        One for each trainer, workload and mode; none where nothing was measured on several devices.
    """
    groups: dict[tuple[str, str, str], list[CellRecord]] = {}
    for cell in sorted(record.cells, key=lambda cell: cell.world_size):
        if cell.world_size > 1:
            groups.setdefault((cell.trainer, cell.workload, cell.mode), []).append(cell)
    arms = {arm.id: arm for arm in record.arms}
    sweeps = _Sweeps(record.collectives)
    found = []
    for number, ((trainer, workload, mode), measured) in enumerate(groups.items()):
        empty = Projection(trainer, workload, mode)
        try:
            if number >= MOST:
                raise _Impossible(f"one of {len(groups)}, and only the first {MOST} are projected")
            found.append(_project(sweeps, arms, empty, measured, world_sizes))
        except _Impossible as reason:
            found.append(replace(empty, reason=str(reason)))
        except (ValueError, ArithmeticError):  # a record from elsewhere may hold any number
            found.append(replace(empty, reason=NO_TIMES))
    return tuple(found)


class _Sweeps:
    """Those of torch.distributed that have a line."""

    def __init__(self, collectives: Sequence[CollectiveRecord]) -> None:
        self._found: list[_Sweep] = []
        self._reason = "no all_reduce of torch.distributed was swept: select its items as well (test_all_reduce)"
        swept = [each for each in collectives if each.algorithm in BACKENDS and each.world_size > 1]
        for each in swept[:MOST]:
            try:
                self._found.append(_sweep(each))
            except _Impossible as reason:
                self._reason = str(reason)
            except (ValueError, ArithmeticError):
                self._reason = NO_TIMES

    def nearest(self, world_size: int) -> _Sweep:
        """The sweep at this world size, or the one closest to it.

        Raises:
            _Impossible: there is none.
        """
        if not self._found:
            raise _Impossible(self._reason)
        return min(self._found, key=lambda found: abs(math.log(found.world_size / world_size)))

    def misfit(self, sweep: _Sweep, gradient_bytes: int) -> float:
        """The largest factor by which the line misses its sizes, or the ring's terms the other world sizes."""
        others = [each for each in self._found if each.algorithm == sweep.algorithm]
        factors = [
            sweep.ring(each.world_size).misfit([gradient_bytes], [each.line.time_s(gradient_bytes)]) for each in others
        ]
        return max([sweep.misfit, *factors])


def _sweep(record: CollectiveRecord) -> _Sweep:
    """Of one record.

    Raises:
        _Impossible: it has no line, or no interval.
    """
    if record.alpha_s is None or record.beta_s_per_byte is None:
        raise _Impossible(f"the sweep of all_reduce failed: {record.error or 'it has no line'}")
    alpha, beta = (_known(found, "the sweep of all_reduce") for found in (record.alpha_s, record.beta_s_per_byte))
    line, messages = Line(alpha.estimate, beta.estimate), 2 * (record.world_size - 1)
    return _Sweep(
        algorithm=record.algorithm,
        world_size=record.world_size,
        line=line,
        message_s=_scaled(alpha, 1 / messages),
        byte_s=_scaled(beta, record.world_size / messages),
        misfit=line.misfit(
            [point.size_bytes for point in record.points], [point.time_s.estimate for point in record.points]
        ),
    )


def _project(
    sweeps: _Sweeps,
    arms: Mapping[str, ArmRecord],
    empty: Projection,
    measured: Sequence[CellRecord],
    world_sizes: Sequence[int],
) -> Projection:
    models: list[tuple[CellRecord, StepModel]] = []
    reason = _Impossible()
    for cell in measured:
        try:
            models.append((cell, _model(sweeps, arms, cell)))
        except _Impossible as why:
            reason = why
    if not models:
        raise reason
    largest = models[-1][1]
    beyond = [k for k in world_sizes if k > largest.world_size]
    if largest.mode == "strong":
        beyond = [k for k in beyond if k <= largest.global_batch]
    found = replace(
        empty,
        gradient_bytes=largest.gradient_bytes,
        projected=tuple(largest.expect(k, calibrated=True) for k in beyond),
    )
    if largest.one_process:
        return replace(found, assumptions=tuple(_assumptions_of_one_process(largest)))
    sweep = sweeps.nearest(largest.world_size)
    return replace(
        found,
        algorithm=sweep.algorithm,
        misfit=sweeps.misfit(sweep, largest.gradient_bytes),
        expected=tuple(
            replace(model.expect(model.world_size, calibrated=False), measured=_measured(cell))
            for cell, model in models
        ),
        assumptions=tuple(_assumptions(largest, sweep)),
    )


def _model(sweeps: _Sweeps, arms: Mapping[str, ArmRecord], cell: CellRecord) -> StepModel:
    """What a record says of a cell's step.

    Raises:
        _Impossible: something that is needed is not there.
    """
    arm, waterfall = _arm(arms, cell), _waterfall(cell)
    one_process = arm.processes == "one"
    share = cell.world_size if cell.mode == "strong" else 1
    inputs: dict[Hashable, Interval] = {
        "one": _scaled(_known(waterfall.ideal_s, "the waterfall"), share),
        **{bar.causes: _known(bar.step_s, "the waterfall") for bar in waterfall.bars},
        "growing": Interval(1.0, 0.0, 1.0) if one_process else Interval(0.0, 0.0, 1.0),
    }
    if not one_process:
        sweep = sweeps.nearest(cell.world_size)
        misfit = sweeps.misfit(sweep, arm.gradient_bytes)
        inputs |= {"message": sweep.message_s, "byte": sweep.byte_s, "misfit": Interval(1.0, 1 / misfit, misfit)}
    bars = tuple(bar.causes for bar in waterfall.bars)
    return StepModel(cell.mode, cell.world_size, arm.global_batch, arm.gradient_bytes, bars, inputs, one_process)


def _arm(arms: Mapping[str, ArmRecord], cell: CellRecord) -> ArmRecord:
    wanted = Cell(cell.trainer, cell.workload, cell.mode, cell.world_size)
    arm = arms.get(cells.arm("candidate", cell.trainer, wanted).id)
    if arm is None:
        raise _Impossible(f"{cell.id} was not timed")
    if not arm.gradient_bytes and arm.processes != "one":
        raise _Impossible(f"how many bytes of gradients {cell.id} exchanges is not known")
    return arm


def _waterfall(cell: CellRecord) -> WaterfallRecord:
    found = next((waterfall for waterfall in cell.waterfalls if waterfall.side == "candidate"), None)
    if found is None:
        raise _Impossible(f"{cell.id} has no waterfall: {cell.waterfall_note or 'its step was not taken apart'}")
    return found


def _assumptions(model: StepModel, sweep: _Sweep) -> list[str]:
    at, k, byte_s = model.middle, model.world_size, sweep.byte_s.estimate
    speed = f" and {1 / byte_s / BYTES_PER_GB:.2g} GB/s" if byte_s else ""
    said = [
        _no_measurement(k),
        f"Every link is like those between the {sweep.world_size} devices of the {sweep.algorithm} sweep: "
        f"{sweep.message_s.estimate * 1e6:.3g} µs a message{speed}.",
        f"The {model.gradient_bytes / 1e6:.3g} MB of gradients go around one ring, in one all_reduce a step: "
        "2 (k - 1) messages of a k-th.",
        "Contention, imbalance and waiting for data grow with the work on a device; the trainer's own overhead stays.",
        _shares(model),
    ]
    if not model.exposed:
        return [*said, "Nothing of the exchange is hidden: what it added to the step could not be told apart."]
    beyond = max(0.0, at[EXCHANGE]) - model.exchange_s(at, k)
    if beyond >= 0:
        last = (
            f"The step spent {beyond * 1e3:.2g} ms more on its exchange than the bare all_reduce takes; that stays, "
            "and at the worse end of the error bar it grows as the exchange does."
        )
    else:
        last = (
            f"{-beyond * 1e3:.2g} ms of the exchange were hidden behind {model.compute_s(at, k) * 1e3:.3g} ms of "
            "compute, and as much is behind every such stretch of it."
        )
    return [*said, last]


def _assumptions_of_one_process(model: StepModel) -> list[str]:
    serial_s, k = model.exchange_s(model.middle, model.world_size), model.world_size
    return [
        _no_measurement(k),
        f"One process drives all devices: what it does in turn, and what goes through the first one, took "
        f"{serial_s * 1e3:.2g} ms of the step (overhead and exchange), and as much again comes with every {k - 1} "
        "further device(s); at the better end of the error bar it stays.",
        "Contention, imbalance and waiting for data grow with the work on a device.",
        _shares(model),
    ]


def _no_measurement(k: int) -> str:
    return f"A projection from {k} devices, not a measurement."


def _shares(model: StepModel) -> str:
    if model.mode == "weak":
        return f"Every device keeps its batch of {model.batch(model.world_size)}."
    return (
        f"The global batch stays {model.global_batch}, so a device's share shrinks until it is 1; a line through "
        f"one device's times on the whole batch and on 1/{model.world_size} of it says what that takes."
    )


def _known(found: IntervalRecord, whose: str) -> Interval:
    """An interval that has both ends.

    Raises:
        _Impossible: it has none.
    """
    if found.low is None or found.high is None:
        raise _Impossible(f"{whose} has no interval: a single session shows no spread, and an error bar would lie")
    return Interval(found.estimate, found.low, found.high)


def _measured(cell: CellRecord) -> Interval | None:
    found = cell.efficiency
    return None if found is None else Interval(found.estimate, found.low, found.high)


def _scaled(found: Interval, factor: float) -> Interval:
    low, high = (None if end is None else end * factor for end in (found.low, found.high))
    return Interval(found.estimate * factor, low, high)
