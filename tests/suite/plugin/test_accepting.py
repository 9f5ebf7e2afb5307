"""Bases and baselines that cannot serve; and a run is accepted where nothing else failed in its whole session."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from suite.plan import workloads
from suite.records import baselines, history
from suite.records.baselines import AcceptedCell, AcceptedRun, Baseline
from suite.records.record import Environment
from suite.render import pages
from suite.room import devices
from suite.run import machine
from tests.support import stand_in
from tests.support.project import ONE_CELL, TINY, Project
from tests.support.repositories import Repository

pytestmark = pytest.mark.usefixtures("two_cores")  # a floor holds for ranks that have a device each

MEASURED = ("-p", stand_in.__name__, "--scaling-devices=cpu:2", "--scaling-mode=strong")
LENET = (*MEASURED, "--scaling-trainer=ddp", "-m", "scaling", "-k", "lenet")
FAILED = "not accepted: {} failed in this pytest session; repair what failed and run again"


def accepted(project: Project) -> int:
    paths = list(project.path.glob("reports/*/baseline.json"))
    return sum(len(baselines.read(project.path / "reports", path.parent.name).runs) for path in paths)


def an_hour_an_epoch(project: Project) -> Baseline:
    """Return one accepted run of the tiny workload on this machine, of an unknown commit. It is not written yet."""
    tiny = workloads.available(project.path / "pyproject.toml")["tiny"]
    about = machine.describe(devices.parse("cpu:2"))
    kept = AcceptedCell(
        trainer="scratch",
        workload="tiny",
        workload_hash=tiny.hash,
        mode="strong",
        world_size=1,
        dataset="data.py:blobs",
        sec_per_epoch=3600.0,
        sessions=4,
    )
    environment = Environment(versions={}, commit="unknown", dirty=False)
    run = AcceptedRun(run_id="accepted", host=about.host, system=about.system, environment=environment, cells=(kept,))
    return Baseline(machine_key=about.key, runs=(run,))


def floor(project: Project, efficiency: float, more: str = "") -> None:
    """Ask for an efficiency of two devices."""
    with (project.path / "pyproject.toml").open("a") as file:
        file.write(f"\n[[tool.scaling.floors]]\n{more}world_size = 2\nefficiency = {efficiency}\n")


def wait_for_the_next_second() -> None:
    """Runs of one second and commit have one name, and are accepted once."""
    time.sleep(1 - time.time() % 1)


def mine(project: Project, *bodies: str) -> tuple[str, ...]:
    """Write tests of the user's own, and return the arguments that select them beside the cells."""
    tests = (f"def test_{number}_lenet(): {body}\n" for number, body in enumerate(bodies))
    (project.path / "test_mine.py").write_text(f"import pytest\n{''.join(tests)}")
    return "-m", "", "test_mine.py"


def test_a_collective_in_error_keeps_the_run_from_the_baseline(project: Project) -> None:
    chosen = ("-k", "lenet-strong or all_reduce-gloo", "--scaling-accept")
    result = project.inline(*LENET, *chosen, package="suite.benchmarks")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["not accepted: a run with an ERROR is never a baseline; repair it and run again"])
    assert "measure it again" not in result.stdout.str()
    assert accepted(project) == 0


def test_cells_that_the_user_lets_fail_keep_the_run_from_the_baseline(project: Project) -> None:
    floor(project, stand_in.EFFICIENCY + 0.02)
    result = project.inline(*LENET, "--scaling-inconclusive=fail", "--scaling-accept=slower")
    assert project.outcomes()["ddp-lenet-strong-2"] == "INCONCLUSIVE"
    result.stdout.fnmatch_lines(
        ["not accepted: *test_scaling[[]ddp-lenet-strong-2[]] failed in this pytest session; *"]
    )
    assert accepted(project) == 0
    result = project.inline(*LENET, "--scaling-accept")
    assert (result.ret, accepted(project)) == (0, 1), "where it is a skip"


@pytest.mark.parametrize(
    ("body", "counted"),
    [("assert False", True), ("pytest.xfail()", False)],
)
def test_only_a_failure_of_another_test_counts(project: Project, body: str, counted: bool) -> None:
    result = project.inline(*LENET, *mine(project, body), "--scaling-accept")
    said = FAILED.format("test_mine.py::test_0_lenet") if counted else "accepted as baseline (1 run(s))*"
    result.stdout.fnmatch_lines([said])
    assert accepted(project) == (not counted)


