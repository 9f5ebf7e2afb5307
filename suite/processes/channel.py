"""JSON lines over a connected socket, Unix or TCP: how the controller, the launcher and the workers talk.

Covers framing, time limits and the two ways a peer ends (closed, or talking nonsense). Knows nothing of what is said,
and needs only the standard library, because the launcher and the workers import it in any interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

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
    """Yield a name of a Unix socket's path that fits into its address, however long the path is (Linux only).

    Raises:
        OSError: its folder cannot be opened.
    """
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
    """One end of a connection that carries one JSON object a line, in both directions."""

    def __init__(self, sock: socket.socket, longest: int = MAX_LINE_BYTES) -> None:
        """Take over a connected socket; a line may have `longest` bytes, which may be changed."""
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
        """Connect to the Unix socket at `path`.

        Raises:
            OSError: no process listens there.
        """
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
            message: a dict or a dataclass.
            timeout_s: seconds until the peer must have read what does not fit into the socket; None waits as long as
                the peer is there. After a timeout the channel is of no use any more.

        Raises:
            ChannelClosed: the peer has gone, or does not read.
        """
        try:
            self._sock.settimeout(timeout_s)
            self._sock.sendall(encode(message))
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
        """Read what has arrived and return the whole messages in it; call it when a selector says so.

        Raises:
            ChannelClosed, ChannelGarbled: as `receive`.
        """
        self._fill()
        return list(iter(self.pop, None))

    def pop(self) -> Message | None:
        """Return a message that has arrived whole; None without one.

        Raises:
            ChannelGarbled: what arrived is not a message.
        """
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
