"""Fixtures that more than one test module uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from suite import devices
from suite.checks.bench import Bench
from suite.pool import Pool
from tests.project import REPOSITORY, Project


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """One launcher of worker processes for all tests that use real ones."""
    with Pool(kind="cpu", import_paths=[REPOSITORY]) as made:
        yield made


@pytest.fixture(scope="session")
def bench(pool: Pool) -> Bench:
    """Ranks for correctness checks, shared by all tests that put cases to trainers."""
    return Bench(pool, devices.parse("cpu"))


@pytest.fixture(scope="module")
def one_intra_op_thread() -> Iterator[None]:
    """Keep torch to one thread: on a busy machine a second one is waited for at every small operation."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A user's project in a temporary folder."""
    return Project(pytester, monkeypatch)
