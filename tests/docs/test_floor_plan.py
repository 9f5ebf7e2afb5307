"""The drawing in docs/how-it-works.md shows the imports as they are, and the walks through it exist."""

from __future__ import annotations

import re
from graphlib import CycleError
from pathlib import Path

import pytest

from tests.docs.floor_plan import arrows, floors, imported, modules
from tests.support.project import REPOSITORY

PAGE = (REPOSITORY / "docs" / "how-it-works.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
[DRAWING] = [block for block in BLOCKS if block.startswith("floor ")]
WALKS = [block for block in BLOCKS if block != DRAWING]
MOST_ROOMS, MOST_FLOORS = 22, 10


def test_drawing_shows_every_room_on_its_floor() -> None:
    built = floors(arrows(REPOSITORY))
    lines = [line.split() for line in DRAWING.splitlines()]
    drawn = {name: int(number) for _, number, *names in lines for name in names}
    assert drawn == built
    assert len(built) <= MOST_ROOMS
    assert max(built.values()) <= MOST_FLOORS


@pytest.mark.parametrize("walk", WALKS, ids=["sample", "minibatch", "option", "reason"])
def test_every_step_of_a_walk_is_an_import_or_a_message(walk: str) -> None:
    known = modules(REPOSITORY)
    stops = re.split(r"\s*(->|~>)\s*", walk.strip())
    assert set(stops[::2]) <= set(known)
    for number in range(2, len(stops), 2):
        there, before = stops[number], stops[:number:2]
        tied = set(imported(known[there], known)) & set(before)
        tied |= {here for here in before if there in imported(known[here], known)}
        assert bool(tied) == (stops[number - 1] == "->"), f"{before[-1]} {stops[number - 1]} {there}"


def test_table_names_every_room() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    named = {name.rstrip("/") for row in rows for name in re.findall(r"`([\w/]+)`", row)}
    assert set(arrows(REPOSITORY)) <= named


def test_page_lists_every_decision() -> None:
    decisions = {path.name for path in (REPOSITORY / "docs" / "adr").glob("*.md")}
    assert set(re.findall(r"\(adr/(.*?)\)", PAGE)) == decisions


def test_every_file_that_the_page_names_exists() -> None:
    for name in re.findall(r"`([\w/]+\.py)`", PAGE):
        assert any((REPOSITORY / top / name).is_file() for top in ("suite", "reference")), name


def test_a_room_is_one_floor_above_the_highest_that_it_imports() -> None:
    assert floors({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": 3, "b": 2, "c": 1}
    with pytest.raises(CycleError):
        floors({"a": {"b"}, "b": {"a"}})


def test_package_inside_a_room_is_part_of_it(tmp_path: Path) -> None:
    for name, text in {
        "suite/__init__.py": "",
        "suite/render/__init__.py": "",
        "suite/render/html/page.py": "def page():\n    from suite import plan\n",
        "suite/plan.py": "import reference.sgd\n",
        "reference/sgd.py": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert arrows(tmp_path) == {"render": {"plan"}, "plan": {"reference"}, "reference": set()}
