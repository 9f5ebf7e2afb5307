"""Whole runs from the outside, and what is left of one that breaks, is killed or cancelled, or finds no space."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.evidence.log import read_log
from suite.processes.folder import locked
from suite.rank.timing import CPUS
from suite.records import baselines
from suite.records.files import read_model
from suite.records.record import Record
from suite.room import devices
from suite.run.machine import describe
from tests.support import stand_in, trainers_under_test
from tests.support.deadlines import WHOLE_S
from tests.support.project import REPOSITORY, Project, needs_two_cores

HERE = f"{trainers_under_test.__file__}:"


@needs_two_cores
def test_a_first_run(project: Project) -> None:
    """NO BASELINE passes with a warning, leaves its files, and is accepted; for the next run see test_against."""
    files = ["--scaling-budget", "1", "--junitxml", "junit.xml", "--benchmark-json", "bench.json"]
    result = project.scaling("--scaling-trainer", "scratch", "--scaling-accept", *files)
    result.assert_outcomes(passed=4, deselected=1, warnings=4)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*benchmark 'scaling: *",
            "tiny runs * times as fast on 2 devices as the plain trainer on one",
            "NO BASELINE: 4 cells; *",
            " scratch tiny strong *2 *",
            "report: *",
            "accepted as baseline (1 run(s))*",
        ]
    )
    [record] = project.records()
    assert {cell.outcome for cell in record.cells} == {"NO BASELINE"}
    assert all(cell.sec_per_epoch is not None for cell in record.cells)
    assert all(cell.efficiency is not None for cell in record.cells if cell.world_size == 2)
    assert record.accuracies == (), "a second leaves no time to train"
    assert all("raise --scaling-budget" in cell.why("accuracy") for cell in record.cells)
    assert len(record.sessions[0].windows) == 2 * 4 * (1 + max(window.block for window in record.sessions[0].windows))
    counted = any(CPUS.glob("cpu0/cpuidle/state*/time"))
    assert {len(window.others_ns) for window in record.sessions[0].windows} == {int(counted)}
    held = [rank.resident_bytes for arm in record.arms for rank in arm.memory]
    assert len(held) == len(record.arms), "of one process, which drives both devices"
    assert all(resident is not None and resident > 10_000_000 for resident in held)
    summary = next(project.path.glob("reports/*/runs/*/summary.md")).read_text()
    assert summary.startswith("# Scaling: tiny runs ")
    assert "NO BASELINE: 4 cells" in summary
    case = (
        ElementTree.parse(project.path / "junit.xml")
        .getroot()
        .find(".//testcase[@name='test_scaling[scratch-tiny-strong-2]']")
    )
    properties = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert properties["verdict"] == "NO BASELINE"
    assert float(str(properties["efficiency"])) > 0
    benchmarks = {b["param"]: b for b in json.loads((project.path / "bench.json").read_text())["benchmarks"]}
    ours = [
        max(w.unselected.duration_ns) / next(a.steps_per_window for a in record.arms if a.id == w.arm) / 1e9
        for session in record.sessions
        for w in session.windows
        if w.arm == "candidate:scratch:tiny:strong:2"
    ]
    assert benchmarks["scratch-tiny-strong-2"]["stats"]["data"] == pytest.approx(ours, rel=1e-6)
    assert not project.workers()


@needs_two_cores
def test_a_broken_trainer_is_an_error_and_the_others_are_measured(project: Project) -> None:
    """One rank is killed, or loses its GPU, one class lacks a part, one cannot be closed: the others are measured."""
    broken = ("KillsRankOne", "NoProcesses", "CannotClose", "RankOneAsserts", "RankOneHasNoMemoryLeft")
    trainers = [*(HERE + name for name in broken), "scratch"]
    earlier = project.path / "reports" / "machine" / "runs" / "earlier" / "record.json"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("untouched")
    arguments = [argument for trainer in trainers for argument in ("--scaling-trainer", trainer)]
    result = project.scaling(
        *arguments,
        *("--scaling-world-sizes", "2", "--scaling-mode", "strong", "--scaling-accept", "--scaling-budget", "1"),
    )
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=5, deselected=1, warnings=1)
    result.stdout.fnmatch_lines_random(
        [
            "*ERROR: rank 0: RuntimeError: its feed is gone*",
            "*ERROR: rank 1: its process ended with signal 9 (SIGKILL)*",
            "*ERROR: rank 1: AcceleratorError: CUDA error: device-side assert triggered*",
            "*ERROR: rank 1: OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.*",
            '*ERROR: rank 0: ContractError: *`processes` is missing: processes = "one" or "per-device"*',
            "not accepted: a run with an ERROR*",
        ]
    )
    pasted = next(
        line.partition("again: ")[2] for line in result.outlines if "again: " in line and "KillsRankOne" in line
    )
    assert earlier.read_text() == "untouched"
    earlier.unlink()
    assert project.outcomes()["scratch-tiny-strong-2"] == "NO BASELINE"
    assert not list(project.path.glob("reports/*/baseline.json"))
    assert not project.workers()
    again = project.typed(pasted)
    again.assert_outcomes(failed=1, deselected=again.parseoutcomes()["deselected"])
    assert project.outcomes() == {"KillsRankOne-tiny-strong-2": "ERROR"}


@needs_two_cores
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_keeps_what_was_measured_and_leaves_nothing(project: Project, name: str) -> None:
    arguments = ["-p", "suite.plugin", "--pyargs", "suite.benchmarks", "-m", "scaling", "--scaling-workload", "tiny"]
    temporary = project.path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary)}
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments, "--scaling-devices", "cpu:1", "--scaling-trainer", "scratch"],
        cwd=project.path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        # A shell's background job ignores SIGINT, and so would this.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    for line in run.stdout:
        if ": epoch " in line:  # the plan has announced training before
            assert project.workers(), "while it runs, there are some"
            break
    run.send_signal(signal.Signals[name])
    run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    [record] = project.records()
    assert record.interrupted
    assert record.cut_short == ("Ctrl-C" if name == "SIGINT" else name)
    assert record.sessions[0].windows
    deadline = time.monotonic() + 10
    while project.workers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not project.workers()
    assert [path.name for path in temporary.iterdir() if path.name.startswith(("scaling-", ".scaling-"))] == []


CELLS = ("--scaling-devices", "cpu:2", "--scaling-trainer", "ddp", "-k", "lenet-strong")
PYTEST = (sys.executable, "-m", "pytest", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling")
COMMAND = (*PYTEST, "-p", stand_in.__name__, "-p", "no:cacheprovider", "-m", "scaling", *CELLS)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A project, with a folder for temporary files beside it."""
    for name in ("project/reports", "temporary"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return tmp_path / "project"


def environment(here: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "GITHUB"))}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(here.parent / "temporary"), **more}


