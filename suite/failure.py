"""How a group of workers can fail, in words that name the rank, the cause and the end of what it said."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field


def describe_exit(exitcode: int) -> str:
    """'signal 9 (SIGKILL)' for a negative exit code, 'exit code 3' otherwise."""
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = "unknown"
    return f"signal {-exitcode} ({name})"


@dataclass
class WorkerFailure(Exception):
    """One group of workers could not do what it was asked.

    Attributes:
        group: the group's name.
        cause: one line: which rank, what happened, what to do where that is known.
        details: more lines: a traceback, the end of a rank's stderr, every live rank's stack.
        raised: whether a rank raised, which is a clear refusal; otherwise it died or was silent.
    """

    group: str
    cause: str
    details: list[str] = field(default_factory=list)
    raised: bool = False

    def __str__(self) -> str:
        return "\n".join([f"{self.group}: {self.cause}", *self.details])


def died(group: str, rank: int, exitcode: int | None, stderr_tail: str) -> WorkerFailure:
    """A rank's process ended while it was needed."""
    how = "its process ended" if exitcode is None else f"its process ended with {describe_exit(exitcode)}"
    return WorkerFailure(group, f"rank {rank}: {how}", _stderr(rank, stderr_tail))


def raised(group: str, rank: int, error: str, traceback: str) -> WorkerFailure:
    """A rank's command raised."""
    return WorkerFailure(group, f"rank {rank}: {error}", [traceback.rstrip()] if traceback else [], True)


def silent(group: str, ranks: list[int], doing: str, deadline_s: float, stacks: dict[int, str]) -> WorkerFailure:
    """Ranks did not answer in time; `stacks` holds every live rank's Python stack."""
    who = ", ".join(map(str, ranks))
    details = [f"rank {rank}, stack:\n{stack.rstrip()}" for rank, stack in sorted(stacks.items()) if stack.strip()]
    plural = "ranks" if len(ranks) > 1 else "rank"
    return WorkerFailure(group, f"{plural} {who}: no answer to '{doing}' within {deadline_s:.0f} s, ended", details)


def _stderr(rank: int, tail: str) -> list[str]:
    return [f"rank {rank}, end of stderr:\n{tail.rstrip()}"] if tail.strip() else []