def test_a_file_that_cannot_be_collected_counts(project: Project) -> None:
    options = (*mine(project, "pass"), "--continue-on-collection-errors", "--scaling-accept")
    (project.path / "test_mine.py").write_text("import nothing_of_this_name\n")
    project.inline(*LENET, *options).stdout.fnmatch_lines([FAILED.format("test_mine.py")])
    assert accepted(project) == 0


def test_a_slowdown_is_accepted_as_slower_and_no_other_failure_with_it(project: Project) -> None:
    floor(project, 0.99)
    refused = project.inline(*LENET, "--scaling-accept")
    refused.stdout.fnmatch_lines(["not accepted: the run has a FAIL; --scaling-accept=slower takes *"])
    refused = project.inline(*LENET, *mine(project, "assert False"), "--scaling-accept=slower")
    refused.stdout.fnmatch_lines([FAILED.format("test_mine.py::test_0_lenet")])
    assert accepted(project) == 0
    result = project.inline(*LENET, "--scaling-accept=slower")
    result.stdout.fnmatch_lines(["accepted as baseline (1 run(s))*"])
    assert (result.ret, accepted(project)) == (1, 1), "a FAIL stays red in the run that is accepted with it"


def test_a_run_that_needs_a_baseline_may_become_the_first_one(project: Project) -> None:
    assert project.inline(*LENET, "--scaling-require-baseline").ret == 1
    assert accepted(project) == 0
    assert project.inline(*LENET, "--scaling-require-baseline", "--scaling-accept").ret == 0
    assert accepted(project) == 1


def test_an_accepted_run_is_kept_for_its_reviewer_and_shown_by_the_index_of_the_same_session(project: Project) -> None:
    assert project.inline(*LENET, "-x", "--scaling-accept").ret == 0, "-x stops nothing where nothing fails"
    assert accepted(project) == 1
    [folder] = project.path.glob("reports/*")
    [run] = folder.glob("runs/*")
    for name in ("record.json", "summary.md"):
        assert (folder / "accepted" / name).read_text() == (run / name).read_text()
    assert "accepted" not in (folder / ".gitignore").read_text().partition("\n/")[2]
    assert [run.accepted for run in history.read(folder).runs] == [True]
    shown = (folder / pages.INDEX).read_text()
    assert pages.write_index(folder).read_text() == shown


@pytest.mark.parametrize("folder", ["kept/deeper", "."])
def test_what_runs_write_is_no_change_of_the_code(project: Project, folder: str) -> None:
    """Whether git tracks it or not: the next runs have the commit's code, which can be rebuilt."""
    repository = Repository(project.path)
    repository.commit({".gitignore": "__pycache__/\n"})
    run = (*LENET, "--scaling-accept", f"--scaling-report-dir={folder}")
    assert project.inline(*run).ret == 0
    [baseline] = project.path.glob(f"{folder}/*/baseline.json")
    place = baseline.parent.relative_to(project.path)
    for_review = ("accepted/record.json", "accepted/summary.md", "baseline.json")
    expected = "\n".join(f"?? {place}/{name}" for name in for_review)
    assert repository.git("status", "--porcelain", "--untracked-files=all") == expected
    repository.git("add", "--force", str(place))
    repository.commit()
    assert {path.name for path in (project.path / place).iterdir()} >= {"index.html", "runs", ".gitignore"}
    for _ in range(2):
        wait_for_the_next_second()
        assert project.inline(*run).ret == 0
        assert "index.html" in repository.git("diff", "--name-only"), "nothing was rewritten, so nothing was shown"
    accepted = baselines.read(project.path / folder, baseline.parent.name)
    assert not any(known.environment.dirty for known in accepted.runs)
    (project.path / "data.py").write_text("")
    wait_for_the_next_second()
    project.inline(*run)
    accepted = baselines.read(project.path / folder, baseline.parent.name)
    assert any(known.environment.dirty for known in accepted.runs)


@pytest.mark.parametrize(
    ("asked", "said", "status"),
    [
        (("--scaling-accept",), True, 1),
        (("--scaling-accept=slower",), True, 1),
        (("--scaling-accept", "--collect-only"), False, 0),
        (("--override-ini=scaling_accept=yes",), True, 0),
    ],
    ids=["asked", "asked as slower", "collected", "in an ini file"],
)
def test_a_session_without_cells_says_that_nothing_is_accepted_and_is_no_success(
    project: Project, asked: tuple[str, ...], said: bool, status: int
) -> None:
    """An ini file that asks for it is also that of the project's ordinary tests."""
    result = project.inline(*mine(project, "pass"), "-m", "not scaling", *asked)
    assert result.ret == status
    assert (f"not accepted: {baselines.NOTHING_SELECTED}" in result.outlines) is said


