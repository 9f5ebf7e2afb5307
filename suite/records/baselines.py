"""The accepted baseline of a machine: a small file, reviewed in a pull request like code.

The run is the unit: the file has accepted runs, each with its commit, environment and host. Of each cell it keeps the
newest runs of each host, with which a new one is compared (`suite.verdict.stored.newest`), and its pin: the oldest run
of the cell's present level that can be built again. Accepting a run never moves a pin, so that slow creep adds up
against it. Accepting a slowdown drops the earlier runs of the affected cells, which describe another level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from suite.plan.cells import measured_mode
from suite.records.counters import Counters
from suite.records.files import RecordError, read_inside, write_inside
from suite.records.record import CellRecord, Environment, Finite, Record
from suite.room.part import Part
from suite.verdict import Outcome
from suite.verdict.diagnose import CAUSES
from suite.verdict.stored import Run, newest

# Rules that fail without any time having become slower: accepting that is no new level of a cell.
_NOT_ABOUT_TIME = ("floor", "accuracy", "counters")
NOTHING_SELECTED = (
    "no cell was measured; select cells with -m scaling, in your own repository with --pyargs suite.benchmarks too"
)
NOTHING_COULD_RUN = "no cell could be measured; repair what failed and run again"
NOTHING_IN_TIME = "no cell was measured in its budget; raise --scaling-budget"


class Identity(NamedTuple):
    """What two cells of different runs must share to be compared."""

    trainer: str
    mode: str
    world_size: int
    workload_hash: str
    dataset: str | None
    oversubscribed: bool

    @classmethod
    def of(cls, cell: CellRecord, record: Record) -> Identity:
        """Return that of a record's cell; the dataset is None where none was loaded."""
        mode, workload_hash = measured_mode(cell.mode, cell.world_size), record.workload_hashes[cell.workload]
        dataset = record.datasets.get(cell.workload)
        return cls(cell.trainer, mode, cell.world_size, workload_hash, dataset, cell.oversubscribed)

    @property
    def definition(self) -> str:
        """What tells it from another cell of the same name."""
        return f"{self.workload_hash} on {self.dataset or 'no dataset'}"


Credible = Annotated[float, Field(ge=1e-9, le=1e9)]  # the ratio of any two is still a number


class AcceptedNet(Part):
    """A net that one device trained by the workload's recipe: its seed, data, and accuracy after the last epoch."""

    seed: int
    dataset: str
    accuracy: Annotated[float, Field(ge=0, le=1)]


class AcceptedCell(Part):
    """One run's time for one cell."""

    trainer: str
    workload: str
    workload_hash: str
    mode: str
    world_size: int
    dataset: str
    oversubscribed: bool = False
    sec_per_epoch: Credible
    sessions: Annotated[int, Field(ge=0)]
    counters: Counters | None = None  # what one step did; None where it was not counted
    efficiency: Credible | None = None  # its estimate; None on one device, or where one device was not measured
    # What each bar of the waterfall takes of the ideal step, by `suite.verdict.diagnose.bar_name`.
    parts: dict[str, Finite] = Field(default_factory=dict, max_length=len(CAUSES))
    nets: tuple[AcceptedNet, ...] = ()  # those of one device; empty on several

    @property
    def identity(self) -> Identity:
        """What it is compared by."""
        mode = measured_mode(self.mode, self.world_size)
        return Identity(self.trainer, mode, self.world_size, self.workload_hash, self.dataset, self.oversubscribed)


class AcceptedRun(Part):
    """One run that a person accepted; `driver` and `system` are those of its machine."""

    run_id: str
    host: str
    driver: str = ""  # none on CPUs
    system: str
    environment: Environment
    cells: tuple[AcceptedCell, ...]

    @property
    def started_s(self) -> float | None:
        """When it began, by its id, in seconds since 1970; None where the id has no time."""
        try:
            return datetime.strptime(self.run_id.partition("-")[0], "%Y%m%dT%H%M%S%z").timestamp()
        except ValueError:
            return None

    @property
    def rebuildable(self) -> bool:
        """Whether its commit is known and is what was measured."""
        return not self.environment.not_rebuildable

    def find(self, cell: Identity) -> AcceptedCell | None:
        """Return its figures for a cell."""
        return next((kept for kept in self.cells if kept.identity == cell), None)

    def time(self, cell: Identity) -> Run | None:
        """Return its time for a cell, as `suite.verdict.stored` compares it."""
        if (kept := self.find(cell)) is None:
            return None
        return Run(
            log_t=math.log(kept.sec_per_epoch),
            sessions=kept.sessions,
            host=self.host,
            started_s=self.started_s,
            log_efficiency=None if kept.efficiency is None else math.log(kept.efficiency),
            parts=kept.parts,
        )


