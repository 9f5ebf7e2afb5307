"""The accepted baseline of a machine: a small file, reviewed in a pull request like code.

It holds accepted runs, each with its commit, environment and host, because the run is the unit: how runs of one build
differ from one another is what a stored figure has to be judged by. Accepting adds a run; accepting a slowdown starts
the affected cells anew, because the runs before it describe another level.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from suite.record import CellRecord, Environment, Finite, Record, RecordError, read_model, write_atomically
from suite.verdict import Outcome


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AcceptedCell(_Part):
    """What one run measured for one cell: seconds an epoch, and over how many sessions."""

    trainer: str
    workload: str
    workload_hash: str
    mode: str
    world_size: int
    dataset: str
    sec_per_epoch: Finite
    sessions: int

    def matches(self, cell: CellRecord, record: Record) -> bool:
        """Whether it is the same cell, of the same workload to the letter, on the same data."""
        return (self.trainer, self.mode, self.world_size, self.workload_hash, self.dataset) == (
            cell.trainer,
            cell.mode,
            cell.world_size,
            record.workload_hashes[cell.workload],
            record.datasets.get(cell.workload),
        )


class AcceptedRun(_Part):
    """One run that a person accepted."""

    run_id: str
    host: str
    environment: Environment
    cells: tuple[AcceptedCell, ...]


class Baseline(_Part):
    """All accepted runs of one machine key, oldest first."""

    schema_version: Literal[1] = 1
    machine_key: str
    runs: tuple[AcceptedRun, ...] = ()

    def accepted(self, cell: CellRecord, record: Record) -> list[AcceptedCell]:
        """What every accepted run measured for this cell; empty when none has it."""
        return [kept for run in self.runs for kept in run.cells if kept.matches(cell, record)]


def path_for(report_dir: Path, machine_key: str) -> Path:
    """Where a machine's baseline lies."""
    return report_dir / machine_key / "baseline.json"


def read(report_dir: Path, machine_key: str) -> Baseline:
    """The accepted baseline of this machine key; an empty one where there is no file.

    Raises:
        suite.record.RecordError: the file is broken, of a newer schema, or of another machine.
    """
    path = path_for(report_dir, machine_key)
    if not path.exists():
        return Baseline(machine_key=machine_key)
    found = read_model(path, Baseline)
    if found.machine_key != machine_key:
        raise RecordError(f"{path}: it is the baseline of machine {found.machine_key}, not of {machine_key}")
    return found


def accept(baseline: Baseline, record: Record, *, slower: bool) -> Baseline:
    """The baseline with this run added.

    Args:
        slower: whether a slowdown is being accepted on purpose. Then the FAILed cells' earlier runs are dropped.

    Raises:
        ValueError: the run has a cell in ERROR, was interrupted, or has a FAIL and `slower` was not said.
    """
    outcomes = {cell.outcome for cell in record.cells}
    if Outcome.ERROR in outcomes or record.interrupted:
        raise ValueError(
            "not accepted: a run with an ERROR, or one cut short, is never a baseline; mend it and run again"
        )
    if Outcome.FAIL in outcomes and not slower:
        raise ValueError("not accepted: the run has a FAIL; --scaling-accept=slower takes a slowdown as the new level")
    failed = [cell for cell in record.cells if cell.outcome is Outcome.FAIL]
    kept = [
        run.model_copy(
            update={"cells": tuple(c for c in run.cells if not any(c.matches(cell, record) for cell in failed))}
        )
        for run in baseline.runs
    ]
    cells = tuple(
        AcceptedCell(
            trainer=cell.trainer,
            workload=cell.workload,
            workload_hash=record.workload_hashes[cell.workload],
            mode=cell.mode,
            world_size=cell.world_size,
            dataset=record.datasets[cell.workload],
            sec_per_epoch=cell.sec_per_epoch.estimate,
            sessions=cell.sessions,
        )
        for cell in record.cells
        if cell.sec_per_epoch is not None
    )
    new = AcceptedRun(run_id=record.run_id, host=record.machine.host, environment=record.environment, cells=cells)
    return baseline.model_copy(update={"runs": (*(run for run in kept if run.cells), new)})


def write(baseline: Baseline, report_dir: Path) -> Path:
    """Put the baseline in its place, atomically, and say where that is."""
    path = path_for(report_dir, baseline.machine_key)
    write_atomically(path, baseline.model_dump_json(indent=1) + "\n")
    return path
