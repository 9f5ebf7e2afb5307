"""Fixtures that more than one test module uses."""

from __future__ import annotations

import pytest

from tests.project import Project


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A user's project in a temporary folder."""
    return Project(pytester, monkeypatch)
