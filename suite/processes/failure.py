"""How a group of workers can fail, in words that name the rank, the cause and the end of what it said.

torch's agent writes `<folder>/**/<local rank>/stderr.log` for each process of a group; here it is read, also the stacks
that live processes print when they are asked.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# Characters of one text: a message that can still be read, and a long traceback in a record that can still be opened.
LONGEST_CAUSE = 2_000
LONGEST = 20_000
# The signal that asks a rank for its stacks. A trainer may have a use of its own for SIGUSR1, as under SLURM.
ASKS = signal.SIGRTMIN + 6
# What a rank says of its last collective, on stderr; `behind` reads it.
LAST_CALL = "last collective of group {group}: number {number}, {what}"
_SAID = re.compile(r"^last collective of group (.+?): number (\d{1,18}), (.+)$", re.MULTILINE)
# How far a rank's script has come, on stderr as well; `silent` reads it.
SO_FAR = "so far: {what}"
_SO_FAR = re.compile(r"^so far: (.+)$", re.MULTILINE)
OUT_OF_MEMORY = (
    "; the kernel has ended a process of this container because memory ran out: raise the container's memory limit, or "
    "use a smaller batch or fewer devices"
)
_REMEDIES = {
    -signal.SIGKILL: "; if memory ran out, which dmesg tells, use a smaller batch",
    0: "; a trainer must not end its process",
}
_UNFIT = {"Cc", "Cf", "Cs"}  # control and format characters, and halves of surrogate pairs
TAIL_BYTES = 4000
STACKS_BYTES = 64 * 1024  # all of them: the thread that holds the others up may be the first or the last
STACKS_S = 0.5  # for a process to print them


def describe_exit(exitcode: int) -> str:
    """Return 'signal 9 (SIGKILL)' for a negative exit code, otherwise 'exit code 3'."""
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = "unknown"
    return f"signal {-exitcode} ({name})"


class LauncherEnded(Exception):
    """A pool's launcher has ended by itself, and its workers with it; the pool starts another one, once.

    Groups raise it where their pool's owner repeats what they were asked (`suite.processes.pool.Pool`, `restarted`).
    """


def repeated(ask: Callable[[], T]) -> T:
    """Return what `ask` returns, and ask again where the launcher has ended meanwhile."""
    try:
        return ask()
    except LauncherEnded:
        return ask()


@dataclass
class WorkerFailure(Exception):
    """One group of workers could not do what it was asked.

    Attributes:
        details: more lines: a traceback, the end of a rank's stderr, every live rank's stack.
        refused: whether it was the trainer that raised; otherwise it died, was silent, or our own code raised.
    """

    group: str
    cause: str  # one line: which rank, what happened, what to do where that is known
    details: list[str] = field(default_factory=list)
    refused: bool = False
    timed_out: bool = False  # whether a rank did not answer within its deadline

    def __post_init__(self) -> None:
        self.cause, self.details = harmless(self.cause, LONGEST_CAUSE), [harmless(detail) for detail in self.details]

    @property
    def raised_in_python(self) -> bool:
        """Whether a rank raised what only its traceback explains, and not for want of memory."""
        said = self.details[0] if self.details else ""
        return said.startswith("Traceback ") and not self.lacks_memory

    @property
    def lacks_memory(self) -> bool:
        """Whether a rank was refused memory, or ended for want of it."""
        return "out of memory" in self.cause.lower()

    def __str__(self) -> str:
        return "\n".join([f"{self.group}: {self.cause}", *self.details])


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return a text without its middle where it has more characters than `longest`."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} [{len(text) - 2 * half} characters left out] {text[-half:]}"


def harmless(text: str, longest: int = LONGEST) -> str:
    """Return text from outside in a form that every record, page and terminal can hold.

    Characters that UTF-8 cannot encode or that a terminal obeys are written as escapes, and of a very long text the
    middle is left out.
    """
    text = shortened(text, longest)
    return "".join(
        character.encode("unicode_escape").decode()
        if character not in "\n\t" and unicodedata.category(character) in _UNFIT
        else character
        for character in text
    )


def died(group: str, rank: int, exitcode: int, stderr_tail: str, *, out_of_memory: bool = False) -> WorkerFailure:
    """Return the failure of a rank whose process ended while it was needed.

    With `out_of_memory` the kernel has ended a process for want of memory meanwhile.
    """
    remedy = OUT_OF_MEMORY if out_of_memory and exitcode == -signal.SIGKILL else _REMEDIES.get(exitcode, "")
    how = f"its process ended with {describe_exit(exitcode)}{remedy}"
    details = [f"rank {rank}, end of stderr:\n{stderr_tail.rstrip()}"] if stderr_tail.strip() else []
    return WorkerFailure(group, f"rank {rank}: {how}", details)


def raised(group: str, rank: int, error: str, traceback: str, *, refused: bool = False) -> WorkerFailure:
    """Return the failure of a rank whose command raised; `refused` where the trainer raised."""
    return WorkerFailure(group, f"rank {rank}: {error}", [traceback.rstrip()] if traceback else [], refused)


def silent(group: str, ranks: list[int], doing: str, deadline_s: float, stacks: dict[int, str]) -> WorkerFailure:
    """Return the failure of ranks that did not answer in time; `stacks` holds what every live rank printed then."""
    who = ", ".join(map(str, ranks))
    details = [f"rank {rank}, stack:\n{stack.rstrip()}" for rank, stack in sorted(stacks.items()) if stack.strip()]
    details += [
        f"rank {rank}: it printed no stack: its process is stopped, waits in the kernel, or uses signal {ASKS} itself; "
        "a trainer must leave that signal alone"
        for rank, stack in sorted(stacks.items())
        if not stack.strip()
    ]
    plural = "ranks" if len(ranks) > 1 else "rank"
    cause = f"{plural} {who}: no answer to '{doing}' within {deadline_s:.0f} s, ended"
    far = [f"so far on rank {rank}: {what}" for rank in ranks[:1] for what in _SO_FAR.findall(stacks.get(rank, ""))]
    return WorkerFailure(group, "; ".join([cause, *far, *behind(stacks)]), details, timed_out=True)


def behind(said: Mapping[int, str]) -> list[str]:
    """Return which ranks have begun fewer collectives than others, a sentence for each process group.

    `said` is what each live rank printed when it was asked; `LAST_CALL` is what counts.
    """
    groups: dict[str, dict[int, tuple[int, str]]] = {}
    for rank, text in sorted(said.items()):
        for group, number, what in _SAID.findall(text):
            groups.setdefault(group, {})[rank] = (int(number), what)
    sentences = []
    for group, calls in groups.items():
        most, what = max(calls.values())
        late = {rank: number for rank, (number, _) in calls.items() if number < most}
        if late:
            which = ", ".join(f"rank {rank} (its last is number {number})" for rank, number in late.items())
            sentences.append(f"collective {most} of group {group}, {what}, was not begun by {which}")
    return sentences


def stderr_tail(folder: Path, local: int, after: int = 0, most: int = TAIL_BYTES) -> str:
    """Return the end of what a process wrote, at most `most` bytes; of what came after so many bytes."""
    for path in _files(folder, local):
        with path.open("rb") as file:
            file.seek(max(after, path.stat().st_size - most))
            return file.read(most).decode(errors="replace")
    return ""


def stacks(folder: Path, pids: Iterable[int], local_ranks: Iterable[int]) -> dict[int, str]:
    """Have live workers print every thread's stack, and return what each wrote since, by local rank."""
    before = {local: sum(path.stat().st_size for path in _files(folder, local)) for local in local_ranks}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, ASKS)  # `suite.rank.recorder` listens to it
    time.sleep(STACKS_S)
    return {local: stderr_tail(folder, local, size, STACKS_BYTES) for local, size in before.items()}


def workers_of(parent: int, group: str) -> list[int]:
    """Return the processes of a group below a process, by their command lines, connected or not."""
    import psutil  # only here: a launcher may have an interpreter without it, unless its run has several hosts

    pids = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(parent).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if ("--group", group) in itertools.pairwise(process.cmdline()):
                    pids.append(process.pid)
    return pids


def _files(folder: Path, local: int) -> list[Path]:
    return list(folder.glob(f"**/{local}/stderr.log"))
