"""Fixtures that more than one test module uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from suite import options
from suite.checks.bench import Bench
from suite.plan.config import Config
from suite.plugin import CONFIG
from suite.processes.pool import Pool
from suite.room import devices, quiet
from tests.support import containers, deadlines, nvml
from tests.support.project import REPOSITORY, Project


def pytest_configure(config: pytest.Config) -> None:
    """Hide this machine's GPUs where all tests that need them are left out, so that the others do the same anywhere."""
    if not config.getoption("scaling_devices", None) and options.default_devices(config) == "cpu":
        os.environ.update(quiet.NO_GPU)


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest, scaling_config: Config) -> Iterator[Bench]:
    """CPU ranks that all tests share, also with the correctness checks where these use CPUs."""
    if scaling_config.devices.kind == "cpu":
        yield request.getfixturevalue("correctness_bench")
        return
    with Pool(kind="cpu", import_paths=[REPOSITORY], preload="trainers") as pool:
        yield Bench(pool, devices.parse("cpu"))


@pytest.fixture(scope="session", autouse=True)
def _ranks_load_torch_meanwhile(request: pytest.FixtureRequest) -> None:
    """Start the ranks' template, which loads torch on another core, before the first test if any test needs it.

    GPU ranks are not forked: on GPUs checks and `on_ranks` need none.
    """
    on_cpus = request.config.stash[CONFIG].devices.kind == "cpu"
    forking = {"bench", *(("correctness_bench", "on_ranks") if on_cpus else ())}
    if any(forking.intersection(getattr(item, "fixturenames", ())) for item in request.session.items):
        request.getfixturevalue("bench")


@pytest.fixture(scope="module")
def one_intra_op_thread() -> Iterator[None]:
    """Limit torch to one thread: on a busy machine every small operation would wait for a second one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the stand-in for NVIDIA's library; return its folder."""
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def scene(nvml_library: Path, tmp_path: Path) -> Callable[..., nvml.Scene]:
    """Make a scene of so many healthy GPUs, by default two, for processes that get its environment."""
    return lambda gpus=2: nvml.Scene(nvml_library, tmp_path / "scene.txt", gpus)


@pytest.fixture
def gpus(scene: Callable[..., nvml.Scene], monkeypatch: pytest.MonkeyPatch) -> Callable[..., nvml.Scene]:
    """Make such a scene, which this process sees too."""
    return lambda count=2: scene(count).load(monkeypatch)


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> containers.Files:
    """Put this process into control groups without limits, which are files that the test can change."""
    folder = tmp_path / "groups"
    folder.mkdir()
    return containers.Files(folder, monkeypatch)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show two cores on any machine, for tests that pin and time nothing: on one core, two workers share it."""
    monkeypatch.setattr(devices, "available_cores", lambda: [0, 1])


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Project:
    """Make a user's project in a temporary folder; what runs there ends before the test does."""
    return Project(pytester, monkeypatch, deadlines.inner_s(request.node))
