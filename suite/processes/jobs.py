"""What the controller tells a worker to do, and its answers: frozen values as JSON. Standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

DIVERGED = "lower lr, or choose another init"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the ranks of a group run."""

    processes: Literal["one", "per-device"]  # "one" process drives all devices, or there is one "per-device"
    devices: tuple[str, ...]  # torch device names, in rank order
    backend: str  # of the process group, where there is one
    pinned: tuple[tuple[int, ...], ...] = ()  # the cores of each rank, in rank order; empty leaves processes free

    @property
    def size(self) -> int:
        """How many processes there are."""
        return 1 if self.processes == "one" else len(self.devices)


@dataclass(frozen=True, kw_only=True)
class Exchange(Place):
    """Time a collective; in one process an all_reduce, whose algorithm is one of `reference.all_reduce`."""

    algorithm: str
    collective: str = "all_reduce"


@dataclass(frozen=True, kw_only=True)
class CaseJob(Place):
    """Put generated cases to a trainer: a table name, module:Class or path.py:Class."""

    trainer: str


@dataclass(frozen=True, kw_only=True)
class ModelJob(CaseJob):
    """Train the first minibatches of a user's workload: `suite.plan.workloads.Workload` describes the fields."""

    world_size: int
    model: str
    init: str
    dataset: str
    data_root: str
    batch: int
    steps: int
    lr: float
    seed: int  # of the weights and of the order of samples; rank r starts from seed + r
    generator_seed: int  # of everything that the model and the trainer draw while they train
    shares_draws: bool  # whether a sample gets the random numbers that one device would draw for it
    stays_in_eval: bool  # whether every module stays in eval mode, whatever the step sets


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A dataset that a worker has loaded and kept in files that others map."""

    name: str
    folder: str
    train_samples: int
    test_samples: int
    tokens: int = 0  # of one sample (`reference.nest.tokens`); 0 where samples are not texts
    idx_root: str | None = None  # where the book's own loader finds the same samples; None where it cannot
    unfit: str = ""  # why the built-in trainers' losses cannot take its y; "" where they can
    no_labels: str = ""  # what y is where it has no class labels, and so no accuracy, such as "float32 (n,)"
    # Where the first NaN or infinity of the training samples is: "nan in train_X, sample 3". A mask may have some.
    not_finite: str = ""

    @property
    def remedy(self) -> str:
        """What to do where training on it diverges."""
        if self.not_finite:
            return f"repair the data set {self.name!r}, which has {self.not_finite}"
        return DIVERGED


LOADERS = {"resident": 0, "book": 4}  # processes that feed a rank, by loader; minibatches come from them in turn
READ_AHEAD = 2  # minibatches that each of them prepares ahead, torch's default


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The part of a workload that a worker builds: `suite.plan.workloads.Workload` describes the fields."""

    model: str
    loader: str
    precision: str
    memory_format: str
    compile: bool
    init: str = "default"


@dataclass(frozen=True, kw_only=True)
class Apart:
    """For workers of another commit: what they find in the candidate's working tree has its place in the checkout."""

    candidate_root: str  # the top of the candidate's working tree; nothing is imported from there
    checkout: str  # the top of the base's checkout
    allowed: tuple[str, ...] = ()  # folders of the measuring code, which both sides share, wherever they are


OUT = "{out}"  # in a script's command, until each group of ranks has a fresh folder


@dataclass(frozen=True, kw_only=True)
class ScriptRun:
    """A training script as one rank runs it."""

    words: tuple[str, ...]  # of its command, the script's path or -m and a module first; no placeholders any more
    directory: str  # the working directory
    environment: dict[str, str]  # variables that are set for it
    update: str = ""  # `module:function` or `module:Class.method`, which makes an update; "" for torch's optimizers
    script_from: str = ""  # the folder that a relative path of the script starts from
    isolated: tuple[str, ...] = ()  # folders that it may write to, and that stay as they are
    exchanges: bool = True  # whether its ranks exchange anything but objects


