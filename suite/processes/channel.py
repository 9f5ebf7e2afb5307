"""JSON lines over a connected socket, Unix or TCP: how controller, launcher, template and workers talk.

Covers framing, time limits, the two ways a peer ends (closed, or talking nonsense), and what starts and ends workers as
frozen values; `suite.processes.jobs` has what a worker does. A value travels as the JSON object of its fields: `encode`
writes it and `read` reads it. Standard library only, because launcher and workers import it in any interpreter.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Message = dict[str, Any]

MAX_LINE_BYTES = 16 * 1024 * 1024
LONGEST_ADDRESS = 100  # bytes; the kernel takes 107, other systems 103
LOOPBACK = "127.0.0.1"


class ChannelClosed(ConnectionError):
    """The peer has gone: it closed the connection, or its process ended."""


class ChannelGarbled(ConnectionError):
    """The peer sent something that is not one JSON object a line, or a line that is too long."""


def encode(message: object) -> bytes:
    """Encode a message as it travels: a dict or a dataclass; dataclasses become objects of their fields."""
    return json.dumps(message, allow_nan=True, default=asdict).encode() + b"\n"


@contextlib.contextmanager
def short(path: str) -> Iterator[str]:
    """Yield a name of a Unix socket's path that fits into its address, however long the path is (Linux only)."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS or not os.path.isdir("/proc/self/fd"):
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _address(name_of: Callable[[], Any]) -> str:
    with contextlib.suppress(OSError):
        name = name_of()
        return str(name[0]) if isinstance(name, tuple) else ""
    return ""


class Channel:
    """One end of a connection that carries one JSON object of at most `longest` bytes a line, in both directions."""

    def __init__(self, sock: socket.socket, longest: int = MAX_LINE_BYTES) -> None:
        self.longest = longest
        self._sock = sock
        self._buffer = bytearray()

    @property
    def peer(self) -> str:
        """The address of the other end; empty for a Unix socket."""
        return _address(self._sock.getpeername)

    @property
    def own_address(self) -> str:
        """The address of this end; empty for a Unix socket."""
        return _address(self._sock.getsockname)

    @classmethod
    def connect(cls, path: str) -> Channel:
        """Connect to the Unix socket at `path`; an OSError where no process listens there."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short(path) as name:
            sock.connect(name)
        return cls(sock)

    def fileno(self) -> int:
        """The descriptor, so that a selector can wait on many channels at once."""
        return self._sock.fileno()

    def peer_pid(self) -> int | None:
        """Return the process id of whoever has connected, as the kernel knows it; None where it does not say."""
        if not hasattr(socket, "SO_PEERCRED"):
            return None
        pid: int = struct.unpack("iII", self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid

    def send(self, message: object, timeout_s: float | None = None) -> None:
        """Send one message, as `encode` writes it.

        Args:
            message: a dict or a dataclass, or what `encode` made of one.
            timeout_s: seconds until the peer must have read what does not fit into the socket; None waits as long as
                the peer is there. After a timeout the channel is of no use any more.

        Raises:
            ChannelClosed: the peer has gone, or does not read.
        """
        try:
            self._sock.settimeout(timeout_s)
            self._sock.sendall(message if isinstance(message, bytes) else encode(message))
            self._sock.settimeout(None)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> Message:
        """Wait for one message.

        Args:
            timeout_s: seconds to wait; None waits as long as the peer is there.

        Raises:
            TimeoutError: nothing whole arrived in time.
            ChannelClosed: the peer has gone.
            ChannelGarbled: what arrived is not a message.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (message := self.pop()) is None:
            self._sock.settimeout(None if end is None else max(0.0, end - time.monotonic()) or 1e-6)
            try:
                self._fill()
            finally:
                self._sock.settimeout(None)
        return message

    def pump(self) -> list[Message]:
        """Read what has arrived and return the whole messages in it, when a selector says so; raises as `receive`."""
        self._fill()
        return list(iter(self.pop, None))

    def pop(self) -> Message | None:
        """Return a message that has arrived whole, or None; a `ChannelGarbled` where what arrived is no message."""
        end = self._buffer.find(b"\n")
        if (len(self._buffer) if end < 0 else end) > self.longest:
            raise ChannelGarbled(f"a line longer than {self.longest} bytes")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:  # the latter of a thousand brackets
            raise ChannelGarbled(f"not JSON: {line[:80]!r}") from error
        if not isinstance(message, dict):
            raise ChannelGarbled(f"not a JSON object: {line[:80]!r}")
        return message

    def close(self) -> None:
        """Close this end; the peer's next `receive` raises ChannelClosed."""
        self._sock.close()

    def _fill(self) -> None:
        try:
            chunk = self._sock.recv(1 << 20)
        except OSError as error:
            if isinstance(error, TimeoutError) and error.errno is None:  # our own limit; ETIMEDOUT is the peer's end
                raise
            raise ChannelClosed(str(error)) from error
        if not chunk:
            raise ChannelClosed("the other end closed the connection")
        self._buffer += chunk


