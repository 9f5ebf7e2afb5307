"""Runs from the outside: options, items, exit status, what is loaded, and over how many processes tests are spread."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import torch_scaling_suite
from suite.processes import hosts
from suite.processes.hosts import SECRET
from suite.processes.pool import Pool
from suite.room.quiet import available_cores
from suite.run import execute
from tests.support import collecting, trainers_under_test
from tests.support.nvml import Scene
from tests.support.project import ONE_CELL, REPOSITORY, TINY, Project

HERE = f"{trainers_under_test.__file__}:"


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (arguments, "CUDA: 0 device(s) found, 1 needed; check the driver")
            for arguments in (
                ["-m", "gpu"],
                ["-m", "gpu", "-k", "ddp"],
                ["-m", "gpu", "-k", "lenet"],
                ["-m", "gpu", "--pyargs", "suite.checks"],
                ["-m", "gpu or correctness", "--pyargs", "suite.checks"],
                ["-m", "gpu and scaling"],
            )
        ),
        (["-m", "gpu", "--scaling-devices", "cuda:1"], "CUDA: 0 device(s) found, 1 needed; check the driver"),
        (["-m", "scaling", "--scaling-devices", "cuda"], "CUDA: 0 device(s) found, 1 needed; check the driver"),
        ([*TINY, "--scaling-require-devices", "3"], "CPU: 2 device(s) found, 3 needed; lower"),
        (
            ["-m", "scaling", "--scaling-devices=cpu:3", "--scaling-require-devices=3"],
            "CPU: 2 device(s) found, 3 needed; lower",
        ),
        ([*TINY, "-o", "scaling_world_sizes=4,8"], "no world size of the settings fits cpu:2; choose others with"),
    ],
)
def test_missing_devices_are_one_failing_item(
    project: Project, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = project.inline(*arguments)
    result.assert_outcomes(failed=1, deselected=result.parseoutcomes().get("deselected", 0))
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*{message}*"])


@pytest.mark.parametrize(("required", "enough"), [(4, True), (5, False)])
def test_required_gpus_are_counted_over_all_hosts(
    project: Project, gpus: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, required: int, enough: bool
) -> None:
    gpus(2)
    monkeypatch.setenv(hosts.ENDPOINT, "localhost:1")
    monkeypatch.setenv(SECRET, "a secret of sixteen characters")
    options = ["--scaling-devices=2xcuda:2", f"--scaling-require-devices={required}", "--scaling-workload=tiny"]
    result = project.inline("-m", "scaling", *options, "--collect-only", "-q")
    assert result.ret == 0
    assert ("test_scaling[" in result.stdout.str()) == enough


def test_nothing_is_timed_under_xdist(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.path / "fake_xdist.py").write_text("def pytest_configure(config):\n    config.workerinput = {}\n")
    monkeypatch.syspath_prepend(project.path)
    result = project.inline(*TINY, "-p", "fake_xdist")
    result.assert_outcomes(failed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*not timed under xdist*drop -n*"])


def test_cells_have_no_timeout_because_the_first_one_measures_for_all(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project.path)
    (project.path / "spy.py").write_text(
        "def pytest_collection_finish(session):\n"
        "    print({item.get_closest_marker('timeout').args for item in session.items})\n"
    )
    result = project.inline(*TINY, "--collect-only", "-q", "-p", "spy", "--timeout=1")
    result.stdout.fnmatch_lines(["{(0,)}"])


def test_trainers_with_the_same_class_name_have_checks_of_their_own(project: Project) -> None:
    for name in ("a.py", "b.py"):
        (project.path / name).touch()
    options = ["-m", "correctness", "--scaling-trainer=a.py:Mine,b.py:Mine", "--scaling-workload=tiny"]
    items = project.collected(*options, package="suite.checks")
    assert {item.partition("[")[2].partition("-")[0] for item in items} == {"a.Mine", "b.Mine"}
    assert sum("[a.Mine-" in item for item in items) == sum("[b.Mine-" in item for item in items) > 1


def test_only_what_a_trainer_can_train_is_collected(project: Project) -> None:
    """Images and texts are measured beside one another, each by its own trainers."""
    options = ["--scaling-world-sizes=1", "--scaling-mode=weak", "--scaling-workload=lenet,gpt-tiny"]
    cells = project.collected("-m", "scaling", *options, "--scaling-trainer=ddp,ddp_tokens,single")
    expected = ["ddp-lenet", "single-lenet", "ddp_tokens-gpt-tiny", "single-gpt-tiny"]
    assert cells == [f"test_scaling[{name}-weak-1]" for name in expected]


def test_cells_are_timed_before_tests_that_may_use_gpus_in_this_process(project: Project) -> None:
    """Such a test leaves a context and cached memory there."""
    (project.path / "test_mine.py").write_text("def test_mine(): ...\n")
    both = ("suite.benchmarks.test_scaling", "-k", "mine or (ddp and weak)", "--collect-only", "-q")
    result = project.inline(*TINY[2:], "-m", "", *both, package="test_mine.py")
    result.stdout.fnmatch_lines(["*test_scaling[[]ddp-tiny-weak-2[]]", "*test_mine"])


@pytest.mark.parametrize("arguments", [["--help"], ["--collect-only", "-m", "scaling"]], ids=" ".join)
def test_help_and_collecting_load_nothing_that_takes_long(project: Project, arguments: list[str]) -> None:
    large = ["torch", "scipy", "numpy", "jinja2"]
    (project.path / "spy.py").write_text(
        "import sys\n"
        f"def pytest_unconfigure(config):\n    print('loaded:', [name for name in {large} if name in sys.modules])\n"
    )
    result = project.pytest(*arguments, "-p", "spy")
    result.stdout.fnmatch_lines(["loaded: [[][]]"])


def test_neither_the_commands_nor_the_controller_of_checks_load_torch() -> None:
    code = "import sys; import suite.__main__, suite.checks.bench, suite.checks.draw; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


def test_the_entry_point_loads_the_plugin_by_the_name_the_conftest_asks_for() -> None:
    """So that pytest sees one plugin where the distribution is installed in a clone."""
    assert 'torch_scaling_suite = "torch_scaling_suite"' in (REPOSITORY / "pyproject.toml").read_text()
    assert torch_scaling_suite.pytest_plugins == ["suite.plugin"]
    assert re.search(r'^pytest_plugins = \["suite.plugin",', (REPOSITORY / "conftest.py").read_text(), re.MULTILINE)


def test_two_runs_of_one_second_do_not_share_a_folder(tmp_path: Path) -> None:
    folders = [execute.new_folder(tmp_path / "runs" / "20260101T000000Z-abc") for _ in range(3)]
    assert [folder.name for folder in folders] == [f"20260101T000000Z-abc{suffix}" for suffix in ("", "-2", "-3")]


def test_an_unwritable_report_folder_is_an_error_before_anything_is_measured(project: Project) -> None:
    (project.path / "file").write_text("in the way")
    result = project.inline(
        *TINY, "--scaling-report-dir=file", "--scaling-trainer", "single", "--scaling-world-sizes", "1"
    )
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*ERROR: *file*Not a directory*choose another --scaling-report-dir*"])


@pytest.mark.parametrize(
    ("arguments", "package"),
    [
        ([*TINY, *ONE_CELL, "--scaling-trainer=single"], "suite.benchmarks.test_scaling"),
        (["-m", "correctness", "--scaling-trainer=ddp", "-k", "start"], "suite.checks"),
        (["-m", "gpu", "--scaling-devices=cuda:1", "--scaling-trainer=ddp"], "suite.benchmarks.test_scaling"),
    ],
    ids=["cells", "checks", "GPUs"],
)
def test_a_folder_for_temporary_files_that_cannot_be_written_is_one_line(
    project: Project,
    gpus: Callable[..., Scene],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    package: str,
) -> None:
    """Without pytest's own capturing, which needs such a folder, too."""
    if "gpu" in arguments:
        gpus(1)
    (project.path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(project.path / "file"))
    result = project.inline("-s", *arguments, package=package)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*TMPDIR: *file*: Not a directory; choose another TMPDIR"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


