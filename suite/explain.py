"""A waterfall in a sentence: its largest cause, what that costs, and what the batch on a device has to do with it."""

from __future__ import annotations

from dataclasses import dataclass

from suite.diagnose import Bar, Waterfall

EFFICIENT = 0.05  # a smaller share of the step is no reason to change the batch
BUSY_CORES = 0.10  # others that use more are worth naming; `suite.room.conditions` derives the same limit


@dataclass(frozen=True)
class About:
    """What a sentence needs to know of a cell.

    Attributes:
        trainer, model: their names.
        world_size: k.
        batch: samples on one device.
        gradient_bytes: of one replica; 0 where it is not known.
        foreign_cores: that other processes used on average while it was timed; None where nothing tells.
    """

    trainer: str
    model: str
    world_size: int
    batch: int
    gradient_bytes: int = 0
    foreign_cores: float | None = None


def sentence(found: Waterfall, about: About) -> str:
    """The largest cause, and whether the batch on a device is still efficient."""
    gap, largest = found.gap_s, found.largest
    if gap.estimate <= 0 or (gap.low is not None and gap.low <= 0):
        share = max(0.0, gap.estimate / found.measured_s.estimate)
        return f"Nothing to explain: {about.world_size} devices lose {share:.1%} of the step, which may be chance."
    text = _cause(largest, found, about)
    if largest.step_s.low is not None and largest.step_s.low <= 0:
        text += "; its interval includes zero, so another cause may be larger"
    batch = found.bar("small batch")
    if batch is not None and batch is not largest:
        share = batch.step_s.estimate / found.measured_s.estimate
        efficient = "is still efficient" if share < EFFICIENT else f"is small for it and costs {share:.0%} more"
        text += f"; batch {about.batch} per device {efficient}"
    return text + "."


def grew(candidate: Waterfall, base: Waterfall) -> str:
    """What a candidate spends more time on than its base, largest first cause only."""
    before = {bar.causes: bar.step_s.estimate for bar in base.bars}
    more = {bar.name: bar.step_s.estimate - before[bar.causes] for bar in candidate.bars if bar.causes in before}
    more["one device's own work"] = candidate.ideal_s.estimate - base.ideal_s.estimate
    name, most = max(more.items(), key=lambda item: item[1])
    whole = candidate.measured_s.estimate - base.measured_s.estimate
    if most <= 0:
        return "No part of the step takes longer than the base's."
    return f"Against the base, {name} grew most: by {_time(most)} of {_time(whole)} that the step takes longer."


def _cause(bar: Bar, found: Waterfall, about: About) -> str:
    costs = f"{_time(bar.step_s.estimate)} a step: {bar.step_s.estimate / found.measured_s.estimate:.0%}"
    if len(bar.causes) > 1:
        return f"{_list(bar.causes).capitalize()} of {about.trainer}, which could not be told apart, cost {costs}"
    k, others = about.world_size, ""
    if about.foreign_cores is not None and about.foreign_cores > BUSY_CORES:
        others = f" (other processes used {about.foreign_cores:.0%} of a core meanwhile)"
    match bar.causes[0]:
        case "small batch":
            few = f"{about.batch} samples on a device are few for {about.model}"
            return f"{few}, whose step does not shrink as they do: {costs}"
        case "contention":
            return f"{k} devices at work at once slow one another down{others}: {costs}"
        case "imbalance":
            slow = "One rank" if found.slow_rank is None else f"Rank {found.slow_rank}"
            return f"{slow} is slower than the others, which wait for it{others}: {costs}"
        case "overhead":
            return f"{about.trainer} itself, without any exchange, is slower than {k} independent devices: {costs}"
        case "exchange":
            size = f" {_bytes(about.gradient_bytes)} of" if about.gradient_bytes else ""
            return f"Exchanging {about.model}'s{size} gradients holds the step up: {costs}"
        case other:
            return f"{other.capitalize()}: waiting for data holds the step up: {costs}"


def _list(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if abs(seconds) >= 1 else f"{seconds * 1e3:.1f} ms"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
