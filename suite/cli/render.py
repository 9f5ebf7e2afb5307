"""`python -m suite render`: write the pages of past runs again, from their records.

For records that came from another machine's job, for pages that were not kept, and after an update of this suite.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from suite.cli.command import USAGE_ERROR, Stop, known_of, machine_folder
from suite.cli.pytest_run import add_report_dir, report_dir
from suite.records import baselines
from suite.records.baselines import Baseline
from suite.records.files import RecordError, is_inside, read_model
from suite.records.record import RECORD, Record
from suite.render import pages
from suite.room.errors import printable

SUMMARY = "write report.html, summary.md and index.html again, from what the records say"
PYTEST_OPTIONS = False
_LAYOUTS = (RECORD, f"runs/*/{RECORD}", f"*/runs/*/{RECORD}")  # of a run, of a machine, of a report folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which records to render."""
    parser.add_argument(
        "records",
        nargs="*",
        type=Path,
        metavar="RECORD_OR_FOLDER",
        help="a record.json, or the folder of a run, of a machine or of reports (default: the report folder)",
    )
    add_report_dir(parser)


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Write the pages, and return 4 where a record that was named cannot be read."""
    try:
        places = asked.records or [report_dir(asked.scaling_report_dir)]
        paths = [path for place in places for path in records_at(place)]
    except ValueError as error:
        raise Stop(str(error), USAGE_ERROR) from error
    try:
        written, unread = _write(dict.fromkeys(paths))
    except OSError as error:
        place = printable(str(error.filename or "a page"))
        raise Stop(f"{place} cannot be written: {error.strerror}; check its folder") from error
    print(f"render: {written} run(s) written, {unread} could not be read")
    return USAGE_ERROR if unread and asked.records else 0


def records_at(place: Path) -> list[Path]:
    """Return the record at a place, or those under it: of a run's folder, a machine's or a report folder; in order.

    Links that lead out of the folder are left out, because pages are written next to a record.
    """
    if place.is_file():
        return [place]
    for layout in _LAYOUTS:
        if paths := sorted(path for path in place.glob(layout) if is_inside(place, path)):
            return paths
    raise ValueError(f"{place}: expected a {RECORD}, or the folder of a run, of a machine, or of reports that has one")


def _write(records: Iterable[Path]) -> tuple[int, int]:
    """Write the pages of these records and of their machines; return how many were written and how many unreadable."""
    accepted: dict[Path, Baseline | None] = {}
    written = unread = 0
    for path in records:
        machine = machine_folder(path)
        if machine is not None and machine not in accepted:
            accepted[machine] = known_of(machine, baselines.read, "render: without what was accepted")
        try:
            record = read_model(path, Record)
        except RecordError as error:
            print(f"render: left out: {error}", file=sys.stderr)
            unread += 1
            continue
        pages.write_run(path.parent, record, None if machine is None else accepted[machine])
        written += 1
    overviews = [pages.write_overview(folder) for folder in dict.fromkeys(machine.parent for machine in accepted)]
    for overview in filter(None, overviews):
        print(printable(f"render: {overview}"))
    for machine in accepted:
        print(printable(f"render: {pages.write_index(machine)}"))
    return written, unread
