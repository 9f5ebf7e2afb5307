"""What the JSON of a case may hold, so that one that a person wrote ends in a message and not in a traceback. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

MOST_NUMBERS = 2**24  # in the parameters, in a minibatch, and in the scores of one by each other

Rule = tuple[str, Callable[[Any], bool]]  # what is expected, and whether a value is that


def _whole(least: int, most: int) -> Rule:
    return f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most


def _even(least: int, most: int) -> Rule:
    return f"an even number from {least} to {most}", lambda value: value % 2 == 0 and _whole(least, most)[1](value)


def _one_of(*names: str) -> Rule:
    return f"one of {', '.join(names)}", lambda value: value in names


def _list_of(rule: Rule, most: int) -> Rule:
    expected, fits = rule
    return (
        f"a list of at most {most}, each {expected}",
        lambda value: isinstance(value, list | tuple) and len(value) <= most and all(map(fits, value)),
    )


def _or_none(rule: Rule) -> Rule:
    expected, fits = rule
    return f"{expected}, or null", lambda value: value is None or fits(value)


FLAG: Rule = ("true or false", lambda value: isinstance(value, bool))
PARTS: Rule = ("an object of its parts", lambda value: isinstance(value, Mapping))
RATE: Rule = ("a number above 0", lambda value: type(value) in (int, float) and math.isfinite(value) and value > 0)
STEP = _or_none(_whole(0, 99))

CASE: dict[str, Rule] = {
    "world_size": _whole(1, 64),
    "batches": _list_of(_whole(1, 4096), 100),
    "seed": _whole(0, 2**32 - 1),
    "dtype": _one_of("float64", "float32", "bfloat16"),
    "lr": RATE,
    "net": PARTS,
    "text": _or_none(PARTS),
    "spoiled": STEP,
    "overflows": FLAG,
    "variant": _whole(0, 9999),
    "moved_by": ("a number from 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1),
    "resumed": STEP,
    "part": _or_none(("[step, rank, ranks]", lambda value: len(value) == 3 and all(map(_whole(0, 99)[1], value)))),
    "shares_draws": FLAG,
}
NET: dict[str, Rule] = {
    "inputs": _whole(1, 2**17),
    "hidden": _list_of(_whole(1, 2**14), 16),
    "classes": _whole(2, 1024),
    "activation": _one_of("tanh", "relu"),
    "conv": FLAG,
    "norm": _one_of("none", "layer", "batch"),
    "dropout": FLAG,
    "buffer": FLAG,
    "tied": FLAG,
    "frozen": FLAG,
    "unused": _one_of("none", "nowhere", "somewhere", "elsewhere", "later"),
}
TEXT: dict[str, Rule] = {
    "vocabulary": _whole(2, 2**14),
    "positions": _whole(1, 1024),
    "width": _even(2, 2**12),
    "blocks": _whole(0, 16),
    "norm": _one_of("none", "layer", "rms"),
    "rotary": FLAG,
    "tied": FLAG,
    "checkpoint": FLAG,
    "dropout": FLAG,
    "unequal": FLAG,
    "ignored": FLAG,
    "silent": _whole(0, 4096),
    "weighted": FLAG,
    "unused": _one_of("none", "nowhere", "somewhere"),
}
RULES = {"Case": CASE, "Net": NET, "Text": TEXT}


def require_valid(kind: str, content: Any) -> None:
    """Check the JSON of a case, a net or a text, part by part.

    Args:
        kind: a name in `RULES`.
        content: what was read.

    Raises:
        ValueError: it is no object, or has an unknown part or one with a wrong value; the message says what is valid.
    """
    rules = RULES[kind]
    if not isinstance(content, Mapping):
        raise ValueError(f"{kind} is {_short(content)}: expected {PARTS[0]}, {', '.join(rules)}")
    if unknown := set(content) - set(rules):
        raise ValueError(f"{kind} has no {sorted(unknown)}: its parts are {', '.join(rules)}")
    for name, value in content.items():
        expected, fits = rules[name]
        if not _holds(fits, value):
            raise ValueError(f"{kind}.{name} is {_short(value)}: expected {expected}")


def _holds(fits: Callable[[Any], bool], value: Any) -> bool:
    try:
        return fits(value)
    except (TypeError, ValueError):  # such as a text where a number is expected
        return False


def _short(value: Any) -> str:
    return repr(value)[:80]
