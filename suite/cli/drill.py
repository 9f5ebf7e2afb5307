"""`python -m suite drill`: plant a slowdown and a wrong gradient, and fail unless both turn the gate red.

The real gate runs, in processes of its own. The drill fails when a fault is not found, and also when the gate turns red
for another reason: it would then not be known what the gate says about the fault.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from suite.checks import FAILURE, WRONG
from suite.cli import pytest_run
from suite.cli.command import USAGE_ERROR, Stop, in_own_process, known_of, positive, records_in, writing
from suite.processes.folder import TemporaryFolder
from suite.records import calibration
from suite.records.record import Record
from suite.render import markdown
from suite.verdict import Outcome

SUMMARY = "plant a slowdown and a wrong gradient; fail unless both turn the gate red"
PYTEST_OPTIONS = True
SLOWDOWN = 0.25  # five times the default tolerance: a gate that misses this is of no use
CHECKS = ("gradient", "identity")  # the one that must fail, and the one that must not
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

PLANTED = """\
from suite.rank import planting

Slow = planting.slowed({trainer!r}, {slowdown!r}, at={world_size})
Wrong = planting.wrong({trainer!r})
"""


class Checked(NamedTuple):
    """The outcome of a check, `WRONG` if the trainer computed something wrong, and the first line of its message."""

    outcome: str
    message: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is planted, and in which trainer."""
    parser.add_argument(
        "--slowdown",
        type=positive,
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


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Run both gates, and return 0 when each of them said what it had to, 1 when one did not."""
    trainer = absolute(asked.scaling_trainer)
    common = [*pytest_arguments, "--scaling-mode", asked.scaling_mode]
    settings = pytest_run.settings([*common, f"--scaling-trainer={trainer}", f"--scaling-against={trainer}"])
    if settings.misfit:
        raise Stop(settings.misfit)
    pytest_run.require_one_host(settings)  # others do not have the file that is planted
    size = settings.world_sizes[-1]
    with writing(Path("TMPDIR"), "TMPDIR"):
        temporary = TemporaryFolder("drill-")
    with contextlib.closing(temporary):
        folder = temporary.path
        planted, reports, junit = folder / "planted.py", folder / "reports", folder / "wrong.xml"
        planted.write_text(PLANTED.format(trainer=trainer, slowdown=asked.slowdown, world_size=size))
        copy_calibration(settings.report_dir, reports)
        what = f"a slowdown of {asked.slowdown:.0%} at world size {size}, planted in {trainer}"
        _say(f"{what}: `-m scaling` must turn red")
        # The drill's own options come last and win; its records are no part of the machine's history.
        slow = [f"--scaling-trainer={planted}:Slow", f"--scaling-against=trainer:{trainer}"]
        own = [f"--scaling-world-sizes={size}", f"--scaling-report-dir={reports}"]
        status = _pytest(pytest_run.SCALING, [*common, *slow, *own])
        complaints = judge_slow(status, records_in(reports))
        _say("a wrong gradient: `-m correctness` must turn red")
        wrong = [f"--scaling-trainer={planted}:Wrong", "-k", " or ".join(CHECKS), "--junitxml", str(junit)]
        status = _pytest(pytest_run.CORRECTNESS, [*common, *wrong])
        complaints += judge_wrong(status, checked(junit) if junit.exists() else {})
    for complaint in complaints:
        _say(f"FAILED: {complaint}")
    if not complaints:
        _say("passed")
    return 1 if complaints else 0


def judge_slow(status: int, records: Sequence[Record]) -> list[str]:
    """Return what is wrong unless a slowed trainer turned the gate red because of its time; `status` is pytest's."""
    what = "the planted slowdown"
    cells = [cell for record in records for cell in record.cells]
    if not cells:
        return [f"{what}: nothing was measured (pytest's exit status {status})"]
    complaints = []
    for cell in cells:
        by_time = any(check.rule == "time" and check.outcome is Outcome.FAIL for check in cell.checks)
        if cell.outcome is Outcome.INCONCLUSIVE:
            complaints.append(
                f"{what}: {cell.label} is INCONCLUSIVE, so none of this size is found here: {cell.reason}"
            )
        elif cell.outcome is not Outcome.FAIL:
            complaints.append(f"{what}: {cell.label} is not red but {cell.outcome.value}: {cell.reason}")
        elif not by_time:
            complaints.append(f"{what}: {cell.label} is red for another reason: {cell.reason}")
    if not complaints and status != pytest.ExitCode.TESTS_FAILED:
        complaints.append(f"{what}: every cell is FAIL, and pytest's exit status {status} instead of 1")
    return complaints


def judge_wrong(status: int, checks: Mapping[str, Checked]) -> list[str]:
    """Return what is wrong unless a wrong gradient turned the gate red because of the gradient.

    On one device nothing is planted, so a trainer that fails there too is broken in another way.
    """
    what = "the planted wrong gradient"
    if not set(CHECKS) <= checks.keys():
        return [f"{what}: the checks did not run (pytest's exit status {status})"]
    gradient, identity = (checks[name] for name in CHECKS)
    if identity.outcome not in (PASSED, SKIPPED):
        return [f"{what}: check 'identity' failed too, where nothing was planted: {identity.message}"]
    if gradient.outcome == PASSED:
        return [f"{what}: check 'gradient' stayed green"]
    if gradient.outcome == SKIPPED:  # as where two ranks of the trainer cannot share the only GPU
        return [f"{what}: check 'gradient' was skipped: {gradient.message}"]
    if gradient.outcome != WRONG:
        return [f"{what}: check 'gradient' is red for another reason: {gradient.message}"]
    if status != pytest.ExitCode.TESTS_FAILED:
        return [f"{what}: check 'gradient' failed, and pytest's exit status is {status} instead of 1"]
    return []


def checked(junit: Path) -> dict[str, Checked]:
    """Return the checks in a JUnit file by name."""
    checks = {}
    for case in ElementTree.parse(junit).iter("testcase"):  # noqa: S314 - our own process has just written it
        name = case.get("name", "").rpartition("-")[2].removesuffix("]")
        properties = {each.get("name"): each.get("value") for each in case.iter("property")}
        found = Checked(PASSED)
        for element in case:
            message = (element.get("message") or "").partition("\n")[0]
            if element.tag in ("failure", "error"):
                found = Checked(properties.get(FAILURE) or FAILED, message)
            elif element.tag == "skipped":
                found = Checked(SKIPPED, message)
        checks[name] = found
    return checks


def absolute(spec: str) -> str:
    """Return a trainer's name in a form that is valid in any folder."""
    source, colon, name = spec.rpartition(":")
    return f"{Path(source).resolve()}{colon}{name}" if source.endswith(".py") else spec


def copy_calibration(report_dir: Path, reports: Path) -> None:
    """Copy the calibrations that can be read to the drill's report folder, where its runs look for them."""
    for path in report_dir.glob("*/calibration.json"):
        known = known_of(path.parent, calibration.read, "drill: without a calibration")
        if known is not None:
            with writing(reports, "TMPDIR"):
                known.write(reports)


def _pytest(gate_arguments: Sequence[str], arguments: Sequence[str]) -> int:
    """Run pytest in a process of its own and return its exit status; a `Stop` where an option is wrong."""
    command = [sys.executable, "-m", "pytest", *gate_arguments, *arguments]
    # A planted fault must not appear in the summary of a CI job.
    environment = {name: value for name, value in os.environ.items() if name != markdown.VARIABLE}
    # No deadline here: the gate has a budget, and each of its waits a deadline.
    status = in_own_process(command, environment=environment)
    if status == pytest.ExitCode.USAGE_ERROR:
        raise Stop("pytest refused its options; correct what it says above", USAGE_ERROR)
    return status


def _say(line: str) -> None:
    print(f"drill: {line}", flush=True)
