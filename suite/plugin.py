"""The pytest plugin: options, markers, one item a cell, one run for all of them, a summary.

It imports neither torch nor anything that does, so `--help` and `--collect-only` stay fast. Devices are counted through
NVML.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from suite import options
from suite.base.sides import hosts_of
from suite.checks import NOTE
from suite.plan.cells import Cell, CollectiveCell, names, names_collectives, sweeps
from suite.plan.config import Config
from suite.room.devices import survey
from suite.room.quiet import as_interrupts
from suite.script.items import ITEMS
from suite.verdict import Outcome

if TYPE_CHECKING:
    from suite.checks.bench import Bench
    from suite.checks.ranks import OnRanks
    from suite.checks.script import Checked
    from suite.plan.scripts import Script
    from suite.processes.pool import Pool
    from suite.run.execute import RunResult

MARKERS = (
    "gpu: needs CUDA devices",
    "scaling: a cell of the benchmark matrix",
    "correctness: a correctness check of the trainers under test",
    "end_to_end: a whole run of the gate, minutes instead of seconds",
)

OURS = ("scaling", "correctness")
CHECKS = Path(__file__).parent / "checks"
NIGHTLY = "nightly"

CONFIG = pytest.StashKey[Config]()
OUTCOMES = pytest.StashKey["Outcomes"]()
RUN = pytest.StashKey["RunResult"]()
CONFIRMING_S = pytest.StashKey[float]()  # what a worker took to confirm the GPUs, which the budget pays for


class ScalingWarning(UserWarning):
    """A fact about a run that a reader should know, and that is no failure."""


class Outcomes:
    """What becomes of a session's tests, counted as pytest counts them.

    Attributes:
        complete: whether every selected test has run; Ctrl-C, `-x` and `--maxfail` end pytest before.
        failed: names of those that failed, but for cells whose verdict is FAIL, which the record of the run has.
        cells_failed: whether cells are among these, or the item that replaces them where they cannot run.
    """

    def __init__(self) -> None:
        self.complete, self.failed, self.cells_failed = False, list[str](), False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Note that the loop over all tests came to its end."""
        result = yield
        self.complete = True
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Note a test that failed, or a file that could not be collected."""
        properties = report.user_properties if isinstance(report, pytest.TestReport) and report.when == "call" else ()
        if report.failed and not hasattr(report, "wasxfail") and ("verdict", Outcome.FAIL.value) not in properties:
            self.failed.append(report.nodeid)
            self.cells_failed = self.cells_failed or "scaling" in getattr(report, "keywords", ())

    pytest_collectreport = pytest_runtest_logreport


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers and read the options, so that a bad one ends pytest before anything runs."""
    if config.getoption("hypothesis_profile", None) == NIGHTLY:
        _register_nightly()
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[CONFIG] = options.read(config)
    config.stash[OUTCOMES] = Outcomes()
    config.pluginmanager.register(config.stash[OUTCOMES])


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the effective settings."""
    lines = config.stash[CONFIG].header()
    if options.asks_for_checks(config):
        settings = config.stash[CONFIG]
        scripts = ", ".join(script.name for script in settings.scripts)
        lines += [f"correctness: trainers {', '.join(settings.checked)}"] if settings.checked else []
        lines += [f"correctness: scripts {scripts}"] if scripts else []
    return lines


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the checks of what nobody has named: a user's own model, a script, or beside scripts a trainer."""
    settings = config.stash[CONFIG]
    wanted = {
        CHECKS / "test_own_model.py": settings.checked_workloads,
        CHECKS / "test_script.py": settings.scripts,
        CHECKS / "test_correctness.py": settings.checked,
    }
    return None if wanted.get(collection_path, True) else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item for each cell, each collective, and each check of each trainer."""
    config = metafunc.config.stash[CONFIG]
    marks = [pytest.mark.gpu] if config.devices.kind == "cuda" else []

    def param(*values: object, id: str) -> Any:
        return pytest.param(*values, id=id, marks=marks)

    if "correctness_check" in metafunc.fixturenames:
        from suite.checks.draw import CHECKS  # loads hypothesis: only where there is something to check

        pairs = [(trainer, check) for trainer in config.checked for check in CHECKS]
        shown = names(config.checked)
        params = [param(*pair, id=f"{shown[pair[0]]}-{pair[1]}") for pair in pairs]
        metafunc.parametrize(("correctness_trainer", "correctness_check"), params)
    if "correctness_workload" in metafunc.fixturenames:
        pairs_of = itertools.product(config.checked, config.checked_workloads)
        shown = names(config.checked)
        owned = [(trainer, workload) for trainer, workload in pairs_of if workload.suits(trainer)]
        params = [param(*pair, id=f"{shown[pair[0]]}-{pair[1].name}") for pair in owned]
        metafunc.parametrize(("correctness_trainer", "correctness_workload"), params)
    if "script_item" in metafunc.fixturenames:
        items = [(script, item) for script in config.scripts for item in ITEMS]
        params = [param(*pair, id=f"{pair[0].name}-{pair[1]}") for pair in items]
        metafunc.parametrize(("correctness_script", "script_item"), params)
    if "all_reduce_cell" in metafunc.fixturenames:
        # With a base in the run, and where only a verdict is wanted, all time goes to the cells.
        wanted = config.explain and config.against is None
        chosen = sweeps(config.devices, config.world_sizes, every=names_collectives(config.repeat)) if wanted else []
        metafunc.parametrize("all_reduce_cell", [param(sweep, id=sweep.id) for sweep in chosen])
    if "scaling_cell" in metafunc.fixturenames:
        matrix = itertools.product(config.workloads, config.trainers, config.modes, config.world_sizes)
        shown = names(config.trainers)
        cells = [
            Cell(trainer, w.name, mode, size, shown[trainer])
            for w, trainer, mode, size in matrix
            if w.suits(trainer) and w.scales(mode)
        ]
        metafunc.parametrize("scaling_cell", [param(cell, id=cell.id) for cell in cells])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put cells first, and replace items that cannot run here by one that fails, so that skips make no run green."""
    # Timing first: a test of GPUs in this process leaves a context and cached memory there.
    items.sort(key=lambda item: item.get_closest_marker("scaling") is None)
    # Where there is no collective to measure, pytest leaves an item to be skipped.
    items[:] = [item for item in items if isinstance(_parameters(item).get("all_reduce_cell"), CollectiveCell | None)]
    cells = [item for item in items if item.get_closest_marker("scaling")]
    needing, message = _missing_devices(config, items, cells)
    if message:
        _replace(session, items, needing, message)
    if config.pluginmanager.hasplugin("timeout"):
        for cell in cells:  # the first one measures for all; the run has a budget and deadlines of its own
            cell.add_marker(pytest.mark.timeout(0))
    cells = [cell for cell in cells if cell in items]
    if cells and _under_xdist(config):  # an item, because pytest-xdist takes an error of its workers for a crash
        why = "scaling cells are not timed under xdist: their workers would disturb one another"
        _replace(session, items, cells, f"{why}; drop -n", "xdist")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Let a worker confirm the GPUs that NVML shows; a mismatch is one failing item.

    Under xdist every process has its own items, and the checks that fail say so themselves.
    """
    config, items = session.config, session.items
    needing = _on_gpus(config, items)
    replaced = any(isinstance(item, CannotRun) for item in items)
    if not needing or replaced or session.testsfailed or config.option.collectonly or _under_xdist(config):
        return
    from suite.run import confirming

    begun_s = time.monotonic()
    with as_interrupts():
        problem = confirming.problem(_gpus_needed(config))
    config.stash[CONFIRMING_S] = time.monotonic() - begun_s
    if problem:
        _replace(session, items, needing, f"CUDA: {problem}")
        session.testscollected = len(items)


def _under_xdist(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput") or bool(getattr(config.option, "numprocesses", None))


def _replace(
    session: pytest.Session, items: list[pytest.Item], refused: list[pytest.Item], message: str, name: str = "devices"
) -> None:
    """Replace the items that cannot run here, if there are any, by one that fails with this message."""
    session.config.hook.pytest_deselected(items=refused[1:])
    failing = CannotRun.from_parent(session, name=name, message=message)
    for marker in ("gpu", *OURS):
        if any(item.get_closest_marker(marker) for item in refused):
            failing.add_marker(marker)
    items[:] = [failing, *(item for item in items if item not in refused)]


def _on_gpus(config: pytest.Config, items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the items that need GPUs. A user's own tests marked gpu are theirs to skip, unless `-m` asks for them."""
    gpu_asked, on_cuda = options.asks_for_gpus(config), config.stash[CONFIG].devices.kind == "cuda"
    return [
        item
        for item in items
        if (gpu_asked and item.get_closest_marker("gpu")) or (on_cuda and any(map(item.get_closest_marker, OURS)))
    ]


