"""Fixtures that more than one test module uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from suite.pool import Pool
from tests.project import Project


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """One launcher of worker processes for all tests that use real ones."""
    with Pool(kind="cpu") as made:
        yield made


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A user's project in a temporary folder."""
    return Project(pytester, monkeypatch)
