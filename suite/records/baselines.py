"""The accepted baseline of a machine: a small file, reviewed in a pull request like code.

It holds accepted runs, each with its commit, environment and host, because the run is the unit: how runs of one build
differ from one another is what a stored figure has to be judged by. Of each cell it keeps the newest runs, which a new
one is held against, and its pin: the oldest run of its present level that can be built again. Accepting a run never
moves a pin, so that what creeps adds up against it; accepting a slowdown starts the affected cells anew, because the
runs before it describe another level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from suite.records.record import CellRecord, Environment, Finite, Record, RecordError, read_model, write_atomically
from suite.verdict import Outcome
from suite.verdict.metrics import t_quantile
from suite.verdict.stored import KEPT_RUNS, Run

# What a run can fail by without any time having become slower: accepting that says nothing about a cell's level.
_NOT_ABOUT_TIME = ("floor", "accuracy")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _mode(mode: str, world_size: int) -> str:
    """On one device strong and weak are the same thing."""
    return mode if world_size > 1 else "strong"


class Identity(NamedTuple):
    """What makes two cells of different runs the same: of the same workload to the letter, on the same data."""

    trainer: str
    mode: str
    world_size: int
    workload_hash: str
    dataset: str | None

    @classmethod
    def of(cls, cell: CellRecord, record: Record) -> Identity:
        """A record's cell; the dataset is None where none was loaded."""
        dataset = record.datasets.get(cell.workload)
        workload_hash = record.workload_hashes[cell.workload]
        return cls(cell.trainer, _mode(cell.mode, cell.world_size), cell.world_size, workload_hash, dataset)


class AcceptedCell(_Part):
    """What one run measured for one cell.

    Attributes:
        sec_per_epoch: its estimate, in seconds.
        sessions: over how many.
        log_se: standard error of ln(sec_per_epoch) over them; None from a single one, or an older file.
    """

    trainer: str
    workload: str
    workload_hash: str
    mode: str
    world_size: int
    dataset: str
    sec_per_epoch: Annotated[Finite, Field(gt=0)]
    sessions: int
    log_se: Finite | None = None

    @property
    def identity(self) -> Identity:
        """What it is compared by."""
        mode = _mode(self.mode, self.world_size)
        return Identity(self.trainer, mode, self.world_size, self.workload_hash, self.dataset)

    def redefined_in(self, record: Record) -> bool:
        """Whether the record's workload of this name is another one by now: nothing will be held against this cell."""
        return record.workload_hashes.get(self.workload, self.workload_hash) != self.workload_hash


class AcceptedRun(_Part):
    """One run that a person accepted."""

    run_id: str
    host: str
    environment: Environment
    cells: tuple[AcceptedCell, ...]

    @property
    def rebuildable(self) -> bool:
        """Whether its commit is known and is what was measured."""
        return self.environment.commit != "unknown" and not self.environment.dirty

    def find(self, cell: Identity) -> AcceptedCell | None:
        """Its figures for a cell."""
        return next((kept for kept in self.cells if kept.identity == cell), None)


class Baseline(_Part):
    """All accepted runs of one machine key, oldest first."""

    schema_version: Literal[1, 2] = 2  # 2: the standard error behind an estimate
    machine_key: str
    runs: tuple[AcceptedRun, ...] = ()

    def accepted(self, cell: CellRecord, record: Record) -> list[AcceptedCell]:
        """What the newest accepted runs measured for this cell, oldest first; empty when none has it."""
        return [kept for _, kept in self._holding(Identity.of(cell, record))[-KEPT_RUNS:]]

    def comparable(self, cell: CellRecord, record: Record) -> list[Run]:
        """The same as `suite.verdict.stored.difference` takes it.

        A pin that is older than the newest runs is not among them: a level that was left long ago, by runs that became
        faster, would look like spread for ever.
        """
        return [_as_run(run, kept) for run, kept in self._holding(Identity.of(cell, record))[-KEPT_RUNS:]]

    def pin(self, cell: CellRecord, record: Record) -> Run | None:
        """The pinned run's figures, as `suite.verdict.stored.difference` takes them.

        None where nothing is pinned, and where no run came after it: then `comparable` has said it all.
        """
        older = self._holding(Identity.of(cell, record))[:-1]
        return next((_as_run(run, kept) for run, kept in older if run.rebuildable), None)

    def pinned(self, cell: CellRecord, record: Record) -> AcceptedRun | None:
        """The oldest accepted run of the cell's present level that can be built again; None where none can."""
        return next((run for run, _ in self._holding(Identity.of(cell, record)) if run.rebuildable), None)

    def latest(self, cell: CellRecord, record: Record) -> AcceptedRun | None:
        """The newest one."""
        return next((run for run, _ in reversed(self._holding(Identity.of(cell, record))) if run.rebuildable), None)

    def _holding(self, cell: Identity) -> list[tuple[AcceptedRun, AcceptedCell]]:
        return [(run, kept) for run in self.runs if (kept := run.find(cell)) is not None]


