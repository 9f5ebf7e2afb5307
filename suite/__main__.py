"""`python -m suite COMMAND`: what the suite does besides running pytest.

One module a command, all with the same four names.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from suite.cli import bisect, calibrate, compare, drill, sweep, trace
from suite.cli import render as render_command
from suite.cli.command import USAGE_ERROR, Stop
from suite.room.quiet import as_interrupts

INTERRUPTED = 130  # as a shell's; above 127, so that `git bisect run` stops
BROKEN_PIPE = 141  # as a shell's, too: what reads the output has ended, as `head` does


class Command(Protocol):
    """What the module of a command has."""

    SUMMARY: str
    PYTEST_OPTIONS: bool  # whether it hands pytest the options that it does not know

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare what the command asks besides pytest's own options."""

    def run(self, asked: argparse.Namespace, pytest_arguments: list[str]) -> int:
        """Do it, and return the exit status.

        Raises:
            Stop: it cannot be done, or not to the end.
        """


COMMANDS: dict[str, Command] = {
    "calibrate": calibrate,
    "drill": drill,
    "bisect": bisect,
    "compare": compare,
    "render": render_command,
    "sweep": sweep,
    "trace": trace,
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]  # argparse's own ends with 2, pytest's with 4
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status. Characters that the output cannot encode are shown as "?".

    Raises:
        SystemExit: after --help, and after a usage error that argparse or pytest has printed.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still flushes at its end
        return BROKEN_PIPE


def _run(arguments: Sequence[str] | None) -> int:
    # Without abbreviations, so that no option of pytest's passes for a short form of ours.
    parser = _Parser(
        prog="python -m suite", description="What the suite does besides running pytest.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        about = f"{command.SUMMARY[0].upper()}{command.SUMMARY[1:]}."
        others = " All other arguments are pytest's." if command.PYTEST_OPTIONS else ""
        one = commands.add_parser(name, help=command.SUMMARY, description=about + others, allow_abbrev=False)
        command.add_arguments(one)
    asked, pytest_arguments = parser.parse_known_args(arguments)
    if pytest_arguments and not COMMANDS[asked.command].PYTEST_OPTIONS:
        commands.choices[asked.command].error(f"unrecognized arguments: {' '.join(pytest_arguments)}")
    try:
        with as_interrupts():
            return COMMANDS[asked.command].run(asked, pytest_arguments)
    except Stop as stop:
        print(f"{asked.command}: {stop}", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
