"""The table of what runs on GPUs take, in docs/gpu.md."""

from __future__ import annotations

from docs.evidence.gpu_time import table
from tests.support.project import REPOSITORY

FIXED = 7  # columns that do not depend on draws, and the edge


def test_page_has_the_times_that_the_command_prints() -> None:
    """All but the columns of drawn costs."""
    page = (REPOSITORY / "docs" / "gpu.md").read_text(encoding="utf-8").splitlines()
    shown = [line.split("|")[:FIXED] for line in page]
    assert all(line.split("|")[:FIXED] in shown for line in table(draws=0))
