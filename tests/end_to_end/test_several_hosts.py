"""Runs on several hosts: network namespaces with a device each, joined by torchrun (docs/several-machines.md)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.records.files import read_model
from suite.records.record import Record
from tests.support.deadlines import WHOLE_S
from tests.support.project import DATA, PYPROJECT, REPOSITORY
from tests.support.repositories import Repository
from tests.support.several_hosts import Hosts, hosts, needs_namespaces, wrong_clock

pytestmark = needs_namespaces

PYTEST = (sys.executable, "-m", "pytest", "-p", "suite.plugin", "-p", "no:cacheprovider", "--pyargs")
CHECKED = (*PYTEST, "suite.checks", "-m", "correctness", "--scaling-trainer=ddp")
GATE = (
    *PYTEST, "suite.benchmarks.test_scaling", "-m", "scaling", "--scaling-workload=tiny", "--scaling-trainer=ddp",
    "--scaling-mode=strong", "--scaling-counters=off", "--scaling-budget=15",
)  # fmt: skip

# What a controller does with a pool, without a whole run.
POOL = """\
import sys
from dataclasses import replace
from pathlib import Path

from suite.base.sides import hosts_of
from suite.processes.pool import Pool
from suite.room import devices
from tests.support import controlling

act, settings, join_s = sys.argv[1:]
chosen = devices.parse(settings)
known = replace(hosts_of(chosen), join_s=float(join_s))
with Pool(kind="cpu", import_paths=[Path.cwd()], preload="trainers", hosts=known) as pool:
    getattr(controlling, act)(pool, chosen)
"""
OTHER_FILE = "suite/launch.py"
WAITS = """\
while not os.path.exists({there!r}):
    threading.Event().wait(0.1)

"""
REFUSED = "the controller refused this host:"
HAS_LEFT = r"host \S+ \(10\.215\.0\.2\) has left the run: its launcher or its network has ended"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "data.py").write_text(DATA)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    return folder


def said(process: subprocess.Popen[str], timeout_s: float = WHOLE_S) -> str:
    return process.communicate(timeout=timeout_s)[0]


def followed(process: subprocess.Popen[str], moment: str, act: Callable[[], object]) -> str:
    """Return all that a controller prints; do something as soon as it prints `moment`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:  # the deadline of the test ends this
        lines.append(line)
        print(line, end="")  # shown where the test runs past its deadline
        if moment in line:
            act()
    process.wait(30)
    return "".join(lines)


def control(joined: Hosts, project: Path, act: str, *, join_s: float = 100) -> subprocess.Popen[str]:
    """Start a controller that does one of `tests.support.controlling` on one CPU of each host."""
    return joined.start(0, sys.executable, "-c", POOL, act, f"{joined.count}xcpu:1", str(join_s), cwd=project)


def only_record(project: Path) -> Record:
    [path] = project.glob("reports/*/runs/*/record.json")
    return read_model(path, Record)


@pytest.mark.nightly
def test_one_run_measures_one_device_one_host_and_both_hosts(project: Path, tmp_path: Path) -> None:
    """The second host's clock is a month behind, and every host has its own folder for temporary files."""
    with hosts(tmp_path, share_cores=True) as two:
        other = two.join(1, cwd=project, clock=wrong_clock(tmp_path))
        controller = two.start(0, *GATE, "--scaling-devices=2xcpu:2", "--scaling-world-sizes=1,2,4", cwd=project)
        shown = said(controller)
        assert controller.returncode == 0, shown
        assert "served the controller" in said(other, 30)
        assert other.returncode == 0
    record = only_record(project)
    assert (record.machine.hosts, record.machine.per_host) == (2, 2)
    assert [(cell.world_size, cell.outcome) for cell in record.cells] == [(k, "NO BASELINE") for k in (1, 2, 4)]
    of_a_host, of_both = (cell.efficiency for cell in record.cells[1:])
    assert of_a_host is not None
    assert of_both is not None
    inside, across = map(float, re.findall(r"ddp: (\S+) inside a host \(2 devices\), (\S+) across 2", shown)[0])
    assert inside == pytest.approx(of_a_host.estimate, abs=0.006)
    assert across == pytest.approx(of_both.estimate / of_a_host.estimate, abs=0.006)
    [all_four] = {arm.id for arm in record.arms if arm.world_size == 4}
    windows = [window for session in record.sessions for window in session.windows if window.arm == all_four]
    assert all(0 < duration < 60e9 for window in windows for duration in window.duration_ns)
    assert all(len(window.duration_ns) == 4 for window in windows)


