"""Recorded sessions of identical code: read from a file, or taken out of a run's record and kept small.

    python -m suite calibrate --sessions 60 ...                               # measures; the record lies in reports/
    python -m docs.evidence.recording reports/KEY/runs/RUN/record.json --command "python -m suite calibrate ..."

The first measures a build against itself, the second keeps what `replay` and `rules` need in `recording.json`: for
every session the seconds a step of both arms, round by round, in the order they were timed, to a microsecond. A block
visits its arms forwards and backwards, so it holds two rounds. Blocks that the run marked as disturbed are kept and
stay marked: ours does without them, another tool's rule would have seen them.

Also read: files with `unit`, `arms` and `sessions`, in which a session has a list for each arm and no wall time.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from suite.records.files import read_model, write_atomically
from suite.records.record import ArmRecord, CellRecord, Record, Session
from suite.verdict import Middle, Windows
from suite.verdict.metrics import location, location_variance

RECORDING = Path(__file__).with_name("recording.json")

StepSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RecordedSession(BaseModel):
    """One set of fresh processes; `candidate[i]` and `base[i]` were timed next to each other.

    Attributes:
        candidate, base: seconds a step of every round (slowest rank), in the order of timing.
        steps: in a window.
        left_out: rounds of disturbed blocks, by their index.
        wall_s: of the whole session, its start included; None where it was not recorded.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    candidate: tuple[StepSeconds, ...]
    base: tuple[StepSeconds, ...]
    steps: int = Field(gt=0)
    left_out: tuple[int, ...] = ()
    wall_s: float | None = None

    @property
    def windows(self) -> Windows:
        """Every round that counts, as the verdict takes them."""
        counting = [number for number in range(len(self.base)) if number not in self.left_out]
        return Windows(*([math.log(side[number]) for number in counting] for side in (self.candidate, self.base)))

    @property
    def window_s(self) -> float:
        """Seconds that were timed, both arms together."""
        return (sum(self.candidate) + sum(self.base)) * self.steps


