"""A cell of the default matrix made slower in a clone's working tree, for `docs.evidence.runs`."""

from __future__ import annotations

from pathlib import Path

from reference.schedule import MODES
from reference.trainers import TRAINERS, trains
from suite.options import DEFAULT_TRAINERS
from suite.plan.cells import Cell
from suite.plan.workloads import BUILT_IN

WORKLOAD = BUILT_IN["lenet"]

# Only the batch tells a trainer in which mode it is; the short last batch of an epoch may count as the other mode's.
SLOWER = """

from suite.rank.planting import slowed

_Right, _Slow = {name}, slowed("{module}:{name}", {share}, at={size})


class {name}(_Slow):
    def step(self, X, y, global_batch_size):
        slow = {size} == 1 or (global_batch_size > {batch}) == {weak}
        return (_Slow if slow else _Right).step(self, X, y, global_batch_size)
"""


def cells() -> list[list[str]]:
    """Return the ids of the cells that can be slower, those that share an arm together."""
    trainers = [name for name in DEFAULT_TRAINERS if "samples" in trains(name)]
    both = [[Cell(name, WORKLOAD.name, mode, 1).id for mode in MODES] for name in trainers]
    return both + [[Cell(name, WORKLOAD.name, mode, 2).id] for name in trainers for mode in MODES]


def plant(root: Path, ids: list[str], share: float, batch: int = WORKLOAD.batch) -> None:
    """Make the steps of a cell longer by a share of their time.

    Args:
        root: of a clone; its commit stays as it is.
        ids: of the cell, and of the one that shares its arm.
        share: 0.1 for a tenth.
        batch: of the workload on one device.
    """
    trainer, _, mode, size = ids[0].rsplit("-", 3)
    module, _, name = TRAINERS[trainer].partition(":")
    told = {"share": share, "size": size, "batch": batch, "weak": mode == "weak"}
    with (root / module.replace(".", "/")).with_suffix(".py").open("a", encoding="utf-8") as file:
        file.write(SLOWER.format(module=module, name=name, **told))
