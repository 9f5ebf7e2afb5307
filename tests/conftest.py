"""Fixtures that more than one test module uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from suite.checks.bench import Bench
from suite.plan.config import Config
from suite.processes.pool import Pool
from suite.room import devices
from tests.support.project import REPOSITORY, Project


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest, scaling_config: Config) -> Iterator[Bench]:
    """CPU ranks, shared by all tests that use real ones: those of the correctness checks where these are CPUs."""
    if scaling_config.devices.kind == "cpu":
        yield request.getfixturevalue("correctness_bench")
        return
    with Pool(kind="cpu", import_paths=[REPOSITORY], warm=True) as pool:
        yield Bench(pool, devices.parse("cpu"))


@pytest.fixture(scope="session", autouse=True)
def _ranks_load_torch_meanwhile(request: pytest.FixtureRequest) -> None:
    """Start the template of the ranks before the first test where any test needs it: it loads torch on another core."""
    if any({"bench", "correctness_bench"} & set(getattr(item, "fixturenames", ())) for item in request.session.items):
        request.getfixturevalue("bench")


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
