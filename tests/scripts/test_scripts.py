"""Scripts are red in exactly the items that their files name; the others are in `tests/end_to_end`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from suite.checks.bench import Bench
from suite.checks.script import check
from suite.plan import scripts
from suite.script.items import ITEMS
from tests.scripts import FAST, Entry, entries, verify


@pytest.mark.parametrize("entry", [entry for entry in entries() if entry.name in FAST], ids=lambda entry: entry.name)
def test_a_script_is_red_in_what_its_file_names(entry: Entry, bench: Bench) -> None:
    verify(entry, entry.check(bench))


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_a_wrong_script_names_its_source_and_its_items(entry: Entry) -> None:
    assert bool(entry.source) == (entry.path.parent.name == "wrong")
    assert entry.red <= set(ITEMS)


def test_every_item_is_red_for_a_script() -> None:
    assert set().union(*(entry.red for entry in entries())) == set(ITEMS)


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("raise ValueError('no such thing')", r"rank \d: ValueError: no such thing; see that it trains under torchrun"),
        (
            "print('done')",
            r"rank \d: NoUpdate: the script ended and made no update: no torch optimizer's step was called",
        ),
        ("raise SystemExit(3)", r"rank \d: RuntimeError: the script left with 3"),
    ],
    ids=["raises", "ends", "leaves"],
)
def test_a_script_that_does_not_train_says_why(code: str, failure: str, bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(code)
    checked = check(bench.pool, bench.devices, scripts.named(str(tmp_path / "train.py"), {}, None), 2, tmp_path)
    assert checked.verdicts == {}
    assert re.search(failure, checked.failure)
