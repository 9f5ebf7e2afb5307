"""The field's historical bugs, one file each, with its public source; every one must be found by some check.

A file holds `KIND` (what the mutant stands in for: "trainer", "all_reduce", "scatter", "gather", "evaluation",
"feed" or "rank_feed"), `KILLED_BY` (a check that finds it), and the mutant itself: the class `Mutant` or the function
`mutant`.
A mutant that raises, dies or hangs is not killed by that: a check has to find what it computes. Where this end is the
bug itself, the file gives in `CRASHES` words of the failure. A trainer's file also has `LOOKS_LIKE`: phrases of the
suspects that are right for it, " | " between them (`tests.mutants.diagnoses`).
`python -m tests.mutants` puts every check to every mutant and prints the kill table.
"""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.checks.search import SearchResult


@dataclass(frozen=True)
class Entry:
    """What a mutant's file says of it; the file is not executed for it."""

    name: str
    kind: str
    killed_by: str
    bug: str
    source: str
    crashes: str = ""
    looks_like: str = ""

    @property
    def trainer(self) -> str:
        """The name by which a worker loads it."""
        return f"{Path(__file__).parent / self.name}.py:Mutant"

    def killed(self, result: SearchResult) -> bool:
        """Say whether the search found the bug: by a wrong number, or the way of ending that is the bug."""
        if result.crashed:
            return bool(self.crashes) and self.crashes in result.failure
        return bool(result.failure)

    def function(self) -> Any:
        """Load and return the function."""
        return importlib.import_module(f"tests.mutants.{self.name}").mutant


def entries() -> list[Entry]:
    """Return all mutants, sorted by name."""
    paths = sorted(Path(__file__).parent.glob("*.py"))
    return [_read(path) for path in paths if not path.stem.startswith("_") and path.stem != "diagnoses"]


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
        values.get("CRASHES", ""),
        values.get("LOOKS_LIKE", ""),
    )
