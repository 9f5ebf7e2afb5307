"""Every test in this folder takes minutes, and has the marker `end_to_end`; no other test has."""

from __future__ import annotations

from pathlib import Path

import pytest

LONGEST = ("test_planted", "test_several_hosts", "test_keeping")  # a minute and more each


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests: one that begins last would keep one process waiting for the other."""
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.parent == here and item.path.stem not in LONGEST)


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("end_to_end")
