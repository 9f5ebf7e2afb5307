"""The run behind all selected cells: measures, writes its files, and accepts it as a baseline where the user asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from suite.plan import floors
from suite.plan.cells import Cell
from suite.plan.collectives import CollectiveCell
from suite.plan.config import Config
from suite.records import baselines, calibration
from suite.records.record import CellRecord, CollectiveRecord, Record, RecordError, write_atomically
from suite.render import job_summary, pages
from suite.run import campaign, results
from suite.run.observations import Observations
from suite.run.plan import plan_here
from suite.run.session import Say


def _new_folder(wanted: Path) -> Path:
    """Make a folder of this name, or of this name and a number where another run has it."""
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
    """A run that ended, complete or cut short, with its files written.

    Attributes:
        record: what it measured and decided.
        folder: where the record and the pages are.
        observations: what the record was made from.
        accepted: the result of `--scaling-accept`, in words; empty where the option was not given.
        job_summary: where the summary was published, in words; empty where it was not.
    """

    record: Record
    folder: Path
    observations: Observations
    accepted: str = ""
    job_summary: str = ""

    def cell(self, cell: Cell) -> CellRecord:
        """Return the record of a cell."""
        wanted = (cell.trainer, cell.workload, cell.mode, cell.world_size)
        return next(c for c in self.record.cells if (c.trainer, c.workload, c.mode, c.world_size) == wanted)

    def collective(self, sweep: CollectiveCell) -> CollectiveRecord:
        """Return the record of a sweep.

        Raises:
            LookupError: the run was cut short before it.
        """
        for result in self.record.collectives:
            if (result.algorithm, result.world_size) == (sweep.algorithm, sweep.world_size):
                return result
        raise LookupError(f"{sweep.id}: the run was cut short before it was measured; run it again")


def execute(
    config: Config,
    cells: Sequence[Cell],
    sweeps: Sequence[CollectiveCell],
    say: Say,
    keep: Callable[[RunResult], None] = lambda result: None,
) -> RunResult:
    """Measure the cells and sweeps, write the record and the pages, and accept the run where the user asked for it.

    Args:
        config, cells, sweeps: what is to be measured; sweeps are shown and decide nothing.
        say: receives progress, one line at a time.
        keep: receives the result before its files are written, also where an exception cut the run short.

    Raises:
        RecordError: before measuring: the accepted baseline or the calibration cannot be read, or no folder be made.
        ValueError: before measuring: two floors apply to a cell and neither is more specific.
    """
    plan = plan_here(config, cells)
    key = plan.machine.key
    plan = replace(
        plan,
        baseline=baselines.read(config.report_dir, key),
        calibration=calibration.read(config.report_dir, key),
        floors=floors.resolve(config.floors, cells, config.devices.oversubscribed),
        sweeps=tuple(sweeps),
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
    with contextlib.suppress(OSError):  # the next run writes the index again
        pages.write_index(runs.parent)  # after accepting, which the index shows
    return result


def _accept(config: Config, record: Record) -> str:
    # Read again, because another run may have been accepted while this one measured.
    baseline = baselines.read(config.report_dir, record.machine.key)
    try:
        grown = baselines.accept(baseline, record, slower=config.accept == "slower")
    except ValueError as error:
        return str(error)
    path = baselines.write(grown, config.report_dir)
    return f"accepted as baseline ({len(grown.runs)} run(s)): {path}"
