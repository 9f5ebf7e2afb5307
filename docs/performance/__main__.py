"""Measure what docs/performance.md says, and write it there: how fast the suite and its reference are.

    python -m docs.performance                      # all sections, about an hour on two cores at rest
    python -m docs.performance collecting steps     # these alone; the others stay as they are

Every figure is a ratio of arms that took turns, or the seconds of a run of this command. Each section is a module with
a `TITLE` and a function `section` that returns Markdown; it can be run by itself.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import platform

import torch

from docs.evidence.log import ROOT, code_state
from suite.room.limits import usable_cores

PAGE = ROOT / "docs" / "performance.md"
SECTIONS = ("steps", "answer", "designs", "growth", "collecting")


def main() -> None:
    """Measure the sections that were asked for, one after the other, and write each as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    asked = parser.parse_args().sections or list(SECTIONS)
    if unknown := set(asked) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    for name in asked:
        module = importlib.import_module(f"docs.performance.{name}")
        PAGE.write_text(
            replaced(PAGE.read_text(encoding="utf-8"), module.TITLE, module.section() + "\n\n" + made(name))
        )


def replaced(page: str, title: str, text: str) -> str:
    """Return a page with other text under one of its headings.

    Raises:
        ValueError: the page has no such heading.
    """
    before, heading, rest = page.partition(f"## {title}\n")
    if not heading:
        raise ValueError(f"docs/performance.md has no heading '## {title}'")
    _, following, after = rest.partition("\n## ")
    return f"{before}{heading}\n{text.strip()}\n{following}{after}"


def made(name: str) -> str:
    """Return by which command, of which commit and on what machine a section was made."""
    state = code_state()
    commit = state["commit"] + (" with changes" if state["dirty"] else "")
    made_on = f"{usable_cores()} cores ({platform.machine()}), torch {torch.__version__}, {datetime.date.today()}"
    return f"`python -m docs.performance {name}` at {commit}, on {made_on}."


if __name__ == "__main__":
    main()
