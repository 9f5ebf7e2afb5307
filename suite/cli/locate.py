"""Which records somebody means: by file, by folder, or by a run's id under the report folder; what lies beside them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from suite.cli import gate
from suite.plan.config import Config
from suite.records.record import RecordError

Known = TypeVar("Known")

RECORD = "record.json"
# Of a run, of a machine, of a report folder.
_LAYOUTS = (RECORD, f"runs/*/{RECORD}", f"*/runs/*/{RECORD}")


def add_report_dir(parser: argparse.ArgumentParser) -> None:
    """Declare the one option of pytest's that counts where nothing is measured."""
    parser.add_argument("--scaling-report-dir", metavar="DIR", help="the report folder (default: as pytest's)")


def report_dir(option: str | None) -> Path:
    """The report folder that pytest would use.

    Args:
        option: what `--scaling-report-dir` says; None asks the project's ini file.

    Raises:
        SystemExit: the project's settings are wrong, which pytest has said by then; with its exit status.
    """
    settings = gate.settings([] if option is None else [f"--scaling-report-dir={option}"])
    if not isinstance(settings, Config):
        raise SystemExit(settings)
    return settings.report_dir


def records(place: Path) -> list[Path]:
    """The record at a place, or those under it: of a run's folder, a machine's or a report folder; in order.

    Raises:
        ValueError: there is none.
    """
    if place.is_file():
        return [place]
    for layout in _LAYOUTS:
        if found := sorted(place.glob(layout)):
            return found
    raise ValueError(f"{place}: expected a {RECORD}, or the folder of a run, of a machine, or of reports that has one")


def record_of(name: str, option: str | None) -> Path:
    """The one record that is meant by a file, a run's folder, or a run's id.

    Args:
        name: the file, folder or id.
        option: as `report_dir` takes it; asked only where `name` is neither.

    Raises:
        ValueError: there is none, or an id is that of runs on several machines.
        SystemExit: as `report_dir`.
    """
    place = Path(name)
    if place.is_file():
        return place
    if (place / RECORD).is_file():
        return place / RECORD
    reports = report_dir(option)
    found = sorted(path for path in reports.glob(f"*/runs/*/{RECORD}") if path.parent.name == name)
    if len(found) == 1:
        return found[0]
    if found:
        machines = ", ".join(path.parts[-4] for path in found)
        raise ValueError(f"run {name!r} was measured on {machines}: name the folder of one")
    raise ValueError(f"{name!r}: neither a {RECORD}, nor a run's folder, nor the id of a run under {reports}")


def machine_folder(record: Path) -> Path | None:
    """The folder of the machine that a record lies under; None for one that was taken elsewhere."""
    run = record.resolve().parent
    return run.parent.parent if run.parent.name == "runs" else None


def known_of(machine: Path, read: Callable[[Path, str], Known | None], without: str) -> Known | None:
    """What a machine's folder keeps beside its records; what cannot be read is said, and left out.

    Args:
        machine: the folder, named by the machine's key.
        read: of a report folder and a key.
        without: said before the reason.
    """
    try:
        return read(machine.parent, machine.name)
    except RecordError as error:
        print(f"{without}: {error}", file=sys.stderr)
        return None
