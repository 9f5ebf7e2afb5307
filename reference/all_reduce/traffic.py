"""The one function that sends from device to device, and a count of the bytes that it sends.

Bytes are counted by rank, a device's index in the caller's list. So where one device is listed several times, as the
CPU is in the tests, the count is that of separate devices. Not covered: the time of a transfer, and copies within a
rank, which count nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor


class Traffic:
    """Bytes and transfers over each link, by (source rank, target rank), during a count."""

    def __init__(self) -> None:
        self.link_bytes: Counter[tuple[int, int]] = Counter()
        self.link_messages: Counter[tuple[int, int]] = Counter()  # those of no bytes included
        self._lock = threading.Lock()

    def add(self, source: int, target: int, n_bytes: int) -> None:
        """Count one transfer; several threads may call this at the same time."""
        with self._lock:
            self.link_bytes[source, target] += n_bytes
            self.link_messages[source, target] += 1

    def sent_bytes(self, rank: int) -> int:
        """Return the bytes that left the device of this rank."""
        return sum(n_bytes for (source, _), n_bytes in self.link_bytes.items() if source == rank)

    def received_bytes(self, rank: int) -> int:
        """Return the bytes that reached the device of this rank."""
        return sum(n_bytes for (_, target), n_bytes in self.link_bytes.items() if target == rank)


_counts: ContextVar[tuple[Traffic, ...]] = ContextVar("counts", default=())


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Count the transfers made inside the block, by this thread and by threads that run in a copy of its context.

    Blocks may be nested; each counts all transfers inside it.
    """
    traffic = Traffic()
    token = _counts.set((*_counts.get(), traffic))
    try:
        yield traffic
    finally:
        _counts.reset(token)


def send_(values: Tensor, into: Tensor, *, source: int, target: int, accumulate: bool = False) -> None:
    """Write one device's values into another device's tensor, or add them to it.

    Between GPUs torch makes the copy wait for both devices' current streams, and both streams for the copy (ATen's
    ``Copy.cu``), so the caller need not synchronise. Transfers that share a GPU run in the order of the calls.
    The values, on the device of rank ``source``, and what they are written into, on that of rank ``target``, have the
    same shape and dtype.
    """
    for traffic in _counts.get():
        traffic.add(source, target, values.nbytes)
    if accumulate:
        into.add_(values.to(into.device))
    else:
        into.copy_(values)
