"""Windows that others disturbed are timed again at once (docs/adr/0003)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from suite.records.record import Timing

MORE = 2  # windows at most in the place of one
MORE_SHARE = 0.4  # and so many for each of a session's windows


class Retries:
    """Those of one session. What others did decides them, and never how long a window took."""

    def __init__(self) -> None:
        self._windows, self._more = 0, 0

    def timings(self, window: Callable[[], Timing | None]) -> list[Timing]:
        """Take a window, and take it again while it was disturbed; return all of them in order.

        Args:
            window: times one; None where that failed, after which no other is taken.
        """
        tries: list[Timing] = []
        self._windows += 1
        while (taken := window()) is not None:
            tries.append(taken)
            if not taken.disturbed or len(tries) > MORE or self._more >= MORE_SHARE * self._windows:
                break
            self._more += 1
        return tries


def timing(told: Sequence[tuple[int, int | None]]) -> Timing:
    """Return what the ranks tell of a window.

    Args:
        told: of each, its nanoseconds, and those that others had of its cores; None where it does not tell.
    """
    others = [others_ns for _, others_ns in told if others_ns is not None]
    return Timing(
        duration_ns=tuple(duration_ns for duration_ns, _ in told),
        others_ns=tuple(others) if len(others) == len(told) else (),
    )
