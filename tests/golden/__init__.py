"""Real runs, kept as raw nanoseconds in a form of their own, and what the judging code makes of them.

A run is a dict of JSON, which no schema of the suite owns: when the code changes, `replay` alone is adapted, and the
outcome, the figures and the intervals of every cell stay as they were (`test_golden.py`).

    {"kind": "matrix-10", "tolerance": 0.05, "against": true, "accepted": false, "planned": 7,
     "cells": [["ddp", "lenet", "strong", 2]],
     "arms": [["candidate", "ddp", "lenet", "strong", 2, 12]],           # side, trainer, workload, mode, k, steps
     "sessions": [{"wall_s": 21.3, "other_s": 0.8, "disturbed": [1],     # blocks that others disturbed
                   "windows": [[0, 0, [ns, ns], [others' ns, ...], null]]}],  # arm, block, ranks; or the first times
     "expected": {"ddp-lenet-strong-2": {"outcome": "FAIL", "slowdown": [1.1, 1.08, 1.13], ...}}}
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from suite.plan.cells import Arm, Cell
from suite.records.record import CellRecord, Timing, Window
from suite.run import results
from suite.run.observations import Comparison, Observations, Session
from suite.verdict.metrics import Interval
from tests.support.measurements import (
    AGAINST,
    BUSY,
    LENET,
    QUIET,
    accepted_run,
    baseline,
    job,
    run_of,
    settings,
)

RUNS = Path(__file__).parent / "runs"
FIGURES = ("sec_per_epoch", "efficiency", "speedup", "slowdown", "tail")
Golden = dict[str, Any]


def load(path: Path) -> Golden:
    """Return a run."""
    golden: Golden = json.loads(path.read_text(encoding="utf-8"))
    return golden


def replay(golden: Golden) -> Observations:
    """Return the observations of a run, as its sessions left them."""
    cells = tuple(Cell(*place) for place in golden["cells"])
    arms = [Arm(*place[:5]) for place in golden["arms"]]
    workloads = tuple(LENET.model_copy(update={"name": name}) for name in dict.fromkeys(c.workload for c in cells))
    others = {arm.trainer for arm in arms if arm.side == "base"} - {cell.trainer for cell in cells}
    base = replace(AGAINST, trainer=max(others, default=None))  # of a base that is another trainer
    config = settings(tolerance=golden["tolerance"], workloads=workloads, against=base if golden["against"] else None)
    sides = {arm.side for arm in arms}
    known = baseline(accepted_run(dict.fromkeys(cells, 1.0))) if golden["accepted"] else baseline()
    run = run_of(
        *cells,
        config=config,
        planned=golden["planned"],
        baseline=known,
        comparison=Comparison({"base": base}, cells) if "base" in sides else Comparison(),
    )
    for arm, place in zip(arms, golden["arms"], strict=True):
        run.steps[arm], run.jobs[arm] = place[5], job(arm)
    for number, kept in enumerate(golden["sessions"]):
        session = Session(number, wall_s=kept["wall_s"], counting_s=kept["other_s"])
        for arm, block, duration_ns, others_ns, first in kept["windows"]:
            times = {"duration_ns": duration_ns, "others_ns": others_ns}
            before = Timing(duration_ns=first[0], others_ns=first[1]) if first else None
            session.windows.append(Window(arm=arms[arm].id, block=block, first=before, **times))
        blocks = 1 + max((window.block for window in session.windows), default=-1)
        session.conditions += [BUSY if block in kept["disturbed"] else QUIET for block in range(blocks)]
        run.sessions.append(session)
    return run


def judged(golden: Golden) -> dict[str, dict[str, Any]]:
    """Return what the code makes of a run: by cell, its outcome and its figures with their intervals."""
    return {cell.id: of_cell(cell) for cell in results.to_record(replay(golden)).cells}


def of_cell(cell: CellRecord) -> dict[str, Any]:
    """Return the outcome and the figures of a cell."""
    figures = {name: _ends(getattr(cell, name)) for name in FIGURES}
    checks = [[check.rule, check.outcome.value] for check in cell.checks if check.counts]
    return {"outcome": cell.outcome.value, "checks": checks, **figures}


def _ends(figure: Interval | None) -> list[float | None] | None:
    return figure and [figure.estimate, figure.low, figure.high]