DEFAULT = "not gpu and not scaling and not end_to_end and not nightly"
SOURCE = pytest.Config.ArgsSource


def spread(source: SOURCE = SOURCE.TESTPATHS, *, worker: bool = False, **options: Any) -> int | None:
    given = {"numprocesses": None, "dist": "no", "keyword": "", "markexpr": DEFAULT, "usepdb": False}
    option = SimpleNamespace(**{**given, "collectonly": False, **options})
    config = SimpleNamespace(option=option, args_source=source, **({"workerinput": {}} if worker else {}))
    collecting.pytest_cmdline_main(config)
    number: int | None = option.numprocesses
    return number


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        ({}, [min(collecting.MOST_PROCESSES, len(available_cores()) + 1)]),
        *(
            ({"markexpr": whole_runs}, [min(collecting.MOST_PROCESSES, len(available_cores()))])
            for whole_runs in ("end_to_end", collecting.GATE, "nightly")
        ),
        ({"numprocesses": 0}, [0]),
        *(
            (options, [None])
            for options in (
                {"worker": True},
                {"source": SOURCE.ARGS},
                {"keyword": "gradient"},
                {"markexpr": "scaling"},
                {"usepdb": True},
                {"collectonly": True},
            )
        ),
    ],
    ids=str,
)
def test_only_a_run_of_all_tests_or_of_all_whole_runs_uses_all_cores(
    options: dict[str, Any], processes: Sequence[int | None]
) -> None:
    assert spread(**options) in processes