@pytest.mark.parametrize(
    "options",
    [("--scaling-require-devices=3",), ("-p", "fake_xdist"), ()],
    ids=["too few devices", "xdist", "a broken baseline"],
)
def test_a_session_whose_cells_cannot_run_says_to_repair_what_failed(
    project: Project, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.path / "fake_xdist.py").write_text("def pytest_configure(config):\n    config.workerinput = {}\n")
    monkeypatch.syspath_prepend(str(project.path))
    if not options:
        assert project.inline(*LENET, "--scaling-accept").ret == 0
        [baseline] = project.path.glob("reports/*/baseline.json")
        baseline.write_text("{")
    result = project.inline(*LENET, *options, "--scaling-accept")
    assert result.ret == 1
    assert "not accepted: no cell could be measured; repair what failed and run again" in result.outlines
    assert "select cells" not in result.stdout.str()


@pytest.mark.parametrize("change", ["# changed\n", ""])
def test_a_run_with_uncommitted_changes_is_accepted_with_a_warning(project: Project, change: str) -> None:
    Repository(project.path).commit()
    with (project.path / "data.py").open("a") as file:
        file.write(change)
    result = project.inline(*LENET, "--scaling-accept")
    result.stdout.fnmatch_lines(["accepted as baseline (1 run(s))*"])
    said = "The commit of this run cannot be rebuilt (uncommitted changes), so later runs"
    assert (said in result.stdout.str()) == bool(change)


def test_a_base_that_cannot_serve_ends_pytest_before_anything_is_measured(project: Project, tmp_path: Path) -> None:
    Repository(project.path).commit()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    bare = tmp_path / "bare" / "bin" / "python"
    for against, says in (
        (str(bare), f"*--scaling-against '{bare}': *lacks torch and numpy; {bare} -m pip install torch numpy*"),
        ("ref:v9.9", "*--scaling-against 'ref:v9.9': 'v9.9' names no commit of the repository*"),
    ):
        result = project.inline(*TINY, "--scaling-trainer", "scratch", f"--scaling-against={against}", *ONE_CELL)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([says])
    assert not (project.path / "reports").exists()


@pytest.mark.parametrize("broken", [True, False])
def test_a_broken_or_foreign_baseline_is_an_error_before_anything_is_measured(project: Project, broken: bool) -> None:
    baseline = an_hour_an_epoch(project)
    path = baselines.write(baseline, project.path / "reports")
    foreign = baseline.model_copy(update={"machine_key": "cpu-64xanother-00000000"})
    text = "{" if broken else foreign.model_dump_json()
    path.write_text(text)
    result = project.inline(*TINY, "--scaling-trainer", "scratch", "--scaling-accept", *ONE_CELL)
    assert result.ret == 1
    result.assert_outcomes(failed=1, deselected=1)
    assert "exception" not in result.stdout.str(), "one message"
    message = "not a whole JSON file" if broken else f"it is the baseline of machine {foreign.machine_key}, not of "
    result.stdout.fnmatch_lines([f"*ERROR: *baseline.json: {message}*"])
    assert project.records() == []
    assert path.read_text() == text


def test_a_floor_fails_a_cell_without_any_baseline(project: Project) -> None:
    """Of two cells with the same efficiency, the one whose floor is above it fails."""
    assert 0.7 < stand_in.EFFICIENCY < 0.9
    floor(project, 0.9, 'mode = "strong"\n')
    floor(project, 0.7, 'mode = "weak"\n')
    cells = ("--scaling-devices", "cpu:2", "--scaling-trainer", "scratch", "--scaling-world-sizes", "2")
    result = project.inline("-m", "scaling", "-p", stand_in.__name__, *cells, "-k", "lenet")
    assert result.ret == 1
    assert project.outcomes() == {"scratch-lenet-strong-2": "FAIL", "scratch-lenet-weak-2": "NO BASELINE"}
    [record] = project.records()
    floors = [check for cell in record.cells for check in cell.checks if check.rule == "floor"]
    assert [(check.against, check.outcome) for check in floors] == [
        ("efficiency 0.9", "FAIL"),
        ("efficiency 0.7", "PASS"),
    ]
    result.stdout.fnmatch_lines(["FAIL: efficiency *floor 0.90: below it (99% confidence)"])