def heed_signals() -> None:
    """Let SIGINT and SIGHUP end this process: a shell's background job ignores the one, and nohup's the other."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def run(here: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the gate, with a measurement that takes no time."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=here,
        env=environment(here, **more),
        capture_output=True,
        text=True,
        timeout=90,
        preexec_fn=heed_signals,
    )


def run_on_small_disk(here: Path, kib: int, prepare: str) -> subprocess.CompletedProcess[str]:
    """Run with a report folder on a file system of its own, on which the shell command `prepare` runs before."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    script = f'mount -t tmpfs -o size={kib}k none reports && {{ {prepare}; }} && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", *COMMAND]
    done = subprocess.run(command, cwd=here, env=environment(here), capture_output=True, text=True, timeout=90)
    if done.returncode != 0 and ("unshare:" in done.stderr or "mount:" in done.stderr):
        pytest.skip(f"needs a mount of its own: {done.stderr.strip()}")
    return done


def record_under(folder: Path) -> Record:
    [path] = folder.glob("**/record.json")
    return read_model(path, Record)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_signals_that_end_a_job_end_a_run_as_ctrl_c_does(here: Path, name: str) -> None:
    done = run(here, **{stand_in.SIGNAL: name})
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout
    record = record_under(here)
    assert (record.interrupted, record.cut_short) == (True, "Ctrl-C" if name == "SIGINT" else name)
    assert len(record.sessions) == stand_in.SESSIONS
    assert f"Cut short ({record.cut_short})" in done.stdout
    assert {path.name for path in here.glob("reports/*/runs/*/*")} == {"record.json", "summary.md", "report.html"}


