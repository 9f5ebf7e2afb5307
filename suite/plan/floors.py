"""Floors of efficiency, from the user's pyproject.toml; `suite.verdict.floor` judges them.

    [[tool.scaling.floors]]
    trainer = "ddp"             # without a key: every trainer, every world size
    world_size = 8
    efficiency = 0.9

An entry holds for the cells that agree with all its keys. The one with the most keys counts, of several the highest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from reference.trainers import TRAINERS
from suite.plan.cells import Cell
from suite.plan.project import section
from suite.room.part import Part, problem


class Floor(Part):
    """The least E_k of some cells; a key that is None holds for all. Above 1.5 it is likely a percentage."""

    efficiency: Annotated[float, Field(gt=0, le=1.5, strict=True)]
    workload: str | None = None
    trainer: str | None = None
    mode: Literal["strong", "weak"] | None = None
    world_size: Annotated[int, Field(ge=2, strict=True)] | None = None  # efficiency is measured against one device


def available(pyproject: Path, workloads: Collection[str]) -> tuple[Floor, ...]:
    """Return the floors in a pyproject.toml, which may not exist, with the trainers' names as they are there.

    Raises:
        ValueError: not a list of tables, or one with a wrong key or value, such as none of these workloads.
    """
    where = f"[[tool.scaling.floors]] in {pyproject.name}"
    try:
        floors = TypeAdapter(tuple[Floor, ...]).validate_python(section(pyproject, "floors") or ())
    except ValidationError as error:
        raise ValueError(f"{where}, counted from 0: {problem(error)}") from error
    for floor in floors:
        if floor.workload not in (None, *workloads):
            raise ValueError(f"{where}: workload {floor.workload!r}: valid values are {', '.join(workloads)}")
        if floor.trainer not in (None, *TRAINERS) and ":" not in str(floor.trainer):
            valid = f"{', '.join(TRAINERS)}, module:Class or path.py:Class"
            raise ValueError(f"{where}: trainer {floor.trainer!r}: valid values are {valid}")
    return floors


def resolve(floors: Sequence[Floor], cells: Sequence[Cell], oversubscribed: Callable[[int], bool]) -> dict[Cell, Floor]:
    """Return the floor of every cell that has one, except on one device or on oversubscribed devices.

    Args:
        floors: of the configuration.
        cells: of the run.
        oversubscribed: whether so many ranks share devices.
    """
    chosen: dict[Cell, Floor] = {}
    keys = {floor: floor.model_dump(exclude={"efficiency"}, exclude_none=True) for floor in floors}
    for floor in sorted(floors, key=lambda floor: (len(keys[floor]), floor.efficiency)):
        for cell in cells:
            agrees = all(getattr(cell, key) == value for key, value in keys[floor].items())
            if agrees and cell.world_size > 1 and not oversubscribed(cell.world_size):
                chosen[cell] = floor
    return chosen
