"""What controller, launcher, template and workers tell one another, as frozen values. Standard library only.

A message travels as the JSON object of its fields: `suite.processes.channel.encode` writes it and `read` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Value = TypeVar("Value")


@dataclass(frozen=True)
class Start:
    """Start a group of workers.

    Attributes:
        group: its name.
        size: how many processes, one a rank.
        log_dir: the folder for their stdout and stderr.
        args: the arguments of `suite.worker`.
        ranks: of these processes, in a group that may span hosts; empty where they are the whole group.
        world_size: of the whole group.
    """

    group: str
    size: int
    log_dir: str
    args: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    world_size: int = 0


@dataclass(frozen=True)
class Tell:
    """What the launcher of another host is to do with its part of a group.

    Attributes:
        group: its name.
        action: "kill" its processes, or answer with their `Stacks`.
    """

    group: str
    action: Literal["kill", "stacks"]


@dataclass(frozen=True)
class Stacks:
    """The Python stacks of a group's ranks on another host, by rank."""

    group: str
    stacks: dict[str, str]
    event: Literal["stacks"] = "stacks"


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A launcher is up; one of another host tells what that host has.

    Attributes:
        host: its name; empty for the controller's own.
        torch: the version that its workers load.
        commit: that is checked out where it was started.
        files: digests by path of the suite's files, and of the project's that differ from the commit.
        cores, gpus: how many its workers may use.
        node: torch's number of the host.
        load_s: seconds that loading torch took; 0 where each worker loads it.
    """

    host: str = ""
    torch: str = ""
    commit: str = ""
    files: dict[str, str] = field(default_factory=dict)
    cores: int = 0
    gpus: int = 0
    node: int = 0
    load_s: float = 0.0
    event: Literal["launcher"] = "launcher"


@dataclass(frozen=True)
class Welcome:
    """The controller's answer to the launcher of another host.

    Attributes:
        kind: "cpu" or "cuda".
        exact: whether equal work must give equal bits.
        refused: why the host cannot take part; empty where it can.
    """

    kind: str
    exact: bool
    refused: str = ""


@dataclass(frozen=True)
class Hello:
    """A worker is up and has connected: rank `rank` of `group`, in process `pid`."""

    group: str
    rank: int
    pid: int
    event: Literal["hello"] = "hello"


@dataclass(frozen=True)
class Answer:
    """A worker's answer.

    Attributes:
        number: the command's. Text that other code writes to the connection does not have it.
        content: what the command returned, or an error and its traceback.
    """

    number: int
    content: dict[str, Any]


@dataclass(frozen=True)
class Exit:
    """How a rank's process failed.

    Attributes:
        rank: within the group.
        exitcode: negative for a signal.
        stderr: the end of it, from another host; empty from the controller's own, where the file can be read.
    """

    rank: int
    exitcode: int
    stderr: str = ""


@dataclass(frozen=True)
class Ended:
    """A group of workers has ended.

    Attributes:
        group: its name.
        failures: the ranks that failed, the first one first.
        cause: why the group could not run; empty where it ran.
    """

    group: str
    failures: tuple[Exit, ...] = ()
    cause: str = ""
    event: Literal["ended"] = "ended"


def read(kind: type[Value], content: Any) -> Value:
    """Return the value that JSON holds.

    Args:
        kind: a dataclass, whose fields may be dataclasses, tuples and dicts of them in turn; or a type that JSON has.
        content: what arrived.

    Raises:
        TypeError: it lacks a field, or has one that is unknown or of another type; the message names it.
    """
    value: Value = _read(kind, content, kind.__name__)
    return value


def _read(kind: Any, content: Any, name: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if content is None else _read(inner[0], content, name)
    if not _fits(kind, content):
        expected = kind.__name__ if isinstance(kind, type) else kind
        raise TypeError(f"{name} is {str(content)[:80]!r}: expected {expected}")
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        if unknown := content.keys() - hints.keys():
            raise TypeError(f"{name} has no fields {sorted(unknown)}: its fields are {', '.join(hints)}")
        return kind(**{field: _read(hints[field], value, f"{name}.{field}") for field, value in content.items()})
    if origin is tuple:
        return tuple(_read(inner[0], value, name) for value in content)
    if origin is dict:
        return {key: _read(inner[1], value, f"{name}[{key!r}]") for key, value in content.items()}
    return content


def _fits(kind: Any, content: Any) -> bool:
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return content in get_args(kind)
    plain = Mapping if is_dataclass(kind) else get_origin(kind) or kind
    return isinstance(content, {float: (float, int), tuple: (tuple, list)}.get(plain, plain))