def path_for(report_dir: Path, machine_key: str) -> Path:
    """Where a machine's baseline lies."""
    return report_dir / machine_key / "baseline.json"


def read(report_dir: Path, machine_key: str) -> Baseline:
    """The accepted baseline of this machine key; an empty one where there is no file.

    Raises:
        suite.records.record.RecordError: the file is broken, of a newer schema, or of another machine.
    """
    path = path_for(report_dir, machine_key)
    if not path.exists():
        return Baseline(machine_key=machine_key)
    found = read_model(path, Baseline)
    if found.machine_key != machine_key:
        raise RecordError(f"{path}: it is the baseline of machine {found.machine_key}, not of {machine_key}")
    return found


def accept(baseline: Baseline, record: Record, *, slower: bool) -> Baseline:
    """The baseline with this run added, and without what nobody will ask for again.

    Args:
        baseline: the one so far.
        record: of the run.
        slower: whether a slowdown is being accepted on purpose. Then the earlier runs of the cells that failed by their
            time are dropped, and with them their pins.

    Raises:
        ValueError: the run has a cell in ERROR, was interrupted, has a FAIL and `slower` was not said, or is there
            already.
    """
    outcomes = {cell.outcome for cell in record.cells}
    if Outcome.ERROR in outcomes or record.interrupted:
        raise ValueError(
            "not accepted: a run with an ERROR, or one cut short, is never a baseline; mend it and run again"
        )
    if Outcome.FAIL in outcomes and not slower:
        raise ValueError("not accepted: the run has a FAIL; --scaling-accept=slower takes a slowdown as the new level")
    if any(run.run_id == record.run_id for run in baseline.runs):
        raise ValueError(
            f"not accepted: run {record.run_id} is in the baseline already, and one run twice would look like two that "
            "agree; measure again"
        )
    left = {Identity.of(cell, record) for cell in record.cells if _slowed(cell)}
    earlier = tuple(
        _only(run, [c for c in run.cells if c.identity not in left and not c.redefined_in(record)])
        for run in baseline.runs
    )
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
            log_se=_log_se(cell),
        )
        for cell in record.cells
        if cell.sec_per_epoch is not None
    )
    new = AcceptedRun(run_id=record.run_id, host=record.machine.host, environment=record.environment, cells=cells)
    return Baseline(machine_key=baseline.machine_key, runs=_pruned((*earlier, new)))


def measured(cell: CellRecord, record: Record) -> Run:
    """A run's own figures for a cell, as `suite.verdict.stored.difference` takes the candidate.

    Raises:
        ValueError: the cell was not measured.
    """
    if cell.sec_per_epoch is None:
        raise ValueError(f"cell {cell.id} has no time in run {record.run_id}: only a measured one can be compared")
    return Run(math.log(cell.sec_per_epoch.estimate), cell.sessions, _log_se(cell), record.machine.host)


def _as_run(run: AcceptedRun, kept: AcceptedCell) -> Run:
    return Run(math.log(kept.sec_per_epoch), kept.sessions, kept.log_se, run.host)


def _log_se(cell: CellRecord) -> float | None:
    """From the 95 % interval in the record, which is a t-interval of the logarithm over sessions."""
    interval = cell.sec_per_epoch
    if interval is None or interval.low is None or interval.high is None or cell.sessions < 2:
        return None
    return math.log(interval.high / interval.low) / 2 / t_quantile(cell.sessions - 1, 0.975)


def _slowed(cell: CellRecord) -> bool:
    failed = [check.rule for check in cell.checks if check.outcome is Outcome.FAIL]
    return cell.outcome is Outcome.FAIL and (not failed or any(rule not in _NOT_ABOUT_TIME for rule in failed))


def _pruned(runs: Sequence[AcceptedRun]) -> tuple[AcceptedRun, ...]:
    """Each cell's newest runs and its pin, so that the file stays as small as the matrix is."""
    wanted: set[tuple[int, Identity]] = set()
    for cell in {kept.identity for run in runs for kept in run.cells}:
        holding = [number for number, run in enumerate(runs) if run.find(cell) is not None]
        pin = [number for number in holding if runs[number].rebuildable][:1]
        wanted |= {(number, cell) for number in pin + holding[-KEPT_RUNS:]}
    kept = (_only(run, [c for c in run.cells if (number, c.identity) in wanted]) for number, run in enumerate(runs))
    return tuple(run for run in kept if run.cells)


def _only(run: AcceptedRun, cells: Sequence[AcceptedCell]) -> AcceptedRun:
    return run.model_copy(update={"cells": tuple(cells)})


def write(baseline: Baseline, report_dir: Path) -> Path:
    """Put the baseline in its place, atomically, and say where that is."""
    path = path_for(report_dir, baseline.machine_key)
    write_atomically(path, baseline.model_dump_json(indent=1) + "\n")
    return path