class Baseline(Part):
    """All accepted runs of one machine key, oldest first."""

    schema_version: Literal[1] = 1
    machine_key: str
    runs: tuple[AcceptedRun, ...] = ()

    def comparable(self, cell: CellRecord, record: Record) -> list[Run]:
        """Return the cell's newest accepted runs on each host for `suite.verdict.stored`, oldest first.

        A pin that is older than these is not among them: a level that runs left long ago, by becoming faster, would
        look like spread forever.
        """
        identity = Identity.of(cell, record)
        runs = [time for run in self.runs if (time := run.time(identity)) is not None]
        return [runs[place] for place in newest(runs)]

    def rebuildable(self, cell: CellRecord, record: Record) -> list[AcceptedRun]:
        """Return the accepted runs of the cell that can be built again: its pin first, the newest last."""
        identity = Identity.of(cell, record)
        return [run for run in self.runs if run.rebuildable and run.find(identity) is not None]

    def newest_counted(self, cell: Identity) -> tuple[AcceptedRun, Counters] | None:
        """Return the newest accepted run that counted what a step of the cell does, and its counters."""
        holding = ((run, run.find(cell)) for run in reversed(self.runs))
        return next(((run, kept.counters) for run, kept in holding if kept is not None and kept.counters), None)

    def accuracies(self, cell: Identity, dataset: str) -> dict[int, float]:
        """Return what nets of a cell on one device reached with a dataset, by seed; of each seed the newest."""
        nets = (net for run in self.runs if (kept := run.find(cell)) for net in kept.nets)
        return {net.seed: net.accuracy for net in nets if net.dataset == dataset}


def path_for(report_dir: Path, machine_key: str) -> Path:
    """Return the path of a machine's baseline."""
    return report_dir / machine_key / "baseline.json"


def read(report_dir: Path, machine_key: str) -> Baseline:
    """Return the accepted baseline of a machine key; an empty one where there is no file.

    A RecordError says that the file is broken, of a newer schema, of another machine, or lies elsewhere.
    """
    path = path_for(report_dir, machine_key)
    if not path.exists():
        return Baseline(machine_key=machine_key)
    baseline = read_inside(report_dir, path, Baseline)
    if baseline.machine_key != machine_key:
        raise RecordError(
            f"{path}: it is the baseline of machine {baseline.machine_key}, not of {machine_key}; put it in its folder"
        )
    return baseline


def refusal(record: Record) -> str:
    """Return why a run is never a baseline, whatever the user asks for, and what to do; empty where it may be one."""
    if record.interrupted:
        return "a run that was cut short is never a baseline; run it to its end"
    errors = [Outcome.ERROR for sweep in record.collectives if sweep.error]
    if Outcome.ERROR in (*errors, *(cell.outcome for cell in record.cells)):
        return "a run with an ERROR is never a baseline; repair it and run again"
    if any(cell.sec_per_epoch is not None for cell in record.cells):
        return ""
    return NOTHING_IN_TIME if record.cells else NOTHING_SELECTED


def warning(record: Record) -> str:
    """Return why later runs cannot be decided once this one is accepted, and what to do; empty where they can."""
    why = record.environment.not_rebuildable
    return why and (
        f"The commit of this run cannot be rebuilt ({why}), so later runs compared with it stay INCONCLUSIVE: commit, "
        "and accept a run of that commit."
    )


