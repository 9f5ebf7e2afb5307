"""What controller, launcher, template and workers tell one another, as frozen values. Standard library only.

A message travels as the JSON object of its fields: `suite.processes.channel.encode` writes it and `read` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
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
    """

    group: str
    size: int
    log_dir: str
    args: tuple[str, ...]


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
    if get_origin(kind) is Literal:
        return content in get_args(kind)
    plain = Mapping if is_dataclass(kind) else get_origin(kind) or kind
    return isinstance(content, {float: (float, int), tuple: (tuple, list)}.get(plain, plain))
