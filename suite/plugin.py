"""The pytest face: options, markers, one item a cell, one run behind all of them, a summary, the exit status.

Imports neither torch nor anything that does, so `--help` and `--collect-only` stay fast. Devices are counted through
NVML.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from suite import options
from suite.checks import NOTE
from suite.plan.cells import Cell, short
from suite.plan.collectives import CollectiveCell, named, sweeps
from suite.plan.config import Config
from suite.room.devices import cuda_count

if TYPE_CHECKING:
    from suite.checks.bench import Bench
    from suite.run.execute import RunResult

MARKERS = (
    "gpu: needs CUDA devices",
    "scaling: a cell of the benchmark matrix",
    "correctness: a correctness check of the trainers under test",
    "end_to_end: a whole run of the gate, minutes instead of seconds",
)

OURS = ("scaling", "correctness")
NIGHTLY = "nightly"

CONFIG = pytest.StashKey[Config]()
RUN = pytest.StashKey["RunResult"]()


class ScalingWarning(UserWarning):
    """Something about a run that is not a failure but that a reader should know."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers and read the options, so that a bad one ends pytest before anything runs."""
    if config.getoption("hypothesis_profile", None) == NIGHTLY:
        _know_nightly()
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[CONFIG] = options.read(config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The effective settings."""
    return config.stash[CONFIG].header()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item a cell, and one for each check of each trainer."""
    config = metafunc.config.stash[CONFIG]
    marks = [pytest.mark.gpu] if config.devices.kind == "cuda" else []
    if "correctness_check" in metafunc.fixturenames:
        from suite.checks.draw import CHECKS  # loads hypothesis: only where there is something to check

        pairs = [(trainer, check) for trainer in config.checked for check in CHECKS]
        asked = [pytest.param(*pair, id=f"{short(pair[0])}-{pair[1]}", marks=marks) for pair in pairs]
        metafunc.parametrize(("correctness_trainer", "correctness_check"), asked)
    if "all_reduce_cell" in metafunc.fixturenames:
        # Beside a base, and where only a verdict is asked for, the time is for that.
        wanted = config.explain and config.against is None
        every = named(config.repeat)
        chosen = sweeps(config.devices, config.world_sizes, every=every) if wanted else []
        asked = [pytest.param(sweep, id=sweep.id, marks=marks) for sweep in chosen]
        metafunc.parametrize("all_reduce_cell", asked)
    if "scaling_cell" not in metafunc.fixturenames:
        return
    found = [
        Cell(trainer, workload.name, mode, world_size)
        for workload in config.workloads
        for trainer in config.trainers
        for mode in config.modes
        for world_size in config.world_sizes
    ]
    metafunc.parametrize("scaling_cell", [pytest.param(cell, id=cell.id, marks=marks) for cell in found])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where devices are missing, put one failing item in the place of all that need them: never a green run."""
    settings = config.stash[CONFIG]
    # Where there is nothing to sweep pytest leaves an item in its place, to be skipped.
    items[:] = [item for item in items if isinstance(_parameters(item).get("all_reduce_cell"), CollectiveCell | None)]
    cells = [item for item in items if item.get_closest_marker("scaling")]
    # A user's own tests marked gpu are theirs to skip, unless `-m` asks for them.
    asked = "gpu" in config.getoption("markexpr")
    needing = [item for item in items if asked and item.get_closest_marker("gpu")]
    if settings.devices.kind == "cuda":
        needing += [item for item in items if _is_ours(item) and item not in needing]
    gpus = max(1, settings.require_devices, settings.devices.gpus_needed)
    message = ""
    if needing and cuda_count() < gpus:
        message = _missing("CUDA", cuda_count(), gpus)
    elif len(settings.devices.names) < settings.require_devices:
        needing = cells
        message = _missing(settings.devices.kind.upper(), len(settings.devices.names), settings.require_devices)
    if message and needing:
        others = [item for item in items if item not in needing]
        config.hook.pytest_deselected(items=needing[1:])
        missing = MissingDevices.from_parent(needing[0].session, name="devices", message=message)
        for name in ("gpu", *OURS):
            if needing[0].get_closest_marker(name):
                missing.add_marker(name)
        items[:] = [missing, *others]
    if cells and _under_xdist(config):
        raise pytest.UsageError(
            "scaling cells are not timed under xdist: their workers would disturb one another; drop -n"
        )


class MissingDevices(pytest.Item):
    """The one item that stands for all that cannot run here."""

    def __init__(self, *, message: str, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.message = message

    def runtest(self) -> None:
        """Fail."""
        pytest.fail(self.message, pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where pytest says this item comes from."""
        return self.path, None, self.name


def _know_nightly() -> None:
    """Let `--hypothesis-profile nightly` mean ten times hypothesis's examples where a project has no such profile."""
    from hypothesis import errors, settings

    try:
        settings.get_profile(NIGHTLY)
    except errors.InvalidArgument:
        settings.register_profile(NIGHTLY, deadline=None, max_examples=1000)


def _is_ours(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in OURS)


def _missing(kind: str, found: int, needed: int) -> str:
    remedy = "check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES, or use `-m scaling` for CPU workers"
    if kind != "CUDA":
        remedy = "lower --scaling-require-devices"
    return f"{kind}: {found} device(s) found, {needed} needed; {remedy}"


def _under_xdist(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput") or bool(getattr(config.option, "numprocesses", None))


@pytest.fixture(scope="session")
def scaling_config(request: pytest.FixtureRequest) -> Config:
    """The effective settings."""
    return request.config.stash[CONFIG]


@pytest.fixture(scope="session")
def correctness_bench(scaling_config: Config) -> Iterator[Bench]:
    """The workers that correctness checks share."""
    from suite.checks.bench import Bench  # loads hypothesis
    from suite.processes.pool import Pool

    paths = [Path.cwd(), scaling_config.root]
    with Pool(kind=scaling_config.devices.kind, import_paths=paths, warm=True) as pool:
        yield Bench(pool, scaling_config.devices)


@pytest.fixture(scope="session")
def fresh_examples(request: pytest.FixtureRequest) -> bool:
    """Whether the hypothesis profile that was asked for draws other examples in every run; by default none does."""
    from hypothesis import settings

    return request.config.getoption("hypothesis_profile", None) is not None and not settings().derandomize


@pytest.fixture(scope="session")
def scaling_run(request: pytest.FixtureRequest) -> RunResult:
    """The run over all selected cells."""
    selected = [_parameters(item) for item in request.session.items]
    cells = [parameters["scaling_cell"] for parameters in selected if "scaling_cell" in parameters]
    collectives = [parameters["all_reduce_cell"] for parameters in selected if "all_reduce_cell" in parameters]
    # They load what measures and renders: only where something is measured.
    from suite.run.execute import execute
    from suite.run.progress import Progress

    def keep(result: RunResult) -> None:
        request.config.stash[RUN] = result

    try:
        return execute(request.config.stash[CONFIG], cells, collectives, Progress(request.config), keep)
    except ValueError as error:  # RecordError is one
        pytest.fail(f"ERROR: {error}", pytrace=False)


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


@pytest.hookimpl(trylast=True)  # below pytest-benchmark's tables, where a terminal ends
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The notes of the correctness checks; the first screen of a run, and where its record lies."""
    notes = [
        value
        for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
        for name, value in report.user_properties
        if name == NOTE and report.when == "call"
    ]
    if notes:
        terminalreporter.section("correctness: right, and worth knowing")
        for note in notes:
            terminalreporter.write_line(note)
    run = config.stash.get(RUN, None)
    if run is None:
        return
    from suite.render import pages, terminal

    terminalreporter.section("scaling")
    with contextlib.suppress(UnicodeEncodeError):
        terminalreporter.write_line(
            terminal.render(run.record, terminalreporter._tw.fullwidth, color=terminalreporter._tw.hasmarkup)
        )
    for line in filter(None, (f"report: {run.folder / pages.REPORT}", run.accepted, run.job_summary)):
        terminalreporter.write_line(line)
