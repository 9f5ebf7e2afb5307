"""What a run is asked for and what it times: cells and collectives (pytest items), and arms (timed in turn)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from suite.room.devices import Devices

# A base is what the candidate is compared with; the pinned base is an older one, against which slow creep adds up.
Side = Literal["candidate", "base", "pinned"]

SINGLE = "single"  # the plain trainer on one device, which every speed-up is measured against
PLAIN = "suite.rank.planting:Independent"  # the same on each of k devices, without any exchange
APART = "apart"  # in the place of a script, its ranks without any exchange
SIZES_BYTES = tuple(4**n for n in range(6, 13))  # 4 KiB to 16 MiB
LARGE_BYTES = tuple(4**n for n in range(13, 16))  # to 1 GiB: the links between GPUs are not full below
SHARDED = ("reduce_scatter", "all_gather")  # what FSDP exchanges with, and the halves of an all_reduce
IN_PROCESS = ("naive", "tree", "ring", "sharded", "bucketed")  # `reference.all_reduce.ALL_REDUCE`, which loads torch
MOST_PARTS = 8  # of a path or a module in a trainer's name; where they do not tell it from others, all of it does


def short(trainer: str) -> str:
    """Return a trainer's table name, or the class name of one of the user's own."""
    return trainer.rpartition(":")[2]


def names(trainers: Iterable[str]) -> dict[str, str]:
    """Return each trainer's name among these: the short one, or as much of its file or module with it as is needed.

    Of `a.py:Mine` and `b.py:Mine` the names are `a.Mine` and `b.Mine`, of `a/x.py:Mine` and `b/x.py:Mine` they are
    `a/x.Mine` and `b/x.Mine`.
    """
    chosen: dict[str, str] = {}
    left = list(dict.fromkeys(trainers))
    for parts in range(MOST_PARTS + 1):
        tried = {trainer: _with_parts(trainer, parts) for trainer in left}
        often = Counter([*tried.values(), *chosen.values()])
        chosen |= {trainer: name for trainer, name in tried.items() if often[name] == 1}
        left = [trainer for trainer in left if trainer not in chosen]
    return chosen | {trainer: trainer for trainer in left}


def _with_parts(trainer: str, parts: int) -> str:
    """Return a trainer's short name behind so many parts of its path or module."""
    source = trainer.rpartition(":")[0]
    if not source or not parts:
        return short(trainer)
    between = "/" if source.endswith(".py") else "."
    last = source.removesuffix(".py").split(between)[-parts:]
    return f"{between.join(last)}.{short(trainer)}"


def measured_mode(mode: str, world_size: int) -> str:
    """Return the mode under which something is measured: on one device weak scaling is strong scaling."""
    return mode if world_size > 1 else "strong"


@dataclass(frozen=True)
class Cell:
    """trainer x workload x mode x world size.

    `name` is that of the trainer among those of the run (`names`); empty stands for the short one.
    """

    trainer: str
    workload: str
    mode: str
    world_size: int
    name: str = field(default="", compare=False)

    @property
    def runs_script(self) -> bool:
        """Whether it is of a training script, which is trainer and workload at once."""
        return self.trainer == self.workload

    @property
    def id(self) -> str:
        """Readable, and unique within a run; the pytest item's parameter id."""
        return f"{self.name or short(self.trainer)}-{self.workload}-{self.mode}-{self.world_size}"


@dataclass(frozen=True)
class Arm:
    """One thing that is timed in turn: a trainer at one world size, for one side of the comparison.

    On one device both modes share an arm (`measured_mode`), measured once. `runs_script` says that it is a training
    script, whose processes run one command.
    """

    side: Side
    trainer: str
    workload: str
    mode: str
    world_size: int
    runs_script: bool = field(default=False, compare=False)

    @property
    def id(self) -> str:
        """Unique within a run."""
        return f"{self.side}:{self.trainer}:{self.workload}:{self.mode}:{self.world_size}"

    @property
    def processes(self) -> tuple[Side, str, str, int]:
        """What arms share that share their processes: all but the mode, which a script's command depends on."""
        workload = f"{self.workload}:{self.mode}" if self.runs_script else self.workload
        return self.side, self.trainer, workload, self.world_size

    @property
    def on_one(self) -> Arm:
        """The same trainer's arm on one device, which both modes share."""
        return Arm(self.side, self.trainer, self.workload, measured_mode(self.mode, 1), 1, self.runs_script)


def arm(side: Side, trainer: str, cell: Cell) -> Arm:
    """Return the arm of a cell for a side and a trainer."""
    mode = measured_mode(cell.mode, cell.world_size)
    return Arm(side, trainer, cell.workload, mode, cell.world_size, cell.runs_script)


def one_device_arms(cells: Sequence[Cell], *, speedup: bool) -> list[tuple[Arm, ...]]:
    """Return the arms for efficiency (the same trainer on one device) and for speed-up (the plain trainer)."""
    wanted = [
        arm("candidate", trainer, cell).on_one
        for cell in cells
        for trainer in ([cell.trainer, SINGLE] if speedup and not cell.runs_script else [cell.trainer])
    ]
    return [(each,) for each in dict.fromkeys(wanted)]


@dataclass(frozen=True)
class CollectiveCell:
    """One algorithm at one world size, over all message sizes; one pytest item.

    Attributes:
        algorithm: one of `IN_PROCESS`, or a backend of torch.distributed.
        world_size: at least 2.
        collective: "all_reduce", or one of `SHARDED` by a backend.
    """

    algorithm: str
    world_size: int
    collective: str = "all_reduce"

    @property
    def id(self) -> str:
        """Readable; the pytest item's parameter id."""
        return f"{self.collective}-{self.algorithm}-{self.world_size}"


def sweeps(devices: Devices, world_sizes: Iterable[int], *, every: bool = True) -> list[CollectiveCell]:
    """Return the items of a run; none on one device.

    Args:
        devices: of the run.
        world_sizes: of the run.
        every: the algorithms of the reference too, not only the backend's own, which projections need; and `SHARDED` on
            CPU workers. NCCL always gets them, and gloo never does on GPUs, whose tensors it cannot gather.
    """
    chosen = []
    for world_size in (size for size in world_sizes if size > 1):
        backend = devices.backend(devices.here(world_size))
        in_process = IN_PROCESS if every and world_size <= devices.per_host else ()
        chosen += [CollectiveCell(algorithm, world_size) for algorithm in (backend, *in_process)]
        if backend == "nccl" or (every and devices.kind == "cpu"):
            chosen += [CollectiveCell(backend, world_size, collective) for collective in SHARDED]
    return chosen


def names_collectives(arguments: Sequence[str]) -> bool:
    """Return whether pytest's arguments name items of collectives: by file, by node id, or in `-k`."""
    naming = [argument for argument in arguments if not argument.startswith("--")]
    return any(word in argument for argument in naming for word in ("all_reduce", *SHARDED, *IN_PROCESS))