def _gpus_needed(config: pytest.Config) -> int:
    """Return how many GPUs this host must show; several hosts share the devices that are required."""
    settings = config.stash[CONFIG]
    required = math.ceil(settings.require_devices / settings.devices.hosts)
    return max(1, required, settings.devices.gpus_needed)


def _missing_devices(
    config: pytest.Config, items: list[pytest.Item], cells: list[pytest.Item]
) -> tuple[list[pytest.Item], str]:
    """Return the items that the devices are too few for, and a message, which is empty where all can run.

    Where `-m` asks for GPUs there is a message even if nothing else was selected: a machine without them has no cells.
    """
    settings = config.stash[CONFIG]
    needing, gpus = _on_gpus(config, items), _gpus_needed(config)
    if (needing or options.asks_for_gpus(config)) and len((here := survey()).gpus) < gpus:
        why = here.problem or here.too_few
        shown = f"CUDA: {len(here.gpus)} device(s) found, {gpus} needed"
        return needing, f"{shown}; {why}, or use `-m scaling` for CPU workers"
    if needing and settings.devices.refused:
        return needing, f"CUDA: {settings.devices.refused}"
    kind, count = settings.devices.kind.upper(), settings.devices.distinct
    if count < settings.require_devices:
        ours = [item for item in items if any(map(item.get_closest_marker, OURS))]
        shown = f"{kind}: {count} device(s) found, {settings.require_devices} needed"
        return ours, f"{shown}; lower --scaling-require-devices" if ours else ""
    return cells, settings.misfit if cells else ""