class Recording(BaseModel):
    """The file: where and how the sessions were recorded, and the sessions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    command: str
    cell: str
    started_utc: str
    machine_key: str
    commit: str
    dirty: bool
    versions: dict[str, str]
    sessions: tuple[RecordedSession, ...]


def middle_of(log_ratios: Sequence[float]) -> Middle:
    """Return a session by the middle of its rounds, as runs before ADR 0051 were judged; their logs have no windows."""
    return Middle(location(log_ratios), *(location_variance(log_ratios) if len(log_ratios) > 1 else ()))


def load(path: Path, arms: Sequence[str] = ("two", "twoB")) -> list[RecordedSession]:
    """The sessions of a recording.

    Args:
        path: of `recording.json`, or of a file that names its arms.
        arms: candidate and base, where the file names them.

    Raises:
        RecordError: the file is missing or no `Recording`.
        ValueError: it names its arms, and these are not among them.
    """
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    if not isinstance(content, dict) or "arms" not in content:
        return list(read_model(path, Recording).sessions)
    known = list(content["sessions"][0])
    if missing := [arm for arm in arms if arm not in known]:
        raise ValueError(f"{path}: no arm {', '.join(missing)}; choose two of {', '.join(known)}")
    found = re.search(r"mean over (\d+) steps", content["unit"])
    if found is None:
        raise ValueError(
            f"{path}: unit {content['unit']!r} does not say 'mean over N steps', so windows have no length"
        )
    candidate, base = arms
    return [
        RecordedSession(candidate=session[candidate], base=session[base], steps=int(found[1]))
        for session in content["sessions"]
    ]


def of_record(record: Record, cell: CellRecord) -> list[RecordedSession]:
    """Every session of a run in which both arms of a cell were timed.

    Raises:
        ValueError: the cell had no base in the run.
    """
    # The base's trainer is the cell's own, unless it is what the run compares.
    own_last = sorted(record.arms, key=lambda arm: arm.trainer == cell.trainer)
    arms = {arm.side: arm for arm in own_last if _times(arm, cell)}
    if not {"candidate", "base"} <= set(arms):
        raise ValueError(f"{record.run_id}: {cell.id} was not timed beside a base; measure with --scaling-against")
    found = []
    for session in record.sessions:
        candidate, base = (_rounds(session, arms[side]) for side in ("candidate", "base"))
        if both := [visit for visit in candidate if visit in base]:
            found.append(
                RecordedSession(
                    candidate=tuple(candidate[visit] for visit in both),
                    base=tuple(base[visit] for visit in both),
                    steps=arms["candidate"].steps_per_window,
                    left_out=tuple(n for n, (block, _) in enumerate(both) if block in session.left_out),
                    wall_s=session.wall_s,
                )
            )
    return found


def from_record(path: Path, command: str, cell_id: str | None = None) -> Recording:
    """A run's record as a recording.

    Args:
        path: of a record.json.
        command: that made it.
        cell_id: which cell, where the run had several.

    Raises:
        RecordError: it is not a record.
        ValueError: no such cell, or several and none was chosen, or it had no base in the run.
    """
    record = read_model(path, Record)
    cells = [cell for cell in record.cells if cell_id in (None, cell.id)]
    if len(cells) != 1:
        names = ", ".join(cell.id for cell in record.cells)
        raise ValueError(f"{path}: cell {cell_id}: a recording is of one cell; choose one with --cell: {names}")
    return Recording(
        command=command,
        cell=cells[0].id,
        started_utc=record.started_utc,
        machine_key=record.machine.key,
        commit=record.environment.commit,
        dirty=record.environment.dirty,
        versions=record.environment.versions,
        sessions=tuple(of_record(record, cells[0])),
    )


def to_json(recording: Recording) -> str:
    """As JSON, one session a line."""
    content: dict[str, Any] = {"schema_version": recording.schema_version}
    content |= recording.model_dump(mode="json", exclude_defaults=True)
    sessions = ",\n".join(json.dumps(session) for session in content.pop("sessions"))
    return f'{json.dumps(content)[:-1]}, "sessions": [\n{sessions}\n]}}\n'


def _times(arm: ArmRecord, cell: CellRecord) -> bool:
    """Whether it is the cell's own arm or that of its base; at world size 1 strong and weak are one arm."""
    sizes = (arm.workload, arm.world_size) == (cell.workload, cell.world_size)
    mode = arm.mode == cell.mode or cell.world_size == 1
    return sizes and mode and (arm.side != "candidate" or arm.trainer == cell.trainer)


def _rounds(session: Session, arm: ArmRecord) -> dict[tuple[int, int], float]:
    """Seconds a step by block and visit, in the order of timing; the slowest rank counts."""
    found: dict[tuple[int, int], float] = {}
    for window in session.windows:
        if window.arm == arm.id:
            visit = (window.block, 1 if (window.block, 0) in found else 0)
            found[visit] = round(max(window.duration_ns) / arm.steps_per_window / 1e9, 6)
    return found


def main() -> None:
    """Keep a record's rounds as a recording."""
    parser = argparse.ArgumentParser(description="Take the rounds of one cell out of a run's record.")
    parser.add_argument("record", type=Path, help="record.json of a run with a base")
    parser.add_argument("--command", required=True, help="the command that made the record; kept in the recording")
    parser.add_argument("--cell", help="the cell's id, where the run had several")
    parser.add_argument("--out", type=Path, default=RECORDING, help=f"default: {RECORDING.name} beside this script")
    options = parser.parse_args()
    try:
        recording = from_record(options.record, options.command, options.cell)
    except ValueError as error:
        parser.error(str(error))
    write_atomically(options.out, to_json(recording))
    rounds = len(recording.sessions[0].base) if recording.sessions else 0
    print(f"{options.out}: {len(recording.sessions)} sessions, {rounds} rounds in the first")


if __name__ == "__main__":
    main()
