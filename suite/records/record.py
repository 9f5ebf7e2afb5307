"""The record of one run: everything that was measured and under which circumstances, as one validated JSON file.

The raw samples are in it; every figure of a summary can be computed again from them. Records from elsewhere are treated
as hostile (`suite.records.files` reads them): they are validated field by field, unknown fields refused. All numbers
are bounded, so that whoever reads a record can calculate with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field

from suite.plan.cells import Side
from suite.plan.workloads import Workload
from suite.records.counters import Counters, RankMemory
from suite.room.conditions import Conditions, interrupted
from suite.room.hardware import Card
from suite.room.part import Part
from suite.verdict import Outcome
from suite.verdict.diagnose import Point, bar_name, supported
from suite.verdict.metrics import Interval

RECORD = "record.json"  # the name of its file, in the folder of its run
MAX_CARDS = 64
MAX_HOSTS = 9999
MAX_VARIABLES = 64
MAX_CAUTIONS = 16  # of a cell
MAX_CHECKS = 1_000_000  # of correctness, in one pytest session
LARGEST = 1e100  # number, either side of zero: differences and products of a few stay finite

Finite = Annotated[float, Field(allow_inf_nan=False, ge=-LARGEST, le=LARGEST)]


def _bounded(figure: Interval) -> Interval:
    """Refuse numbers beyond `LARGEST`."""
    for number in (figure.estimate, figure.low, figure.high):
        if number is not None and not abs(number) <= LARGEST:  # NaN is neither
            raise ValueError(f"{number:g} is out of range: expected numbers from {-LARGEST:g} to {LARGEST:g}")
    return figure


Kept = Annotated[Interval, AfterValidator(_bounded)]
"""An estimate with its 95 % interval over sessions; none from a single session."""


class Machine(Part):
    """Where a run took place. `key` is hardware and topology alone; `host` tells machines of one key apart.

    `cards` has more on each GPU of `gpus`. `problem` says why other GPUs could not be used. Everything but `hosts` is
    of the controller's host; each of the hosts has as many devices.
    """

    key: str
    host: str
    cpu_model: str
    cpu_cores: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    gpu_topology: str = ""
    cards: tuple[Card, ...] = Field(default=(), max_length=MAX_CARDS)
    problem: str = ""
    driver: str = ""
    system: str
    hosts: int = Field(default=1, ge=1, le=MAX_HOSTS)
    per_host: int = Field(default=0, ge=0)  # devices of the run on each host; 0 where it is not known


class Environment(Part):
    """What may change on a machine between runs."""

    versions: dict[str, str]
    commit: str
    dirty: bool
    variables: dict[str, str] = Field(default_factory=dict, max_length=MAX_VARIABLES)  # of the workers; GPU runs only
    main: str = ""  # the branch that changes go to, as git names it here; empty where none can be compared with
    commit_problem: str = ""  # git's last words where the commit is "unknown"

    @property
    def not_rebuildable(self) -> str:
        """Why its commit is not what was measured; empty where it is."""
        if self.commit == "unknown":
            return self.commit_problem or "git knows no commit here"
        return "uncommitted changes" if self.dirty else ""


class ArmRecord(Part):
    """One thing that was timed."""

    id: str
    side: Side
    trainer: str
    workload: str
    mode: str
    world_size: int
    global_batch: int
    lr: Finite
    processes: Literal["one", "per-device"]
    steps_per_window: int
    oracle: Literal["sgd", "self"] | None = None  # of the trainer; None where no worker described it
    has_reference: bool = False  # whether the trainer has a `reference_step`
    seed: int  # of the weights and of the order of samples
    gradient_bytes: int = 0  # that a replica has to exchange at every step; 0 where it is not known
    memory: tuple[RankMemory, ...] = ()  # by rank; none where it was not read
    transports: tuple[str, ...] = ()  # by which NCCL connected its ranks, and channels; none on CPUs

    @property
    def runs_script(self) -> bool:
        """Whether it is of a training script; a base may be of another script than the cell's."""
        return self.trainer == self.workload


class BaseRecord(Part):
    """What the candidate was compared with in the same sessions, and what its workers ran."""

    side: Side
    kind: str
    label: str
    commit: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)


class Timing(Part):
    """What every timed window has: `duration_ns` of the ranks that took part.

    `others_ns` is for how much of it others had the cores of each of them; empty where that is not known.
    """

    duration_ns: tuple[int, ...]
    others_ns: tuple[int, ...] = ()

    @property
    def disturbed(self) -> bool:
        """Whether others had too much of a rank's cores, by the rule in `suite.room.conditions`."""
        return interrupted(self.duration_ns, self.others_ns)


class Window(Timing):
    """One window of all ranks (the slowest counts), of the arm's `steps_per_window` steps.

    Where others disturbed it, it was timed again at once: these are the last one's times, and `first` has the first's.
    """

    arm: str
    block: int
    first: Timing | None = None

    @property
    def unselected(self) -> Timing:
        """The times that nothing has chosen, whatever others did meanwhile."""
        return self.first or self


