"""The quiet room, measured with each of its measures switched off: what does it buy?

    python -m docs.evidence.quiet_room --sessions 20 --minutes 120
    python -m docs.evidence.quiet_room --condition "quiet room" --condition executed --sessions 26
    python -m docs.evidence.quiet_room --table

Runs what `python -m suite calibrate` runs (a build against itself, nothing decided) for one cell, ddp, lenet, strong,
two ranks, a few sessions at a time, with one measure of `suite.room.quiet` taken away in this process or in the
trainer:

- **not pinned**: workers are not bound to cores;
- **two threads a rank**: no thread limit in the environment, and torch told to use every core. Where ranks are pinned,
  their threads share a core, which is what forgetting the limit would do;
- **allocator as it comes**: glibc's three settings are not set;
- **all off**: none of the three;
- **executed**: each worker loads torch for itself, instead of being forked from the session's template.

Conditions take turns in a random order, so that a loud hour meets all of them. Each run becomes a line of
`quiet_room.jsonl`, and the script goes on where the log ends. What stays in every condition: interleaving, warm-up,
fast imports, loopback, and the marks of disturbed blocks, whose rounds are kept here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scipy.stats import chi2

from docs.evidence.log import ROOT, Line, append, check_same_code, code_state, read_log
from docs.evidence.recording import RecordedSession, of_record
from docs.evidence.runs import ONE_CELL
from suite.base import sides
from suite.cli import calibrate, gate
from suite.plan.cells import Arm
from suite.plan.workloads import Workload
from suite.processes.jobs import Job, Place
from suite.records.record import Record
from suite.room import quiet
from suite.run import preparing
from suite.verdict.metrics import location

LOG = Path(__file__).with_name("quiet_room.jsonl")
SESSIONS_A_RUN = 2  # more would share less of what changes between runs, fewer would mostly wait for starts

CONDITIONS: dict[str, frozenset[str]] = {
    "quiet room": frozenset(),
    "not pinned": frozenset({"pinned"}),
    "two threads a rank": frozenset({"threads"}),
    "allocator as it comes": frozenset({"allocator"}),
    "small pages": frozenset({"pages"}),
    "all off": frozenset({"pinned", "threads", "allocator", "pages"}),
    "executed": frozenset({"template"}),
}

TRAINERS = """\
import os
import torch
from reference.trainers.ddp import DDPTrainer

class Quiet(DDPTrainer):
    pass

class Threads(DDPTrainer):
    def __init__(self, model, devices, *, lr):
        torch.set_num_threads(os.cpu_count())
        super().__init__(model, devices, lr=lr)
