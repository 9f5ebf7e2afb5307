"""The command `trace`: which cells, what is in a trace and its table, and that a cell that breaks costs only itself."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from suite.__main__ import main
from suite.cli import trace
from suite.cli.pytest_run import select
from suite.plan import cells
from suite.plan.cells import Cell
from suite.plan.workloads import Workload
from suite.processes.channel import encode, read
from suite.processes.jobs import Place, Traced
from suite.rank import arm
from suite.rank.arm import TracedArm
from suite.room import devices
from suite.run.machine import describe
from suite.run.preparing import job_of
from tests.support.project import DATA, PYPROJECT
from tests.support.traces import events

STEPS = 3
CPU = torch.device("cpu")


def inside(event: dict[str, Any], outer: dict[str, Any]) -> bool:
    return outer["ts"] <= event["ts"] and event["ts"] + event["dur"] <= outer["ts"] + outer["dur"]


@pytest.fixture(scope="module")
def two_replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracedArm]:
    """The scratch trainer on two CPU devices, in this process, with a thread for each."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "data.py").write_text(DATA)
    workload = Workload(name="tiny", model="toy", dataset=f"{folder / 'data.py'}:blobs", batch=32)
    about = job_of(
        cells.arm("candidate", "scratch", Cell("scratch", "tiny", "strong", 2)),
        workload,
        Place(processes="one", devices=("cpu", "cpu"), backend="gloo"),
        trainer="scratch",
        seed=1,
        dataset=arm.prepare_dataset(workload.dataset, "", str(folder / "kept")),
    )
    with closing(TracedArm(0, [CPU, CPU], about)) as traced:
        traced.window(1)
        yield traced


@pytest.mark.usefixtures("one_intra_op_thread")
class TestProfiling:
    """One rank's trace, of a trainer that works in threads of its own."""

    def test_feed_and_step_are_told_apart(self, two_replicas: TracedArm, tmp_path: Path) -> None:
        answer = arm.trace(two_replicas, STEPS, tmp_path / "cell-rank0.json.gz")
        seen = events(tmp_path / "cell-rank0.json.gz")
        feeds, steps = ([event for event in seen if event["name"] == name] for name in ("feed", "step"))
        assert len(feeds) == len(steps) == STEPS
        in_order = sorted([*feeds, *steps], key=lambda event: float(event["ts"]))
        assert [event["name"] for event in in_order] == ["feed", "step"] * STEPS
        updates = [event for event in seen if event["name"].startswith("aten::sub")]
        assert updates, "plain SGD subtracts"
        assert all(any(inside(event, step) for step in steps) for event in updates)
        assert answer.step_ms > 0
        assert [path.name for path in tmp_path.iterdir()] == ["cell-rank0.json.gz"]

    def test_operators_of_every_replicas_thread_are_recorded(self, two_replicas: TracedArm, tmp_path: Path) -> None:
        """By default the profiler sees only the thread that starts it, and would miss nearly all of this step."""
        answer = arm.trace(two_replicas, STEPS, tmp_path / "cell.json.gz")
        seen = events(tmp_path / "cell.json.gz")
        own = {event["tid"] for event in seen if event["name"] == "step"}
        forwards = [event["tid"] for event in seen if event["name"] == "aten::linear"]
        assert len(set(forwards)) == 2
        assert not own.intersection(forwards)
        heading, *rows = [line for line in answer.table.splitlines() if not line.startswith("-")]
        assert "Self CPU" in heading
        assert len([row for row in rows if row.strip() and "time total" not in row]) == arm.ROWS
        assert read(Traced, json.loads(encode(answer))) == answer

    def test_a_folder_that_has_gone_is_an_error_and_no_file_is_left(
        self, two_replicas: TracedArm, tmp_path: Path
    ) -> None:
        (tmp_path / "cell.json.gz").mkdir()
        with pytest.raises(IsADirectoryError):
            arm.trace(two_replicas, 1, tmp_path / "cell.json.gz")
        assert [path.name for path in tmp_path.iterdir()] == ["cell.json.gz"]


