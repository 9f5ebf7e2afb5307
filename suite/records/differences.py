"""List what differs between two runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Difference(NamedTuple):
    """One thing that is not the same in two runs; "-" where a run does not have it."""

    what: str
    first: str
    second: str


def differences(
    first: Mapping[str, object], second: Mapping[str, object], *, common: bool = False, prefix: str = ""
) -> list[Difference]:
    """Return what has different values, in the order of the first run.

    Args:
        first, second: value by name.
        common: whether to leave out what only one of them has.
        prefix: of every name.
    """
    names = [name for name in dict.fromkeys((*first, *second)) if not common or (name in first and name in second)]
    return [
        Difference(prefix + name, _words(first.get(name)), _words(second.get(name)))
        for name in names
        if first.get(name) != second.get(name)
    ]


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return " | ".join(map(str, value)) or "-"
    return "-" if value is None or value == "" else str(value)
