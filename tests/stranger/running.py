"""Runs one command as a reader would, with a deadline, and keeps a row for each in a journal.

A command is a script of `bash -e` in a process group of its own, which is ended with the command. Its environment is
that of a person: nothing of the Python or the pytest that runs this.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

LEFT_OUT = ("PYTHON", "PYTEST", "VIRTUAL_ENV", "TOX_", "CI", "GITHUB_", "SCALING_", "COV_", "COLUMNS")
ENDS_S = 10.0  # from SIGTERM to SIGKILL
TIMED_OUT = 124  # as coreutils' timeout
LONGEST = 160  # characters of a last line
BAR = r"\|"  # in a cell of a table


@dataclass(frozen=True)
class Row:
    """What became of one command.

    Attributes:
        place: where it ran: the name of a clone or a project.
        command: its text, as printed.
        met: where a reader meets it.
        status: its exit status; None if it was skipped.
        last: the last line that it printed, or why it was skipped.
        seconds: how long it took.
        expected: the exit status that it has to have.
        note: how it was cut short, or what it is for.
        log: the file with its output.
    """

    place: str
    command: str
    met: str
    status: int | None
    last: str
    seconds: float = 0.0
    expected: int = 0
    note: str = ""
    log: str = ""

    @property
    def outcome(self) -> str:
        if self.status is None:
            return "skipped"
        return "as expected" if self.status == self.expected else "UNEXPECTED"


@dataclass
class Journal:
    """The rows so far, a line of JSON each: what is in the file is not run again."""

    path: Path
    rows: list[Row] = field(default_factory=list)
    _earlier: dict[tuple[str, str], list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        for row in (Row(**json.loads(line)) for line in lines):
            if row.status is not None:  # the whole run does not skip all that the first half skips
                self._earlier.setdefault((row.place, row.command), []).append(row)

    def earlier(self, place: str, command: str) -> Row | None:
        """Return the row that an interrupted run left of this command, once for each, and count it."""
        rows = self._earlier.get((place, command))
        if not rows:
            return None
        self.rows.append(rows.pop(0))
        return self.rows[-1]

    def add(self, row: Row) -> Row:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        self.rows.append(row)
        return row

    def next_log(self) -> Path:
        """Return a file for an output."""
        folder = self.path.parent / "logs"
        folder.mkdir(exist_ok=True)
        return folder / f"{len(self.rows) + 1:03}.txt"


def environment(programs: Path | None, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a shell in which a virtual environment is active.

    Args:
        programs: the `bin` of that environment; None for a shell without one.
        more: further variables.
    """
    ours = os.environ.get("VIRTUAL_ENV", "")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    places = [place for place in kept["PATH"].split(os.pathsep) if not ours or not place.startswith(ours)]
    active = {} if programs is None else {"VIRTUAL_ENV": str(programs.parent)}
    people = {f"GIT_{who}_{what}": text for who in ("AUTHOR", "COMMITTER") for what, text in PERSON.items()}
    path = os.pathsep.join([*([str(programs)] if programs else []), *places])
    return {**kept, **active, **people, "PATH": path, **more}


PERSON = {"NAME": "A Stranger", "EMAIL": "stranger@example.org"}


def run(text: str, folder: Path, variables: Mapping[str, str], log: Path, deadline_s: float) -> tuple[int, float]:
    """Run a script of `bash -e`, and return its exit status and its seconds.

    Args:
        text: the script.
        folder: its working directory.
        variables: its whole environment.
        log: the file that gets what it prints, stderr too.
        deadline_s: after which its process group is ended, with status `TIMED_OUT`.
    """
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        with _held_back(signal.SIGINT, signal.SIGTERM) as told:
            process = subprocess.Popen(
                ["bash", "-e", "-c", text],
                cwd=folder,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            for number in told:
                signal.raise_signal(number)
            status = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            status = TIMED_OUT
        finally:
            _end(process)
    if status == TIMED_OUT:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"\nended after {deadline_s:.0f} s\n")
    return status, time.monotonic() - started


@contextlib.contextmanager
def _held_back(*signals: signal.Signals) -> Iterator[list[int]]:
    """Collect signals that arrive: between the start of a process and its name here, nobody could end it."""
    told: list[int] = []
    before = {number: signal.signal(number, lambda arrived, _: told.append(arrived)) for number in signals}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the group of a process, and what it left behind in it."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            break
        try:
            process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def last_line(output: str) -> str:
    """Return the last line that is not empty, without pytest's border, and cut where it is long."""
    last = next((line for line in reversed(output.splitlines()) if line.strip(" =")), "").strip(" =")
    return last if len(last) <= LONGEST else f"{last[: LONGEST - 1]}…"


def table(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of a Markdown table: a row for each command, in the order in which they were met."""
    yield "| | place | command | met | exit | last line | s |"
    yield "|---|---|---|---|---|---|---|"
    for number, row in enumerate(rows, 1):
        status = "" if row.status is None else f"{row.status}"
        if row.outcome == "UNEXPECTED":
            status = f"**{status}**, expected {row.expected}"
        last = row.last if row.status is not None else f"skipped: {row.last}"
        note = f" ({row.note})" if row.note else ""
        cells = (row.place, f"`{_one_line(row.command)}`{note}", row.met, status, last, f"{row.seconds:.0f}")
        yield f"| {number} | {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def _one_line(text: str) -> str:
    return " ⏎ ".join(text.splitlines())


def summary(rows: list[Row]) -> str:
    """Return how many commands were run, were skipped, and ended otherwise than expected."""
    ran = [row for row in rows if row.status is not None]
    wrong = [row for row in ran if row.outcome == "UNEXPECTED"]
    places = len({row.place for row in ran})
    minutes = sum(row.seconds for row in ran) / 60
    return (
        f"{len(ran)} commands in {places} places, {len(wrong)} of them UNEXPECTED; {len(rows) - len(ran)} skipped; "
        f"{minutes:.0f} minutes"
    )
