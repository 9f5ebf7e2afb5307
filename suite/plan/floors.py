"""Read the least efficiency of cells from `[[tool.scaling.floors]]` in the user's pyproject.toml.

    [[tool.scaling.floors]]
    efficiency = 0.7            # every cell

    [[tool.scaling.floors]]
    trainer = "ddp"
    world_size = 8
    efficiency = 0.9            # these, instead of the first entry

An entry holds for the cells that agree with all its keys. Of several that hold for a cell the most specific counts: the
one that has every key of the others, and more. Without such an entry it is not clear which was meant, which is an
error. `suite.verdict.floor` judges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from reference.trainers import TRAINERS
from suite.plan.cells import Cell
from suite.plan.project import named_from, section
from suite.room.part import Part, problem

_HEADING = "[[tool.scaling.floors]]"


class Floor(Part):
    """One entry.

    Attributes:
        entry: its place in the file, from 1.
        efficiency: the least E_k. Caches can make k devices more than k times as fast, but a value above 1.5 is likely
            a percentage.
        workload, trainer, mode: as in `--scaling-workload`, `-trainer` and `-mode`; None holds for all.
        world_size: from 2, because efficiency is measured against one device; None holds for all.
    """

    entry: int = Field(exclude=True)
    efficiency: Annotated[float, Field(gt=0, le=1.5, strict=True)]
    workload: str | None = None
    trainer: str | None = None
    mode: Literal["strong", "weak"] | None = None
    world_size: Annotated[int, Field(ge=2, strict=True)] | None = None

    @property
    def keys(self) -> dict[str, Any]:
        """The keys that a cell must agree with."""
        return self.model_dump(exclude={"efficiency"}, exclude_none=True)

    def of(self, trainer: str | None) -> Floor:
        """Return the same floor of a trainer."""
        return self.model_copy(update={"trainer": trainer})


def available(pyproject: Path, workloads: Collection[str]) -> tuple[Floor, ...]:
    """Return the floors in a pyproject.toml, which may not exist.

    Args:
        pyproject: its path.
        workloads: the names of all workloads; a floor for any other would have no effect.

    Raises:
        ValueError: not a list of tables, or an entry with a wrong key or value; the message has its number.
    """
    given = section(pyproject, "floors") or []
    if not isinstance(given, list) or not all(isinstance(fields, dict) for fields in given):
        raise ValueError(f"floors in {pyproject.name}: each is a table of its own: write {_HEADING} above it")
    return tuple(_read(number, fields, pyproject, workloads) for number, fields in enumerate(given, 1))


def _read(number: int, fields: dict[str, Any], pyproject: Path, workloads: Collection[str]) -> Floor:
    where = f"{_HEADING} entry {number} in {pyproject.name}"
    if "entry" in fields:
        raise ValueError(f"{where}: entry: Extra inputs are not permitted; remove it")
    try:
        floor = Floor.model_validate({**fields, "entry": number})
    except ValidationError as error:
        raise ValueError(f"{where}: {problem(error)}") from error
    if floor.workload is not None and floor.workload not in workloads:
        raise ValueError(f"{where}: workload {floor.workload!r}: valid values are {', '.join(workloads)}")
    if floor.trainer is not None and ":" not in floor.trainer and floor.trainer not in TRAINERS:
        raise ValueError(
            f"{where}: trainer {floor.trainer!r}: valid values are {', '.join(TRAINERS)}, module:Class or path.py:Class"
        )
    return floor.of(floor.trainer and named_from(floor.trainer, pyproject.parent))


def choose(floors: Sequence[Floor], cell: Cell) -> Floor | None:
    """Return the most specific floor that holds for a cell; None where none does.

    Raises:
        ValueError: several hold, and none of them has every key of the others and more.
    """
    holding = [floor for floor in floors if all(getattr(cell, key) == value for key, value in floor.keys.items())]
    most = [floor for floor in holding if all(floor.keys.keys() >= other.keys.keys() for other in holding)]
    if len(most) == 1 or not holding:
        return next(iter(most), None)
    rivals = most or holding
    numbers = " and ".join(str(floor.entry) for floor in rivals)
    keys = sorted({key for floor in rivals for key in floor.keys})
    remedy = f"add one that has {', '.join(keys)}" if not most else "keep one of them"
    raise ValueError(f"{_HEADING} entries {numbers} hold for {cell.id}, and none is more specific: {remedy}")


def resolve(floors: Sequence[Floor], cells: Iterable[Cell], oversubscribed: Callable[[int], bool]) -> dict[Cell, Floor]:
    """Return the floor of every cell that has one, except on one device or on oversubscribed devices.

    Args:
        floors: from `available`.
        cells: of the run.
        oversubscribed: whether several ranks share a device at a world size.

    Raises:
        ValueError: see `choose`.
    """
    judged = (cell for cell in cells if cell.world_size > 1 and not oversubscribed(cell.world_size))
    chosen = ((cell, choose(floors, cell)) for cell in judged)
    return {cell: floor for cell, floor in chosen if floor is not None}
