"""What is checked of a script, item by item, and what is said of each. Pure."""

from __future__ import annotations

from dataclasses import dataclass

ITEMS = ("world", "start", "data", "random", "moves", "exchange", "replicas", "gradient", "schedule")


@dataclass(frozen=True)
class Verdict:
    """What is said of one item: it is wrong, or it was not checked, or it is right.

    Attributes:
        finding: what is wrong, where, and by how much; "" where nothing is.
        looks_like: known bugs that have this form.
        notes: what a reader should know all the same.
        unchecked: why it could not be checked; "" where it was.
    """

    finding: str = ""
    looks_like: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unchecked: str = ""


RIGHT = Verdict()
