"""Training scripts under test: right ones, and wrong ones with one mistake each, its source, and what it turns red.

A few are checked in a run of all tests (`tests/scripts/test_scripts.py`), one of each kind in the gate
(`tests/end_to_end/test_scripts.py`), and all of them every night (`tox -e nightly`).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from suite.checks.bench import Bench
from suite.checks.script import Checked, check
from suite.plan import scripts
from suite.script.items import ITEMS

FOLDER = Path(__file__).parent
BATCH = 16
FAST = ("ddp", "accumulation_by_ranks", "mean_of_means", "never_wrapped", "no_sampler", "schedule_once_a_process")
GATE = (  # right ones of several kinds, and a wrong one for each item that `FAST` does not turn red
    "fully_sharded", "iterable", "own_update", "tensor_parallel",
    "not_broadcast", "one_output", "same_dropout", "separate_groups", "thawed_after_wrapping",
)  # fmt: skip
# What is not checked of a right script; of most, because they draw no random numbers.
UNCHECKED = {
    "workers": set[str](),
    "fully_sharded": {"random", "replicas"},
    "own_update": {"random", "schedule"},
    "tensor_parallel": {"random", "data", "exchange", "replicas"},
    "pipeline": set(ITEMS) - {"world", "moves"},
    "experts": {"random", "start", "replicas", "gradient"},
}


@dataclass(frozen=True)
class Entry:
    """A script.

    Attributes:
        path: of its file.
        about: what it does.
        source: where the mistake was reported; "" for a right one.
        red: the items that it fails.
        update: what makes its updates, if no optimizer of torch's does.
    """

    path: Path
    about: str
    source: str
    red: frozenset[str]
    update: str | None = None

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.stem

    @property
    def unchecked(self) -> set[str]:
        """What is not checked of it, if it is right."""
        return UNCHECKED.get(self.name, {"random"})

    def check(self, bench: Bench, world_size: int = 2) -> Checked:
        """Check it as a user's command would."""
        script = scripts.named(f"{self.path} --batch_size {{batch}}", {}, BATCH)
        script = script.model_copy(update={"update": self.update})
        return check(bench.pool, bench.devices, script, world_size, FOLDER)


def entries() -> list[Entry]:
    """Return all scripts."""
    return [_entry(path) for folder in ("right", "wrong") for path in sorted((FOLDER / folder).glob("*.py"))]


def _entry(path: Path) -> Entry:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    source, red, update = (
        re.search(rf"^{name}: ([^\n]+)\.$", text, re.MULTILINE) for name in ("Source", "Red", "Update")
    )
    items = frozenset(red[1].split(", ")) - {"nothing"} if red else frozenset[str]()
    about = " ".join(text.partition("\n\n")[0].split())
    return Entry(path, about, source[1] if source else "", items, update[1] if update else None)


def row(entry: Entry) -> str:
    """Return the row of a wrong script in the table of docs/scripts.md."""
    red = ", ".join(f"`{item}`" for item in ITEMS if item in entry.red) or "nothing; a note"
    link = f"[`{entry.name}`](../tests/scripts/wrong/{entry.name}.py)"
    return f"| {link} | {entry.about.removesuffix('.')} | {entry.source} | {red} |"


def verify(entry: Entry, checked: Checked) -> None:
    """Compare what was found with what the script's file says."""
    assert checked.failure == ""
    assert {item for item, verdict in checked.verdicts.items() if verdict.finding} == entry.red
    if not entry.source:
        assert {item for item, verdict in checked.verdicts.items() if verdict.unchecked} == entry.unchecked
