"""The run behind all selected cells: measures, writes its files, accepts it as a baseline where that was asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.plan import floors
from suite.plan.cells import Cell
from suite.plan.collectives import CollectiveCell
from suite.plan.config import Config
from suite.records import baselines, calibration
from suite.records.record import CellRecord, CollectiveRecord, Record, RecordError, write_atomically
from suite.render import job_summary, pages
from suite.run import campaign, collectives, machine, results
from suite.run.observations import Observations
from suite.run.plan import plan_here
from suite.run.session import Say


def _new_folder(wanted: Path) -> Path:
    """Make a folder that is nobody else's: two runs of one second, or at once, must not write over each other."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    folder, number = wanted, 1
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1
            folder = wanted.with_name(f"{wanted.name}-{number}")


@dataclass
class RunResult:
    """A run that ended, whole or cut short, with its files written.

    Attributes:
        record: all that it found.
        folder: where the record and the pages are.
        observations: what the record was made from.
        accepted: what became of `--scaling-accept`, in words; empty where nothing was asked.
        job_summary: where the summary was published, in words; empty where nowhere.
    """

    record: Record
    folder: Path
    observations: Observations
    accepted: str = ""
    job_summary: str = ""

    def cell(self, cell: Cell) -> CellRecord:
        """Return what the run found for a cell."""
        wanted = (cell.trainer, cell.workload, cell.mode, cell.world_size)
        return next(c for c in self.record.cells if (c.trainer, c.workload, c.mode, c.world_size) == wanted)

    def collective(self, sweep: CollectiveCell) -> CollectiveRecord:
        """Return what the run found for a sweep.

        Raises:
            LookupError: it was cut short before it.
        """
        return collectives.find(self.record, sweep)


def execute(
    config: Config,
    cells: Sequence[Cell],
    sweeps: Sequence[CollectiveCell],
    say: Say,
    keep: Callable[[RunResult], None] = lambda result: None,
) -> RunResult:
    """Measure the cells and sweeps, write the record and the pages, and accept the run where the user asked for it.

    Args:
        config: what the user decided.
        cells: to judge.
        sweeps: all_reduce sweeps, which inform only.
        say: is told what is going on.
        keep: is given the result before its files are written, also where an exception cut the run short.

    Raises:
        RecordError: the accepted baseline or the calibration cannot be read, or no report folder made.
        ValueError: two floors hold for a cell and none is more specific. Both come before anything is measured.
    """
    key = machine.describe(config.devices).key
    plan = plan_here(
        config,
        cells,
        baseline=baselines.read(config.report_dir, key),
        calibration=calibration.read(config.report_dir, key),
        floors=floors.resolve(config.floors, cells, config.devices.oversubscribed),
        sweeps=sweeps,
    )
    run = Observations(plan)
    runs = config.report_dir / key / "runs"
    try:
        folder = _new_folder(runs / plan.run_id)
    except OSError as error:
        raise RecordError(f"{runs}: {error.strerror}; choose another --scaling-report-dir") from error
    try:
        campaign.measure(run, config.root, say)
    except KeyboardInterrupt:
        run.interrupted = True
        raise
    finally:
        result = RunResult(results.to_record(run), folder, run)
        keep(result)
        write_atomically(folder / "record.json", result.record.model_dump_json(indent=1) + "\n")
        pages.write_run(folder, result.record, plan.baseline)
        summary = folder / pages.SUMMARY
        result.job_summary = job_summary.publish(summary.read_text(encoding="utf-8"), summary)
    if config.accept:
        result.accepted = _accept(config, result.record)
    with contextlib.suppress(OSError):  # the next run writes it again, and this one's own files are safe
        pages.write_index(runs.parent)  # when what is accepted is known
    return result


def _accept(config: Config, record: Record) -> str:
    # Read again: another run may have been accepted while this one measured.
    baseline = baselines.read(config.report_dir, record.machine.key)
    try:
        grown = baselines.accept(baseline, record, slower=config.accept == "slower")
    except ValueError as error:
        return str(error)
    path = baselines.write(grown, config.report_dir)
    return f"accepted as baseline ({len(grown.runs)} run(s)): {path}"
