"""At which k to stop (`suite.render.stopping`), with what an epoch takes and costs at every world size."""

from __future__ import annotations

from dataclasses import dataclass

from suite.records.baselines import Baseline
from suite.records.record import Record
from suite.render.figures import interval, number
from suite.render.html.bounds import Rows, bounded
from suite.render.stopping import WORTH, Size, Stop, stops

MAX_SENTENCES = 60


@dataclass(frozen=True)
class View:
    """What the template shows."""

    sentences: tuple[tuple[str, str], ...]
    left_out: int
    sizes: Rows[tuple[str, ...]]
    worth: str


def view(record: Record, baseline: Baseline | None) -> View | None:
    """None where nothing was measured on several devices."""
    found = stops(record)
    if not found:
        return None
    sentences = tuple((stop.title, stop.sentence) for stop in found[:MAX_SENTENCES])
    pairs = [(stop, size) for stop in found for size in stop.sizes]
    rows = bounded((_row(*pair) for pair in pairs), len(pairs))
    return View(sentences, max(0, len(found) - MAX_SENTENCES), rows, f"{WORTH:.0%}")


def _row(stop: Stop, size: Size) -> tuple[str, ...]:
    alone = next((other.device_s for other in stop.sizes if other.world_size == 1), None)
    share = "-" if not alone or size.device_s is None else number(size.device_s / alone, ".2f")
    efficiency = "1" if size.world_size == 1 else interval(size.efficiency, ".2f")
    times = ("-" if value is None else number(value, ".3g") for value in (size.sec_per_epoch, size.device_s))
    return (stop.title, number(size.world_size, "d"), efficiency, *times, share)
