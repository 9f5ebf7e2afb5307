"""`python -m suite calibrate`: measure this machine against itself, so that a run can say beforehand what it finds.

The cells are measured as in any run, with the same code as their base, for a fixed number of sessions. Nothing is
decided. The result is stored under the machine key (`suite.records.calibration`).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
import statistics
from datetime import UTC

from suite.cli import pytest_run
from suite.cli.command import Stop, known_of, whole_number, writing
from suite.plan.cells import arm
from suite.plan.config import Base, Config
from suite.processes.folder import locked
from suite.records import calibration
from suite.records.calibration import ENOUGH, Calibration, Entry
from suite.records.record import Environment
from suite.render.document import Table
from suite.render.terminal import Screen
from suite.run import judging, samples
from suite.run.observations import Observations
from suite.verdict import FIRST_LOOK

SUMMARY = "measure this machine against itself, and store what it can promise"
PYTEST_OPTIONS = True
SESSIONS = 12
MIN_SESSIONS = 3  # two sessions give an SD to within a factor of sixteen, which calibrates nothing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the number of sessions."""
    said = f"sessions to measure, at least {MIN_SESSIONS}; runs use {ENOUGH} or more (default: {SESSIONS})"
    parser.add_argument("--sessions", type=whole_number(MIN_SESSIONS), default=SESSIONS, metavar="N", help=said)


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Measure, store and print, and return pytest's exit status."""
    ended = pytest_run.run(pytest_arguments, lambda settings: itself(settings, asked.sessions))
    if ended.run is None:
        return ended.status
    if ended.interrupted:
        raise Stop("interrupted: nothing was stored; run it again", ended.status)
    run = ended.run.observations
    entries = entries_of(run)
    if not entries:
        raise Stop("no cell could be measured in two sessions: nothing was stored; see their errors", ended.status or 1)
    plan = run.plan
    learned = Calibration(
        machine_key=plan.machine.key,
        host=plan.machine.host,
        created_utc=plan.started.astimezone(UTC),
        environment=Environment(versions=run.versions.get("candidate", {}), commit=plan.commit, dirty=plan.dirty),
        entries=entries,
    )
    machine = plan.config.report_dir / plan.machine.key
    with writing(machine.parent, "--scaling-report-dir"), locked(machine):
        older = known_of(machine, calibration.read, "calibrate: the older calibration is replaced")
        path = learned.after(older).write(machine.parent)
    session_s = statistics.fmean(session.usual_s for session in run.sessions)
    print(table(entries, plan.config, judging.comparisons(run), session_s), end="")
    print(f"stored: {path}")
    if asked.sessions < ENOUGH:
        print(f"fewer than {ENOUGH} sessions: no run will use it")
    return ended.status


def itself(settings: Config, sessions: int) -> Config:
    """Return the settings of a run that compares every cell with itself and decides nothing."""
    against = Base("self", "the same build")
    return dataclasses.replace(
        settings, against=against, explain=False, calibrate=sessions, accept=None, inconclusive="warn"
    )


def entries_of(run: Observations) -> tuple[Entry, ...]:
    """Return the spread of every cell that was measured in two sessions or more."""
    entries = []
    for cell in run.plan.cells:
        own, base = arm("candidate", cell.trainer, cell), arm("base", cell.trainer, cell)
        spread = calibration.spread_of(samples.windows(run, own, base))
        if spread is not None:
            named = {"trainer": cell.trainer, "workload": cell.workload, "mode": cell.mode}
            known = {"workload_hash": run.plan.workload(cell.workload).hash, "world_size": cell.world_size}
            entries.append(Entry.model_validate({**named, **known, "spread": spread}))
    return tuple(entries)


def table(entries: tuple[Entry, ...], settings: Config, comparisons: int, session_s: float) -> str:
    """Return the spread of each cell and what a run of the same budget finds, in which `comparisons` can fail."""
    budget_s = settings.budget.seconds
    planned = int(budget_s / session_s)
    columns = ("cell", "SD between sessions", "SD within sessions", f"found in {calibration.POWER:.0%} of runs")
    rows = []
    for entry in entries:
        spread, mark = entry.spread, settings.devices.mark(entry.world_size)
        name = f"{entry.trainer} {entry.workload} {entry.mode} {entry.world_size}{mark}"
        found = calibration.promise(spread.session_sd, comparisons, planned, settings.tolerance)
        finds = f"{found:.1%} slower" if math.isfinite(found) else "nothing"
        rows.append((name, f"{spread.tau:.2%}", f"{spread.error_sd:.2%}", finds))
    screen = Screen(shutil.get_terminal_size().columns)
    screen.table(Table.of("What this machine can promise", columns, rows, numbers=columns[1:]))
    needed = f" A FAIL takes {FIRST_LOOK + 1}: raise --scaling-budget to {math.ceil((FIRST_LOOK + 1) * session_s)} s."
    room = f"A budget of {budget_s:.0f} s has room for {planned} session(s) of {session_s:.1f} s."
    screen.line(room + (needed if planned <= FIRST_LOOK else ""))
    return screen.text()
