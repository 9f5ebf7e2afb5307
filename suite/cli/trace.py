"""`python -m suite trace`: what a few steps of the selected cells do, operator by operator, for a trace viewer.

Nothing is judged and no record is written: a step that is traced takes longer. Each cell has processes of its own, one
cell at a time, warmed up as for a measurement; every rank writes its own file. docs/trace.md reads one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from suite.base.sides import Sides
from suite.cli.selection import select
from suite.plan.cells import Arm, Cell
from suite.plan.config import Config
from suite.processes.failure import WorkerFailure
from suite.processes.group import START_TIMEOUT_S
from suite.processes.pool import Pool
from suite.render.screen import Screen
from suite.run import preparing
from suite.run.observations import Observations
from suite.run.plan import plan_here
from suite.run.session import FIRST_STEP_TIMEOUT_S, processes

SUMMARY = "trace a few steps of each cell with torch.profiler, for Perfetto or chrome://tracing"
PYTEST_OPTIONS = True
STEPS = 5
WARM_UP = 3
OPERATORS = 10
STEP_TIMEOUT_S = 30.0  # a step, its recording, and its share of writing the file


class Operator(NamedTuple):
    """One operator's share of a step, all ranks and threads together; times without what it calls."""

    name: str
    calls: float
    cpu_ms: float
    cuda_ms: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is asked beside pytest's own options."""
    for name, default, what in (("steps", STEPS, "steps to trace"), ("warm-up", WARM_UP, "steps before them")):
        parser.add_argument(
            f"--{name}", type=_count, default=default, metavar="N", help=f"{what}, at least 1 (default: {default})"
        )


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Trace the selected cells; 0 when all were traced, 1 when one was not, pytest's status where none is selected."""
    selected = select(pytest_arguments)
    if selected.settings is None or not selected.cells:
        if selected.status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            print("trace: no cell was selected", file=sys.stderr)
        return selected.status or pytest.ExitCode.NO_TESTS_COLLECTED
    measurement = _measurement(selected.settings, selected.cells)
    plan = measurement.plan
    folder = plan.config.report_dir.resolve() / plan.machine.key / "traces" / plan.run_id
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        print(f"trace: {folder}: {error.strerror}; choose another --scaling-report-dir", file=sys.stderr)
        return 1
    try:
        traced, cells = _trace_all(measurement, folder, asked.warm_up, asked.steps), len(selected.cells)
    finally:
        with contextlib.suppress(OSError):  # stays where there is a trace in it
            folder.rmdir()
    if traced:
        print(f"traces of {traced} of {cells} cell(s), a file a rank: {os.path.relpath(folder)}")
        print('to open one: "Open trace file" at https://ui.perfetto.dev, or "Load" in chrome://tracing')
    return 0 if traced == cells else 1


def operators(answers: Sequence[Mapping[str, Any]], steps: int) -> list[Operator]:
    """The operators that took time, most self time first: on the GPU where there was one, on the CPU otherwise.

    Args:
        answers: of `suite.rank.profiling.trace`, one a rank.
        steps: that were traced.
    """
    sums: dict[str, Counter[str]] = {}
    for answer in answers:
        for operator in answer["operators"]:
            counts = {key: value for key, value in operator.items() if key != "name"}
            sums.setdefault(operator["name"], Counter()).update(counts)
    found = [
        Operator(name, total["calls"] / steps, total["self_cpu_us"] / steps / 1e3, total["self_cuda_us"] / steps / 1e3)
        for name, total in sums.items()
    ]
    on_cuda = any(operator.cuda_ms > 0 for operator in found)
    found.sort(key=lambda operator: operator.cuda_ms if on_cuda else operator.cpu_ms, reverse=True)
    return [operator for operator in found if operator.cpu_ms > 0 or operator.cuda_ms > 0]


