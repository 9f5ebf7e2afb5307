"""Why a verdict is what it is: as data, which the rules return, and in words, which are all here. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

OfTime = Literal["slower", "not slower", "unconfirmed", "undecided", "uneven"]
OfTheBudget = Literal["few sessions", "left", "over budget"]
OfAFloor = Literal[
    "few sessions for a floor", "below the floor", "above the floor", "floor unconfirmed", "floor undecided"
]
OfTheMachine = Literal["gap widened", "accepted runs differ", "machine worse", "machine unchanged", "machine undecided"]
OfTheBaseline = Literal["few accepted runs", "few sessions of the accepted commit", "no seeds"]
OfAccuracy = Literal["less accurate", "as accurate", "one seed pair", "accuracy undecided"]
Kind = Literal[OfTime, OfTheBudget, OfAFloor, OfTheMachine, OfTheBaseline, OfAccuracy]


class Reason(NamedTuple):
    """A kind, the numbers that belong to it, and names that are the user's.

    Ratios of times are logarithms, ln(t / t); shares and accuracies are from 0 to 1; durations are in seconds. A number
    that is not there is not known, or not to be had.
    """

    kind: Kind
    numbers: Mapping[str, float] = {}
    names: Mapping[str, str] = {}

    def __str__(self) -> str:
        return sentence(self)


def percent(delta: float) -> str:
    """Return a log ratio of times in words: '4.9% slower'."""
    if abs(delta) > math.log(10):
        return f"over ten times {'slower' if delta > 0 else 'faster'}"
    return f"{abs(math.expm1(delta)):.1%} {'slower' if delta >= 0 else 'faster'}"


def sentence(reason: Reason) -> str:
    """Return a reason in words."""
    families = {
        OfTime: _of_time,
        OfTheBudget: _of_the_budget,
        OfAFloor: _of_a_floor,
        OfTheMachine: _of_the_machine,
        OfTheBaseline: _of_the_baseline,
        OfAccuracy: _of_accuracy,
    }
    return next(words for kinds, words in families.items() if reason.kind in get_args(kinds))(reason)


def _of_the_budget(reason: Reason) -> str:
    of = reason.numbers
    match reason.kind:
        case "few sessions":
            return (
                f"{of['sessions']:.0f} session(s) measured, {of['needed']:.0f} are needed for a decision: raise the "
                f"budget by about {math.ceil(of['more_s'])} s"
            )
        case "left":
            remedy = f"about {of['more_s'] / 60:.1f} more minutes" if "more_s" in of else "a quieter machine"
            return (
                f"too noisy for this budget: it needs {remedy}, and left its time to other cells after "
                f"{of['sessions']:.0f} sessions; raise --scaling-budget, or select it alone (-k)"
            )
        case _:
            return (
                f"not judged: budget; {of['budget_s']:.0f} s are spent on {of['judged']:.0f} of {of['cells']:.0f} "
                f"cells{reason.names['room']}: raise --scaling-budget, or select fewer cells"
            )


def _of_the_baseline(reason: Reason) -> str:
    of = reason.numbers
    match reason.kind:
        case "few accepted runs":
            runs = f"{of['runs']:.0f} accepted run(s) of this host, an hour or more apart, have it"
            return f"{runs}: {of['needed']:.0f} are needed"
        case "few sessions of the accepted commit":
            return (
                "the accepted commit was measured on one device and on several in "
                f"{of['sessions']:.0f} session(s) of this run: {of['needed']:.0f} are needed"
            )
        case _:
            return f"no seed was trained on 1 and on k devices: train {of['needed']:.0f} seeds on both"


def _of_time(reason: Reason) -> str:
    of = reason.numbers
    slower = f"{percent(of['delta'])} than the base"
    match reason.kind:
        case "slower":
            return f"{slower}, at least {percent(of['low'])} {_confidence(of)}"
        case "not slower":
            bound = "most" if of["high"] >= 0 else "least"
            return f"{slower}, at {bound} {percent(of['high'])} (after {of['sessions']:.0f} sessions)"
        case "uneven":
            return (
                f"{slower} by the faster half of its windows, but {percent(of['average'])} by all of them: some "
                "steps are slower"
            )
        case "unconfirmed":
            possible = f"at least {percent(of['low'])}, which fresh sessions have to confirm"
        case _:
            possible = f"and anything from {percent(of['low'])} to {percent(of['high'])} (95 %) is possible"
    minutes = f"about {of['more_s'] / 60:.1f} more minutes" if "more_s" in of else "more time than is sensible"
    if "tolerance" in of:
        return f"{slower}, {possible}: it needs {minutes}, a quieter machine, or a tolerance of {of['tolerance']:.0%}"
    return f"{slower}, {possible}: it needs {minutes}, or a quieter machine"


def _of_a_floor(reason: Reason) -> str:
    of = reason.numbers
    if reason.kind == "few sessions for a floor":
        needed = f"a floor of {of['floor']:.2f} needs {of['needed']:.0f}"
        return f"efficiency: {of['sessions']:.0f} session(s) measured, {needed}{_more(of)}"
    text = f"efficiency {of['efficiency']:.2f} [{of['low']:.2f}, {of['high']:.2f}], floor {of['floor']:.2f}"
    match reason.kind:
        case "below the floor":
            return f"{text}: below it {_confidence(of)}"
        case "above the floor":
            return f"{text}: not below it by {of['tolerance']:.0%} or more"
        case "floor unconfirmed":
            return f"{text}: below it, unconfirmed{_more(of)}"
        case _:
            return f"{text}: neither below it nor above {of['floor'] / (1 + of['tolerance']):.2f}{_more(of)}"


def _more(of: Mapping[str, float]) -> str:
    """Return what would decide about a floor; nothing where the rule alone is asked, which knows no seconds."""
    if "more_s" not in of:
        return ""
    enough = f"add {math.ceil(of['more_s'])} s to the budget, or use" if math.isfinite(of["more_s"]) else "it takes"
    return f"; {enough} a quieter machine or a larger tolerance"


def _of_the_machine(reason: Reason) -> str:
    of = reason.numbers
    said = (
        f"the accepted commit has efficiency {of['efficiency']:.2f}, and had {of['least']:.2f} to {of['most']:.2f} in "
        f"{of['runs']:.0f} accepted runs"
    )
    match reason.kind:
        case "gap widened":
            return f"gap widened, nothing slower: {said}, and its step on several devices is not clearly longer"
        case "accepted runs differ":
            return (
                f"{said}: accepted runs differ too much to show whether its step on several devices is longer, or only "
                "one device became faster; accept a run with today's versions, or repeat this one with those of before"
            )
        case "machine worse":
            return f"the machine, not the code: {said}: at least {of['less']:.1%} less {_confidence(of)}"
        case "machine undecided":
            wider = f", or a tolerance of {of['tolerance']:.0%}" if "tolerance" in of else ""
            return (
                f"{said}: neither clearly equal nor clearly less, because runs differ that much: it needs more "
                f"accepted runs, each an hour or more after the one before, a quieter machine{wider}"
            )
        case _:
            return said


def _of_accuracy(reason: Reason) -> str:
    of = reason.numbers
    pairs = f"{of['pairs']:.0f} seed pair{'' if of['pairs'] == 1 else 's'}"
    text = f"accuracy {_signed(of['mean'])} than {reason.names['than']} over {pairs}"
    match reason.kind:
        case "less accurate":
            return f"{text}, at least {_signed(of['bound'])} {_confidence(of)}"
        case "as accurate":
            return f"{text}, at worst {_signed(of['bound'])} (margin {of['margin']:g})"
        case "one seed pair":
            assumed = f"pairs are assumed to differ by {of['seed_sd']:g}"
            return f"{text}; one pair shows no spread, and {assumed}: it needs {_seeds(of)}"
        case _:
            wider = f", or a margin of {of['margin']:.2f}" if "margin" in of else ""
            possible = f"anything from {_signed(of['low'])} to {_signed(of['high'])} is possible"
            return f"{text}, and {possible}: it needs {_seeds(of)}{wider}"


def _confidence(of: Mapping[str, float]) -> str:
    return f"({of['confidence']:.0%} confidence)"


def _seeds(of: Mapping[str, float]) -> str:
    return f"about {of['more']:.0f} more seed pairs" if "more" in of else "more seed pairs than is sensible"


def _signed(difference: float) -> str:
    """Return a difference of accuracies in words: '0.012 lower'."""
    return f"{abs(difference):.3f} {'lower' if difference < 0 else 'higher'}"
