"""What a worker answers to the commands that measure: frozen values that travel as JSON. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SetUp:
    """The answer to `setup`: the bytes of a replica's gradients, and the FLOP of training on one sample, 0 on CPUs.

    `note` is what a user should know of a script's run.
    """

    gradient_bytes: int
    sample_flop: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """The most bytes that one process held during a window, and on its accelerators what became of them.

    Attributes:
        allocated_bytes, reserved_bytes, resident_bytes, since_start: as `suite.records.memory.RankMemory` has them.
        returned_bytes: of those reserved, what the process has given back by now, on each of its accelerators.
        free_bytes: what each of these has free now, for all processes; 0 where that is not known.
    """

    allocated_bytes: tuple[int, ...] = ()
    reserved_bytes: tuple[int, ...] = ()
    resident_bytes: int | None = None
    since_start: bool = False
    returned_bytes: tuple[int, ...] = ()
    free_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Timed:
    """The answer to `window` and `collective`: the nanoseconds of the window on this rank's clock.

    The answer to `window` also has the peak memory of this rank's process, and the nanoseconds for which others had its
    cores (`suite.rank.others`); None where that is not known. `unclean` says what happened in it that belongs to no
    step, such as an evaluation.
    """

    duration_ns: int
    memory: PeakMemory | None = None
    others_ns: int | None = None
    unclean: str = ""


@dataclass(frozen=True)
class Parameters:
    """The answer to `parameters`: the first parameter that is not finite on this rank; "" where all are finite.

    Of a script, also this rank's backward passes and rows of minibatches in an update; 0 where they are not known.
    """

    not_finite: str
    passes: float = 0.0
    rows: float = 0.0


@dataclass(frozen=True)
class Connected:
    """The answer to `connections`: how NCCL connected this rank, in the terms of `suite.rank.transport.said`."""

    transports: tuple[str, ...]


@dataclass(frozen=True)
class Probed:
    """The answer to `probe`: the nanoseconds of the window on this rank's clock; None on a rank that does not train.

    `others_ns` as in `Timed`. Of a script, `unclean` as there, and `unfed` says why it has no minibatch that could stay
    in memory; nothing is timed then.
    """

    duration_ns: int | None
    others_ns: int | None = None
    unclean: str = ""
    unfed: str = ""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The answer to `train`.

    Attributes:
        accuracy: share of the test labels that were predicted right, from 0 to 1.
        train_s: this rank's seconds of training.
        train_samples, test_samples: that were trained on, and classified after it.
        loss: this rank's share of the mean training loss; None where its trainer returns none.
        test_loss: of texts, the mean cross-entropy of a test label, in nats; None for other data.
        not_finite: the first parameter that is not finite on this rank; "" where all are finite.
        not_scored: why the net's outputs have no accuracy, as far as this rank has seen any; "" where they have one.
    """

    accuracy: float
    train_s: float
    train_samples: int
    test_samples: int
    loss: float | None = None
    test_loss: float | None = None
    not_finite: str = ""
    not_scored: str = ""


@dataclass(frozen=True)
class Traced:
    """The answer to `trace`: milliseconds a step, which tracing slows, and torch's table of the window's operators."""

    step_ms: float
    table: str


@dataclass(frozen=True)
class Tally:
    """One counter on one rank: the least and the most of it in the counted steps; `dtype` is of what is exchanged."""

    what: str
    dtype: str
    unit: Literal["calls", "bytes"]
    least: int
    most: int


@dataclass(frozen=True)
class Counted:
    """The answer to `count`; `suite.records.counters.Counters` describes `made_with`."""

    made_with: str
    steps: int
    counts: tuple[Tally, ...]


@dataclass(frozen=True, kw_only=True)
class TorchGpu:
    """A GPU as torch shows it; its UUID may lack NVML's prefix, and `capability` is (major, minor).

    `architecture` is AMD's name of it, such as "gfx942".
    """

    name: str
    uuid: str
    capability: tuple[int, int]
    architecture: str = ""


@dataclass(frozen=True, kw_only=True)
class TorchGpus:
    """The answer of a worker that is asked which GPUs torch can use.

    Attributes:
        torch: its version.
        cuda: the version of CUDA that it is built for; "" where it is for none.
        architectures: that it has kernels for, such as "sm_90".
        reason: why there is no CUDA; "" where there is.
        gpus: in CUDA's order.
    """

    torch: str
    architectures: tuple[str, ...]
    cuda: str = ""
    reason: str = ""
    gpus: tuple[TorchGpu, ...] = ()
