"""What controller, launcher and template tell one another, as values that know their JSON. Standard library only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from suite.processes.channel import Message


@dataclass(frozen=True)
class Start:
    """Start a group of workers.

    Attributes:
        group: its name.
        size: how many processes, one a rank.
        log_dir: the folder for their stdout and stderr.
        args: the arguments of `suite.worker`.
    """

    group: str
    size: int
    log_dir: str
    args: tuple[str, ...]

    def as_json(self) -> Message:
        """Return the message."""
        return asdict(self)

    @classmethod
    def from_json(cls, message: Message) -> Self:
        """Read the message.

        Raises:
            KeyError: it is another one.
        """
        args = tuple(map(str, message["args"]))
        return cls(str(message["group"]), int(message["size"]), str(message["log_dir"]), args)


@dataclass(frozen=True)
class Exit:
    """How a rank's process failed.

    Attributes:
        rank: within the group.
        exitcode: negative for a signal.
        pid: of the process.
    """

    rank: int
    exitcode: int
    pid: int


@dataclass(frozen=True)
class Ended:
    """A group of workers has ended.

    Attributes:
        group: its name; empty where the launcher itself ended, and all groups with it.
        failures: the ranks that failed, the first one first.
        cause: why the group could not run; empty where it ran.
    """

    group: str
    failures: tuple[Exit, ...] = ()
    cause: str = ""

    def as_json(self) -> Message:
        """Return the message."""
        return {"event": "ended", **asdict(self)}

    @classmethod
    def from_json(cls, message: Message) -> Self:
        """Read the message.

        Raises:
            KeyError: it is another one.
        """
        failures: list[dict[str, Any]] = message["failures"]
        read = (Exit(int(each["rank"]), int(each["exitcode"]), int(each["pid"])) for each in failures)
        return cls(str(message["group"]), tuple(read), str(message["cause"]))
