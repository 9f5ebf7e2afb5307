"""The collectives of a run: one pytest item for each, by algorithm and world size. Imports nothing that measures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from suite.room.devices import Devices

SIZES_BYTES = tuple(4**n for n in range(6, 13))  # 4 KiB to 16 MiB
LARGE_BYTES = tuple(4**n for n in range(13, 16))  # to 1 GiB: the links between GPUs are not full below
SHARDED = ("reduce_scatter", "all_gather")  # what FSDP exchanges with, and the halves of an all_reduce
IN_PROCESS = ("naive", "tree", "ring", "sharded", "bucketed")  # `reference.all_reduce.ALL_REDUCE`, which loads torch


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


def named(arguments: Sequence[str]) -> bool:
    """Return whether pytest's arguments name items of collectives: by file, by node id, or in `-k`."""
    naming = [argument for argument in arguments if not argument.startswith("--")]
    return any(word in argument for argument in naming for word in ("all_reduce", *SHARDED, *IN_PROCESS))
