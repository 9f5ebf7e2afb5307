"""Let the signals that end a job end it as Ctrl-C does: processes end, folders go, and the record is written."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # a CI system cancels a job; a terminal closes


@contextlib.contextmanager
def as_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt, with the signal's name as its text, where one of `SIGNALS` arrives.

    A signal that is ignored (`nohup`) or handled by other code keeps its handler. Without effect outside of the main
    thread, which alone may set handlers.
    """
    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