def parts(answers: Sequence[Mapping[str, Any]], steps: int) -> str:
    """How long a traced step took, and its parts on the host: the mean over ranks, the slowest rank for the whole."""
    whole_ms = max(answer["duration_ns"] for answer in answers) / steps / 1e6
    means = {
        name: sum(answer["parts"][name] for answer in answers) / len(answers) / steps / 1e3
        for name in answers[0]["parts"]
    }
    split = ", ".join(f"{name} {mean_ms:.1f}" for name, mean_ms in means.items())
    return f"{whole_ms:.1f} ms a step while traced ({split})"


def table(found: Sequence[Operator], width: int) -> str:
    """The first operators, as they are printed in a terminal of `width` columns."""
    on_cuda = any(operator.cuda_ms > 0 for operator in found)
    name = "operator, all ranks together"
    columns = ["self CPU, ms a step", "calls a step", name]
    rows = [[f"{operator.cpu_ms:.3f}", f"{operator.calls:g}", operator.name] for operator in found[:OPERATORS]]
    if on_cuda:
        columns.insert(0, "self CUDA, ms a step")
        for row, operator in zip(rows, found, strict=False):
            row.insert(0, f"{operator.cuda_ms:.3f}")
    screen = Screen(width)
    screen.table(columns, rows, left=[name])
    return screen.text()


def file_names(cells: Iterable[Cell]) -> list[str]:
    """A name for each cell's files: its id, in letters that a file system takes, and numbered where it is taken."""
    names: list[str] = []
    for cell in cells:
        plain = re.sub(r"[^\w.-]+", "_", cell.id).lstrip(".")
        number = sum(1 for name in names if name == plain or re.fullmatch(rf"{re.escape(plain)}_\d+", name))
        names.append(plain if not number else f"{plain}_{number + 1}")
    return names


def _measurement(settings: Config, cells: Sequence[Cell]) -> Observations:
    """A run of these cells that compares with nothing and trains nothing."""
    if settings.against is not None:
        print("trace: --scaling-against is left out: the candidate alone is traced", file=sys.stderr)
    untrained = tuple(workload.model_copy(update={"accuracy": None}) for workload in settings.workloads)
    changed = dataclasses.replace(settings, against=None, workloads=untrained)
    return Observations(plan_here(changed, cells))


def _trace_all(run: Observations, folder: Path, warm_up: int, steps: int) -> int:
    """Trace every cell, one after the other; how many could be."""
    sharing: dict[Arm, list[Cell]] = {}  # on one device strong and weak are the same step
    for cell in run.plan.cells:
        sharing.setdefault(run.plan.own(cell), []).append(cell)
    width, traced = shutil.get_terminal_size().columns, 0
    with Sides(run.plan.config.devices.kind, run.plan.config.root) as sides:
        preparing.prepare(run, sides, list(sharing), _say)
        names = file_names(cells[0] for cells in sharing.values())
        for (arm, cells), name in zip(sharing.items(), names, strict=True):
            what = ", ".join(cell.id for cell in cells)
            _say(f"{what}: {steps} steps after {warm_up}")
            try:
                answers = _trace(sides.pools["candidate"], run, arm, str(folder / name), warm_up, steps)
            except WorkerFailure as failure:
                print("\n".join([f"trace: {what}: {failure.cause}", *failure.details]), file=sys.stderr)
                continue
            traced += len(cells)
            _say(f"{what}: {parts(answers, steps)}")
            print(table(operators(answers, steps), width), flush=True)
    return traced


def _trace(pool: Pool, run: Observations, arm: Arm, path: str, warm_up: int, steps: int) -> list[dict[str, Any]]:
    """What every rank says of its trace.

    Raises:
        WorkerFailure: the arm cannot be traced, and its processes have ended.
    """
    if arm in run.lost:
        raise run.lost[arm]
    order = run.orders[arm]
    group = pool.launch(Path(path).name, processes(order))
    group.wait_connected()
    timeout_s = START_TIMEOUT_S + FIRST_STEP_TIMEOUT_S + STEP_TIMEOUT_S * (warm_up + steps)
    answers = group.request("trace", timeout_s, arm=order, warm_up=warm_up, steps=steps, path=path)
    group.close()
    return answers


def _say(line: str) -> None:
    print(f"trace: {line}", flush=True)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of steps, 1 or more")
    return int(text)
