"""The run behind all selected cells: measures, keeps its files, and later accepts it as a baseline.

The record is kept from before the first session on and after each, the pages at the end. Where the report folder cannot
be written any more, the run goes on, and its files go to a fallback folder.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from suite.plan import floors
from suite.plan.cells import Cell, CollectiveCell
from suite.plan.config import Config
from suite.processes.failure import harmless
from suite.processes.folder import locked
from suite.records import baselines, calibration
from suite.records.baselines import Baseline
from suite.records.files import (
    RecordError,
    keep_from_git,
    remove_unfinished,
    require_inside,
    write_atomically,
    write_inside,
)
from suite.records.record import RECORD, CellRecord, CollectiveRecord, Record
from suite.render import markdown, pages
from suite.render.figures import some
from suite.room.limits import allow_descriptors
from suite.run import campaign, forecast, results, samples
from suite.run.observations import Observations
from suite.run.plan import Plan, plan_here
from suite.run.session import Say

Write = Callable[[Path], None]
ACCEPTED = "accepted"  # the folder of the newest accepted run, for the reviewer of baseline.json
MOST_NAMES = 3  # of failed tests in a message


def write_record(folder: Path, record: Record) -> None:
    """Write a record into the folder of its run.

    Raises:
        OSError: the folder cannot be written; an earlier record there is untouched.
    """
    write_atomically(folder / RECORD, record.model_dump_json(indent=1) + "\n")


class Keeper:
    """Where the files of one run go.

    Attributes:
        folder: the run's own, or the fallback folder.
        problem: why the files are not where the user wanted them, in words; empty where they are.
    """

    def __init__(self, wanted: Path, first: Write, say: Say) -> None:
        """Make the run's folder and write its first file, so that a folder of no use is noticed before measuring.

        Unfinished files that killed runs left next to it are removed.

        Args:
            wanted: the folder; one with a number after its name where another run has it.
            first: writes into the folder that it is called with.
            say: is told of a folder that cannot be written any more.

        Raises:
            RecordError: the folder cannot be made or written.
        """
        self.problem, self._say = "", say
        remove_unfinished(wanted.parent)
        try:
            self.folder = new_folder(wanted)
            try:
                first(self.folder)
            finally:
                with contextlib.suppress(OSError):  # it has its first file, or its disk is read-only
                    self.folder.rmdir()
        except OSError as error:
            raise RecordError(f"{wanted.parent}: {error.strerror}; choose another --scaling-report-dir") from error

    def keep(self, write: Write) -> None:
        """Call `write` with the run's folder, and again with a fallback folder where the first one fails."""
        try:
            return write(self.folder)
        except OSError as error:
            failed = f"the report folder {self.folder} cannot be written ({error.strerror})"
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=f"scaling-report-{self.folder.name}-"))
            write(self.folder)
            self.problem = f"{failed}: this run's files are in {self.folder}; move them, or run again with space"
        except OSError as error:
            other = f"neither can {tempfile.gettempdir()} ({error.strerror})"
            self.problem = f"{failed}, and {other}: nothing more is kept; free space"
        self._say(self.problem)


