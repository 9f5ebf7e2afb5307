"""By how much do sessions scatter in what a part of a step grew by? From records of runs beside a base.

    python -m docs.evidence.runs --wanted 10=10 --log /tmp/runs.jsonl --records /tmp/records
    python -m docs.evidence.part_scatter /tmp/records/*.json

prints, for each part, the SD between sessions of candidate less base as a share of the step: by the middle of each
variant's windows, and by their faster half, as `suite.verdict.diagnose.growth` has it. Cells count that both sides were
taken apart of in three sessions or more.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from suite.records.files import read_model
from suite.records.record import CellRecord, Record
from suite.verdict.diagnose import OWN_WORK, Rounds, growth, waterfall
from suite.verdict.metrics import variance
from suite.verdict.spread import FEWEST

STEP = "the whole step"


def sessions_of(record: Record, cell: CellRecord) -> list[tuple[Rounds, Rounds]]:
    """Return the rounds of candidate and base, of every session that timed both."""
    both = []
    for session in record.sessions:
        sides: dict[str, dict[str, list[tuple[float, ...]]]] = {"candidate": {}, "base": {}}
        for probe in session.probes:
            if probe.cell == cell.id and probe.side in sides:
                step_s = tuple(duration / probe.steps / 1e9 for duration in probe.duration_ns)
                sides[probe.side].setdefault(probe.point, []).append(step_s)
        both += [(sides["candidate"], sides["base"])] if all(sides.values()) else []
    return both  # type: ignore[return-value]


def both_ways(candidate: Rounds, base: Rounds, cell: CellRecord) -> dict[str, tuple[float, float]]:
    """Return by how many seconds each part of a session is longer, by middles and by faster halves; {} without both."""
    own, other = (waterfall([side], mode=cell.mode, world_size=cell.world_size) for side in (candidate, base))
    by_half = growth([candidate], [base], mode=cell.mode, world_size=cell.world_size)
    if own is None or other is None or by_half is None:
        return {}
    halves = {bar.name: bar.step_s.estimate for bar in by_half.parts}
    middles = {bar.name: bar.step_s.estimate for bar in own.bars}
    for bar in other.bars:
        middles[bar.name] = middles.get(bar.name, 0.0) - bar.step_s.estimate
    middles[OWN_WORK] = own.ideal_s.estimate - other.ideal_s.estimate
    parts = {name: (middles[name], half_s) for name, half_s in halves.items()}
    return {**parts, STEP: (own.measured_s.estimate - other.measured_s.estimate, by_half.whole_s.estimate)}


def variances(record: Record, cell: CellRecord) -> dict[str, list[float]]:
    """Return the variance between sessions of each part by both ways, as a share of the squared step; {} from few."""
    shown = [parts for sides in sessions_of(record, cell) if (parts := both_ways(*sides, cell))]
    if len(shown) < FEWEST or cell.sec_per_epoch is None:
        return {}
    job = next(
        arm
        for arm in record.arms
        if arm.side == "candidate" and (arm.trainer, arm.workload, arm.mode, arm.world_size) == cell.place
    )
    steps = record.epoch_samples[cell.workload] / job.global_batch
    squared = (cell.sec_per_epoch.estimate / steps) ** 2
    common = [name for name in shown[0] if all(name in parts for parts in shown)]
    return {
        name: [variance(way) / squared for way in zip(*(parts[name] for parts in shown), strict=True)]
        for name in common
    }


def table(records: Sequence[Record]) -> str:
    """Return both SDs of every part as Markdown, the root of the mean variance over cells, and their medians."""
    by_part: dict[str, list[list[float]]] = {}
    for record in records:
        for cell in record.cells:
            for name, both in variances(record, cell).items():
                by_part.setdefault(name, []).append(both)
    rows = [
        "| part | cells | middle | faster half | middle, median | faster half, median |",
        "|---|---|---|---|---|---|",
    ]
    for name, cells in by_part.items():
        ways = list(zip(*cells, strict=True))
        means = [f"{math.sqrt(statistics.fmean(way)):.1%}" for way in ways]
        medians = [f"{math.sqrt(statistics.median(way)):.1%}" for way in ways]
        rows.append(f"| {name} | {len(cells)} | {' | '.join([*means, *medians])} |")
    return "\n".join(rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="SD between sessions of what a part grew by, from records.")
    parser.add_argument("records", type=Path, nargs="+", help="record.json of runs with a base")
    print(table([read_model(path, Record) for path in parser.parse_args().records]))


if __name__ == "__main__":
    main()
