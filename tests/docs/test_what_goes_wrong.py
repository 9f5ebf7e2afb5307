"""The page of bugs says of each mutant what the mutant's file says, and counts them rightly."""

from __future__ import annotations

import re

import pytest

from tests.mutants import entries
from tests.support.project import REPOSITORY

PAGE = (REPOSITORY / "docs" / "what-goes-wrong.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"\(\.\./tests/mutants/(\w+)\.py\)", PAGE)
MUTANTS = {mutant.name: mutant for mutant in entries()}


@pytest.mark.parametrize("name", SHOWN)
def test_a_row_has_the_bug_its_source_and_a_check_that_finds_it(name: str) -> None:
    mutant = MUTANTS[name]
    link = f"[{mutant.bug.removesuffix('.')}](../tests/mutants/{name}.py)"
    assert f"| {link} | {mutant.source} | `{mutant.killed_by}` |\n" in PAGE


def test_the_page_counts_its_rows() -> None:
    assert f"has {len(SHOWN)} of them" in PAGE
    assert f"(what-goes-wrong.md): {len(SHOWN)} bugs" in (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    assert len(set(SHOWN)) == len(SHOWN)