class CannotRun(pytest.Item):
    """The one item that replaces all that cannot run here."""

    def __init__(self, *, message: str, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.message = message

    def runtest(self) -> None:
        """Fail."""
        pytest.fail(self.message, pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return where pytest says this item comes from."""
        return self.path, None, self.name


def _register_nightly() -> None:
    """Register a profile of ten times hypothesis's examples where a project has none of that name."""
    from hypothesis import errors, settings

    try:
        settings.get_profile(NIGHTLY)
    except errors.InvalidArgument:
        settings.register_profile(NIGHTLY, deadline=None, max_examples=1000)


@pytest.fixture(scope="session")
def scaling_config(request: pytest.FixtureRequest) -> Config:
    """Return the effective settings."""
    return request.config.stash[CONFIG]


@pytest.fixture(scope="session")
def rank_pool(scaling_config: Config) -> Iterator[Pool]:
    """Yield what starts the ranks of correctness checks and of `on_ranks`."""
    from suite.processes.pool import Pool

    devices = scaling_config.devices
    try:
        pool = Pool(kind=devices.kind, import_paths=scaling_config.paths, preload="trainers", hosts=hosts_of(devices))
    except ValueError as error:
        raise pytest.fail.Exception(f"ERROR: {error}", pytrace=False) from None
    with as_interrupts(), pool:
        yield pool


@pytest.fixture(scope="session")
def correctness_bench(scaling_config: Config, rank_pool: Pool) -> Bench:
    """Return the workers that correctness checks share."""
    from suite.checks.bench import Bench  # loads hypothesis

    return Bench(rank_pool, scaling_config.devices, scaling_config.python_path)


@pytest.fixture(scope="session")
def checked_scripts(scaling_config: Config, rank_pool: Pool) -> Callable[[Script], Checked]:
    """Return what runs a script and judges it, once for all of its items."""
    from suite.checks.script import check, world_size

    checked: dict[str, Checked] = {}

    def of(script: Script) -> Checked:
        if script.name not in checked:
            with as_interrupts():
                checked[script.name] = check(
                    rank_pool, scaling_config.devices, script, world_size(scaling_config), scaling_config.root
                )
        return checked[script.name]

    return of


@pytest.fixture
def on_ranks(scaling_config: Config, rank_pool: Pool) -> Iterator[OnRanks]:
    """Yield a callable that calls a function on so many ranks: `on_ranks(function, 2, argument=1)`."""
    from suite.checks.ranks import OnRanks

    ranks = OnRanks(rank_pool, scaling_config.devices)
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def fresh_examples(request: pytest.FixtureRequest) -> bool:
    """Return whether a hypothesis profile that draws other examples in every run was asked for."""
    from hypothesis import settings

    return request.config.getoption("hypothesis_profile", None) is not None and not settings().derandomize


@pytest.fixture(scope="session")
def correctness_examples() -> int | None:
    """Return how many cases a check puts to a trainer; None for a share of the hypothesis profile's examples."""
    return None


@pytest.fixture(scope="session")
def scaling_run(request: pytest.FixtureRequest) -> RunResult | str:
    """Run all selected cells; where that is not possible, return why (`result_of`)."""
    selected = [_parameters(item) for item in request.session.items]
    cells = [parameters["scaling_cell"] for parameters in selected if "scaling_cell" in parameters]
    collectives = [parameters["all_reduce_cell"] for parameters in selected if "all_reduce_cell" in parameters]
    checks = sum(1 for item in request.session.items if item.get_closest_marker("correctness"))
    # They load what measures and renders: only where something is measured.
    from suite.run.execute import Selected, execute
    from suite.run.progress import Progress

    def keep(result: RunResult) -> None:
        request.config.stash[RUN] = result

    try:
        with as_interrupts():
            progress, spent_s = Progress(request.config), request.config.stash.get(CONFIRMING_S, 0.0)
            chosen = Selected(cells, collectives, checks)
            return execute(request.config.stash[CONFIG], chosen, progress, keep, spent_s)
    except ValueError as error:  # RecordError is one
        return str(error)


def result_of(run: RunResult | str, request: pytest.FixtureRequest) -> RunResult:
    """Return the run, and fail an item of one that was not possible as one of a cell that is an ERROR."""
    if isinstance(run, str):
        request.node.user_properties.extend([("verdict", "ERROR"), ("reason", run)])
        pytest.fail(f"ERROR: {run}", pytrace=False)
    return run


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Accept the run where the user asked for it, and end with status 1 where that or writing its files failed.

    An ini file that asks for it is also that of sessions which measure nothing, so there only the command line counts.
    """
    config = session.config
    run = config.stash.get(RUN, None)
    if run is None:
        accepts = config.getoption("scaling_accept") is not None
        missed = accepts and not config.option.collectonly and not hasattr(config, "workerinput")
    else:
        if config.stash[CONFIG].accept:
            from suite.run.execute import accept

            outcomes = config.stash[OUTCOMES]
            accept(config.stash[CONFIG], run, outcomes.failed, complete=outcomes.complete)
        missed = bool(run.problem)
    if missed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)  # below pytest-benchmark's tables, where a terminal ends
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the notes of the correctness checks, and the first screen, report and acceptance of a run."""
    notes = [
        value
        for outcome in ("passed", "failed", "skipped")
        for report in terminalreporter.getreports(outcome)
        for name, value in getattr(report, "user_properties", ())  # a module that is skipped has none
        if name == NOTE and report.when == "call"
    ]
    if notes:
        terminalreporter.section("correctness: notes")
        for note in dict.fromkeys(notes):  # every check of a trainer has those about the trainer
            terminalreporter.write_line(note)
    run = config.stash.get(RUN, None)
    if run is None:
        if config.stash[CONFIG].accept and not config.option.collectonly:
            from suite.records.baselines import NOTHING_COULD_RUN, NOTHING_SELECTED

            why = NOTHING_COULD_RUN if config.stash[OUTCOMES].cells_failed else NOTHING_SELECTED
            terminalreporter.write_line(f"not accepted: {why}")
        return
    from suite.render import pages, terminal

    terminalreporter.section("scaling")
    writer = terminalreporter._tw
    plain = not terminal.draws(getattr(writer._file, "encoding", None))
    with contextlib.suppress(UnicodeEncodeError):
        terminalreporter.write_line(terminal.render(run.record, writer.fullwidth, color=writer.hasmarkup, plain=plain))
    report = run.folder / pages.REPORT
    lines = (f"report: {report}" if report.exists() else "", run.problem, run.accepted, run.job_summary)
    for line in filter(None, dict.fromkeys(lines)):
        terminalreporter.write_line(line)
