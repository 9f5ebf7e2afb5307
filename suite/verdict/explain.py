"""Put a waterfall into a sentence: a cause, what it costs, and whether the batch on a device is large enough.

A cause is named only where its interval supports that it costs anything (`suite.verdict.diagnose.supported`);
otherwise the sentence says that the cause is not known, and what would help. docs/diagnosis.md has the rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.verdict.diagnose import Bar, Growth, Waterfall, outdone
from suite.verdict.metrics import Interval

EFFICIENT = 0.05  # a smaller share of the step is no reason to change the batch
MORE = "more sessions would show it (--scaling-profile full, or fewer cells)"


@dataclass(frozen=True)
class About:
    """The cell behind a sentence.

    Attributes:
        trainer, model: their names.
        world_size: k.
        batch: samples on one device.
        gradient_bytes: of one replica; 0 where it is not known.
        foreign_cores: cores that other processes used on average, where that is worth naming; else None.
    """

    trainer: str
    model: str
    world_size: int
    batch: int
    gradient_bytes: int = 0
    foreign_cores: float | None = None


def sentence(fall: Waterfall, about: About) -> str:
    """Return the largest cause that is supported, and whether the batch on a device is still efficient."""
    named = fall.named
    return _unknown(fall, about) if named is None else _known(named, fall, about)


def against_base(fall: Waterfall, about: About, growth: Growth) -> str:
    """Return where a candidate that failed takes longer than its base, and its own cause where one is supported."""
    named = fall.named
    return grew(growth) + ("" if named is None else f" {_known(named, fall, about)}")


def grew(growth: Growth) -> str:
    """Return the part of a step that grew most against the base, if it is supported and plausible."""
    whole, named = f"takes {_with_interval(growth.whole_s)} a step longer", growth.named
    if named is not None:
        return f"Against the base, {named.name} takes {_with_interval(named.step_s)} a step longer; the whole {whole}."
    if growth.whole_s.high is not None and growth.whole_s.high <= 0:
        return "The step takes no longer than in the base."
    return (
        f"Which part grew is not known after {_sessions(growth.sessions)}: the whole {whole} than in the base, and no "
        "single part is clearly above zero and within that; a run of this cell alone (-k) leaves more rounds for it."
    )


def caution(growth: Growth, part: Bar, of_base_s: float) -> str:
    """Return a warning about a part that grew in a cell that does not fail; `of_base_s` is what the base's costs."""
    share = f" ({part.step_s.estimate / of_base_s:.0%} longer)" if of_base_s > 0 else ""
    return (
        f"{part.name} takes {_with_interval(part.step_s)} a step longer than the base's{share}, after "
        f"{_sessions(growth.sessions)}; the cell does not fail by it"
    )


def _known(named: Bar, fall: Waterfall, about: About) -> str:
    text = _cause(named, fall, about)
    if outdone([bar.step_s for bar in fall.bars], fall.bars.index(named)):
        text += "; another part may cost more: its interval is too wide to tell"
    batch, whole_s = fall.bar("small batch"), fall.measured_s.estimate
    if batch is not None and batch is not named and batch.step_s.high is not None:
        if batch.step_s.high < EFFICIENT * whole_s:
            text += f"; batch {about.batch} per device is still efficient"
        elif (batch.step_s.low or 0.0) > 0 and batch.step_s.estimate >= EFFICIENT * whole_s:
            text += f"; batch {about.batch} per device is small for it and costs {_share(batch, fall)}"
    return text + "."


def _unknown(fall: Waterfall, about: About) -> str:
    gap, whole_s = fall.gap_s, fall.measured_s.estimate
    if gap.low is None or gap.high is None:
        return f"Why {about.world_size} devices lose time is not known from one session; {MORE}."
    if gap.high <= EFFICIENT * whole_s:
        return f"{about.world_size} devices lose at most {max(gap.high, 0.0) / whole_s:.1%} of the step."
    return (
        f"Why {about.world_size} devices lose {_with_interval(gap)} a step is not known after "
        f"{_sessions(fall.sessions)}: no single part is clearly above zero; {MORE}."
    )


def _cause(bar: Bar, fall: Waterfall, about: About) -> str:
    costs = f"{_time(bar.step_s.estimate)} a step ({_share(bar, fall)})"
    if len(bar.causes) > 1:
        names = f"{', '.join(bar.causes[:-1])} and {bar.causes[-1]}".capitalize()
        return f"{names} of {about.trainer}, which could not be told apart, cost {costs}"
    k, others = about.world_size, ""
    if about.foreign_cores is not None:
        others = f" (other processes used {about.foreign_cores:.0%} of a core meanwhile)"
    match bar.causes[0]:
        case "small batch":
            few = f"{about.batch} samples on a device are few for {about.model}"
            return f"{few}: the small batch costs {costs}"
        case "contention":
            return f"{k} devices that work at once slow one another down{others}: that costs {costs}"
        case "imbalance":
            slow = "One rank" if fall.slow_rank is None else f"Rank {fall.slow_rank}"
            return f"{slow} is slower than the others, which wait for it{others}: that costs {costs}"
        case "overhead":
            slower = f"is slower than {k} independent devices"
            return f"{about.trainer} itself, without any exchange, {slower}: that costs {costs}"
        case "exchange":
            size = f" {_bytes(about.gradient_bytes)} of" if about.gradient_bytes else ""
            return f"Exchanging {about.model}'s{size} gradients costs {costs}"
        case _:
            return f"Waiting for data costs {costs}"


def _share(bar: Bar, fall: Waterfall) -> str:
    return f"{bar.step_s.estimate / fall.measured_s.estimate * 100:.0f} %"


def _sessions(count: int) -> str:
    return f"{count} session{'s' if count != 1 else ''}"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if abs(seconds) >= 1 else f"{seconds * 1e3:.1f} ms"


def _with_interval(seconds: Interval) -> str:
    if seconds.low is None or seconds.high is None:
        return _time(seconds.estimate)
    factor, unit, form = (1.0, "s", ".2f") if abs(seconds.estimate) >= 1 else (1e3, "ms", ".1f")
    estimate, low, high = (format(value * factor, form) for value in (seconds.estimate, seconds.low, seconds.high))
    return f"{estimate} [{low}, {high}] {unit}"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
