"""Listen on loopback, the only address used by a run on one host (`suite.processes.remote` listens for other hosts)."""

from __future__ import annotations

import socket

ADDRESS = "127.0.0.1"


def listen() -> socket.socket:
    """Return a socket that listens on a free port of loopback; no other process can take the port it is bound to."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((ADDRESS, 0))
    listener.listen(128)
    return listener
