"""The raw samples: every window in milliseconds a step, in the order in which they were timed, behind a fold."""

from __future__ import annotations

from dataclasses import dataclass

from suite.records.baselines import Baseline
from suite.records.record import Record, Session
from suite.render.figures import as_float, number

MAX_WINDOWS = 4_000  # of all sessions together


@dataclass(frozen=True)
class View:
    """What the template shows: of each session its arms, each with its samples; how many windows are left out."""

    sessions: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    left_out: int


def view(record: Record, baseline: Baseline | None) -> View | None:
    """None where nothing was timed."""
    steps = {arm.id: arm.steps_per_window for arm in record.arms}
    room = MAX_WINDOWS
    shown = []
    for session in record.sessions:
        count = len(session.windows)
        if not 0 < count <= room:
            continue
        room -= count
        title = f"Session {number(session.number, 'd')}, {count} windows"
        shown.append((title, tuple(_lines(session, steps))))
    total = sum(len(session.windows) for session in record.sessions)
    return View(tuple(shown), total - (MAX_WINDOWS - room)) if total else None


def _lines(session: Session, steps: dict[str, int]) -> list[tuple[str, str]]:
    """The slowest rank's milliseconds a step, of each arm; a dot after those of a block that does not count."""
    found: dict[str, list[str]] = {}
    left_out = frozenset(session.left_out)
    for window in session.windows:
        slowest = as_float(max(window.duration_ns, default=0))
        text = number(slowest / (as_float(steps.get(window.arm, 1)) or 1.0) / 1e6, ".2f")
        found.setdefault(window.arm, []).append(text + ("·" if window.block in left_out else ""))
    return [(arm, " ".join(texts)) for arm, texts in found.items()]
