"""The least efficiency that is asked of cells, from `[[tool.scaling.floors]]` in the user's pyproject.toml.

    [[tool.scaling.floors]]
    efficiency = 0.7            # every cell

    [[tool.scaling.floors]]
    trainer = "ddp"
    world_size = 8
    efficiency = 0.9            # these, whatever the first one says

An entry holds for the cells that agree with every key it has. Of several that hold for a cell the most specific counts:
the one that has every key of each other, and more. Where there is none, because two have keys that the other lacks, or
the same ones, nothing says which was meant, and it is an error. Judging is `suite.verdict.floor`'s.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reference.trainers import TRAINERS
from suite.plan.cells import Cell

_HEADING = "[[tool.scaling.floors]]"


class Floor(BaseModel):
    """One entry.

    Attributes:
        entry: its place in the file, from 1.
        efficiency: the least E_k; up to 1.5, because caches can make k devices more than k times as fast, while what is
            above that is a percentage by mistake.
        workload, trainer, mode: as `--scaling-workload`, `-trainer` and `-mode` take them; None holds for all.
        world_size: from 2, because one device is what efficiency is measured against; None holds for all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    entry: int = Field(exclude=True)
    efficiency: Annotated[float, Field(gt=0, le=1.5, strict=True, allow_inf_nan=False)]
    workload: str | None = None
    trainer: str | None = None
    mode: Literal["strong", "weak"] | None = None
    world_size: Annotated[int, Field(ge=2, strict=True)] | None = None

    @property
    def keys(self) -> dict[str, Any]:
        """What a cell must agree with."""
        return self.model_dump(exclude={"efficiency"}, exclude_none=True)

    def holds_for(self, cell: Cell) -> bool:
        """Whether the cell agrees with every key."""
        return all(getattr(cell, key) == value for key, value in self.keys.items())


def available(pyproject: Path, workloads: Collection[str]) -> tuple[Floor, ...]:
    """The floors in a pyproject.toml, which may not exist.

    Args:
        pyproject: where they are looked for.
        workloads: the names there are; a floor for one that does not exist would never be asked for.

    Raises:
        ValueError: not a list of tables, or an entry with a wrong key or value; the message has its number.
    """
    if not pyproject.is_file():
        return ()
    given = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("tool", {}).get("scaling", {}).get("floors", [])
    if not isinstance(given, list) or not all(isinstance(fields, dict) for fields in given):
        raise ValueError(f"floors in {pyproject.name}: each is a table of its own: write {_HEADING} above it")
    return tuple(_read(number, fields, pyproject.name, workloads) for number, fields in enumerate(given, 1))


def _read(number: int, fields: dict[str, Any], file: str, workloads: Collection[str]) -> Floor:
    where = f"{_HEADING} entry {number} in {file}"
    if "entry" in fields:
        raise ValueError(f"{where}: entry: Extra inputs are not permitted")
    try:
        found = Floor.model_validate({**fields, "entry": number})
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if found.workload is not None and found.workload not in workloads:
        raise ValueError(f"{where}: workload {found.workload!r}: valid values are {', '.join(workloads)}")
    if found.trainer is not None and ":" not in found.trainer and found.trainer not in TRAINERS:
        raise ValueError(
            f"{where}: trainer {found.trainer!r}: valid values are {', '.join(TRAINERS)}, module:Class or path.py:Class"
        )
    return found


def choose(floors: Sequence[Floor], cell: Cell) -> Floor | None:
    """The most specific floor that holds for a cell; None where none does.

    Raises:
        ValueError: several hold, and none of them has every key of the others and more.
    """
    holding = [floor for floor in floors if floor.holds_for(cell)]
    most = [floor for floor in holding if all(floor.keys.keys() >= other.keys.keys() for other in holding)]
    if len(most) == 1 or not holding:
        return next(iter(most), None)
    rivals = most or holding
    numbers = " and ".join(str(floor.entry) for floor in rivals)
    keys = sorted({key for floor in rivals for key in floor.keys})
    remedy = f"add one that has {', '.join(keys)}" if not most else "keep one of them"
    raise ValueError(f"{_HEADING} entries {numbers} hold for {cell.id}, and none is more specific: {remedy}")


def resolve(floors: Sequence[Floor], cells: Iterable[Cell], oversubscribed: Callable[[int], bool]) -> dict[Cell, Floor]:
    """The floor of every cell that has one.

    Cells on one device have no efficiency, and oversubscribed ones none that means anything: they are left out.

    Args:
        floors: from `available`.
        cells: of the run; asked before anything is measured, so that an ambiguous file costs no time.
        oversubscribed: whether a world size has several ranks share a device.

    Raises:
        ValueError: see `choose`.
    """
    judged = (cell for cell in cells if cell.world_size > 1 and not oversubscribed(cell.world_size))
    chosen = ((cell, choose(floors, cell)) for cell in judged)
    return {cell: floor for cell, floor in chosen if floor is not None}