def test_what_the_tests_have_loaded_is_left_out_of_garbage_collection() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > collecting.FEW


def collected(markexpr: str) -> list[Path]:
    config: Any = SimpleNamespace(getoption={"markexpr": markexpr}.get)

    def files(folder: Path) -> list[Path]:
        kept = [path for path in sorted(folder.iterdir()) if not collecting.pytest_ignore_collect(path, config)]
        return [file for path in kept for file in (files(path) if path.is_dir() else [path])]

    loaded = [file for top in ("suite", "tests") for file in files(REPOSITORY / top)]
    return [file for file in loaded if file.name.startswith("test_") and file.suffix == ".py"]


def test_only_the_folder_of_the_marker_is_loaded() -> None:
    of_the_suite = [REPOSITORY / "suite" / name for name in ("benchmarks", "checks")]
    for marker in ("correctness", "scaling"):
        assert {file.parent for file in collected(marker)} == set(of_the_suite)
    whole_runs = REPOSITORY / "tests" / "end_to_end"
    assert collected("end_to_end") == sorted(whole_runs.glob("test_*.py"))
    assert {file.parent for file in collected(DEFAULT)} > {*of_the_suite, whole_runs}


def test_no_test_outside_of_the_folder_for_whole_runs_has_their_marker() -> None:
    marked = [path for path in REPOSITORY.glob("tests/**/*.py") if re.search(r"mark\.end_to_end\b", path.read_text())]
    assert marked == []


@pytest.mark.parametrize(
    ("devices", "fixture", "kind"),
    [("cuda:1", "correctness_bench", "cuda"), ("cuda:1", "bench", "cpu"), ("cpu:1", "correctness_bench", "cpu")],
)
def test_only_processes_that_a_test_needs_are_started(
    project: Project,
    gpus: Callable[..., Scene],
    monkeypatch: pytest.MonkeyPatch,
    devices: str,
    fixture: str,
    kind: str,
) -> None:
    """Ranks on GPUs are not forked: a template beside them would load torch and hold memory for nobody."""
    gpus(1)
    started = set()

    def start(pool: Pool, *, kind: str, **_: object) -> None:
        started.add(kind)
        raise ValueError("it is enough to know that it was wanted")

    monkeypatch.setattr(Pool, "__init__", start)
    (project.path / "test_own.py").write_text(f"def test_own({fixture}): pass\n")
    project.inline("-p", "tests.conftest", f"--scaling-devices={devices}", package="test_own.py")
    assert started == {kind}
