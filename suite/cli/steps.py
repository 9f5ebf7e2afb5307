"""Steps that are tried one after the other for a page: each in a process of its own, with a time limit.

One that fails, hangs or cannot be started costs its own lines of the page, and the others are tried.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.processes.ending import as_interrupts
from suite.room import quiet

END_S = 15.0  # for pytest to end its workers and to write what it has after Ctrl-C
TAIL_LINES = 6

Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One thing to try.

    Attributes:
        name: what works if it passes.
        command: its exit status is 0 if it passes.
        limit_s: it is ended after so many seconds.
        failing: what a failure means, and what to look at.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    failing: str


@dataclass(frozen=True)
class Tried:
    """What became of a step: `problem` is empty where it passed, and `log` has what it printed."""

    step: Step
    problem: str
    seconds: float
    log: Path
    timed_out: bool = False

    @property
    def tail(self) -> list[str]:
        """The last lines that it printed."""
        if not self.log.is_file():
            return []
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]


def try_all(wanted: Sequence[Step], folder: Path, say: Say) -> list[Tried]:
    """Try the steps one after the other. A signal that ends a job ends the present one."""
    tried = []
    with as_interrupts():
        for number, step in enumerate(wanted, start=1):
            say(f"{number} of {len(wanted)}: {step.name} (at most {step.limit_s:.0f} s)")
            tried.append(_try(step, folder / f"{number}.log"))
            say(f"    {tried[-1].problem or 'works'}")
    return tried


def _try(step: Step, log: Path) -> Tried:
    """Run a step in a process group of its own, which is ended with everything in it at the limit."""
    begun = time.monotonic()
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=functools.partial(quiet.die_with_parent, signal.SIGTERM),
            )
        except OSError as error:
            return Tried(step, f"cannot be started: {error.strerror}: {step.command[0]}", 0.0, log)
        problem, timed_out = "", False
        try:
            status = process.wait(step.limit_s)
            problem = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            problem, timed_out = f"no end within {step.limit_s:.0f} s", True
        finally:
            _end(process)
    return Tried(step, problem, time.monotonic() - begun, log, timed_out)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt what is left of a process, wait, and kill its group."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def evidence(each: Tried) -> list[str]:
    """Return a step's command, the end of its output, and where all of it is, as an indented block."""
    return [f"    {line}" for line in (f"$ {shlex.join(each.step.command)}", *each.tail, f"all of it: {each.log}")]
