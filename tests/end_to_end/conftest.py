"""Every test in this folder takes minutes, and has the marker `end_to_end`; no other test has."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test the marker."""
    item.add_marker("end_to_end")