def test_files_are_named_by_cells_and_never_share_a_name() -> None:
    trainers = ("a.py:New", "b.py:New", "ddp")
    assert trace.file_names([Cell(trainer, "my/own workload", "strong", 2) for trainer in trainers]) == [
        "New-my_own_workload-strong-2",
        "New-my_own_workload-strong-2_2",
        "ddp-my_own_workload-strong-2",
    ]
    [hidden] = trace.file_names([Cell("..", "../up", "strong", 1)])
    assert not hidden.startswith(".")
    assert "/" not in hidden


class TestSelection:
    """What pytest would run, asked of pytest."""

    TWO = ("--scaling-devices", "cpu:2", "--scaling-workload", "tiny", "--scaling-trainer", "ddp")

    @pytest.fixture(autouse=True)
    def here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "pyproject.toml").write_text(PYPROJECT)

    def test_expressions_select_and_nothing_runs(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        selected = select([*self.TWO, "-k", "weak and not weak-1"])
        assert (selected.status, selected.cells) == (0, (Cell("ddp", "tiny", "weak", 2),))
        assert selected.settings is not None
        assert selected.settings.world_sizes == (1, 2)
        assert not (tmp_path / "reports").exists()
        assert "no tests ran" not in capfd.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "status", "says"),
        [
            ((*TWO, "-k", "nothing_of_that_name"), pytest.ExitCode.NO_TESTS_COLLECTED, ""),
            ((*TWO, "suite.benchmarks.test_all_reduce", "-k", "all_reduce"), pytest.ExitCode.OK, ""),
            (("--scaling-mode", "sideways"), pytest.ExitCode.USAGE_ERROR, "valid values are strong, weak"),
            ((*TWO, "test_broken.py"), pytest.ExitCode.INTERRUPTED, "nothing_of_that_name"),
            (("--scaling-devices", "cuda:1"), pytest.ExitCode.TESTS_FAILED, "CUDA: 0 device(s) found, 1 needed"),
            ((*TWO, "-o", "scaling_world_sizes=4"), pytest.ExitCode.TESTS_FAILED, "no world size of the settings fits"),
        ],
        ids=["nothing selected", "no cells", "wrong option", "broken file", "missing devices", "no world size"],
    )
    def test_without_cells_the_status_and_the_words_are_pytests(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        capfd: pytest.CaptureFixture[str],
        arguments: tuple[str, ...],
        status: int,
        says: str,
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        (tmp_path / "test_broken.py").write_text("import nothing_of_that_name\n")
        selected = select(arguments)
        assert (selected.status, selected.cells) == (status, ())
        captured = capfd.readouterr()
        assert says in captured.out + captured.err
        assert not (tmp_path / "reports").exists()

    def test_a_selection_without_cells_is_reported(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["trace", *self.TWO, "-k", "nothing_of_that_name"]) == pytest.ExitCode.NO_TESTS_COLLECTED
        assert capsys.readouterr().err == "trace: no cell was selected; pytest -m scaling --collect-only lists them\n"

    def test_a_report_folder_in_the_way_is_reported_before_anything_starts(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        assert main(["trace", *self.TWO, "--scaling-report-dir", "file"]) == 1
        said = capsys.readouterr().err
        assert re.fullmatch(r"trace: .*/file/.*: Not a directory; choose another --scaling-report-dir\n", said)

    def test_nothing_is_written_through_a_link_in_the_report_folder(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in ("reports", "elsewhere"):
            (tmp_path / name).mkdir()
        (tmp_path / "reports" / describe(devices.parse("cpu:2")).key).symlink_to(tmp_path / "elsewhere")
        assert main(["trace", *self.TWO]) == 1
        assert "a link leads out of the report folder; choose another --scaling-report-dir" in capsys.readouterr().err
        assert not list((tmp_path / "elsewhere").iterdir())

    def test_a_folder_for_temporary_files_that_cannot_be_written_is_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
        assert main(["trace", *self.TWO, "-s"]) == 1, "pytest's own capturing needs such a folder, too"
        said = capsys.readouterr().err
        assert re.fullmatch(r"trace: TMPDIR: .*/file/.*: Not a directory; choose another TMPDIR\n", said)
        assert not list(tmp_path.glob("reports/*/traces/*"))

    @pytest.mark.parametrize("option", ["--steps", "--warm-up"])
    def test_no_steps_are_a_usage_error(self, option: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="4"):
            main(["trace", f"{option}=0"])
        assert "'0': expected a whole number, 1 or more" in capsys.readouterr().err