def new_folder(wanted: Path) -> Path:
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
        problem: which file is not where the user wanted it, in words; pytest then ends with a status that is not 0.
    """

    record: Record
    folder: Path
    observations: Observations
    accepted: str = ""
    job_summary: str = ""
    problem: str = ""

    def cell(self, cell: Cell) -> CellRecord:
        """Return the record of a cell."""
        wanted = (cell.trainer, cell.workload, cell.mode, cell.world_size)
        return next(record for record in self.record.cells if record.place == wanted)

    def step_samples_s(self, cell: Cell) -> list[float]:
        """Return the seconds a step of a cell, one for each window."""
        return samples.step_samples_s(self.observations, self.observations.plan.own(cell))

    def collective(self, sweep: CollectiveCell) -> CollectiveRecord:
        """Return the record of a sweep.

        Raises:
            LookupError: the run was cut short before it.
        """
        for result in self.record.collectives:
            if CollectiveCell(result.algorithm, result.world_size, result.collective) == sweep:
                return result
        raise LookupError(f"{sweep.id}: the run was cut short before it was measured; run it again")


class Selected(NamedTuple):
    """What pytest selected.

    Attributes:
        cells: to measure.
        sweeps: to measure; they are shown and decide nothing.
        checks: how many checks of correctness the same pytest session runs afterwards.
    """

    cells: Sequence[Cell]
    sweeps: Sequence[CollectiveCell] = ()
    checks: int = 0


def execute(
    config: Config,
    selected: Selected,
    say: Say,
    keep: Callable[[RunResult], None] = lambda result: None,
    spent_s: float = 0.0,
) -> RunResult:
    """Measure the cells and sweeps, and write the record and the pages.

    The record is written before the first session and after each, so that a run which is killed leaves what it had.

    Args:
        config, selected: what is to be measured.
        say: receives progress, one line at a time.
        keep: receives the result before its last files are written, also where an exception cut the run short.
        spent_s: wall seconds of the budget that were spent before this call.

    Raises:
        RecordError: before measuring: the accepted baseline or the calibration cannot be read, the report folder
            cannot be written, or a link leads out of it.
        ValueError: before measuring: this process may not open as many descriptors as the run needs.
    """
    plan = plan_here(config, selected.cells)
    key = plan.machine.key
    plan = replace(
        plan,
        baseline=baselines.read(config.report_dir, key),
        calibration=calibration.read(config.report_dir, key),
        floors=floors.resolve(config.floors, selected.cells, config.devices.oversubscribed),
        sweeps=tuple(selected.sweeps),
        checks_to_come=selected.checks,
        begun_s=plan.begun_s - spent_s,
    )
    with allow_descriptors(forecast.descriptors(plan)):
        result = _measure(plan, say, keep)
    _write_index(config.report_dir / key)
    return result


def _measure(plan: Plan, say: Say, keep: Callable[[RunResult], None]) -> RunResult:
    """Measure what is planned, and write the record and the pages."""
    run = Observations(plan)

    def write_so_far(folder: Path) -> None:
        so_far = f"killed, or still running: this was written after {len(run.sessions)} session(s)"
        record = results.to_record(run).model_copy(update={"interrupted": True, "cut_short": so_far})
        write_record(folder, record)

    runs = plan.config.report_dir / plan.machine.key / "runs"
    require_inside(plan.config.report_dir, runs)
    keeper = Keeper(runs / plan.run_id, write_so_far, say)
    keep_from_git(runs.parent)
    try:
        campaign.measure(run, say, grown=lambda: keeper.keep(write_so_far))
    except BaseException as error:
        interrupt = isinstance(error, KeyboardInterrupt)  # its text names a signal that is not Ctrl-C's
        run.cut_short = (str(error) or "Ctrl-C") if interrupt else harmless(f"{type(error).__name__}: {error}")
        raise
    finally:
        result = RunResult(results.to_record(run), keeper.folder, run)
        keep(result)
        keeper.keep(lambda folder: _write(folder, result, plan.baseline))
        result.folder, result.problem = keeper.folder, keeper.problem
    return result


def _write(folder: Path, result: RunResult, baseline: Baseline) -> None:
    write_record(folder, result.record)
    pages.write_run(folder, result.record, baseline)
    summary = folder / pages.SUMMARY
    result.job_summary = markdown.publish(summary.read_text(encoding="utf-8"), summary)


def _write_index(machine: Path) -> None:
    with contextlib.suppress(OSError):  # the next run writes it again
        pages.write_index(machine)


def accept(config: Config, result: RunResult, failed: Sequence[str], *, complete: bool) -> None:
    """Accept a run as baseline where nothing else failed in its pytest session, and add the result to it in words.

    Args:
        config: the user's settings.
        result: the run.
        failed: names of the tests that failed, but for cells whose verdict is FAIL, which the record has.
        complete: whether pytest ran every selected test.
    """
    record = result.record
    try:
        _check_session(record, failed, complete=complete)
        with locked(config.report_dir / record.machine.key):
            # Read again, because another run may have been accepted while this one measured.
            baseline = baselines.read(config.report_dir, record.machine.key)
            grown = baselines.accept(baseline, record, slower=config.accept == "slower")
            _keep_for_review(config.report_dir, record.machine.key, result.folder)
            path = baselines.write(grown, config.report_dir)
    except ValueError as error:
        refused = str(error)
    except OSError as error:
        refused = f"not accepted: {error.filename}: {error.strerror}; run again when it can be written"
    else:
        said = f"accepted as baseline ({len(grown.runs)} run(s)): {path}"
        result.accepted = "\n".join(filter(None, (said, baselines.warning(record))))
        _write_index(path.parent)  # which shows what is accepted
        return
    result.accepted, result.problem = refused, result.problem or refused


def _keep_for_review(reports: Path, machine_key: str, run: Path) -> None:
    """Keep the record and the summary of the newest accepted run where git does not ignore them.

    Raises:
        OSError: one cannot be read or written.
        RecordError: a link leads out of the report folder.
    """
    folder = reports / machine_key / ACCEPTED
    require_inside(reports, folder)
    for name in (RECORD, pages.SUMMARY):
        write_inside(reports, folder / name, (run / name).read_text(encoding="utf-8"))


def _check_session(record: Record, failed: Sequence[str], *, complete: bool) -> None:
    """Refuse a run for what else happened in its pytest session.

    Raises:
        ValueError: a test failed, or did not run.
    """
    if failed and not baselines.refusal(record):  # which says more
        raise ValueError(
            f"not accepted: {some(failed, MOST_NAMES)} failed in this pytest session; repair what failed and run again"
        )
    if not complete:
        raise ValueError(
            "not accepted: pytest was stopped before every selected test had run; run all of them, without -x and "
            "--maxfail"
        )
