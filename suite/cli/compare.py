"""`python -m suite compare FIRST SECOND`: two runs side by side. Its exit status is no verdict."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from suite.cli.command import USAGE_ERROR, Stop, writing
from suite.cli.pytest_run import add_report_dir, report_dir
from suite.records.files import is_inside, read_model, write_atomically
from suite.records.record import RECORD, Record
from suite.render import comparison, html, markdown, terminal
from suite.room.errors import printable

SUMMARY = "lay two runs side by side: what differs around them, and each cell's times and efficiency"
MADE = "Made by python -m suite compare. It shows two runs and judges nothing."
PYTEST_OPTIONS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two runs and how to show them."""
    said = "a record.json, a run's folder, or a run's id under the report folder"
    for which in ("first", "second"):
        parser.add_argument(which, metavar=which.upper(), help=said)
    parser.add_argument("--markdown", action="store_true", help="print Markdown instead of tables")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a self-contained page as well")
    add_report_dir(parser)


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Compare and print."""
    try:
        paths = [record_of(name, asked.scaling_report_dir) for name in (asked.first, asked.second)]
        document = comparison.document(*(read_model(path, Record) for path in paths))
    except ValueError as error:  # RecordError is one
        raise Stop(str(error), USAGE_ERROR) from error
    if asked.html is not None:
        with writing(asked.html, "--html"):
            write_atomically(asked.html, html.write(document, made=MADE))
    screen = Console()
    shown = terminal.write(document, screen.width, color=screen.is_terminal)
    print(markdown.write(document) if asked.markdown else shown)
    return 0


def record_of(name: str, option: str | None) -> Path:
    """Return the one record that a file, a run's folder or a run's id names; `option` is as in `report_dir`.

    Links that lead out of a folder are left out; a file that is named may be one. A ValueError says that there is none,
    or that the id is that of runs on several machines.
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
