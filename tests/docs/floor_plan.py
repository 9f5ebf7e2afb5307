"""Draws the rooms of the suite by floor, from the imports alone.

    python -m tests.docs.floor_plan            of this checkout
    python -m tests.docs.floor_plan FOLDER     of another one

A room is a package or a module directly in `suite/`, or `reference/` as a whole; packages inside a room are parts of
it. A room is one floor above the highest room that it imports; `lint-imports` keeps rooms from importing one another in
a circle.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from tests.support.project import REPOSITORY

Arrows = dict[str, set[str]]


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


def floors(rooms: Arrows) -> dict[str, int]:
    """Return the floor of every room, from 1 up.

    Raises:
        graphlib.CycleError: rooms import one another in a circle.
    """
    found: dict[str, int] = {}
    for here in TopologicalSorter(rooms).static_order():
        found[here] = 1 + max((found[there] for there in rooms[here]), default=0)
    return found


def main() -> None:
    found = floors(arrows(Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY))
    for number in range(max(found.values()), 0, -1):
        print(f"floor {number}  {'  '.join(sorted(name for name in found if found[name] == number))}")


if __name__ == "__main__":
    main()