def listen_on_loopback() -> socket.socket:
    """Return a socket that listens on a free port of loopback; no other process can take the port it is bound to."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((LOOPBACK, 0))
    listener.listen(128)
    return listener


Value = TypeVar("Value")
hints_of = functools.cache(get_type_hints)  # types are text in their module, and take longer to read than a value


@dataclass(frozen=True)
class Start:
    """Start a group of workers."""

    group: str  # its name
    size: int  # how many processes, one a rank
    log_dir: str  # the folder for their stdout and stderr
    args: tuple[str, ...]  # the arguments of `suite.worker`
    ranks: tuple[int, ...] = ()  # of these processes, in a group that may span hosts; empty for a whole group
    world_size: int = 0  # of the whole group


@dataclass(frozen=True)
class Tell:
    """What the launcher of another host is to do with its part of a group: kill it, or answer with its `Stacks`."""

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
    """A launcher is up; one of another host tells what that host has."""

    host: str = ""  # its name; empty for the controller's own
    torch: str = ""  # the version that its workers load
    commit: str = ""  # that is checked out where it was started
    # Digests by path of the suite's files, and of the project's that differ from the commit.
    files: dict[str, str] = field(default_factory=dict)
    cores: int = 0  # that its workers may use
    gpus: int = 0
    node: int = 0  # torch's number of the host
    load_s: float = 0.0  # seconds that loading torch took; 0 where each worker loads it
    event: Literal["launcher"] = "launcher"


@dataclass(frozen=True)
class Welcome:
    """The controller's answer to the launcher of another host; `refused` says why that cannot take part.

    `kind` is "cpu" or "cuda"; `exact` is whether equal work must give equal bits.
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
    """What a command returned, or an error and its traceback.

    Text that other code writes to the connection does not have the command's `number`.
    """

    number: int
    content: dict[str, Any]


@dataclass(frozen=True)
class Exit:
    """How a rank's process failed; a negative exit code is a signal.

    `stderr` is the end of it from another host; empty from the controller's own, where the file can be read.
    """

    rank: int
    exitcode: int
    stderr: str = ""


@dataclass(frozen=True)
class Ended:
    """A group of workers has ended."""

    group: str
    failures: tuple[Exit, ...] = ()  # the ranks that failed, the first one first
    cause: str = ""  # why the group could not run; empty where it ran
    event: Literal["ended"] = "ended"


def read(kind: type[Value], content: Any) -> Value:
    """Return the value that JSON holds.

    Args:
        kind: a dataclass, whose fields may be dataclasses, tuples and dicts of them in turn; or a type that JSON has.
        content: what arrived.

    Raises:
        TypeError: it lacks a field, or has one that is unknown or of another type; the message names it.
    """
    value: Value = _read(kind, content, getattr(kind, "__name__", "value"))
    return value


def _read(kind: Any, content: Any, name: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if content is None else _read(inner[0], content, name)
    if not _fits(kind, content):
        expected = kind.__name__ if isinstance(kind, type) else kind
        raise TypeError(f"{name} is {str(content)[:80]!r}: expected {expected}")
    if is_dataclass(kind) and isinstance(kind, type):
        hints = hints_of(kind)
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
