"""Keep real runs for the replay test.

    export PYTEST_ADDOPTS="-p tests.golden.undecided"
    python -m docs.evidence.runs --wanted matrix=6,... --log LOG --records FOLDER  # makes them
    python -m tests.golden KIND FOLDER/RUN.json ...                                # keeps them in tests/golden/runs
    python -m tests.golden --judge-again                                           # after a change of the rules

A run is kept where every cell was timed in all sessions. What the code makes of it is kept as well, and compared with
what the run itself has said.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from suite.records.files import read_model
from suite.records.record import Record, Session, Timing
from tests.golden import RUNS, Golden, judged, load, of_cell

ROUNDING = 1e-6


def kept(record: Record, kind: str) -> Golden:
    """Return a run in the form of this folder.

    Raises:
        ValueError: a cell was not timed in all sessions, or the code makes another outcome of it than the run did.
    """
    arms = [arm for arm in record.arms if any(w.arm == arm.id for session in record.sessions for w in session.windows)]
    places = {arm.id: number for number, arm in enumerate(arms)}
    golden: Golden = {
        "kind": kind,
        "tolerance": record.tolerance,
        "against": record.against is not None,
        "accepted": record.against is None and bool(record.bases),
        "planned": record.planned,
        "cells": [list(cell.place) for cell in record.cells],
        "arms": [[a.side, a.trainer, a.workload, a.mode, a.world_size, a.steps_per_window] for a in arms],
        "sessions": [_session(session, places) for session in record.sessions],
    }
    golden["expected"] = judged(golden)
    for cell in record.cells:
        said, now = of_cell(cell), golden["expected"][cell.id]
        if cell.sessions != len(record.sessions):
            raise ValueError(f"{record.run_id}: {cell.id} was timed in {cell.sessions} sessions, not in all")
        if any(_differ(said[name], now[name]) for name in ("outcome", "efficiency", "speedup", "slowdown", "tail")):
            raise ValueError(f"{record.run_id}: {cell.id} was {said}, and is {now}")
    return golden


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return any(_differ(a, b) for a, b in zip(one, other, strict=True))
    return abs(one - other) > ROUNDING if isinstance(one, float) and isinstance(other, float) else one != other


def _session(session: Session, places: dict[str, int]) -> dict[str, Any]:
    return {
        "wall_s": session.wall_s,
        "other_s": round(session.training_s + session.counting_s, 3),
        "disturbed": list(session.left_out),
        "windows": [
            [places[w.arm], w.block, *_times(w), None if w.first is None else _times(w.first)] for w in session.windows
        ],
    }


def _times(timing: Timing) -> list[list[int]]:
    return [list(timing.duration_ns), list(timing.others_ns)]


def write(path: Path, golden: Golden) -> None:
    """Write a run, a line for each session."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items() if key != "sessions"]
    sessions = ",\n".join(f"  {json.dumps(session, separators=(',', ':'))}" for session in golden["sessions"])
    path.write_text("{\n" + ",\n".join([*lines, f' "sessions": [\n{sessions}\n ]']) + "\n}\n", encoding="utf-8")


def main() -> None:
    """Keep the runs that the arguments name."""
    parser = argparse.ArgumentParser(description="Keep real runs for the replay test.")
    parser.add_argument("kind", nargs="?")
    parser.add_argument("records", nargs="*", type=Path)
    parser.add_argument("--judge-again", action="store_true")
    options = parser.parse_args()
    for path in sorted(RUNS.glob("*.json")) if options.judge_again else ():
        golden = load(path)
        write(path, {**golden, "expected": judged(golden)})
    for path in options.records:
        golden = kept(read_model(path, Record), options.kind)
        write(RUNS / f"{options.kind}-{path.stem}.json", golden)


if __name__ == "__main__":
    main()
