"""Every module that a page runs with `python -m` is there, unless the page says at which commit it was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.project import REPOSITORY

PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "docs/evidence/README.md")]
PAGES += sorted((REPOSITORY / "docs").glob("*.md"))
MORE = r"(?:`(?:(?:,| and) `[^`]+`)*,? at `?(\w+))?"  # further options, and at which commit
COMMAND = re.compile(rf"python -m ((?:docs|reference|suite|tests)(?:\.\w+)*)((?!python -m)[^`\n])*{MORE}")
AT = r"EVIDENCE|[0-9a-f]{7,40}"
ALL_AT = re.compile(rf"Every `python -m docs\.evidence\.X` here is at `?({AT})\b")

TABLE_AT = rf"^\|.*\bat `?({AT})\b.*\n\|[-|: ]+\|\n(\|.*\n?)+"  # its head says it of all of its commands


def modules(text: str) -> list[str]:
    """Return the modules that the commands of a page run, without those that it names at a commit."""
    elsewhere = re.sub(TABLE_AT, "", text, flags=re.MULTILINE)
    joined = re.sub(r"(?<=\S)\n {0,3}(?=\S)", " ", elsewhere)
    found = [match for match in COMMAND.finditer(joined) if not re.fullmatch(AT, match[3] or "")]
    named = [match[1] for match in found if "X" not in match[1]]
    return [name for name in named if not (ALL_AT.search(joined) and name.startswith("docs.evidence."))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_has_its_module(page: Path) -> None:
    places = {name: REPOSITORY / name.replace(".", "/") for name in modules(page.read_text(encoding="utf-8"))}
    missing = {
        name for name, at in places.items() if not (at.with_suffix(".py").exists() or (at / "__main__.py").exists())
    }
    assert not missing


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("`python -m docs.evidence.runs --table` prints", ["docs.evidence.runs"]),
        ("(`python -m\ndocs.evidence.tails`\nat EVIDENCE)", []),
        ("(`python -m docs.evidence.grown --each 4`, `--table` at EVIDENCE; full)", []),
        ('(`python -m docs.evidence.family --seeds 8`\nand `--rows "in 2 of"`, at EVIDENCE)', []),
        ("`python -m docs.evidence.rules` at 1a2b3c4d, `python -m suite drill`", ["suite"]),
        ("`python -m docs.evidence.rules` at rest", ["docs.evidence.rules"]),
        ("    sudo python -m docs.evidence.links      # a comment\n", ["docs.evidence.links"]),
        ("Every `python -m docs.evidence.X` here is at EVIDENCE. `python -m docs.evidence.rules`", []),
        (
            "| command, at EVIDENCE | a |\n|---|---|\n| `python -m docs.evidence.rules` | 1 |\n\n`python -m suite`",
            ["suite"],
        ),
    ],
)
def test_commands_at_a_commit_are_told_from_others(text: str, named: list[str]) -> None:
    assert modules(text) == named