class Probe(Timing):
    """One window of a diagnostic variant (`suite.verdict.diagnose.Point`), without the feed unless the variant has it.

    `cell` is that whose waterfall it is part of. Where it was timed again, as `Window` is, these are the last times.
    """

    cell: str
    side: Side
    point: Point
    round: int
    steps: int


class Session(Part):
    """One set of fresh processes; windows in the order they were timed.

    Parts of `wall_s`, in their order: waiting for templates, starting processes, the warm-up, all blocks, training
    nets, timing the parts of cells that look slower than a base, counting what a step does. The rest is the end of the
    processes, and without a base the parts of cells. `conditions` are those of each block; the blocks in `left_out`
    were disturbed, by their conditions and not by their times.
    """

    number: int
    started_utc: str
    wall_s: Finite
    waiting_s: Finite = 0.0
    starting_s: Finite = 0.0
    warming_s: Finite = 0.0
    timing_s: Finite = 0.0
    training_s: Finite = 0.0
    explaining_s: Finite = 0.0
    counting_s: Finite = 0.0
    windows: tuple[Window, ...]
    conditions: tuple[Conditions, ...] = ()
    left_out: tuple[int, ...] = ()
    probes: tuple[Probe, ...] = ()


class Accuracy(Part):
    """Really trained epochs: the workload's own recipe, with `batch` and `lr` as this mode and world size have them.

    On one device the mode is "strong", as for an arm. `loss` is the mean training loss of each epoch, None where it was
    not finite; there is none where the trainer's step returns none. `test_loss` is that of texts after each epoch, in
    nats a label; there is none for other data.
    """

    trainer: str
    workload: str
    mode: str = "strong"
    world_size: int
    batch: int | None = None
    lr: Finite | None = None
    seed: int = 1
    dataset: str
    train_samples: int
    test_samples: int
    per_epoch: tuple[Finite, ...]
    train_s: tuple[Finite, ...]
    loss: tuple[Finite | None, ...] = ()
    test_loss: tuple[Finite | None, ...] = ()
    shortened: str = ""


class CheckRecord(Part):
    """The outcome of one rule for a cell: its time against a base, a floor, an accuracy.

    `kind` is that of the reason (`suite.verdict.reasons.Kind`), for programs; "" where a rule has one reason only.
    """

    rule: str
    against: str
    outcome: Outcome
    reason: str
    kind: str = ""
    ratio: Kept | None = None
    counts: bool = True  # whether it decides the cell, or is only shown


class BarRecord(Part):
    """One part of the gap between ideal and measured time.

    `causes` are names of `suite.verdict.diagnose.CAUSES`; more than one where they could not be told apart.
    """

    causes: tuple[str, ...]
    step_s: Kept  # seconds a step; negative where it saves time
    df: Annotated[Finite, Field(ge=0)] | None = None  # of the interval; None is sessions less one


class WaterfallRecord(Part):
    """Where a step's time went: `ideal_s` plus all bars is `measured_s`."""

    side: Side
    sessions: int
    ideal_s: Kept
    measured_s: Kept
    bars: tuple[BarRecord, ...]
    sentence: str
    notes: tuple[str, ...] = ()  # why causes could not be told apart

    @property
    def dfs(self) -> tuple[float, ...]:
        """The degrees of freedom of each bar's interval."""
        return tuple(self.sessions - 1.0 if bar.df is None else bar.df for bar in self.bars)

    @property
    def named(self) -> int | None:
        """The index of the bar that its interval lets us name (`suite.verdict.diagnose.supported`)."""
        return supported([bar.step_s for bar in self.bars], self.dfs)

    @property
    def shares(self) -> dict[str, Interval]:
        """What each bar takes of the ideal step, by the bar's name; empty where that step has no time."""
        ideal_s = self.ideal_s.estimate
        if ideal_s <= 0:
            return {}
        shares = {}
        for bar in self.bars:
            low, high = (None if end is None else end / ideal_s for end in (bar.step_s.low, bar.step_s.high))
            shares[bar_name(bar.causes)] = Interval(bar.step_s.estimate / ideal_s, low, high)
        return shares


class CollectivePoint(Part):
    """One message size of a sweep; `samples_s` are seconds a call, the slowest rank's, one value a round."""

    size_bytes: int
    samples_s: tuple[Finite, ...]
    time_s: Kept
    algbw_gb_per_s: Finite
    busbw_gb_per_s: Finite


class CollectiveRecord(Part):
    """A sweep of one collective, and the straight line t = alpha + beta * bytes through it."""

    collective: Literal["all_reduce", "reduce_scatter", "all_gather"]
    algorithm: str  # a name of `reference.all_reduce.ALL_REDUCE` in one process, or a backend of torch.distributed
    world_size: int
    devices: tuple[str, ...]
    oversubscribed: bool = False
    points: tuple[CollectivePoint, ...]
    alpha_s: Kept | None = None
    beta_s_per_byte: Kept | None = None
    error: str = ""  # why it could not be measured


