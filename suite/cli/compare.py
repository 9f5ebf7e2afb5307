"""`python -m suite compare FIRST SECOND`: two runs side by side. Its exit status is no verdict."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from suite.cli import locate
from suite.cli.command import USAGE_ERROR, Stop, writing
from suite.records import comparison
from suite.records.files import read_model, write_atomically
from suite.records.record import Record
from suite.render import comparison as render

SUMMARY = "lay two runs side by side: what differs around them, and each cell's times and efficiency"
PYTEST_OPTIONS = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two runs and how to show them."""
    for which in ("first", "second"):
        parser.add_argument(
            which, metavar=which.upper(), help="a record.json, a run's folder, or a run's id under the report folder"
        )
    parser.add_argument("--markdown", action="store_true", help="print Markdown instead of tables")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a self-contained page as well")
    locate.add_report_dir(parser)


def run(asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
    """Compare and print.

    Raises:
        Stop: a run is unknown or cannot be read (status 4), or the page cannot be written (1).
    """
    try:
        paths = [locate.record_of(name, asked.scaling_report_dir) for name in (asked.first, asked.second)]
        compared = comparison.compare(*(read_model(path, Record) for path in paths))
    except ValueError as error:  # RecordError is one
        raise Stop(str(error), USAGE_ERROR) from error
    if asked.html is not None:
        with writing(asked.html, "--html"):
            write_atomically(asked.html, render.to_html(compared))
    screen = Console()
    color = screen.is_terminal
    print(render.to_markdown(compared) if asked.markdown else render.terminal(compared, screen.width, color=color))
    return 0