"""


@contextlib.contextmanager
def without(measures: Iterable[str]) -> Iterator[None]:
    """Take measures away from the runs of this process: "pinned", "threads", "allocator", "pages", "template"."""
    job_of = preparing.job_of

    def unpinned(arm: Arm, workload: Workload, place: Place, **told: Any) -> Job:
        return job_of(arm, workload, dataclasses.replace(place, pinned=()), **told)

    with contextlib.ExitStack() as patches:
        if "pinned" in measures:
            patches.enter_context(mock.patch.object(preparing, "job_of", unpinned))
        if "threads" in measures:
            patches.enter_context(mock.patch.dict(quiet.ONE_THREAD, clear=True))
        if "allocator" in measures:
            patches.enter_context(mock.patch.dict(quiet.ALLOCATOR, clear=True))
        if "template" in measures:
            patches.enter_context(mock.patch.object(sides, "Pool", functools.partial(sides.Pool, forks=False)))
        if "pages" in measures:
            patches.enter_context(mock.patch.dict(quiet.HUGE_PAGES, clear=True))
        yield


def measure(condition: str, sessions: int, folder: Path, options: Sequence[str] = ONE_CELL) -> Record:
    """Run sessions of a build against itself under a condition.

    Args:
        condition: a name from `CONDITIONS`.
        sessions: how many.
        folder: an empty one, for the trainer's file and the report.
        options: of the cell.

    Raises:
        KeyboardInterrupt: by Ctrl-C; every process has ended by then.
        RuntimeError: no run began, or its workers were pinned although they should not be, or the other way round.
    """
    measures, trainers = CONDITIONS[condition], folder / "trainers.py"
    trainers.write_text(TRAINERS, encoding="utf-8")
    name = "Threads" if "threads" in measures else "Quiet"
    asked = [*options, "-q", "--scaling-trainer", f"{trainers}:{name}", f"--scaling-report-dir={folder / 'reports'}"]
    with without(measures), contextlib.redirect_stdout(sys.stderr):
        ended = gate.run(asked, lambda settings: calibrate.itself(settings, sessions))
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.run is None:
        raise RuntimeError(f"{condition}: pytest ended with status {ended.status} and nothing measured; see above")
    pinned = any(job.pinned for job in ended.run.observations.jobs.values())
    if pinned == ("pinned" in measures):
        raise RuntimeError(f"{condition}: workers were {'' if pinned else 'not '}pinned; `without` has lost its hold")
    return ended.run.record


def line_of(record: Record, condition: str) -> Line:
    """What the log keeps of a run: microseconds a step of both arms, round by round.

    Raises:
        RuntimeError: its cell could not be measured.
    """
    [cell] = record.cells
    try:
        sessions = of_record(record, cell)
    except ValueError as error:
        raise RuntimeError(f"{condition}: {cell.outcome}: {cell.reason}") from error
    return {
        "condition": condition,
        "utc": record.started_utc,
        "machine_key": record.machine.key,
        "versions": record.environment.versions,
        "sessions": [
            {
                "steps": session.steps,
                "wall_s": session.wall_s,
                "candidate_us": [round(1e6 * value) for value in session.candidate],
                "base_us": [round(1e6 * value) for value in session.base],
            }
            for session in sessions
        ],
    }


def sessions_of(lines: Iterable[Line], condition: str) -> list[RecordedSession]:
    """All sessions that the log has of a condition."""
    return [
        RecordedSession(
            candidate=tuple(value / 1e6 for value in session["candidate_us"]),
            base=tuple(value / 1e6 for value in session["base_us"]),
            steps=session["steps"],
            wall_s=session["wall_s"],
        )
        for line in lines
        if line["condition"] == condition
        for session in line["sessions"]
    ]


def spread(deviations: Sequence[float], df: int) -> str:
    """A standard deviation in percent with its 95 % interval, which is exact where they are normal."""
    if df < 1:
        return "-"
    squares = math.fsum(value**2 for value in deviations)
    low, high = (math.sqrt(squares / float(chi2.ppf(q, df))) for q in (0.975, 0.025))
    return f"{math.sqrt(squares / df):.1%} [{low:.1%}, {high:.1%}]"


def table(lines: Sequence[Line]) -> str:
    """The log as Markdown.

    A round's SD is that of ln(t_candidate / t_base) around its session's mean; a session's that of the middle of its
    rounds; the unpaired one that of the middle of the candidate's ln t alone.
    """
    spreads = "SD of a round | SD of a session's ratio | SD of unpaired ln t"
    head = f"| condition | sessions | {spreads} | ms a step | s a session without its timing |"
    rows = [head, "|---|---|---|---|---|---|---|"]
    for condition in CONDITIONS:
        sessions = sessions_of(lines, condition)
        if not sessions:
            continue
        ratios = [np.array(session.windows.log_ratios) for session in sessions]
        paired = np.array([location(list(values)) for values in ratios])
        alone = np.array([location([math.log(value) for value in session.candidate]) for session in sessions])
        within = np.concatenate([values - values.mean() for values in ratios])
        shown = [
            spread(list(within), len(within) - len(sessions)),
            spread(list(paired - paired.mean()), len(sessions) - 1),
            spread(list(alone - alone.mean()), len(sessions) - 1),
            f"{1e3 * math.exp(statistics.median(alone)):.1f}",
            f"{statistics.median(session.wall_s - session.window_s for session in sessions):.1f}",
        ]
        rows.append(f"| {condition} | {len(sessions)} | {' | '.join(shown)} |")
    return "\n".join(rows)


def make(lines: list[Line], options: argparse.Namespace) -> None:
    """Measure what is missing until the time is up."""
    end, log = time.monotonic() + 60 * options.minutes, options.log.resolve()
    os.chdir(ROOT)  # where the benchmarks, the data and the plugin's settings are
    while time.monotonic() < end:
        done = {name: len(sessions_of(lines, name)) for name in options.condition or CONDITIONS}
        left = {name: options.sessions - count for name, count in done.items() if count < options.sessions}
        if not left:
            return
        state = code_state()
        if not options.mixed:
            check_same_code(lines, state)
        [condition] = random.SystemRandom().choices(list(left), list(left.values()))
        with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
            try:
                record = measure(condition, min(SESSIONS_A_RUN, left[condition]), Path(folder))
            except KeyboardInterrupt:
                sys.exit(f"interrupted: the run in progress is not kept, {len(lines)} are")
        lines.append({**line_of(record, condition), **state})
        append(log, lines[-1])
        print(f"{condition}: {sum(left.values()) - len(lines[-1]['sessions'])} sessions are missing", flush=True)


def main() -> None:
    """Measure what the log lacks, or print its table."""
    parser = argparse.ArgumentParser(description="The quiet room with each of its measures switched off.")
    parser.add_argument("--condition", action="append", choices=CONDITIONS, help="only these (default: all)")
    parser.add_argument("--sessions", type=int, default=20, help="of each condition (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="start no run after this long (default: %(default)s)"
    )
    parser.add_argument("--log", type=Path, default=LOG, help=f"default: {LOG.name} beside this script")
    parser.add_argument("--mixed", action="store_true", help="keep runs of different or uncommitted code in one log")
    parser.add_argument("--table", action="store_true", help="print the log as Markdown, and measure nothing")
    options = parser.parse_args()
    try:
        lines = read_log(options.log)
        if not options.table:
            make(lines, options)
    except ValueError as error:
        parser.error(str(error))
    print(table(lines))


if __name__ == "__main__":
    main()
