"""Commands with real workers, as in a project that only has the suite installed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suite.cli import first_minutes
from suite.cli.sweep import FILES
from suite.records import calibration
from suite.records.files import read_model
from suite.records.sweep import Sweep
from tests.docs.test_seeds import COMMANDS
from tests.support import trainers_under_test
from tests.support.deadlines import WHOLE_S
from tests.support.processes import all_end
from tests.support.project import DATA, PYPROJECT, REPOSITORY, Project, needs_two_cores, run_suite
from tests.support.repositories import Repository
from tests.support.sweeps import NETS, SMALL
from tests.support.traces import events

HERE = f"{trainers_under_test.__file__}:"

# By hand, because torch.optim loads torch's compiler, for seconds of every session.
TRAIN = """\
import time

import torch
import torch.nn.functional as F


class Mine:
    processes = "one"

    def __init__(self, model, devices, *, lr):
        self.net, self.lr = model.to(devices[0]), lr

    def step(self, X, y, global_batch_size):
        loss = F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size
        parameters = list(self.net.parameters())
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                parameter -= self.lr * gradient
        {extra}

    @property
    def replicas(self):
        return [self.net]
"""
# Steps that mostly sleep differ by the same factor on a busy machine.
FAST = TRAIN.format(extra="time.sleep(0.004)")
SLOW = TRAIN.format(extra="time.sleep(0.016)")


@pytest.mark.nightly
def test_git_bisect_run_finds_the_slow_commit(tmp_path: Path) -> None:
    """By real workers: git asks about the slow commit and the one before it."""
    repository = Repository(tmp_path / "project")
    project = {"pyproject.toml": PYPROJECT, "data.py": DATA, ".gitignore": "reports/\n__pycache__/\n"}
    repository.commit({**project, "train.py": FAST})
    repository.git("tag", "v1.0")
    repository.commit({"other": "changed"})
    slow = repository.commit({"train.py": SLOW})
    repository.commit({"other": "changed again"})
    one = ["--scaling-trainer", "train.py:Mine", "--scaling-workload", "tiny", "--scaling-devices", "cpu:1"]
    judged = ["--scaling-against", "ref:v1.0", "--scaling-mode", "strong", "--scaling-tolerance", "1"]
    judged += ["--scaling-budget", "200"]  # a busy machine needs half of it
    repository.git("bisect", "start", "HEAD", "v1.0")
    done = subprocess.run(
        ["git", "bisect", "run", sys.executable, "-m", "suite", "bisect", *one, *judged],
        cwd=repository.path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert f"{slow} is the first" in said
    assert "bisect: bad (1): Mine-tiny-strong-1: " in said
    assert "bisect: good (0): Mine-tiny-strong-1: " in said
    repository.git("bisect", "reset")
    assert not repository.git("status", "--porcelain"), "the records are where .gitignore expects them"
    assert len(list(repository.path.glob("reports/*/runs/*/record.json"))) == 2


@needs_two_cores
def test_a_machine_is_calibrated(project: Project) -> None:
    """From a project that only has the suite installed. A small budget makes short sessions, of one block each."""
    cell = ["--scaling-devices=cpu:2", "--scaling-workload=tiny", "--scaling-trainer=scratch", "-k", "strong-1"]
    short = ["--sessions=3", "--scaling-report-dir=kept", "--scaling-budget=1"]
    done = run_suite(project.path, "calibrate", *cell, *short)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: equal code looked slower; one run in a hundred
    [path] = (project.path / "kept").glob("*/calibration.json")
    stored = calibration.read(project.path / "kept", path.parent.name)
    assert stored is not None
    [entry] = stored.entries
    assert (entry.trainer, entry.workload, entry.world_size) == ("scratch", "tiny", 1)
    assert entry.spread.sessions == 3
    assert all(error > 0 for error in entry.spread.errors)
    assert "compared with the same build" in done.stdout
    assert re.search(r"^ ?scratch tiny strong 1 +\d+\.\d\d% +\d+\.\d\d% +nothing *$", done.stdout, re.MULTILINE)
    assert re.search(r"^A budget of 1 s has room for 0 session\(s\) of \d+\.\d s\. ", done.stdout, re.MULTILINE)
    assert f"stored: {path}" in done.stdout
    assert "fewer than 10 sessions: no run will use it" in done.stdout
    assert "accepted" not in done.stdout


@pytest.mark.nightly
def test_both_faults_turn_the_gate_red(project: Project) -> None:
    """As in a project that only has the suite installed; a step of 400 % more is seen on any machine.

    One device to time, which costs least, and of the checks those that a drill asks about: they have devices enough.
    """
    options = ["--scaling-devices", "cpu:1", "--scaling-workload", "tiny", "-k", "tiny or gradient or identity"]
    done = run_suite(project.path, "drill", "--slowdown", "4", "--scaling-trainer", "scratch", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "drill: passed"
    assert "a slowdown of 400% at world size 1, planted in scratch" in done.stdout
    assert "FAIL: " in done.stdout
    assert not list(project.path.glob("reports/*")), "the drill's runs are no part of the machine's history"


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_drill_that_is_killed_or_cancelled_ends_its_gate(tmp_path: Path, name: str) -> None:
    """The gate ends by KeyboardInterrupt, and so in order: it has workers to end and a record to write."""
    (tmp_path / "test_gate.py").write_text(
        "import os, time\nfrom pathlib import Path\nfrom suite.room.quiet import as_interrupts\n"
        "def test_gate():\n"
        "    try:\n"
        "        with as_interrupts():\n"
        "            Path('pid').write_text(str(os.getpid()))\n"
        "            time.sleep(60)\n"
        "    except KeyboardInterrupt:\n"
        "        Path('ended').touch()\n"
    )
    code = (
        "from suite.cli import drill\nfrom suite.room.quiet import as_interrupts\n"
        "with as_interrupts(): drill._pytest(['test_gate.py'], ['-p', 'no:cacheprovider'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    drilling = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (pid := tmp_path / "pid").exists() or not pid.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    drilling.send_signal(signal.Signals[name])
    drilling.wait(60)
    assert all_end([int(pid.read_text())])
    assert (tmp_path / "ended").exists()


def test_a_run_on_two_cpu_workers_is_tried_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert first_minutes.main(["--devices", "cpu:2", "--folder", str(tmp_path), "--only", "exchanges"]) == 0
    text = (tmp_path / "page.md").read_text()
    assert "- gloo exchanges right sums\n" in text
    assert text.strip() in capsys.readouterr().out
    assert list(tmp_path.glob("reports/*/runs/*/record.json"))


@needs_two_cores
def test_real_workers_train_the_grid(project: Project) -> None:
    """From a project that only has the suite installed; three epochs of a tiny net on one and two devices."""
    options = ["--scaling-workload", "tiny", "--scaling-devices", "cpu:2", "--scaling-trainer", "scratch"]
    done = run_suite(project.path, "sweep", *SMALL, *options, "--out", "kept")
    assert done.returncode == 0, done.stdout + done.stderr
    trained = read_model(project.path / "kept" / FILES[0], Sweep).trained
    assert len(trained) == NETS
    assert all(0.9 < one.per_epoch[-1] <= 1 for one in trained), "the blobs are far apart"
    assert "mean curve" in done.stdout
    assert (project.path / "kept" / FILES[1]).exists()


@pytest.mark.nightly
@needs_two_cores
def test_every_rank_leaves_a_trace_and_a_cell_that_breaks_costs_only_itself(project: Project) -> None:
    """On one device strong and weak are the same step, which is run once for both."""
    wanted = "Raises and (strong-1 or weak-1) or ddp and strong-2"
    cells = ["--scaling-trainer", HERE + "Raises", "--scaling-trainer", "ddp", "-k", wanted]
    options = ["--scaling-devices", "cpu:2", "--scaling-workload", "tiny", "--scaling-against", "scratch"]
    done = run_suite(project.path, "trace", "--steps", "2", *options, *cells)
    assert done.returncode == 1, done.stdout + done.stderr
    broken = "trace: Raises-tiny-strong-1, Raises-tiny-weak-1: rank 0: RuntimeError: the third step is too much"
    assert done.stderr.count(broken) == 1
    assert "trace: --scaling-against is left out: the candidate alone is traced" in done.stderr
    [folder] = project.path.glob("reports/*/traces/*")
    assert f"traces of 1 of 3 cell(s), a file a rank: {folder.relative_to(project.path)}" in done.stdout
    assert "https://ui.perfetto.dev" in done.stdout
    assert re.search(r"ddp-tiny-strong-2: \d+\.\d ms a step while traced; rank 0:\n", done.stdout)
    assert "aten::" in done.stdout
    names = [f"ddp-tiny-strong-2-rank{rank}.json.gz" for rank in range(2)]
    assert sorted(path.name for path in folder.iterdir()) == names
    for name in names:
        seen = [event["name"] for event in events(folder / name)]
        assert seen.count("feed") == seen.count("step") == 2
    assert not list(project.path.glob("reports/*/runs")), "nothing was judged"


@pytest.mark.nightly
@pytest.mark.parametrize("row", ["3-loss", "4-train"])
def test_the_book_is_trained(row: str) -> None:
    [command] = [command for command in COMMANDS[row] if command.startswith("python")]
    arguments = [sys.executable, *shlex.split(command)[1:]]
    out = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=WHOLE_S).stdout
    assert re.search(r"test acc [\d.]+, [\d.]+ sec/epoch on \[", out), out
