"""Find the records that a command's arguments name, by file, folder or run id, and what is kept in the same folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from suite.cli import gate
from suite.records.files import RecordError, is_inside
from suite.records.record import RECORD
from suite.room.reading import printable

Known = TypeVar("Known")

# Of a run, of a machine, of a report folder.
_LAYOUTS = (RECORD, f"runs/*/{RECORD}", f"*/runs/*/{RECORD}")


def add_report_dir(parser: argparse.ArgumentParser) -> None:
    """Declare the one option of pytest's that matters where nothing is measured."""
    parser.add_argument("--scaling-report-dir", metavar="DIR", help="the report folder (default: as pytest's)")


def report_dir(option: str | None) -> Path:
    """Return the report folder that pytest would use; `option` is the value of `--scaling-report-dir`, if given.

    Raises:
        SystemExit: the project's settings are wrong, as pytest has printed; with its exit status.
    """
    return gate.settings([] if option is None else [f"--scaling-report-dir={option}"]).report_dir


def records(place: Path) -> list[Path]:
    """Return the record at a place, or those under it: of a run's folder, a machine's or a report folder; in order.

    Links that lead out of the folder are left out, because pages are written next to a record.

    Raises:
        ValueError: there is none.
    """
    if place.is_file():
        return [place]
    for layout in _LAYOUTS:
        if paths := sorted(path for path in place.glob(layout) if is_inside(place, path)):
            return paths
    raise ValueError(f"{place}: expected a {RECORD}, or the folder of a run, of a machine, or of reports that has one")


def record_of(name: str, option: str | None) -> Path:
    """Return the one record that a file, a run's folder or a run's id names; `option` is as in `report_dir`.

    Links that lead out of a folder are left out; a file that is named may be one.

    Raises:
        ValueError: there is none, or an id is that of runs on several machines.
    """
    place = Path(name)
    if place.is_file():
        return place
    if (place / RECORD).is_file() and is_inside(place, place / RECORD):
        return place / RECORD
    reports = report_dir(option)
    named = (path for path in reports.glob(f"*/runs/*/{RECORD}") if path.parent.name == name)
    paths = sorted(path for path in named if is_inside(reports, path))
    if len(paths) == 1:
        return paths[0]
    if paths:
        machines = printable(", ".join(path.parts[-4] for path in paths))
        raise ValueError(f"run {name!r} was measured on {machines}: name the folder of one")
    raise ValueError(f"{name!r}: expected a {RECORD}, a run's folder, or the id of a run under {reports}")


def machine_folder(record: Path) -> Path | None:
    """Return the folder of the machine that a record is kept under; None for a record that is kept elsewhere."""
    run = record.parent.resolve()  # not of what the record itself may be a link to
    return run.parent.parent if run.parent.name == "runs" else None


def known_of(machine: Path, read: Callable[[Path, str], Known | None], without: str) -> Known | None:
    """Read a machine's baseline or calibration; where it is unreadable, say so on stderr and return None.

    `read` takes a report folder and a machine's key, and `without` begins that line.
    """
    try:
        return read(machine.parent, machine.name)
    except RecordError as error:
        print(f"{without}: {error}", file=sys.stderr)
        return None
