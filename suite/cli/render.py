"""`python -m suite render`: the pages of runs that are over, written again from their records.

For records that came from another machine's job, for pages that were not kept, and after an update of this suite.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from suite.cli import locate
from suite.records import baselines
from suite.records.baselines import Baseline
from suite.records.record import Record, RecordError, read_model
from suite.render import pages

SUMMARY = "write report.html, summary.md and index.html again, from what the records say"
PYTEST_OPTIONS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is asked."""
    parser.add_argument(
        "records",
        nargs="*",
        type=Path,
        metavar="RECORD_OR_FOLDER",
        help="a record.json, or the folder of a run, of a machine or of reports (default: the report folder)",
    )
    locate.add_report_dir(parser)


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Write the pages; 0, 4 where what was named cannot be read, 1 where a page cannot be written."""
    places: list[Path] = asked.records
    try:
        found = [path for place in places or [_reports(asked)] for path in locate.records(place)]
    except ValueError as error:
        print(f"render: {error}", file=sys.stderr)
        return int(pytest.ExitCode.USAGE_ERROR)
    try:
        written, unread = _write(dict.fromkeys(found))
    except OSError as error:
        print(f"render: {error.filename or 'a page'} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    print(f"render: {written} run(s) written, {unread} could not be read")
    return int(pytest.ExitCode.USAGE_ERROR) if unread and places else 0


def _reports(asked: argparse.Namespace) -> Path:
    return locate.report_dir(asked.scaling_report_dir)


def _write(records: Iterable[Path]) -> tuple[int, int]:
    """Write the pages of these records and of their machines; how many were, and how many cannot be read."""
    accepted: dict[Path, Baseline | None] = {}
    written = unread = 0
    for path in records:
        machine = locate.machine_folder(path)
        if machine is not None and machine not in accepted:
            accepted[machine] = locate.known_of(machine, baselines.read, "render: without what was accepted")
        try:
            record = read_model(path, Record)
        except RecordError as error:
            print(f"render: left out: {error}", file=sys.stderr)
            unread += 1
            continue
        pages.write_run(path.parent, record, None if machine is None else accepted[machine])
        written += 1
    for machine in accepted:
        print(f"render: {pages.write_index(machine)}")
    return written, unread
