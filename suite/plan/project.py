"""What a user's project says in its files: the tables of pyproject.toml, and Python files that are named there.

A `path.py:name` in a file starts at the folder of that file, wherever pytest was started. Pure.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEYS = ("workloads", "scripts", "floors")


def section(pyproject: Path, name: str) -> Any:
    """Return `tool.scaling.<name>` of a pyproject.toml; None where either does not exist.

    Raises:
        ValueError: something that contains it is no table, or has unknown keys.
    """
    if not pyproject.is_file():
        return None
    tools = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("tool", {})
    scaling = table_in(table_in(tools, "tool", pyproject).get("scaling", {}), "tool.scaling", pyproject)
    if unknown := next((key for key in scaling if key not in KEYS), None):
        raise ValueError(
            f"tool.scaling.{unknown} in {pyproject.name}: unknown; valid keys are {', '.join(KEYS)}, "
            "and options are in [tool.pytest.ini_options], such as scaling_budget"
        )
    return scaling.get(name)


def table_in(value: Any, name: str, pyproject: Path) -> dict[str, Any]:
    """Return a value that must be a table.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{name} = {value!r} in {pyproject.name}: expected a table, [{name}]")
    return value


def named_tables(
    pyproject: Path, kind: str, pattern: re.Pattern[str], letters: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the fields of each `[tool.scaling.<kind>s.NAME]`; none where there is no such table.

    Args:
        pyproject: a file that may not exist.
        kind: "workload" or "script".
        pattern: that a name must have; folders and pytest's items are named by it.
        letters: what it allows after a first letter or digit, in words.

    Raises:
        ValueError: a name does not fit, has its own field, or has no table.
    """
    own = section(pyproject, f"{kind}s")
    for name, value in ({} if own is None else table_in(own, f"tool.scaling.{kind}s", pyproject)).items():
        if not pattern.fullmatch(name):
            rule = f"expected a letter or digit, and after it {letters}"
            raise ValueError(f"{kind} {name!r} in {pyproject.name}: {rule}; rename it")
        fields = table_in(value, f"tool.scaling.{kind}s.{name}", pyproject)
        if "name" in fields:
            raise ValueError(f"{kind} {name!r} in {pyproject.name}: name: the table has it in its heading; remove it")
        yield name, fields


def named_from(spec: str, folder: Path) -> str:
    """Return what a file in `folder` names as `path.py:name`, relative to the working directory; other names stay."""
    source, colon, name = spec.rpartition(":")
    if not source.endswith(".py") or os.path.isabs(source) or folder == Path.cwd():
        return spec
    return f"{os.path.relpath(folder / source)}{colon}{name}"


def named_in(folder: Path | None, spec: str) -> str:
    """Return the name that a file has in `folder`, so that runs that are started elsewhere are of the same trainer.

    Workers search `folder` after the working directory (`reference.load`), so the name stays as it is where they would
    find another file by the new one, and for an absolute path outside of `folder`.

    Args:
        folder: the project's; without one every name stays.
        spec: `path.py:name`, relative to the working directory; other names stay.
    """
    source, colon, name = spec.rpartition(":")
    if folder is None or not source.endswith(".py") or not os.path.isfile(source):
        return spec
    path = os.path.relpath(source, folder)
    found = path if os.path.isfile(path) else folder / path
    outside = os.path.isabs(source) and path.startswith(os.pardir)
    same = os.path.isfile(found) and os.path.samefile(found, source)
    return f"{path}{colon}{name}" if same and not outside else spec


def searched_from(spec: str, folder: Path) -> str:
    """Return what `named_from` does, but the name as it is where workers find the same file by it.

    They search `folder` after the working directory (`reference.load`). A workload keeps its hash in every folder.
    """
    source = spec.rpartition(":")[0]
    return named_from(spec, folder) if os.path.isfile(source) else spec
