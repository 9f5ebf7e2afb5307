"""`python -m suite trace`: what a few steps of the selected cells do, operator by operator, for a trace viewer.

Nothing is judged and no record is written, because a traced step takes longer. Each cell has processes of its own, one
cell at a time, warmed up as for a measurement; every rank writes its own file. docs/diagnosis.md explains them.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import pytest

from suite.base.sides import SidePool
from suite.cli import gate
from suite.cli.command import Stop, new_folder, whole_number
from suite.plan.cells import Arm, Cell
from suite.plan.config import Config
from suite.processes.answers import Operator, Traced
from suite.processes.failure import WorkerFailure
from suite.processes.group import START_TIMEOUT_S
from suite.records.files import keep_from_git
from suite.render.screen import Screen
from suite.run import preparing
from suite.run.observations import Observations
from suite.run.plan import FIRST_STEP_TIMEOUT_S

SUMMARY = "trace a few steps of each cell with torch.profiler, for Perfetto or chrome://tracing"
PYTEST_OPTIONS = True
STEPS = 5
WARM_UP = 3
OPERATORS = 10
STEP_TIMEOUT_S = 30.0  # a step, its recording, and its share of writing the file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the numbers of steps."""
    for name, default, what in (("steps", STEPS, "steps to trace"), ("warm-up", WARM_UP, "steps before them")):
        parser.add_argument(
            f"--{name}",
            type=whole_number(),
            default=default,
            metavar="N",
            help=f"{what}, at least 1 (default: {default})",
        )


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Trace the selected cells, and return 0 when all were traced, 1 when one was not.

    Raises:
        Stop: no cell is selected, with pytest's status, or the folder cannot be made.
    """
    selected = gate.select(pytest_arguments)
    if selected.settings is None or not selected.cells:
        if selected.status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            status = selected.status or pytest.ExitCode.NO_TESTS_COLLECTED
            raise Stop("no cell was selected; pytest -m scaling --collect-only lists them", status)
        return selected.status
    measurement = _measurement(selected.settings, selected.cells)
    plan = measurement.plan
    folder = plan.config.report_dir.resolve() / plan.machine.key / "traces" / plan.run_id
    with new_folder(folder, "--scaling-report-dir", plan.config.report_dir):
        keep_from_git(folder.parents[1])
        traced, cells = _trace_all(measurement, folder, asked.warm_up, asked.steps), len(selected.cells)
    if traced:
        print(f"traces of {traced} of {cells} cell(s), a file a rank: {os.path.relpath(folder)}")
        print('to open one: "Open trace file" at https://ui.perfetto.dev, or "Load" in chrome://tracing')
    return 0 if traced == cells else 1


def operators(answers: Sequence[Traced]) -> list[Operator]:
    """Sum the ranks' operators that took time, most self time first: on the GPU if there was one, else on the CPU."""
    sums: dict[str, Operator] = {}
    for one in [operator for answer in answers for operator in answer.operators]:
        before = sums.get(one.name, Operator(one.name))
        times_ms = before.cpu_ms + one.cpu_ms, before.cuda_ms + one.cuda_ms
        sums[one.name] = Operator(one.name, before.calls + one.calls, *times_ms)
    ran = [operator for operator in sums.values() if operator.cpu_ms > 0 or operator.cuda_ms > 0]
    on_cuda = any(operator.cuda_ms > 0 for operator in ran)
    return sorted(ran, key=lambda operator: operator.cuda_ms if on_cuda else operator.cpu_ms, reverse=True)


def parts(answers: Sequence[Traced]) -> str:
    """Say how long a traced step took on the slowest rank, and its parts on the host, if known, as means over ranks."""
    means = {name: fmean(answer.parts_ms[name] for answer in answers) for name in answers[0].parts_ms}
    split = ", ".join(f"{name} {mean_ms:.1f}" for name, mean_ms in means.items())
    return f"{max(answer.step_ms for answer in answers):.1f} ms a step while traced" + (split and f" ({split})")


def table(ran: Sequence[Operator], width: int) -> str:
    """Return the first operators as a table for a terminal of `width` columns."""
    name = "operator, all ranks together"
    columns = ["self CPU, ms a step", "calls a step", name]
    rows = [[f"{operator.cpu_ms:.3f}", f"{operator.calls:g}", operator.name] for operator in ran[:OPERATORS]]
    if any(operator.cuda_ms > 0 for operator in ran):
        columns.insert(0, "self CUDA, ms a step")
        rows = [[f"{operator.cuda_ms:.3f}", *row] for operator, row in zip(ran, rows, strict=False)]
    screen = Screen(width)
    screen.table(columns, rows, left=[name])
    return screen.text()


def file_names(cells: Iterable[Cell]) -> list[str]:
    """Return a name for each cell's files: its id in letters that a file system accepts, numbered where it repeats."""
    names: list[str] = []
    seen: Counter[str] = Counter()
    for cell in cells:
        plain = re.sub(r"[^\w.-]+", "_", cell.id).lstrip(".")
        seen[plain] += 1
        names.append(plain if seen[plain] == 1 else f"{plain}_{seen[plain]}")
    return names


def _measurement(settings: Config, cells: Sequence[Cell]) -> Observations:
    """Return a run of these cells that compares with nothing and trains nothing."""
    if settings.against is not None:
        print("trace: --scaling-against is left out: the candidate alone is traced", file=sys.stderr)
    untrained = tuple(workload.model_copy(update={"accuracy": None}) for workload in settings.workloads)
    return gate.without_base(dataclasses.replace(settings, workloads=untrained), cells)


def _trace_all(run: Observations, folder: Path, warm_up: int, steps: int) -> int:
    """Trace every cell, one after the other, and return how many could be traced."""
    sharing: dict[Arm, list[Cell]] = {}  # on one device strong and weak are the same step
    for cell in run.plan.cells:
        sharing.setdefault(run.plan.own(cell), []).append(cell)
    width, traced = shutil.get_terminal_size().columns, 0
    config = run.plan.config
    with gate.sides(config) as sides:
        preparing.prepare(run, sides, list(sharing), _say)
        names = file_names(cells[0] for cells in sharing.values())
        for (arm, cells), name in zip(sharing.items(), names, strict=True):
            what = ", ".join(cell.id + config.devices.mark(cell.world_size) for cell in cells)
            _say(f"{what}: {steps} steps after {warm_up}")
            try:
                answers = _trace(sides.pools["candidate"], run, arm, str(folder / name), warm_up, steps)
            except WorkerFailure as failure:
                print("\n".join([f"trace: {what}: {failure.cause}", *failure.details]), file=sys.stderr)
                continue
            traced += len(cells)
            _say(f"{what}: {parts(answers)}")
            print(table(operators(answers), width), flush=True)
    return traced


def _trace(pool: SidePool, run: Observations, arm: Arm, path: str, warm_up: int, steps: int) -> list[Traced]:
    """Return every rank's answer about its trace.

    Raises:
        WorkerFailure: the arm cannot be traced, and its processes have ended.
    """
    if arm in run.lost:
        raise run.lost[arm]
    job = run.jobs[arm]
    group = pool.launch(Path(path).name, job.size)
    timeout_s = START_TIMEOUT_S + FIRST_STEP_TIMEOUT_S + STEP_TIMEOUT_S * (warm_up + steps)
    answers = group.request(Traced, "trace", timeout_s, arm=job, warm_up=warm_up, steps=steps, path=path)
    group.close()
    return answers


def _say(line: str) -> None:
    print(f"trace: {line}", flush=True)
