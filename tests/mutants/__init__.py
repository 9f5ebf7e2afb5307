"""The field's historical bugs, one file each, with its public source; every one must be found by some check.

A file holds `KIND` (what the mutant stands in for: "trainer", "all_reduce", "scatter", "evaluation" or "feed"),
`KILLED_BY` (a check that finds it), and the mutant itself: the class `Mutant` or the function `mutant`.
`python -m tests.mutants` puts every check to every mutant and prints the kill table.
"""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A mutant as its file describes it; the file itself is not run."""

    name: str
    kind: str
    killed_by: str
    bug: str
    source: str

    @property
    def trainer(self) -> str:
        """How a worker loads it."""
        return f"{Path(__file__).parent / self.name}.py:Mutant"

    def function(self) -> Any:
        """The function, loaded here."""
        return importlib.import_module(f"tests.mutants.{self.name}").mutant


def entries() -> list[Entry]:
    """All mutants, by name."""
    return [_read(path) for path in sorted(Path(__file__).parent.glob("*.py")) if not path.stem.startswith("_")]


def _read(path: Path) -> Entry:
    tree = ast.parse(path.read_text())
    doc = ast.get_docstring(tree) or ""
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
        if isinstance(node.value, ast.Constant)
    }
    source = doc.partition("Source:")[2]
    return Entry(
        path.stem,
        values["KIND"],
        values.get("KILLED_BY", ""),
        " ".join(doc.partition("\n\n")[0].split()),
        " ".join(source.split()),
    )
