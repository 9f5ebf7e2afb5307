"""The collectives of a run: one pytest item for each algorithm and world size. Imports nothing that measures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from suite.room.devices import Devices

SIZES_BYTES = tuple(4**n for n in range(6, 13))  # 4 KiB to 16 MiB
LARGEST_BYTES = SIZES_BYTES[-1]
IN_PROCESS = ("naive", "tree", "ring", "sharded", "bucketed")  # `reference.all_reduce.ALL_REDUCE`, which loads torch


@dataclass(frozen=True)
class CollectiveCell:
    """One algorithm at one world size, over all message sizes; one pytest item.

    Attributes:
        algorithm: one of `IN_PROCESS`, or a backend of torch.distributed.
        world_size: at least 2.
    """

    algorithm: str
    world_size: int

    @property
    def id(self) -> str:
        """Readable; the pytest item's parameter id."""
        return f"all_reduce-{self.algorithm}-{self.world_size}"


def sweeps(devices: Devices, world_sizes: Iterable[int], *, every: bool = True) -> list[CollectiveCell]:
    """Return the items of a run; none on one device.

    Args:
        devices: of the run.
        world_sizes: of the run.
        every: the algorithms of the reference too, not only the backend's own, which projections need.
    """
    algorithms = IN_PROCESS if every else ()
    return [
        CollectiveCell(algorithm, world_size)
        for world_size in world_sizes
        if world_size > 1
        for algorithm in (devices.backend(devices.names[:world_size]), *algorithms)
    ]


def named(arguments: Sequence[str]) -> bool:
    """Return whether pytest's arguments name items of all_reduce: by file, by node id, or in `-k`."""
    naming = [argument for argument in arguments if not argument.startswith("--scaling-")]
    return any(word in argument for argument in naming for word in ("all_reduce", *IN_PROCESS))
