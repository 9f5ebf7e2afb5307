"""The run behind all selected cells: measures, writes its files, accepts it as a baseline where that was asked for.

Apart from the plugin, which loads it when the first cell is run: it needs scipy, and all that measures and renders.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from suite import baselines, calibration, campaign, floors, job_summary, machine
from suite.cells import Cell
from suite.communication import all_reduce
from suite.communication.cells import CollectiveCell
from suite.history import pages
from suite.plugin import CONFIG, RUN
from suite.record import CellRecord, CollectiveRecord, RecordError, write_atomically
from suite.run import results
from suite.run.measurement import Measurement
from suite.run.progress import Progress


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


class Run:
    """The run behind all selected cells: measured when the first of them asks, kept, and shown at the end.

    Raises:
        RecordError: the accepted baseline or the calibration cannot be read, or no report folder made.
        ValueError: two floors hold for a cell and none is more specific. Both come before anything is measured.
    """

    def __init__(self, config: pytest.Config, cells: list[Cell], sweeps: list[CollectiveCell]) -> None:
        self.settings = settings = config.stash[CONFIG]
        about = machine.describe(settings.devices)
        self.measurement = Measurement(
            settings,
            cells,
            about,
            *machine.git_state(settings.root),
            baseline=baselines.read(settings.report_dir, about.key),
            calibration=calibration.read(settings.report_dir, about.key),
            floors=floors.resolve(settings.floors, cells, settings.devices.oversubscribed),
            sweeps=sweeps,
            main=machine.main_branch(settings.root),
        )
        self.accepted = self.job_summary = ""
        runs = settings.report_dir / about.key / "runs"
        try:
            self.folder = _new_folder(runs / self.measurement.run_id)
        except OSError as error:
            raise RecordError(f"{runs}: {error.strerror}; choose another --scaling-report-dir") from error
        try:
            campaign.measure(self.measurement, settings.root, Progress(config))
        except KeyboardInterrupt:
            self.measurement.interrupted = True
            raise
        finally:
            self.record = results.to_record(self.measurement)
            config.stash[RUN] = self
            write_atomically(self.folder / "record.json", self.record.model_dump_json(indent=1) + "\n")
            pages.write_run(self.folder, self.record, self.measurement.baseline)
            summary = self.folder / pages.SUMMARY
            self.job_summary = job_summary.publish(summary.read_text(encoding="utf-8"), summary)
        if settings.accept:
            self.accepted = self._accept()
        with contextlib.suppress(OSError):  # the next run writes it again, and this one's own files are safe
            pages.write_index(runs.parent)  # when what is accepted is known

    def cell(self, cell: Cell) -> CellRecord:
        """What the run found for a cell."""
        wanted = (cell.trainer, cell.workload, cell.mode, cell.world_size)
        return next(c for c in self.record.cells if (c.trainer, c.workload, c.mode, c.world_size) == wanted)

    def collective(self, sweep: CollectiveCell) -> CollectiveRecord:
        """What the run found for a sweep.

        Raises:
            LookupError: it was cut short before it.
        """
        return all_reduce.find(self.record, sweep)

    def _accept(self) -> str:
        # Read again: another run may have been accepted while this one measured.
        baseline = baselines.read(self.settings.report_dir, self.record.machine.key)
        try:
            grown = baselines.accept(baseline, self.record, slower=self.settings.accept == "slower")
        except ValueError as error:
            return str(error)
        path = baselines.write(grown, self.settings.report_dir)
        return f"accepted as baseline ({len(grown.runs)} run(s)): {path}"
