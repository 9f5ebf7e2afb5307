"""What controller, launcher, template and workers tell one another, as frozen values. Standard library only.

A message travels as the JSON object of its fields (`as_json`, `read`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
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


def as_json(value: Any) -> dict[str, Any]:
    """Return a message as the JSON object that travels."""
    return asdict(value)


def read(kind: type[Value], message: Mapping[str, Any]) -> Value:
    """Return the message that a JSON object holds.

    Args:
        kind: a dataclass; its fields may be dataclasses and tuples of them in turn.
        message: what arrived.

    Raises:
        TypeError: it lacks a field, or has one that is unknown.
    """
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := message.keys() - known:
        raise TypeError(f"{kind.__name__} has no fields {sorted(unknown)}")
    hints = get_type_hints(kind)
    return kind(**{name: _field(hints[name], value) for name, value in message.items()})


def _field(kind: Any, value: Any) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        return read(kind, value)
    if get_origin(kind) in (Union, UnionType):
        return None if value is None else _field(get_args(kind)[0], value)
    if get_origin(kind) is tuple:
        return tuple(_field(get_args(kind)[0], each) for each in value)
    return value
