"""By which windows do sessions scatter least? From records of runs beside a base.

    python -m docs.evidence.runs --wanted matrix=3 --log /tmp/runs.jsonl --records /tmp/records
    python -m docs.evidence.disturbance /tmp/records/*.json

prints, for cells on one device and on several, the SD between sessions of ln(t_candidate / t_base) by which windows and
which of their times count, and how many windows others disturbed at first (docs/adr/0051).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from suite.records.files import read_model
from suite.records.record import Record, Session, Timing, Window
from suite.verdict import Middle, Windows
from suite.verdict.metrics import location, variance

ENOUGH, SHARE = 4, 0.25  # undisturbed rounds of a session, before ADR 0051

Pair = tuple[Window, Window]  # a round: the windows of candidate and base
Choose = Callable[[Sequence[Pair]], Sequence[tuple[Timing, Timing]]]
Show = Callable[[Windows], float]


def pairs(record: Record, *, several: bool) -> Iterator[list[list[Pair]]]:
    """Yield the rounds of every arm that was timed beside its base, on several devices or on one, by session."""
    bases = {arm.id.partition(":")[2]: arm.id for arm in record.arms if arm.side == "base"}
    for arm in record.arms:
        base = bases.get(arm.id.partition(":")[2])
        if arm.side == "candidate" and (arm.world_size > 1) == several and base is not None:
            timed = [(_windows(session, arm.id), _windows(session, base)) for session in record.sessions]
            yield [list(zip(own, other, strict=True)) for own, other in timed if own and len(own) == len(other)]


def _windows(session: Session, arm: str) -> list[Window]:
    return [window for window in session.windows if window.arm == arm]


def first(rounds: Sequence[Pair]) -> list[tuple[Timing, Timing]]:
    """Return the first times of all rounds."""
    return [(a.unselected, b.unselected) for a, b in rounds]


def last(rounds: Sequence[Pair]) -> Sequence[tuple[Timing, Timing]]:
    """Return the last times of all rounds."""
    return rounds


def undisturbed(rounds: Sequence[Pair]) -> Sequence[tuple[Timing, Timing]]:
    """Return the last times of rounds that others did not disturb, and of all where these are too few."""
    kept = [pair for pair in rounds if not any(window.disturbed for window in pair)]
    return kept if len(kept) >= max(ENOUGH, SHARE * len(rounds)) else rounds


def middle(windows: Windows) -> float:
    """Return the middle of the rounds."""
    return location(windows.log_ratios)


def faster_half(windows: Windows) -> float:
    """Return the difference of the faster halves."""
    return Middle.of(windows).value


WAYS: dict[str, tuple[Choose, Show]] = {
    "middle of all rounds, first times": (first, middle),
    "middle of all rounds, last times": (last, middle),
    "middle of undisturbed rounds, before ADR 0051": (undisturbed, middle),
    "faster halves, first times": (first, faster_half),
    "**faster halves, last times, as judged**": (last, faster_half),
}


def spread(sessions: Sequence[Sequence[Pair]], choose: Choose, show: Show) -> float:
    """Return the variance between sessions."""
    return variance([show(_logs(choose(rounds))) for rounds in sessions])


def _logs(rounds: Sequence[tuple[Timing, Timing]]) -> Windows:
    return Windows(*([math.log(max(timing.duration_ns)) for timing in side] for side in zip(*rounds, strict=True)))


def table(records: Sequence[Record]) -> str:
    """Return the Markdown table over all records; a pair needs three sessions."""
    found = [
        [sessions for record in records for sessions in pairs(record, several=several) if len(sessions) > 2]
        for several in (False, True)
    ]
    windows = [window for sessions in found[1] for rounds in sessions for pair in rounds for window in pair]
    share = sum(window.unselected.disturbed for window in windows) / len(windows)
    rows = [
        f"{len(records)} runs; others disturbed {share:.0%} of the windows on several devices at first",
        "",
        f"| what counts | on one device ({len(found[0])} pairs) | on several ({len(found[1])} pairs) |",
        "|---|---|---|",
    ]
    for name, way in WAYS.items():
        variances = [[spread(sessions, *way) for sessions in of_pairs] for of_pairs in found]
        sds = [f"{math.sqrt(math.fsum(each) / len(each)):.1%}" if each else "-" for each in variances]
        rows.append(f"| {name} | {' | '.join(sds)} |")
    return "\n".join(rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="SD between sessions by choice of windows and times, from records.")
    parser.add_argument("records", type=Path, nargs="+", help="record.json of runs with a base")
    print(table([read_model(path, Record) for path in parser.parse_args().records]))


if __name__ == "__main__":
    main()