def accept(baseline: Baseline, record: Record, *, slower: bool) -> Baseline:
    """Return the baseline with this run added, and without cells that no later run will be compared with.

    Where a slowdown is accepted on purpose (`slower`), the earlier runs of cells that failed by their time are dropped,
    and with them their pins.

    Raises:
        ValueError: of `refusal`; or the run has a FAIL without `slower`, or is accepted already.
    """
    if never := refusal(record):
        raise ValueError(f"not accepted: {never}")
    if any(cell.outcome is Outcome.FAIL for cell in record.cells) and not slower:
        raise ValueError("not accepted: the run has a FAIL; --scaling-accept=slower takes a slowdown as the new level")
    if any(run.run_id == record.run_id for run in baseline.runs):
        raise ValueError(
            f"not accepted: run {record.run_id} is in the baseline already, and would count as two runs that agree; "
            "measure again"
        )
    new_level = {Identity.of(cell, record) for cell in record.cells if slowed(cell)}
    hashes = record.workload_hashes  # a workload that is defined differently by now is another one
    earlier = []
    for run in baseline.runs:
        current = [c for c in run.cells if hashes.get(c.workload) in (c.workload_hash, None)]
        earlier.append(_only(run, [c for c in current if c.identity not in new_level]))
    cells = tuple(
        AcceptedCell(
            trainer=cell.trainer,
            workload=cell.workload,
            workload_hash=record.workload_hashes[cell.workload],
            mode=cell.mode,
            world_size=cell.world_size,
            dataset=record.datasets[cell.workload],
            oversubscribed=cell.oversubscribed,
            sec_per_epoch=cell.sec_per_epoch.estimate,
            sessions=cell.sessions,
            counters=cell.counters.get("candidate"),
            efficiency=cell.efficiency and cell.efficiency.estimate,
            parts=_parts(cell),
            nets=_nets(cell, record),
        )
        for cell in record.cells
        if cell.sec_per_epoch is not None
    )
    new = AcceptedRun(
        run_id=record.run_id,
        host=record.machine.host,
        driver=record.machine.driver,
        system=record.machine.system,
        environment=record.environment,
        cells=cells,
    )
    return Baseline(machine_key=baseline.machine_key, runs=_pruned((*earlier, new)))


def _parts(cell: CellRecord) -> dict[str, float]:
    own = cell.own_waterfall
    return {} if own is None else {name: share.estimate for name, share in own.shares.items()}


def _nets(cell: CellRecord, record: Record) -> tuple[AcceptedNet, ...]:
    nets = (net for net in record.accuracies if (net.trainer, net.workload) == (cell.trainer, cell.workload))
    return tuple(
        AcceptedNet(seed=net.seed, dataset=net.dataset, accuracy=net.per_epoch[-1])
        for net in nets
        if cell.world_size == net.world_size == 1 and net.per_epoch
    )


def slowed(cell: CellRecord) -> bool:
    """Return whether a cell failed by its time, and not only by its accuracy, its floor or its counters."""
    failed = [check.rule for check in cell.checks if check.outcome is Outcome.FAIL]
    return cell.outcome is Outcome.FAIL and (not failed or any(rule not in _NOT_ABOUT_TIME for rule in failed))


def _pruned(runs: Sequence[AcceptedRun]) -> tuple[AcceptedRun, ...]:
    """Keep of each cell the runs that a later one is compared with, and the oldest and the newest to build again."""
    wanted: set[tuple[int, Identity]] = set()
    for cell in {kept.identity for run in runs for kept in run.cells}:
        holding = [(number, time) for number, run in enumerate(runs) if (time := run.time(cell)) is not None]
        rebuildable = [number for number, _ in holding if runs[number].rebuildable]
        compared = [holding[place][0] for place in newest([time for _, time in holding])]
        wanted |= {(number, cell) for number in (*rebuildable[:1], *rebuildable[-1:], *compared)}
    left = (_only(run, [c for c in run.cells if (number, c.identity) in wanted]) for number, run in enumerate(runs))
    return tuple(run for run in left if run.cells)


def _only(run: AcceptedRun, cells: Sequence[AcceptedCell]) -> AcceptedRun:
    return run.model_copy(update={"cells": tuple(cells)})


def write(baseline: Baseline, report_dir: Path) -> Path:
    """Write the baseline atomically, and return its path; raises as `suite.records.files.write_inside`."""
    path = path_for(report_dir, baseline.machine_key)
    write_inside(report_dir, path, baseline.model_dump_json(indent=1) + "\n")
    return path
