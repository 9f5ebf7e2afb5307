"""A waterfall in a sentence: the largest cause, what it costs, and whether the batch on a device is large enough.

A cause is named only where its interval shows that it costs time (`suite.verdict.diagnose.supported`); otherwise the
sentence says that it is not known, and what would help. docs/diagnosis.md has the rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from suite.verdict.diagnose import Bar, Growth, Waterfall, outdone
from suite.verdict.metrics import Interval

EFFICIENT = 0.05  # a smaller share of the step is no reason to change the batch
BUSY_CORES = 0.10  # other processes are named if they use more; `suite.room.conditions` derives the same limit
MORE = "measure more sessions to find out (--scaling-profile full, or fewer cells)"


@dataclass(frozen=True)
class About:
    """The facts about a cell that a sentence needs.

    Attributes:
        trainer, model: their names.
        world_size: k.
        batch: samples on one device.
        gradient_bytes: of one replica; 0 where the size is not known.
        foreign_cores: cores that other processes used on average during the timing; None where they are not known.
    """

    trainer: str
    model: str
    world_size: int
    batch: int
    gradient_bytes: int = 0
    foreign_cores: float | None = None


def sentence(found: Waterfall, about: About) -> str:
    """Return the largest supported cause, and whether the batch on a device is still efficient."""
    named = found.named
    return _unknown(found, about) if named is None else _known(named, found, about)


def beside(found: Waterfall, about: About, grown: Growth) -> str:
    """Return what takes longer than in the base after a FAIL, and the candidate's largest cause if one is supported."""
    named = found.named
    return grew(grown) + ("" if named is None else f" {_known(named, found, about)}")


def grew(found: Growth) -> str:
    """Return the part that grew most, if its interval supports one."""
    whole, named = f"takes {_with_interval(found.whole_s)} a step longer", found.named
    if named is not None:
        return f"Against the base, {named.name} takes {_with_interval(named.step_s)} a step longer; the whole {whole}."
    return (
        f"Which part grew is not known after {_sessions(found.sessions)}: the whole {whole} than the base's, and no "
        "part's interval is above zero and within that; a larger --scaling-budget leaves more sessions for it."
    )


def _known(named: Bar, found: Waterfall, about: About) -> str:
    text = _cause(named, found, about)
    if outdone([bar.step_s for bar in found.bars], found.bars.index(named)):
        text += "; another part may cost more: its interval is too wide to tell"
    batch, whole_s = found.bar("small batch"), found.measured_s.estimate
    if batch is not None and batch is not named and batch.step_s.high is not None:
        if batch.step_s.high < EFFICIENT * whole_s:
            text += f"; batch {about.batch} per device is still efficient"
        elif (batch.step_s.low or 0.0) > 0 and batch.step_s.estimate >= EFFICIENT * whole_s:
            text += f"; batch {about.batch} per device is small for it and costs {_share(batch, found)}"
    return text + "."


def _unknown(found: Waterfall, about: About) -> str:
    gap, whole_s = found.gap_s, found.measured_s.estimate
    if gap.low is None or gap.high is None:
        return f"What holds {about.world_size} devices back is not known from one session; {MORE}."
    if gap.high <= EFFICIENT * whole_s:
        return f"{about.world_size} devices lose {max(gap.high, 0.0) / whole_s:.1%} of the step at most."
    return (
        f"What holds {about.world_size} devices back is not known after {_sessions(found.sessions)}: "
        f"{_with_interval(gap)} a step are lost, and no part's interval is above zero; {MORE}."
    )


def _cause(bar: Bar, found: Waterfall, about: About) -> str:
    costs = f"{_time(bar.step_s.estimate)} a step ({_share(bar, found)})"
    if len(bar.causes) > 1:
        return f"{_list(bar.causes).capitalize()} of {about.trainer}, which could not be told apart, cost {costs}"
    k, others = about.world_size, ""
    if about.foreign_cores is not None and about.foreign_cores > BUSY_CORES:
        others = f" (other processes used {about.foreign_cores:.0%} of a core)"
    match bar.causes[0]:
        case "small batch":
            small = f"A batch of {about.batch} per device is small for {about.model}"
            return f"{small}, whose step does not shrink in proportion: that costs {costs}"
        case "contention":
            return f"{k} devices at work at once slow one another down{others}: that costs {costs}"
        case "imbalance":
            slow = "One rank" if found.slow_rank is None else f"Rank {found.slow_rank}"
            return f"{slow} is slower than the others, which wait for it{others}: that costs {costs}"
        case "overhead":
            slower = f"is slower than {k} independent devices"
            return f"{about.trainer} itself, without any exchange, {slower}: that costs {costs}"
        case "exchange":
            size = f" {_bytes(about.gradient_bytes)} of" if about.gradient_bytes else ""
            return f"Exchanging {about.model}'s{size} gradients costs {costs}"
        case _:
            return f"Waiting for data costs {costs}"


def _share(bar: Bar, found: Waterfall) -> str:
    return f"{bar.step_s.estimate / found.measured_s.estimate * 100:.0f} %"


def _list(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _sessions(count: int) -> str:
    return f"{count} session{'s' if count != 1 else ''}"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if abs(seconds) >= 1 else f"{seconds * 1e3:.1f} ms"


def _with_interval(found: Interval) -> str:
    if found.low is None or found.high is None:
        return _time(found.estimate)
    factor, unit, form = (1.0, "s", ".2f") if abs(found.estimate) >= 1 else (1e3, "ms", ".1f")
    estimate, low, high = (format(value * factor, form) for value in (found.estimate, found.low, found.high))
    return f"{estimate} [{low}, {high}] {unit}"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
