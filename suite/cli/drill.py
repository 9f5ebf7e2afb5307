"""`python -m suite drill`: does the gate turn red? A slowdown and a wrong gradient are planted, and both must be found.

The real gate runs, in processes of its own. The drill fails when a fault stays unseen, and also when the gate turns red
for another reason: then nobody knows what it would have said of the fault.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from suite.cli import gate
from suite.plan.config import Config
from suite.records.calibration import path_for
from suite.records.record import Record, RecordError, read_model
from suite.render import job_summary
from suite.verdict import Outcome

SUMMARY = "plant a slowdown and a wrong gradient; fail unless both turn the gate red"
PYTEST_OPTIONS = True
SLOWDOWN = 0.25  # five times the tolerance: a gate that this escapes guards nothing
LEAVING_S = 60.0  # for a run that was interrupted to end its workers

PLANTED = """\
from suite.rank import planting

Slow = planting.slowed({trainer!r}, {slowdown!r}, at={world_size})
Wrong = planting.wrong({trainer!r})
"""


class _Stopped(Exception):
    """A gate ended without an answer; with the drill's exit status and the reason."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is asked beside pytest's own options."""
    parser.add_argument(
        "--slowdown",
        type=_share,
        default=SLOWDOWN,
        metavar="SHARE",
        help=f"what is planted at the largest world size, as a share of the step (default: {SLOWDOWN})",
    )
    parser.add_argument(
        "--scaling-trainer", default="ddp", metavar="NAME", help="the trainer that is spoilt (default: ddp)"
    )
    parser.add_argument(
        "--scaling-mode", default="strong", metavar="MODE", help="strong or weak: one is enough (default: strong)"
    )
    parser.add_argument(
        "--unplanted",
        action="store_true",
        help="also compare the trainer with itself, which must not turn red; takes as long again",
    )


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Run the gates; 0 when every one said what it had to, 1 when one did not, pytest's 4 for a wrong option."""
    trainer = absolute(asked.scaling_trainer)
    common = [*pytest_arguments, "--scaling-mode", asked.scaling_mode]
    settings = gate.settings([*common, f"--scaling-trainer={trainer}", f"--scaling-against={trainer}"])
    if not isinstance(settings, Config):
        return settings
    if not settings.world_sizes:
        print(f"drill: no world size fits {settings.devices}: there is nothing to drill on", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="scaling-drill-") as name:
        folder = Path(name)
        planted = folder / "planted.py"
        source = PLANTED.format(trainer=trainer, slowdown=asked.slowdown, world_size=settings.world_sizes[-1])
        planted.write_text(source)
        _lend_calibration(settings.report_dir, folder)
        try:
            complaints = slow_gate(f"{planted}:Slow", trainer, settings, common, folder, asked.slowdown)
            complaints += wrong_gate(f"{planted}:Wrong", common, folder)
            if asked.unplanted:
                complaints += same_gate(trainer, settings, common, folder)
        except _Stopped as stopped:
            status, reason = stopped.args
            print(f"drill: {reason}", file=sys.stderr)
            return int(status)
    for complaint in complaints:
        print(f"drill: FAILED: {complaint}")
    if not complaints:
        print("drill: passed")
    return 1 if complaints else 0


def slow_gate(
    slow: str, trainer: str, settings: Config, common: Sequence[str], folder: Path, slowdown: float
) -> list[str]:
    """Run `-m scaling` on the slowed trainer at the largest world size; what is wrong with the answer."""
    size = settings.world_sizes[-1]
    _say(f"a slowdown of {slowdown:.0%} at world size {size}, planted in {trainer}: `-m scaling` must turn red")
    return judge_slow(*_scaling(slow, trainer, size, common, folder / "slow"))


def same_gate(trainer: str, settings: Config, common: Sequence[str], folder: Path) -> list[str]:
    """Run `-m scaling` on the trainer against itself; what is wrong with the answer."""
    _say(f"nothing planted, {trainer} against itself: `-m scaling` must not turn red")
    return judge_same(*_scaling(trainer, trainer, settings.world_sizes[-1], common, folder / "same"))


def wrong_gate(wrong: str, common: Sequence[str], folder: Path) -> list[str]:
    """Run `-m correctness` on the wrong trainer; what is wrong with the answer."""
    _say("a wrong gradient: `-m correctness` must turn red")
    junit = folder / "wrong.xml"
    status = _pytest(gate.CORRECTNESS, [*common, f"--scaling-trainer={wrong}", "--junitxml", str(junit)])
    return judge_wrong(status, failed_checks(junit) if junit.exists() else {})


