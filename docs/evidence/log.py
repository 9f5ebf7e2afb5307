"""A log has a line of JSON for each run; an interrupted script loses none, and runs of different code stay apart."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from suite.base.git import git

ROOT = Path(__file__).parents[2]
CODE = ("suite", "reference")  # decides an outcome; the rest of the repository may change between runs

Line = dict[str, Any]


def read_log(path: Path) -> list[Line]:
    """Return the runs so far.

    Raises:
        ValueError: a line is not JSON, as after a crash of the machine; the message has its number.
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
    """Write one run to the disk before returning; an incomplete line before it stays a line of its own."""
    text = json.dumps(line) + "\n"
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            text = text if file.read(1) == b"\n" else "\n" + text
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def code_state(root: Path = ROOT, folders: Sequence[str] = CODE) -> dict[str, Any]:
    """Return the commit, the git trees of these folders, and whether they have uncommitted changes."""
    return {
        "commit": git(root, "rev-parse", "--short=12", "HEAD"),
        "trees": [git(root, "rev-parse", "--short=12", f"HEAD:{folder}") for folder in folders],
        "dirty": bool(git(root, "status", "--porcelain", "--", *folders)),
    }


def check_same_code(lines: Iterable[Line], state: Mapping[str, Any]) -> None:
    """Refuse to put runs of different code into one log.

    Raises:
        ValueError: there are uncommitted changes, or the log has runs of other code.
    """
    if state["dirty"]:
        raise ValueError("uncommitted changes: nobody could repeat the runs; commit, or --mixed")
    if others := sorted({line["commit"] for line in lines if line["trees"] != state["trees"] or line["dirty"]}):
        raise ValueError(f"the log has runs of other code (commit {', '.join(others)}): name another --log, or --mixed")


def missing(lines: Iterable[Line], wanted: Mapping[str, int], field: str = "kind") -> list[str]:
    """Return the kind of every run that the log lacks; an ERROR counts as a run."""
    done = Counter(line[field] for line in lines)
    return [kind for kind, number in wanted.items() for _ in range(number - done[kind])]


def rate(count: int, trials: int, digits: int = 1) -> str:
    """Return a share in percent, with so many digits after the point, and its exact (Clopper-Pearson) 95 % interval."""
    if not trials:
        return "-"
    interval = binomtest(count, trials).proportion_ci(0.95, "exact")
    return "{:.{digits}%} [{:.{digits}%}, {:.{digits}%}]".format(count / trials, *interval, digits=digits)


def markdown(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows))


@contextlib.contextmanager
def interruptible(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End a script with a message: after Ctrl-C or SIGTERM, and with status 2 after a ValueError.

    A shell starts background processes with SIGINT ignored; here it interrupts them too.
    """
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        sys.exit("interrupted: the run in progress is not kept")
    except ValueError as error:
        parser.error(str(error))


def command_line(description: str | None, name: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all scripts with a log share; `name` is that of the log."""
    log = Path(__file__).with_name(f"{name}.jsonl")
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="start no run after this long (default: %(default)s)"
    )
    parser.add_argument("--log", type=Path, default=log, help=f"default: {os.path.relpath(log, ROOT)}")
    parser.add_argument("--mixed", action="store_true", help="keep runs of different or uncommitted code in one log")
    parser.add_argument("--table", action="store_true", help="print the log as Markdown, and run nothing")
    return parser


def fill(
    options: argparse.Namespace, wanted: Mapping[str, int], one_run: Callable[[str, Path], Line], field: str = "kind"
) -> None:
    """Make the runs that the log lacks in random order, until the time is up.

    The code may change meanwhile: it is checked before every run.

    Args:
        options: of `command_line`.
        wanted: how many runs of each kind.
        one_run: makes a run of a kind in an empty folder, and returns its line without the state of the code.
        field: of a line, its kind.

    Raises:
        ValueError: as `check_same_code`, and `read_log`.
    """
    lines, end = read_log(options.log), time.monotonic() + 60 * options.minutes
    while (left := missing(lines, wanted, field)) and time.monotonic() < end:
        state = code_state()
        if not options.mixed:
            check_same_code(lines, state)
        name = random.SystemRandom().choice(left)
        with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
            line = {**one_run(name, Path(folder)), **state}
        append(options.log, line)
        lines.append(line)
        shown = line.get("outcome") or line.get("sentence", "")
        print(f"{name}: {shown} ({line['wall_s']} s); {len(left) - 1} runs are missing", flush=True)
