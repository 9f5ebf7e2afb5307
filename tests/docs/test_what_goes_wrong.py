"""The table of bugs in docs/correctness.md says of each mutant what the mutant's file says, and is counted rightly."""

from __future__ import annotations

import re

import pytest

from tests.mutants import entries
from tests.support.project import REPOSITORY

PAGE = (REPOSITORY / "docs" / "correctness.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"\(\.\./tests/mutants/(\w+)\.py\)", PAGE)
MUTANTS = {mutant.name: mutant for mutant in entries()}


@pytest.mark.parametrize("name", SHOWN)
def test_a_row_has_the_bug_its_source_and_a_check_that_finds_it(name: str) -> None:
    mutant = MUTANTS[name]
    link = f"[{mutant.bug.removesuffix('.')}](../tests/mutants/{name}.py)"
    assert f"| {link} | {mutant.source} | `{mutant.killed_by}` |\n" in PAGE


def test_the_page_counts_its_rows() -> None:
    assert SHOWN
    assert f"has {len(SHOWN)} of them" in " ".join(PAGE.split())
    assert len(set(SHOWN)) == len(SHOWN)