def judge_slow(status: int, record: Record | None) -> list[str]:
    """Whether a slowed trainer turned the gate red because of its time.

    Args:
        status: pytest's.
        record: of the run; None where none was written.
    """
    what = "the planted slowdown"
    if record is None or not record.cells:
        return [f"{what}: nothing was measured (pytest's exit status {status})"]
    complaints = []
    for cell in record.cells:
        by_time = any(check.rule == "time" and check.outcome is Outcome.FAIL for check in cell.checks)
        if cell.outcome is Outcome.INCONCLUSIVE:
            complaints.append(f"{what}: {cell.id} is INCONCLUSIVE, so this machine is too noisy for it: {cell.reason}")
        elif cell.outcome is not Outcome.FAIL:
            complaints.append(f"{what}: {cell.id} is not red but {cell.outcome.value}: {cell.reason}")
        elif not by_time:
            complaints.append(f"{what}: {cell.id} is red for another reason: {cell.reason}")
    if not complaints and status != pytest.ExitCode.TESTS_FAILED:
        complaints.append(f"{what}: every cell is FAIL, and pytest's exit status {status} instead of 1")
    return complaints


def judge_same(status: int, record: Record | None) -> list[str]:
    """Whether a trainer that was compared with itself stayed free of red; too noisy to say is allowed."""
    what = "the same build"
    if record is None or not record.cells:
        return [f"{what}: nothing was measured (pytest's exit status {status})"]
    return [
        f"{what}: {cell.id} is {cell.outcome.value}: {cell.reason}"
        for cell in record.cells
        if cell.outcome not in (Outcome.PASS, Outcome.INCONCLUSIVE)
    ]


def judge_wrong(status: int, checks: dict[str, str | None]) -> list[str]:
    """Whether a wrong gradient turned the gate red because of the gradient.

    One device alone is right, so a trainer that fails there too is broken in another way.

    Args:
        status: pytest's.
        checks: by name, the message of each that failed, None for one that passed.
    """
    what = "the planted wrong gradient"
    if "gradient" not in checks or "identity" not in checks:
        return [f"{what}: the checks did not run (pytest's exit status {status})"]
    found, alone = checks["gradient"], checks["identity"]
    if alone is not None:
        return [f"{what}: check 'identity' failed too, where nothing was planted: {alone}"]
    if found is None:
        return [f"{what}: check 'gradient' stayed green"]
    if "the gradient of" not in found and "is off that of the same trainer" not in found:
        return [f"{what}: check 'gradient' is red for another reason: {found}"]
    if status != pytest.ExitCode.TESTS_FAILED:
        return [f"{what}: check 'gradient' failed, and pytest's exit status is {status} instead of 1"]
    return []


def failed_checks(junit: Path) -> dict[str, str | None]:
    """The checks of one trainer from a JUnit file: the first line of a failure's message, None where it passed."""
    found: dict[str, str | None] = {}
    for case in ElementTree.parse(junit).iter("testcase"):  # noqa: S314 - our own process has just written it
        name = case.get("name", "").rpartition("-")[2].removesuffix("]")
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        found[name] = None if failure is None else (failure.get("message") or "failed").splitlines()[0]
    return found


def absolute(spec: str) -> str:
    """A trainer's name as it is found from another folder."""
    source, colon, name = spec.rpartition(":")
    return f"{Path(source).resolve()}{colon}{name}" if source.endswith(".py") else spec


def _scaling(
    trainer: str, against: str, world_size: int, common: Sequence[str], reports: Path
) -> tuple[int, Record | None]:
    # The drill's own options come last and win; its records are no part of the machine's history.
    own = [f"--scaling-trainer={trainer}", f"--scaling-against=trainer:{against}"]
    own += [f"--scaling-world-sizes={world_size}", f"--scaling-report-dir={reports}"]
    status = _pytest(gate.SCALING, [*common, *own])
    path = next(reports.glob("*/runs/*/record.json"), None)
    try:
        return status, read_model(path, Record) if path else None
    except RecordError as error:
        raise _Stopped(1, str(error)) from error


def _pytest(gate_arguments: Sequence[str], arguments: Sequence[str]) -> int:
    """Run pytest in a process of its own.

    Raises:
        _Stopped: an option is wrong, or it was interrupted.
    """
    command = [sys.executable, "-m", "pytest", *gate_arguments, *arguments]
    # A planted fault is no news for the page of a job.
    environment = {name: value for name, value in os.environ.items() if name != job_summary.VARIABLE}
    with subprocess.Popen(command, env=environment) as process:
        try:
            status = process.wait()  # no deadline here: the gate has a budget, and each of its waits a deadline
        except KeyboardInterrupt:  # a terminal tells it as well; it ends its workers and keeps its record
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LEAVING_S)
            process.kill()
            raise
    if status == pytest.ExitCode.USAGE_ERROR:
        raise _Stopped(status, "pytest refused its options")
    return status


def _lend_calibration(report_dir: Path, folder: Path) -> None:
    """Let the drill's runs know what the machine's own runs know of it."""
    for path in report_dir.glob("*/calibration.json"):
        for reports in ("slow", "same"):
            lent = path_for(folder / reports, path.parent.name)
            lent.parent.mkdir(parents=True)
            shutil.copyfile(path, lent)


def _say(line: str) -> None:
    print(f"drill: {line}", flush=True)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share of the step's time above 0, such as 0.25")
    return share
