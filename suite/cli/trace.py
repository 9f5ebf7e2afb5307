"""`python -m suite trace`: a torch.profiler trace of a few steps of the selected cells, a file for each rank.

Nothing is judged and no record is written, because a traced step takes longer. Each cell has processes of its own, one
cell at a time, warmed up as for a measurement.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from pathlib import Path

import pytest

from suite.base.sides import SidePool
from suite.cli import pytest_run
from suite.cli.command import Stop, new_folder, whole_number
from suite.plan.cells import Arm, Cell
from suite.processes.failure import WorkerFailure
from suite.processes.group import START_TIMEOUT_S
from suite.processes.jobs import Traced
from suite.records.files import keep_from_git
from suite.render.figures import legible
from suite.run import preparing
from suite.run.observations import Observations
from suite.run.plan import FIRST_STEP_TIMEOUT_S

SUMMARY = "trace a few steps of each cell with torch.profiler, for Perfetto or chrome://tracing"
PYTEST_OPTIONS = True
STEPS, WARM_UP = 5, 3
STEP_TIMEOUT_S = 30.0  # a step, its recording, and its share of writing the file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the numbers of steps."""
    for name, default, what in (("steps", STEPS, "steps to trace"), ("warm-up", WARM_UP, "steps before them")):
        said = f"{what}, at least 1 (default: {default})"
        parser.add_argument(f"--{name}", type=whole_number(), default=default, metavar="N", help=said)


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Trace the selected cells one after the other, and return 0 when all were traced, 1 when one was not."""
    selected = pytest_run.select(pytest_arguments)
    settings, cells = selected.settings, selected.cells
    if settings is None or not cells:
        if selected.status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            status = selected.status or pytest.ExitCode.NO_TESTS_COLLECTED
            raise Stop("no cell was selected; pytest -m scaling --collect-only lists them", status)
        return selected.status
    if settings.against is not None:
        print("trace: --scaling-against is left out: the candidate alone is traced", file=sys.stderr)
    untrained = tuple(workload.model_copy(update={"accuracy": None}) for workload in settings.workloads)
    measurement = pytest_run.without_base(dataclasses.replace(settings, workloads=untrained), cells)
    plan, traced = measurement.plan, 0
    sharing: dict[Arm, list[Cell]] = {}  # on one device strong and weak are the same step
    for cell in plan.cells:
        sharing.setdefault(plan.own(cell), []).append(cell)
    folder = settings.report_dir.resolve() / plan.machine.key / "traces" / plan.run_id
    with new_folder(folder, "--scaling-report-dir", settings.report_dir), pytest_run.sides(settings) as sides:
        keep_from_git(folder.parents[1])
        preparing.prepare(measurement, sides, list(sharing), _say)
        for (arm, alike), name in zip(
            sharing.items(), file_names([alike[0] for alike in sharing.values()]), strict=True
        ):
            what = ", ".join(cell.id + settings.devices.mark(cell.world_size) for cell in alike)
            _say(f"{what}: {asked.steps} steps after {asked.warm_up}")
            try:
                answers = _trace(sides.pools["candidate"], measurement, arm, folder / name, asked)
            except WorkerFailure as failure:
                print("\n".join([f"trace: {what}: {failure.cause}", *failure.details]), file=sys.stderr)
                continue
            traced += len(alike)
            _say(f"{what}: {max(answer.step_ms for answer in answers):.1f} ms a step while traced; rank 0:")
            print(legible(answers[0].table), flush=True)
    if traced:
        print(f"traces of {traced} of {len(cells)} cell(s), a file a rank: {os.path.relpath(folder)}")
        print('to open one: "Open trace file" at https://ui.perfetto.dev, or "Load" in chrome://tracing')
    return 0 if traced == len(cells) else 1


def _trace(pool: SidePool, run: Observations, arm: Arm, path: Path, asked: argparse.Namespace) -> list[Traced]:
    """Return every rank's answer about its trace; a WorkerFailure where the arm cannot be traced."""
    if arm in run.lost:
        raise run.lost[arm]
    job = run.jobs[arm]
    group = pool.launch(path.name, job.size)
    limit_s = START_TIMEOUT_S + FIRST_STEP_TIMEOUT_S + STEP_TIMEOUT_S * (asked.warm_up + asked.steps)
    told = {"arm": job, "warm_up": asked.warm_up, "steps": asked.steps, "path": str(path)}
    answers = group.request(Traced, "trace", limit_s, **told)
    group.close()
    return answers


def file_names(cells: list[Cell]) -> list[str]:
    """Return a name for each cell's files: its id in letters that a file system accepts, numbered where it repeats."""
    names = [re.sub(r"[^\w.-]+", "_", cell.id).lstrip(".") for cell in cells]
    return [name if name not in names[:at] else f"{name}_{at + 1}" for at, name in enumerate(names)]


def _say(line: str) -> None:
    print(f"trace: {line}", flush=True)
