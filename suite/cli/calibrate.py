"""`python -m suite calibrate`: this machine against itself, so that a run knows beforehand what it can promise.

The cells are measured as in any run, with the same code as their base, for a fixed number of sessions in which nothing
is decided. What it finds is stored with the machine key (`suite.records.calibration`).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
import statistics
import sys
from datetime import UTC

from suite.cli import gate
from suite.plan.base import Base
from suite.plan.cells import arm
from suite.plan.config import Config
from suite.records import calibration
from suite.records.calibration import Calibration, Entry, Forecast, Spread
from suite.records.record import Environment, RecordError
from suite.render.screen import Screen
from suite.run import judging, samples
from suite.run.observations import Observations
from suite.verdict import FIRST_LOOK

SUMMARY = "measure this machine against itself, and store what it can promise"
PYTEST_OPTIONS = True
SESSIONS = 12
# From two sessions an SD is known to within a factor of sixteen: that calibrates nothing.
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
HOPELESS = 9.0  # a slowdown to tenfold; nobody needs a gate to see that


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is asked beside pytest's own options."""
    parser.add_argument(
        "--sessions",
        type=_count,
        default=SESSIONS,
        metavar="N",
        help=f"sessions to measure, at least {MIN_SESSIONS} (default: {SESSIONS})",
    )


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Measure, store, print; the exit status is pytest's, and 1 where nothing could be stored."""
    sessions: int = asked.sessions
    ended = gate.run(pytest_arguments, lambda settings: itself(settings, sessions))
    if ended.run is None:
        return ended.status
    if ended.interrupted:
        print("calibrate: interrupted; nothing was stored", file=sys.stderr)
        return ended.status
    run = ended.run.observations
    entries = entries_of(run)
    if not entries:
        print("calibrate: no cell could be measured in two sessions; nothing was stored", file=sys.stderr)
        return ended.status or 1
    report_dir = run.plan.config.report_dir
    learned = _learned(run, entries)
    try:
        path = learned.after(_older(run)).write(report_dir)
    except OSError as error:
        print(f"calibrate: {report_dir}: {error.strerror}; choose another --scaling-report-dir", file=sys.stderr)
        return 1
    print(text(learned, run.plan.config, judging.comparisons(run)), end="")
    print(f"stored: {path}")
    if sessions < calibration.ENOUGH:
        print(f"fewer than {calibration.ENOUGH} sessions: no run will lean on it")
    return ended.status


def itself(settings: Config, sessions: int) -> Config:
    """The settings of a run that compares every cell with itself and decides nothing."""
    return dataclasses.replace(
        settings,
        against=Base("self", "the same build"),
        explain=False,
        calibrate=sessions,
        accept=None,
        inconclusive="warn",
    )


def entries_of(run: Observations) -> tuple[Entry, ...]:
    """The spread of every cell that was measured in two sessions or more."""
    walls = [session.wall_s for session in run.sessions]
    timed = [sum(max(w.duration_ns) for w in session.windows) / 1e9 for session in run.sessions]
    found = []
    for cell in run.plan.cells:
        own, base = arm("candidate", cell.trainer, cell), arm("base", cell.trainer, cell)
        spread = calibration.spread_of(
            samples.contrast(run, own, base),
            samples.over_sessions(run, own),
            statistics.fmean(walls),
            statistics.fmean(wall - busy for wall, busy in zip(walls, timed, strict=True)),
        )
        if spread is not None:
            workload = run.plan.workload(cell.workload)
            found.append(
                Entry(
                    trainer=cell.trainer,
                    workload=workload.name,
                    workload_hash=workload.hash,
                    mode=cell.mode,
                    world_size=cell.world_size,
                    spread=spread,
                )
            )
    return tuple(found)


def text(learned: Calibration, settings: Config, comparisons: int) -> str:
    """A table of the spreads and one sentence a cell."""
    names = [f"{one.trainer} {one.workload} {one.mode} {one.world_size}" for one in learned.entries]
    expected = [
        calibration.forecast(one.spread, comparisons, settings.budget_s, settings.tolerance) for one in learned.entries
    ]
    spreads = [one.spread for one in learned.entries]
    screen = Screen(shutil.get_terminal_size().columns)
    screen.table(COLUMNS, map(_row, names, spreads, expected), left=COLUMNS[:1], whole=COLUMNS)
    for name, spread, forecast in zip(names, spreads, expected, strict=True):
        screen.line(f"{name}: {sentence(spread, forecast, settings.budget_s)}")
    return screen.text()


def _row(name: str, spread: Spread, expected: Forecast) -> tuple[str, ...]:
    """One line of the table, in the order of `COLUMNS`."""
    return (
        name,
        f"{spread.tau:.2%} ({spread.tau_high:.2%})",
        f"{spread.round_sd:.2%}",
        f"{spread.session_sd:.2%}",
        f"{spread.unpaired_sd:.2%}",
        f"{spread.session_s:.1f}",
        f"{spread.start_s:.1f}",
        f"{_share(expected.slowdown)} ({_share(expected.at_worst)})",
    )


def sentence(spread: Spread, expected: Forecast, budget_s: float) -> str:
    """What a run of this budget finds here, and what limits it."""
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
    found = f"a slowdown of {expected.slowdown:.1%}" if expected.slowdown < HOPELESS else "no slowdown below tenfold"
    return (
        f"in {budget_s:.0f} s, {expected.planned} sessions, {found} is found with {calibration.POWER:.0%} probability; "
        f"what limits it is {causes[expected.limit]}"
    )


def _learned(run: Observations, entries: tuple[Entry, ...]) -> Calibration:
    return Calibration(
        machine_key=run.plan.machine.key,
        host=run.plan.machine.host,
        created_utc=run.plan.started.astimezone(UTC).isoformat(timespec="seconds"),
        run_id=run.plan.run_id,
        environment=Environment(
            versions=run.versions.get("candidate", {}),
            commit=run.plan.commit,
            dirty=run.plan.dirty,
        ),
        entries=entries,
    )


def _older(run: Observations) -> Calibration | None:
    try:
        return calibration.read(run.plan.config.report_dir, run.plan.machine.key)
    except RecordError as error:
        print(f"calibrate: the older calibration is replaced, because it cannot be read: {error}", file=sys.stderr)
        return None


def _share(slowdown: float) -> str:
    return f"{slowdown:.1%}" if slowdown < HOPELESS else "nothing"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < MIN_SESSIONS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of sessions, {MIN_SESSIONS} or more")
    return int(text)
