"""Counts the rooms of the suite, their floors, and the imports that run back up, from the imports alone.

    python -m tests.docs.floor_plan            of this checkout
    python -m tests.docs.floor_plan FOLDER     of another one

A room is a package or a module directly in `suite/`, or `reference/` as a whole; packages inside a room are parts of
it. A room is one floor above the highest room that it imports. Where rooms import one another in a circle, the fewest
imports that must run back up are left out, and counted.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

from tests.support.project import REPOSITORY

LARGEST_CIRCLE = 9  # rooms; all their orders are tried

Arrows = dict[str, set[str]]


class FloorPlan(NamedTuple):
    """Rooms by floor, from 1 up, and the imports between rooms that run back up."""

    floors: dict[str, int]
    back_up: set[tuple[str, str]]


def modules(folder: Path) -> dict[str, Path]:
    """Return every module of suite/ and reference/ by its dotted name."""
    paths = [path for top in ("suite", "reference") for path in sorted((folder / top).rglob("*.py"))]
    return {".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imported(path: Path, known: Collection[str]) -> Iterator[str]:
    """Yield the known modules that a file imports, wherever in it: at its top, in a function, for types alone."""
    for names in _may_be_modules(path):
        yield from [name for name in names if name in known][:1]


@cache
def _may_be_modules(path: Path) -> list[tuple[str, ...]]:
    """Return for every import in a file which names may be that of a module, the longest one first."""
    found: list[tuple[str, ...]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name,) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
    return found


def room(module: str) -> str:
    """Return the room of a module: `run` for `suite.run.session`, `reference` for all of reference/."""
    top, _, inside = module.partition(".")
    return inside.partition(".")[0] if top == "suite" else top


def arrows(folder: Path) -> Arrows:
    """Return which rooms each room imports."""
    known = modules(folder)
    rooms: Arrows = {room(module): set() for module in known if room(module)}
    for module, path in known.items():
        if here := room(module):
            rooms[here] |= {room(name) for name in imported(path, known)} - {here, ""}
    return rooms


def plan(rooms: Arrows) -> FloorPlan:
    """Put every room on its floor.

    Raises:
        ValueError: more than `LARGEST_CIRCLE` rooms import one another in a circle.
    """
    back_up = {arrow for circle in _circles(rooms) for arrow in _fewest_back_up(rooms, circle)}

    @cache
    def floor(here: str) -> int:
        return 1 + max((floor(there) for there in rooms[here] if (here, there) not in back_up), default=0)

    return FloorPlan({here: floor(here) for here in rooms}, back_up)


def _circles(rooms: Arrows) -> list[frozenset[str]]:
    """Return the largest sets of rooms in which each reaches every other."""

    @cache
    def reached(here: str) -> frozenset[str]:
        seen, waiting = set[str](), [here]
        while waiting:
            new = rooms[waiting.pop()] - seen
            seen |= new
            waiting += new
        return frozenset(seen)

    circles = {frozenset(there for there in reached(here) if here in reached(there)) for here in rooms}
    return [circle for circle in circles if circle]


def _fewest_back_up(rooms: Arrows, circle: Collection[str]) -> set[tuple[str, str]]:
    if len(circle) > LARGEST_CIRCLE:
        raise ValueError(f"{len(circle)} rooms in a circle: {sorted(circle)}; at most {LARGEST_CIRCLE} are laid out")
    inside = [(here, there) for here in circle for there in rooms[here] if there in circle]
    orders = ({name: height for height, name in enumerate(order)} for order in permutations(sorted(circle)))
    return min(({(a, b) for a, b in inside if height[a] < height[b]} for height in orders), key=len)


def main() -> None:
    """Print the plan of a checkout, top floor first."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY
    floors, back_up = plan(rooms := arrows(folder))
    for number in range(max(floors.values()), 0, -1):
        print(f"floor {number}  {'  '.join(sorted(name for name in floors if floors[name] == number))}")
    print(
        f"{len(floors)} rooms, {max(floors.values())} floors, {sum(map(len, rooms.values()))} arrows, "
        f"{len(back_up)} back up"
    )
    for here, there in sorted(back_up):
        print(f"back up: {here} imports {there}")


if __name__ == "__main__":
    main()
