"""Which tests are collected, when they are spread over the cores, and when they stay in one process."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suite.processes.pool import Pool
from suite.room.quiet import available_cores
from tests.support import collecting
from tests.support.nvml import Scene
from tests.support.project import REPOSITORY, Project

DEFAULT = "not gpu and not scaling and not end_to_end and not nightly"
SOURCE = pytest.Config.ArgsSource


def spread(source: SOURCE = SOURCE.TESTPATHS, *, worker: bool = False, **options: Any) -> int | None:
    """The number of processes for these options."""
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
    """Return the files of tests that a run with this marker loads."""
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
