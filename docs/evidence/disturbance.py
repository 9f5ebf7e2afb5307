"""Which times of the windows that were timed again make sessions scatter least? From records of runs beside a base.

    python -m docs.evidence.runs --wanted matrix=3 --log /tmp/runs.jsonl --records /tmp/records
    python -m docs.evidence.disturbance /tmp/records/*.json
    python -m docs.evidence.disturbance docs/evidence/field-0046.jsonl

prints, for cells on several devices, the SD between sessions of the middle of ln(t_candidate / t_base) by which times
count, and how many windows others disturbed at first (docs/adr/0049). A log of `runs` has the last times of one cell's
rounds, and its interval tells the SD of those that were judged.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from docs.evidence.log import Line, read_log
from suite.records.files import read_model
from suite.records.record import Record, Session, Timing, Window
from suite.verdict.metrics import location, t_quantile, variance

ENOUGH, SHARE = 4, 0.25  # undisturbed rounds of a session, as in `suite.run.samples`

Pair = tuple[Window, Window]  # a round: the windows of candidate and base


def pairs(record: Record) -> Iterator[list[list[Pair]]]:
    """Yield the rounds of every arm on several devices that was timed beside its base, by session."""
    bases = {arm.id.partition(":")[2]: arm.id for arm in record.arms if arm.side == "base"}
    for arm in record.arms:
        base = bases.get(arm.id.partition(":")[2])
        if arm.side == "candidate" and arm.world_size > 1 and base is not None:
            timed = [(_windows(session, arm.id), _windows(session, base)) for session in record.sessions]
            yield [list(zip(own, other, strict=True)) for own, other in timed if own and len(own) == len(other)]


def _windows(session: Session, arm: str) -> list[Window]:
    return [window for window in session.windows if window.arm == arm]


def ways(rounds: Sequence[Pair]) -> dict[str, float]:
    """Return the middle of a session with every choice of times."""
    first, last = ([_ratio(*times) for times in both] for both in (_first(rounds), rounds))
    clean, at_first = ([not (a.disturbed or b.disturbed) for a, b in both] for both in (rounds, _first(rounds)))
    kept = [value for value, is_clean in zip(last, clean, strict=True) if is_clean]
    enough = max(ENOUGH, SHARE * len(rounds))
    before = kept if len(kept) >= ENOUGH and sum(at_first) >= SHARE * len(rounds) else first
    return {
        "first times of all rounds": location(first),
        "last times of all rounds": location(last),
        "before ADR 0049": location(before),
        "**as judged**": location(kept if len(kept) >= enough else last),
    }


def _first(rounds: Sequence[Pair]) -> list[tuple[Timing, Timing]]:
    return [(a.unselected, b.unselected) for a, b in rounds]


def _ratio(candidate: Timing, base: Timing) -> float:
    return math.log(max(candidate.duration_ns) / max(base.duration_ns))


def table(records: Sequence[Record]) -> str:
    """Return the Markdown table over all records; a pair needs three sessions."""
    of_pairs = [sessions for record in records for sessions in pairs(record) if len(sessions) > 2]
    windows = [window for sessions in of_pairs for rounds in sessions for pair in rounds for window in pair]
    share = sum(window.unselected.disturbed for window in windows) / len(windows)
    variances: dict[str, list[float]] = {}
    for sessions in of_pairs:
        middles = [ways(rounds) for rounds in sessions]
        for way in middles[0]:
            variances.setdefault(way, []).append(variance([middle[way] for middle in middles]))
    rows = [f"| {way} | {math.sqrt(math.fsum(each) / len(each)):.1%} |" for way, each in variances.items()]
    head = f"{len(of_pairs)} pairs in {len(records)} runs; others disturbed {share:.0%} of the windows at first"
    return "\n".join([head, "", "| times that count | SD between sessions |", "|---|---|", *rows])


def of_log(lines: Sequence[Line]) -> str:
    """Return a Markdown table over the runs of one cell in a log, with a neighbour and without."""
    rows = ["| runs of one cell | with a neighbour | as judged | last times of all rounds |", "|---|---|---|---|"]
    for neighbour in (False, True):
        variances = [
            _variances(line["ratio"], line["log_ratios_1e4"])
            for line in lines
            if line.get("neighbour", False) == neighbour and len(line.get("log_ratios_1e4", ())) == line["sessions"] > 2
        ]
        if variances:
            judged, all_rounds = (f"{math.sqrt(fmean(each)):.1%}" for each in zip(*variances, strict=True))
            rows.append(f"| {len(variances)} | {'yes' if neighbour else 'no'} | {judged} | {all_rounds} |")
    return "\n".join(rows)


def _variances(ratio: Sequence[float], rounds: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return the variance between sessions behind a run's interval, and that of the middles of all rounds."""
    _, low, high = map(math.log, ratio)
    half = (high - low) / 2
    judged = len(rounds) * (half / t_quantile(len(rounds) - 1, 0.975)) ** 2
    return judged, variance([location(session) / 1e4 for session in rounds])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="SD between sessions by choice of times, from records or logs.")
    parser.add_argument("files", type=Path, nargs="+", help="record.json of runs with a base, or logs of runs")
    logs, records = [], []
    for path in parser.parse_args().files:
        logs += read_log(path) if path.suffix == ".jsonl" else []
        records += [read_model(path, Record)] if path.suffix == ".json" else []
    print("\n\n".join([*([table(records)] if records else []), *([of_log(logs)] if logs else [])]))


if __name__ == "__main__":
    main()
