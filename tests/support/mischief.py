"""What workers do to the run that started them; called in a worker by its command "call"."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator

MEGABYTE = 1 << 20


def leave_a_daemon() -> int:
    """Start a process that leaves its session, its process group and its parent, and return its pid."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if (pid := os.fork()) == 0:
            os.close(read)
            os.close(write)
            time.sleep(600)
        os.write(write, str(pid).encode())
        os._exit(0)
    os.close(write)
    os.wait()
    return int(os.read(read, 20))


def shout(megabytes: int) -> None:
    """Write to stderr without an end of lines, and last words."""
    for _ in range(megabytes):
        sys.stderr.write("x" * MEGABYTE)
    sys.stderr.write("\nthese are my last words\n")
    sys.stderr.flush()


def local_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Yield every descriptor of this process that is a Unix socket, and a socket to use it by."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as opened:
            if opened.family == socket.AF_UNIX:
                yield int(name), opened


def write_to_local_sockets(content: bytes) -> None:
    for _, opened in local_sockets():
        with contextlib.suppress(OSError):
            opened.sendall(content)


def close_local_sockets() -> None:
    """Close descriptors that this code has not opened, as it happens to code that makes itself a daemon, and go on."""
    for descriptor, _ in local_sockets():
        os.close(descriptor)
    time.sleep(600)


def write_garbage() -> None:
    """Write something that is no message to the connection of this worker, and go on for a while."""
    write_to_local_sockets(b"\xff\x00 garbage\n")
    time.sleep(1)


def forge_an_answer() -> str:
    """Write an answer to the connection of this worker, and return another one."""
    write_to_local_sockets(b'{"returned": "forged"}\n')
    return "right"


def explain_at_length(megabytes: int) -> None:
    raise RuntimeError("x" * megabytes * MEGABYTE)


def answer_at_length(megabytes: int) -> str:
    return "x" * megabytes * MEGABYTE


def leave(code: int) -> None:
    os._exit(code)
