"""`python -m suite calibrate`: measure this machine against itself, so that a run can say beforehand what it finds.

The cells are measured as in any run, with the same code as their base, for a fixed number of sessions in which nothing
is decided. The result is stored with the machine key (`suite.records.calibration`).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
import statistics
from datetime import UTC

from suite.cli import gate, locate
from suite.cli.command import Stop, whole_number, writing
from suite.plan.base import Base
from suite.plan.cells import arm
from suite.plan.config import Config
from suite.processes.folder import locked
from suite.records import calibration
from suite.records.calibration import ENOUGH, Calibration, Entry, Forecast, Spread
from suite.records.record import Environment
from suite.render.screen import Screen
from suite.run import judging, samples
from suite.run.observations import Observations
from suite.verdict import FIRST_LOOK

SUMMARY = "measure this machine against itself, and store what it can promise"
PYTEST_OPTIONS = True
SESSIONS = 12
# From two sessions an SD is known to within a factor of sixteen, which calibrates nothing.
MIN_SESSIONS = 3
COLUMNS = (
    "cell",
    "between sessions (at most)",
    "within, a round",
    "a session",
    "unpaired",
    "s a session",
    "of it starts",
    "finds (at worst)",
)
TENFOLD = 9.0  # as a slowdown; a run that finds only larger ones finds nothing of use


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the number of sessions."""
    parser.add_argument(
        "--sessions",
        type=whole_number(MIN_SESSIONS),
        default=SESSIONS,
        metavar="N",
        help=f"sessions to measure, at least {MIN_SESSIONS}; runs use {ENOUGH} or more (default: {SESSIONS})",
    )


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Measure, store and print, and return pytest's exit status.

    Raises:
        Stop: interrupted, or nothing can be stored.
    """
    ended = gate.run(pytest_arguments, lambda settings: itself(settings, asked.sessions))
    if ended.run is None:
        return ended.status
    if ended.interrupted:
        raise Stop("interrupted: nothing was stored; run it again", ended.status)
    run = ended.run.observations
    entries = entries_of(run)
    if not entries:
        raise Stop("no cell could be measured in two sessions: nothing was stored; see their errors", ended.status or 1)
    report_dir = run.plan.config.report_dir
    versions = run.versions.get("candidate", {})
    learned = Calibration(
        machine_key=run.plan.machine.key,
        host=run.plan.machine.host,
        created_utc=run.plan.started.astimezone(UTC),
        run_id=run.plan.run_id,
        environment=Environment(versions=versions, commit=run.plan.commit, dirty=run.plan.dirty),
        entries=entries,
    )
    machine = report_dir / run.plan.machine.key
    with writing(report_dir, "--scaling-report-dir"), locked(machine):
        older = locate.known_of(machine, calibration.read, "calibrate: the older calibration is replaced")
        path = learned.after(older).write(report_dir)
    print(text(learned, run.plan.config, judging.comparisons(run)), end="")
    print(f"stored: {path}")
    if asked.sessions < ENOUGH:
        print(f"fewer than {ENOUGH} sessions: no run will use it")
    return ended.status


def itself(settings: Config, sessions: int) -> Config:
    """Return the settings of a run that compares every cell with itself and decides nothing."""
    return dataclasses.replace(
        settings,
        against=Base("self", "the same build"),
        explain=False,
        calibrate=sessions,
        accept=None,
        inconclusive="warn",
    )


def entries_of(run: Observations) -> tuple[Entry, ...]:
    """Return the spread of every cell that was measured in two sessions or more."""
    entries = []
    for cell in run.plan.cells:
        own, base = arm("candidate", cell.trainer, cell), arm("base", cell.trainer, cell)
        spread = calibration.spread_of(
            samples.windows(run, own, base),
            samples.over_sessions(run, own),
            statistics.fmean(session.usual_s for session in run.sessions),
            statistics.fmean(session.usual_s - session.timing_s for session in run.sessions),
        )
        if spread is not None:
            workload = run.plan.workload(cell.workload)
            entries.append(
                Entry(
                    trainer=cell.trainer,
                    workload=workload.name,
                    workload_hash=workload.hash,
                    mode=cell.mode,
                    world_size=cell.world_size,
                    spread=spread,
                )
            )
    return tuple(entries)


def text(learned: Calibration, settings: Config, comparisons: int) -> str:
    """Return a table of the spreads, and a sentence for each cell."""
    budget_s, rows, sentences = settings.budget.seconds, [], []
    for entry in learned.entries:
        mark, spread = settings.devices.mark(entry.world_size), entry.spread
        name = f"{entry.trainer} {entry.workload} {entry.mode} {entry.world_size}{mark}"
        forecast = calibration.forecast(spread, comparisons, budget_s, settings.tolerance)
        finds, at_worst = (
            f"{slowdown:.1%}" if slowdown < TENFOLD else "nothing"
            for slowdown in (forecast.slowdown, forecast.at_worst)
        )
        rows.append(
            (
                name,
                f"{spread.tau:.2%} ({spread.tau_high:.2%})",
                f"{spread.round_sd:.2%}",
                f"{spread.session_sd:.2%}",
                f"{spread.unpaired_sd:.2%}",
                f"{spread.session_s:.1f}",
                f"{spread.start_s:.1f}",
                f"{finds} ({at_worst})",
            )
        )
        sentences.append(f"{name}: {sentence(spread, forecast, budget_s)}")
    screen = Screen(shutil.get_terminal_size().columns)
    screen.table(COLUMNS, rows, left=COLUMNS[:1], whole=COLUMNS)
    for line in sentences:
        screen.line(line)
    return screen.text()


def sentence(spread: Spread, expected: Forecast, budget_s: float) -> str:
    """Say what a run of this budget finds here, and what limits it."""
    if expected.limit == "budget":
        needed = math.ceil(FIRST_LOOK * spread.session_s)
        return (
            f"{budget_s:.0f} s hold {expected.planned} session(s) of {spread.session_s:.1f} s, too few for any "
            f"decision: raise --scaling-budget to {needed} s or more"
        )
    causes = {
        "within": f"the noise within a session ({spread.round_sd:.1%} a round): longer sessions or a quieter machine",
        "between": f"the spread between sessions ({spread.tau:.1%}): more sessions, which a larger budget buys",
        "starts": f"starting the processes ({spread.start_s:.1f} of {spread.session_s:.1f} s a session): a larger "
        "budget",
    }
    what = f"a slowdown of {expected.slowdown:.1%}" if expected.slowdown < TENFOLD else "no slowdown below tenfold"
    return (
        f"in {budget_s:.0f} s, {expected.planned} sessions, {what} is found with {calibration.POWER:.0%} probability; "
        f"what limits it is {causes[expected.limit]}"
    )
