"""Where the seconds of the suite's own runs go: a waterfall of the wall time, from the command to the prompt.

    python -m docs.performance.answer            # two runs beside HEAD, six minutes

A run of the default cells has three minutes; a run of one cell ends when that is decided. "Timed windows" is the time
of the slowest rank in every window, also in those that others disturbed and that were taken again.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from docs.evidence.log import ROOT, markdown
from suite.records.files import read_model
from suite.records.record import RECORD, Record, Session

TITLE = "Seconds to an answer"
RUNS = {
    "the default cells": (),
    "one cell": ("--scaling-trainer=ddp", "--scaling-mode=strong", "--scaling-world-sizes=2"),
}
LIMIT_S = 900.0
PARTS = {  # of a session, by its name in the table
    "waiting for templates (import torch)": "waiting_s",
    "starting processes": "starting_s",
    "warm-up": "warming_s",
    "timing the parts of cells": "explaining_s",
    "counting what a step does": "counting_s",
}


def section() -> str:
    """Return the waterfalls of both runs, side by side."""
    waterfalls = {name: _waterfall(*_measured(*options)) for name, options in RUNS.items()}
    columns = list(waterfalls.values())
    rows = [[part, *(_share(each, part) for each in columns)] for part in columns[0]]
    return markdown(["seconds, and share of the wall time", *waterfalls], rows)


def _measured(*options: str) -> tuple[float, Record]:
    """Return the wall seconds of a run beside HEAD, and its record."""
    with tempfile.TemporaryDirectory(prefix="performance-") as folder:
        reports = f"--scaling-report-dir={folder}"
        begun = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-m", "scaling", "--scaling-against=HEAD", reports, *options]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False, timeout=LIMIT_S)
        wall_s = time.monotonic() - begun
        [path] = Path(folder).glob(f"*/runs/*/{RECORD}")
        return wall_s, read_model(path, Record)


def _waterfall(wall_s: float, record: Record) -> dict[str, float]:
    """Return the wall seconds of a run and of its parts, which add up to them."""
    sessions_s = math.fsum(session.wall_s for session in record.sessions)
    windows_s = math.fsum(map(_windows_s, record.sessions))
    parts = {name: math.fsum(getattr(each, field) for each in record.sessions) for name, field in PARTS.items()}
    timing_s = math.fsum(session.timing_s for session in record.sessions)
    return {
        "from the command to the prompt": wall_s,
        "timed windows": windows_s,
        "between windows: messages, barriers, conditions": timing_s - windows_s,
        **parts,
        "end of processes": sessions_s - timing_s - math.fsum(parts.values()),
        "before the first session: bases, templates, data": record.wall_s - sessions_s,
        "pytest, imports, judging, pages": wall_s - record.wall_s,
    }


def _windows_s(session: Session) -> float:
    tries = [each for window in session.windows for each in (window, window.first) if each is not None]
    return math.fsum(max(each.duration_ns) for each in tries) / 1e9


def _share(waterfall: dict[str, float], part: str) -> str:
    return f"{waterfall[part]:.1f} ({waterfall[part] / next(iter(waterfall.values())):.0%})"


if __name__ == "__main__":
    print(section())