@dataclass(frozen=True, kw_only=True)
class WatchedScript(Place):
    """Run a training script for a few updates and keep what it does: `suite.script.recording.Recording`."""

    script: ScriptRun
    folder: str
    double: bool = True  # whether to compute in float64
    replay: str = ""  # how to feed what was recorded; "" records
    ranks: int = 0  # how many were recorded, for a replay
    as_cuda: bool = False  # whether to show the script the CPU as its GPU


@dataclass(frozen=True, kw_only=True)
class Job(CaseJob):
    """Train a workload's model, to be timed or for its accuracy."""

    world_size: int
    global_batch: int  # samples of a minibatch over all ranks
    lr: float
    seed: int  # of the weights and of the order of samples; rank r starts from seed + r
    workload: ModelSpec
    dataset: Prepared  # what to time on
    free_cores: tuple[int, ...] = ()  # for the loader's processes
    apart: Apart | None = None  # where the worker belongs to another commit
    script: ScriptRun | None = None  # in the place of trainer, model and data

    def shard(self, rank: int) -> dict[str, int]:
        """Return the world size and the rank by which a process takes its part; one process takes all of it."""
        several = self.processes == "per-device"
        return {"world_size": self.world_size, "rank": rank} if several else {"world_size": 1, "rank": 0}


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """How a net is trained for its accuracy, on at most so many `samples` of each part of the dataset; None for all."""

    dataset: Prepared
    batch: int
    lr: float
    epochs: int
    init: str
    samples: int | None = None

    def count(self, part: Literal["train", "test"]) -> int:
        """Return how many samples an epoch trains or evaluates."""
        whole = self.dataset.train_samples if part == "train" else self.dataset.test_samples
        return whole if self.samples is None else min(whole, self.samples)

    @property
    def minibatches(self) -> int:
        """How many an epoch and its evaluation have."""
        return sum(math.ceil(self.count(part) / self.batch) for part in ("train", "test"))


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
    """The most bytes that one process held during a window, as `suite.records.counters.RankMemory` has them.

    On each of its accelerators, `returned_bytes` are those of the reserved ones that it has given back by now.
    """

    allocated_bytes: tuple[int, ...] = ()
    reserved_bytes: tuple[int, ...] = ()
    resident_bytes: int | None = None
    since_start: bool = False
    returned_bytes: tuple[int, ...] = ()
    free_bytes: tuple[int, ...] = ()  # what each of these has free now, for all processes; 0 where that is not known


@dataclass(frozen=True)
class Timed:
    """The answer to `window` and `collective`: the nanoseconds of the window on this rank's clock.

    The answer to `window` also has the peak memory of this rank's process, and the nanoseconds for which others had its
    cores (`suite.rank.timing`); None where that is not known. `unclean` says what happened in it that belongs to no
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
    """The answer to `connections`: how NCCL connected this rank, in the terms of `suite.rank.recorder.said`."""

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
    """The answer to `train`."""

    accuracy: float  # share of the test labels that were predicted right, from 0 to 1
    train_s: float  # this rank's seconds of training
    train_samples: int  # that were trained on
    test_samples: int  # that were classified after it
    loss: float | None = None  # this rank's share of the mean training loss; None where its trainer returns none
    test_loss: float | None = None  # of texts, the mean cross-entropy of a test label, in nats; None for other data
    not_finite: str = ""  # the first parameter that is not finite on this rank; "" where all are finite
    not_scored: str = ""  # why the outputs that this rank has seen have no accuracy; "" where they have one


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
    """The answer of a worker that is asked which GPUs torch can use."""

    torch: str  # its version
    architectures: tuple[str, ...]  # that it has kernels for, such as "sm_90"
    cuda: str = ""  # the version of CUDA that it is built for; "" where it is for none
    reason: str = ""  # why there is no CUDA; "" where there is
    gpus: tuple[TorchGpu, ...] = ()  # in CUDA's order