def test_a_killed_run_leaves_the_record_of_its_last_session(here: Path) -> None:
    done = run(here, **{stand_in.SIGNAL: "SIGKILL"})
    assert done.returncode == -signal.SIGKILL
    record = record_under(here)
    assert len(record.sessions) == stand_in.SESSIONS
    assert all(cell.sec_per_epoch is not None for cell in record.cells)
    assert record.cut_short == "killed, or still running: this was written after 4 session(s)"


@pytest.mark.parametrize(
    ("prepare", "cause"),
    [
        ("! head -c 1M /dev/zero > reports/full 2> /dev/null", "No space left on device"),
        ("mount -o remount,ro none reports", "Read-only file system"),
    ],
    ids=["full", "read-only"],
)
def test_report_folder_of_no_use_is_noticed_before_measuring(here: Path, prepare: str, cause: str) -> None:
    done = run_on_small_disk(here, 64, prepare)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert f"{cause}; choose another --scaling-report-dir" in done.stdout
    assert "Traceback" not in done.stdout
    assert "NO BASELINE" not in done.stdout, "nothing was measured"


@pytest.mark.parametrize("linked", ["", "runs"])
def test_a_run_changes_nothing_through_a_link(here: Path, linked: str) -> None:
    """A pull request can bring links; a run removes what killed runs had not finished writing, and makes a folder."""
    elsewhere = here.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".record.json.abcd1234").touch()
    place = here / "reports" / describe(devices.parse("cpu:2")).key / linked
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(elsewhere)
    done = run(here)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "runs: a link leads out of the report folder; put the file or folder itself in its place" in done.stdout
    assert [path.name for path in elsewhere.rglob("*")] == [".record.json.abcd1234"]


def test_the_report_folder_itself_may_be_a_link(here: Path) -> None:
    (here / "reports").rename(here.parent / "kept")
    (here / "reports").symlink_to(here.parent / "kept")
    assert run(here).returncode == 0
    assert record_under(here.parent / "kept").sessions


def test_when_the_disk_fills_later_the_run_goes_on_and_names_its_fallback_folder(here: Path) -> None:
    """The first record fits into 32 KiB, and the pages do not."""
    done = run_on_small_disk(here, 32, "true")
    [fallback] = (here.parent / "temporary").glob("scaling-report-*")
    record = record_under(fallback)
    assert (record.interrupted, len(record.sessions)) == (False, stand_in.SESSIONS)
    assert {path.name for path in fallback.iterdir()} == {"record.json", "summary.md", "report.html"}
    assert f"cannot be written (No space left on device): this run's files are in {fallback}" in done.stdout
    assert f"report: {fallback}/report.html" in done.stdout
    assert "NO BASELINE: 2 cells" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, "every test passed, and the artifacts are missing"


def test_two_runs_that_are_accepted_at_once_are_both_in_the_baseline(here: Path) -> None:
    """The first one holds the baseline while the second one ends."""
    assert run(here, "--scaling-accept").returncode == 0
    [machine] = (here / "reports").iterdir()
    path = machine / "baseline.json"
    with locked(machine):
        accepted = baselines.read(here / "reports", machine.name)
        second = subprocess.Popen(
            [*COMMAND, "--scaling-accept"], cwd=here, env=environment(here), stdout=subprocess.PIPE
        )
        deadline = time.monotonic() + 60
        while sum(1 for _ in machine.glob("runs/*/summary.md")) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)  # it would have written by now
        other = accepted.runs[0].model_copy(update={"run_id": "20250101T000000Z-1234567"})
        path.write_text(accepted.model_copy(update={"runs": (other, *accepted.runs)}).model_dump_json())
    said = second.communicate(timeout=60)[0].decode()
    assert "accepted as baseline (3 run(s))" in said
    runs = baselines.read(here / "reports", machine.name).runs
    assert len(runs) == 3
    assert runs[0].run_id == other.run_id


CASES = (
    "worker: a daemon left behind at warm-up",
    "controller: SIGKILL at record writing",
)


@pytest.mark.nightly
def test_runs_with_a_fault_end_as_they_must_and_the_next_run_works(tmp_path: Path) -> None:
    only = [argument for case in CASES for argument in ("--only", case)]
    command = [sys.executable, "-m", "tests.support.faults", "--mixed", "--log", str(tmp_path / "log"), *only]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=WHOLE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = [line["fault"] for line in read_log(tmp_path / "log")]
    assert made == [case.partition(" at ")[0] for case in CASES]
