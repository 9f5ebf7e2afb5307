"""Logs that grow by a line a run: a stopped script loses none, and unlike code is not mixed."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from suite.base.git import git

ROOT = Path(__file__).parents[2]
CODE = ("suite", "reference")  # what decides an outcome; the rest of the repository may change between runs

Line = dict[str, Any]


def read_log(path: Path) -> list[Line]:
    """The runs so far.

    Raises:
        ValueError: a line is torn, as by a machine that went down; the message says which.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error}); remove the line") from error
    return found


def append(path: Path, line: Line) -> None:
    """Add one run to the log, in one write, on the disk before it returns; a torn line before it stays alone."""
    text = json.dumps(line) + "\n"
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            text = text if file.read(1) == b"\n" else "\n" + text
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def code_state(root: Path = ROOT) -> dict[str, Any]:
    """The commit, the trees of the code that decides, and whether that code has uncommitted changes."""
    return {
        "commit": git(root, "rev-parse", "--short=12", "HEAD"),
        "trees": [git(root, "rev-parse", "--short=12", f"HEAD:{folder}") for folder in CODE],
        "dirty": bool(git(root, "status", "--porcelain", "--", *CODE)),
    }


def check_same_code(lines: Iterable[Line], state: Mapping[str, Any]) -> None:
    """Refuse to put runs of different code, or with different calibrations, into one log.

    Raises:
        ValueError: uncommitted changes, or the log is of other code or leans on another calibration.
    """
    if state["dirty"]:
        raise ValueError(
            f"{' or '.join(CODE)} has uncommitted changes, so nobody could repeat the runs: commit, or --mixed"
        )
    if others := sorted({line["commit"] for line in lines if line["trees"] != state["trees"] or line["dirty"]}):
        raise ValueError(f"the log has runs of other code (commit {', '.join(others)}): name another --log, or --mixed")
    if others := sorted({str(line.get("calibration")) for line in lines} - {str(state.get("calibration"))}):
        raise ValueError(
            f"the log's runs lean on calibration {', '.join(others)}, these on {state.get('calibration')}: "
            "name another --log, or --mixed"
        )


def missing(lines: Iterable[Line], wanted: Mapping[str, int], field: str = "kind") -> list[str]:
    """Return the kinds of the runs that are still to be made, an entry for each; an ERROR counts as made."""
    done = Counter(line[field] for line in lines)
    return [kind for kind, number in wanted.items() for _ in range(number - done[kind])]


@contextlib.contextmanager
def interruptible(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End a script that fills a log in words: by Ctrl-C or SIGTERM, and by ValueError as a wrong use."""
    let_signals_interrupt()
    try:
        yield
    except KeyboardInterrupt:
        sys.exit("interrupted: what is in progress is not kept")
    except ValueError as error:
        parser.error(str(error))


def let_signals_interrupt() -> None:
    """Let SIGTERM interrupt this process, as Ctrl-C does, which a shell's background processes ignore otherwise."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)


def command_line(description: str, log: Path, each: int) -> argparse.ArgumentParser:
    """Return the options of a script that fills a log; from now on SIGTERM interrupts it, as Ctrl-C does.

    Args:
        description: of the script.
        log: by default.
        each: how many runs of each kind are wanted by default.
    """
    let_signals_interrupt()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--each", type=int, default=each, help="runs of each kind that are wanted (default: %(default)s)"
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="start no run after this long (default: %(default)s)"
    )
    parser.add_argument("--log", type=Path, default=log, help=f"default: {log.name} beside this script")
    parser.add_argument("--mixed", action="store_true", help="keep runs of different or uncommitted code in one log")
    parser.add_argument("--table", action="store_true", help="print the log as Markdown, and run nothing")
    return parser


def fill(
    path: Path,
    wanted: Mapping[str, int],
    one_run: Callable[[str, Path], Line],
    *,
    minutes: float,
    mixed: bool,
    field: str = "kind",
    about: Line | None = None,
) -> None:
    """Make what a log lacks, drawn in a random order, until the time is up; Ctrl-C drops the run in progress.

    The code may change meanwhile: it is looked at before every run.

    Args:
        path: of the log.
        wanted: how many runs of each kind.
        one_run: makes a run of a kind in an empty folder, and returns its line without what is known of the code.
        minutes: no run is started after this long.
        mixed: keep runs of different or uncommitted code in one log.
        field: of a line, its kind.
        about: what every line has besides.

    Raises:
        ValueError: as `check_same_code`, and `read_log`.
    """
    lines, end = read_log(path), time.monotonic() + 60 * minutes
    while (left := missing(lines, wanted, field)) and time.monotonic() < end:
        state = {**code_state(), **(about or {})}
        if not mixed:
            check_same_code(lines, state)
        name = random.SystemRandom().choice(left)
        with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
            try:
                line = {**one_run(name, Path(folder)), **state}
            except KeyboardInterrupt:
                sys.exit(f"interrupted: the run in progress is not kept, {len(lines)} are")
        append(path, line)
        lines.append(line)
        shown = line.get("outcome") or line.get("sentence", "")
        print(f"{name}: {shown} ({line['wall_s']} s); {len(left) - 1} runs are missing", flush=True)