@pytest.mark.nightly
def test_a_host_that_dies_while_cells_are_timed_costs_the_cells_that_need_it(project: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as two:
        other = two.join(1, cwd=project)
        controller = two.start(0, *GATE, "--scaling-devices=2xcpu:1", cwd=project)
        shown = followed(controller, "session 1: block 1", lambda: two.end(other))
        assert controller.returncode == 1, shown
    one, both = only_record(project).cells
    assert one.sec_per_epoch is not None
    assert both.outcome == "ERROR"
    assert re.fullmatch(HAS_LEFT, both.reason)


@pytest.mark.nightly
def test_gradients_are_checked_over_hosts_and_a_host_that_dies_is_named(project: Path, tmp_path: Path) -> None:
    with hosts(tmp_path, 3) as three:
        other, _ = three.join(1, cwd=project), three.join(2, cwd=project)
        controller = control(three, project, "check_and_lose")
        shown = followed(controller, "both ranks hang", lambda: three.end(other))
    assert controller.returncode == 0, shown
    for expected in (
        "ddp on 3 hosts: right",
        "a rank starts differently: before the first step, 'head.weight' on rank 1 is off",
        "garbage: turned away",
        "dies: rank 1: its process ended with exit code 7",
        "written on the other host before the end",
        "hangs: rank 1: no answer to 'call' within 3 s, ended",
        "in hang_on_rank_1",
        "alone: [{'returned': 0}]",
    ):
        assert expected in shown, shown
    assert re.search(f"^host: {HAS_LEFT}$", shown, re.MULTILINE), shown


@pytest.mark.nightly
def test_a_users_own_model_is_checked_over_hosts_that_share_no_folder(project: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as two:
        two.join(1, cwd=project)
        own = (*CHECKED, "--scaling-workload=tiny", "--scaling-devices=2xcpu:1", "-k", "own_model")
        controller = two.start(0, *own, cwd=project)
        shown = said(controller)
    assert controller.returncode == 0, shown
    assert "1 passed" in shown


@pytest.mark.nightly
def test_a_host_whose_cable_is_pulled_out_is_named(project: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as two:
        two.join(1, cwd=project)
        controller = control(two, project, "lose_cable")

        def pull() -> None:
            two.cut(1)
            (project / "pulled").touch()

        shown = followed(controller, "pull the cable", pull)
    assert controller.returncode == 0, shown
    assert re.search(f"^later: {HAS_LEFT}$", shown, re.MULTILINE), shown
    assert "alone: [{'returned': 0}]" in shown


@pytest.mark.nightly
def test_a_host_with_another_file_or_another_secret_is_refused(project: Path, tmp_path: Path) -> None:
    repository = Repository(project)
    commit = repository.commit()
    elsewhere = tmp_path / "elsewhere"
    repository.git("clone", "--quiet", str(project), str(elsewhere))
    for package in ("suite", "reference"):
        shutil.copytree(REPOSITORY / package, elsewhere / package, ignore=shutil.ignore_patterns("__pycache__"))
    first = tmp_path / "the stranger was refused"  # the run, and with it the rendezvous, ends when one of ours is
    code = (elsewhere / OTHER_FILE).read_text()
    (elsewhere / OTHER_FILE).write_text(code.replace("if __name__", WAITS.format(there=str(first)) + "if __name__"))
    with hosts(tmp_path, 3) as three:
        stranger = three.join(1, cwd=project, SCALING_SECRET="another secret of as many characters")
        changed = three.join(2, cwd=elsewhere)
        controller = control(three, project, "start_on_all")
        assert "refused the proof of this host: is SCALING_SECRET the same there?" in said(stranger)
        first.touch()
        assert f"is refused: at commit {commit} it has another {OTHER_FILE}" in said(controller)
        assert f"{REFUSED} at commit {commit} it has another {OTHER_FILE}" in said(changed, 30)


def test_a_host_with_another_commit_is_refused(project: Path, tmp_path: Path) -> None:
    here = Repository(project).commit()
    Repository(project).git("clone", "--quiet", str(project), str(tmp_path / "later"))
    there = Repository(tmp_path / "later").commit({"train.py": "lr = 0.1\n"})
    differs = f"it has commit {there}, and the controller's host has {here}"
    with hosts(tmp_path) as two:
        later = two.join(1, cwd=tmp_path / "later")
        assert f"(10.215.0.2) is refused: {differs}" in said(control(two, project, "start_on_all"))
        assert f"{REFUSED} {differs}" in said(later, 30)


def test_a_host_that_never_joins_ends_the_run_with_the_command_to_start_there(project: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as two:
        shown = said(control(two, project, "start_on_all", join_s=4))
    assert "2 hosts should join at 10.215.0.1:29400 within 4 s, and 0 of the other 1 did: start" in shown
    assert "`while torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=10.215.0.1:29400" in shown
