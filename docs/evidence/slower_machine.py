"""A machine that became slower under the same code: does the gate fail it, and name the machine?

    sudo python -m docs.evidence.slower_machine > docs/evidence/slower_machine.md
    sudo python -m docs.evidence.slower_machine --project FOLDER

A project with one commit and one trainer, DistributedDataParallel, is measured in a network namespace, where gloo's
traffic has a loopback device of its own. Six runs are accepted. Then the same commit is measured as before, with `tc
tbf` on the loopback device, and beside a process that burns the second core. Needs root, iproute2, git and two cores;
about fifteen minutes.

The six runs follow each other, so their ids are moved to hours apart, as accepted runs have to be to count. With
`--project` they are hours apart: each call accepts one run, which is refused if the last is less than an hour old, and
the call after the sixth measures the rest. The folder stays.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from docs.evidence.log import ROOT
from suite.records.files import read_model
from suite.records.record import Record
from suite.room.quiet import available_cores
from suite.verdict.stored import APART_S

HOST = "scaling-machine"
ACCEPTED = 6
RATE = "200mbit"
HEAD = "| machine | efficiency | cell | the code against its base | the machine |\n|---|---|---|---|---|"
TRAINER = """\
from reference.trainers.ddp import DDPTrainer


class Mine(DDPTrainer):
    pass
"""
COMMAND = (
    "-q", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling", "-m", "scaling", "--scaling-devices=cpu:2",
    "--scaling-trainer=train.py:Mine", "--scaling-mode=strong", "--scaling-budget=90",
)  # fmt: skip


@contextlib.contextmanager
def network() -> Iterator[None]:
    """A network namespace with a loopback device."""
    try:
        subprocess.run(["ip", "netns", "add", HOST], check=True)
        subprocess.run(["ip", "-n", HOST, "link", "set", "lo", "up"], check=True)
        yield
    finally:
        subprocess.run(["ip", "netns", "del", HOST], check=False, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def slow_link() -> Iterator[None]:
    """The loopback device sends no more than `RATE`."""
    device = ["dev", "lo", "root"]
    limit = ["tbf", "rate", RATE, "burst", "256kb", "latency", "50ms"]
    subprocess.run(["tc", "-n", HOST, "qdisc", "add", *device, *limit], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "-n", HOST, "qdisc", "del", *device], check=True)


@contextlib.contextmanager
def shared_core() -> Iterator[None]:
    """The second core has something else to do."""
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(burning.pid, {available_cores()[1]})
    try:
        yield
    finally:
        burning.kill()
        burning.wait()


def measured(project: Path, *options: str) -> Record:
    """Run the gate in the namespace, and return its record."""
    command = ["ip", "netns", "exec", HOST, sys.executable, "-m", "pytest", *COMMAND, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=project, env=environment, stdout=sys.stderr, check=False, timeout=600)
    return newest(project)


def newest(project: Path) -> Record:
    """Return the record that was written last."""
    path = max(project.glob("reports/*/runs/*/record.json"), key=lambda path: path.stat().st_mtime_ns)
    return read_model(path, Record)


def move_apart(project: Path) -> None:
    """Give the accepted runs ids of one hour each."""
    [path] = project.glob("reports/*/baseline.json")
    baseline = json.loads(path.read_text())
    for hour, run in enumerate(baseline["runs"]):
        run["run_id"] = f"20260101T{hour:02}0000Z-{run['environment']['commit'][:7]}"
    path.write_text(json.dumps(baseline))


def row(name: str, record: Record) -> str:
    """One run in the table: its cell on two devices."""
    two = next(cell for cell in record.cells if cell.world_size == 2)
    checks = {check.rule: check for check in two.checks}
    words = [
        f"{checks[rule].outcome}: {checks[rule].reason}" if rule in checks else "-" for rule in ("time", "machine")
    ]
    words[0] += f"; {two.warning}" if two.warning else ""
    efficiency = f"{two.efficiency.estimate:.2f}" if two.efficiency else "-"
    return f"| {name} | {efficiency} | {two.outcome} | {' | '.join(words)} |"


def commit(project: Path, trainer: str, workload: str = "") -> None:
    """Make a project of one module, `train.py`, and perhaps a workload of its own, with one commit."""
    (project / "train.py").write_text(trainer)
    (project / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{workload}")
    (project / ".gitignore").write_text("reports/\ndata/\n__pycache__/\n")
    who = ["-c", "user.name=Evidence", "-c", "user.email=evidence@example.org"]
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "A trainer"]):
        subprocess.run(["git", *who, *arguments], cwd=project, check=True)


def scenes(project: Path) -> None:
    """Print a row for the same machine and for two slower ones."""
    every = {
        "as before": contextlib.nullcontext,
        f"a link of {RATE}": slow_link,
        "a core shared with another process": shared_core,
    }
    for name, scene in every.items():
        with scene():
            print(row(name, measured(project)), flush=True)


def accept(project: Path, number: int) -> None:
    """Accept a run, and print its row."""
    print(row(f"accepted run {number}", measured(project, "--scaling-accept")), flush=True)


def one_call(project: Path) -> None:
    """Accept one more run of a project that stays, or measure the rest if there are enough.

    Raises:
        ValueError: the last run is less than `APART_S` old.
    """
    project.mkdir(parents=True, exist_ok=True)
    if not (project / ".git").exists():
        commit(project, TRAINER)
    made = [path.stat().st_mtime for path in project.glob("reports/*/runs/*/record.json")]
    if made and (age_s := time.time() - max(made)) < APART_S:
        raise ValueError(f"the last run is {age_s / 60:.0f} minutes old: come back in {(APART_S - age_s) / 60:.0f}")
    accepted = sum(len(json.loads(path.read_text())["runs"]) for path in project.glob("reports/*/baseline.json"))
    if accepted < ACCEPTED:
        accept(project, accepted + 1)
    else:
        scenes(project)


def main() -> None:
    """Print a row for every run that is made."""
    parser = argparse.ArgumentParser(description="Does a slower machine turn the gate red, and is it named?")
    parser.add_argument("--project", type=Path, help="a folder that stays, for accepted runs hours apart")
    asked = parser.parse_args()
    with network():
        if asked.project:
            try:
                one_call(asked.project.resolve())
            except ValueError as error:
                parser.error(str(error))
            return
        print(HEAD)
        with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
            project = Path(folder)
            commit(project, TRAINER)
            for number in range(ACCEPTED):
                accept(project, number + 1)
                move_apart(project)
            scenes(project)


if __name__ == "__main__":
    main()