Figure = Literal["efficiency", "speedup", "accuracy", "waterfall", "counters"]


class Missing(Part):
    """Why a cell has no such figure, in words; `because` names the reasons that other code asks for."""

    figure: Figure
    why: str
    because: Literal["", "budget", "one device", "no recipe"] = ""


class CellRecord(Part):
    """A cell's outcome and figures. A cell that ended in ERROR has no figures."""

    id: str
    trainer: str
    workload: str
    mode: str
    world_size: int
    oversubscribed: bool
    outcome: Outcome
    reason: str
    details: str = ""
    sessions: int = 0
    sec_per_epoch: Kept | None = None
    samples_per_s: Kept | None = None
    tokens_per_s: Kept | None = None  # of texts
    device_flop_per_s: Kept | None = None  # of the model, on each device; GPUs only
    efficiency: Kept | None = None
    speedup: Kept | None = None
    slowdown: Kept | None = None
    checks: tuple[CheckRecord, ...] = ()
    tail: Kept | None = None  # windows on average over the faster half, t / t of the base; 1 is equal
    cautions: tuple[str, ...] = Field(default=(), max_length=MAX_CAUTIONS)  # warnings that do not change the outcome
    warning: str = ""  # the cautions, and counters that changed
    accuracy: Finite | None = None
    test_loss: Finite | None = None  # of texts, nats a label
    devices: tuple[str, ...] = ()
    waterfalls: tuple[WaterfallRecord, ...] = ()  # the candidate's, and after a FAIL the base's
    counters: dict[Side, Counters] = Field(default_factory=dict)  # what one step does; empty where it was not counted
    missing: tuple[Missing, ...] = ()  # figures that it has not, but for those that nobody expects

    @property
    def label(self) -> str:
        """Its id as it is shown, marked where ranks shared devices."""
        return f"{self.id}{oversubscribed_mark(self)}"

    def why(self, figure: Figure) -> str:
        """Return why a figure is missing; "" where it is not, or where nobody expects it."""
        return next((missing.why for missing in self.missing if missing.figure == figure), "")

    def lacks(self, figure: Figure, because: str) -> bool:
        """Return whether a figure is missing for such a reason."""
        return any((missing.figure, missing.because) == (figure, because) for missing in self.missing)

    @property
    def runs_script(self) -> bool:
        """Whether it is of a training script, which is trainer and workload at once."""
        return self.trainer == self.workload

    @property
    def place(self) -> tuple[str, str, str, int]:
        """What a cell of the same place in another run shares: trainer, workload, mode and world size."""
        return self.trainer, self.workload, self.mode, self.world_size

    @property
    def own_waterfall(self) -> WaterfallRecord | None:
        """The candidate's."""
        return next((fall for fall in self.waterfalls if fall.side == "candidate"), None)


class Record(Part):
    """One run."""

    schema_version: Literal[1] = 1
    run_id: str
    started_utc: str
    wall_s: Finite
    interrupted: bool = False
    cut_short: str = ""  # how an interrupted run ended, in words
    settings: tuple[str, ...]
    own_budget: bool = False  # whether the user chose the budget, and not a profile
    repeat: tuple[str, ...] = ()  # pytest's arguments that measure it again, but for --scaling-accept
    tolerance: Finite
    against: str | None
    bases: tuple[BaseRecord, ...] = ()
    planned: int = 0
    seed: int
    machine: Machine
    environment: Environment
    workloads: dict[str, Workload]
    workload_hashes: dict[str, str]
    datasets: dict[str, str]
    epoch_samples: dict[str, int]
    plan: tuple[str, ...] = ()  # what the run was going to do
    # Checks of correctness in the same pytest session, which run after the measurement.
    checks_to_come: Annotated[int, Field(ge=0, le=MAX_CHECKS)] = 0
    neighbours: tuple[str, ...] = ()  # what else used the machine before the first session
    arms: tuple[ArmRecord, ...]
    sessions: tuple[Session, ...]
    accuracies: tuple[Accuracy, ...]
    cells: tuple[CellRecord, ...]
    collectives: tuple[CollectiveRecord, ...] = ()


def oversubscribed_mark(part: CellRecord | CollectiveRecord) -> str:
    """Return what follows the name of a part whose ranks shared devices; "" where each had its own."""
    return " (oversubscribed)" if part.oversubscribed else ""


class Difference(NamedTuple):
    """One thing that is not the same in two runs; "-" where a run does not have it."""

    what: str
    first: str
    second: str


def differences(first: Mapping[str, object], second: Mapping[str, object], *, common: bool = False) -> list[Difference]:
    """Return what has different values by name, in the order of the first; with `common`, only what both have."""
    return [
        Difference(name, _words(first.get(name)), _words(second.get(name)))
        for name in dict.fromkeys((*first, *second))
        if first.get(name) != second.get(name) and (not common or (name in first and name in second))
    ]


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return " | ".join(map(str, value)) or "-"
    return "-" if value is None or value == "" else str(value)
