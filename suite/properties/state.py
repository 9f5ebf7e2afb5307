"""The check `state`: all that a trainer saves is on k devices what it is on one, such as averages of the weights.

Not compared: states of generators, which each rank has of its own; what ranks had different before the first step; and
what is split over ranks, whose shapes or positions differ from those on one device. Generated nets for this check
normalise no batches.
"""

from __future__ import annotations

import json
import math

from suite.properties.answers import RIGHT, Judgement
from suite.properties.saved import Leaf, State, shown
from suite.properties.seen import Seen

WRONG_WEIGHTS = "the weights differ as well: see the checks `gradient` and `trajectory`"


def judge(seen: Seen) -> Judgement:
    """Compare what each rank saves after the last step with what one device does."""
    assert seen.alone is not None
    begin, right = seen.alone["saved"]
    own = _each_ranks_own(seen)
    compared = 0
    for rank, observed in enumerate(seen.ranks):
        started, ours = observed["saved"]
        for path in _comparable(right, ours):
            if path in own or (path in begin and path in started and not _alike(begin[path], started[path], 0.0)):
                continue
            compared += 1
            allowed = seen.half_the_digits * _scale(right, path)
            if not _alike(right[path], ours[path], allowed):
                return _wrong(seen, rank, path, allowed)
    return (
        RIGHT if compared else Judgement(note="not compared: nothing that it saves has one device's shape on k devices")
    )


def _each_ranks_own(seen: Seen) -> set[str]:
    """Return the paths of generators' states, and of what ranks had different before the first step."""
    records = [*seen.ranks, *([seen.alone] if seen.alone else [])]
    own = {path for observed in records for path in observed["of_generators"]}
    first, *others = [observed["saved"][0] for observed in seen.ranks]
    for other in others:
        own |= {path for path in first.keys() & other.keys() if not _alike(first[path], other[path], 0.0)}
    return own


def _unit(path: str) -> str:
    """Return the part of a state that a path belongs to, up to its first number: positions mean nothing alone."""
    keys = json.loads(path)
    numbers = (at for at, key in enumerate(keys) if isinstance(key, int))
    return json.dumps(keys[: next(numbers, len(keys))])


def _comparable(right: State, ours: State) -> list[str]:
    """Return the paths of parts that are the same in shape on both sides, and whole lists only as a whole."""
    units: dict[str, list[str]] = {}
    for path in dict.fromkeys((*right, *ours)):
        units.setdefault(_unit(path), []).append(path)

    def agrees(path: str) -> bool:
        return path in right and path in ours and right[path]["shape"] == ours[path]["shape"]

    return [path for paths in units.values() if all(map(agrees, paths)) for path in paths]


def _scale(state: State, path: str) -> float:
    """Return the largest number among the parts of a unit that have this path's last name, as all moments do.

    A part may be nothing but rounding, such as the moment of a bias whose gradient cancels.
    """
    unit, name = _unit(path), _name(path)
    alike = (leaf for other, leaf in state.items() if _unit(other) == unit and _name(other) == name)
    return max((abs(value) for leaf in alike for value in _numbers(leaf) if math.isfinite(value)), default=0.0)


def _name(path: str) -> str:
    """Return the last key of a path that is no number."""
    return next((key for key in reversed(json.loads(path)) if isinstance(key, str)), "")


def _numbers(leaf: Leaf) -> list[float]:
    values = leaf["values"]
    if isinstance(values, list):
        return values
    return [values] if isinstance(values, float) else []


def _alike(a: Leaf, b: Leaf, allowed: float) -> bool:
    mine, theirs = _numbers(a), _numbers(b)
    if not mine and not theirs:
        return bool(a["values"] == b["values"])
    if len(mine) != len(theirs):
        return False
    pairs = zip(mine, theirs, strict=True)
    return all(x == y or abs(x - y) <= allowed or (math.isnan(x) and math.isnan(y)) for x, y in pairs)


def _wrong(seen: Seen, rank: int, path: str, allowed: float) -> Judgement:
    assert seen.alone is not None
    (begin, right), (started, ours) = seen.alone["saved"], seen.ranks[rank]["saved"]
    where = f"after {len(seen.steps)} steps, {shown(path)} of what `state_dict` returns on rank {rank}"
    numbers = list(zip(_numbers(right[path]), _numbers(ours[path]), strict=False))
    if numbers:
        off = max(abs(x - y) for x, y in numbers)
        finding = f"{where} is off that on one device by {off:.3g}, where half of the digits are {allowed:.3g}"
    else:
        said = [str(leaf[path]["values"])[:80] for leaf in (ours, right)]
        finding = f"{where} is {said[0]}, and {said[1]} on one device"
    moved = path in begin and not _alike(begin[path], right[path], 0.0)
    if moved and path in started and _alike(started[path], ours[path], 0.0):
        finding += "; it has not changed since the first step, and it has on one device"
    at_end = len(seen.steps)
    pairs = zip(seen.parameters(at_end, None), seen.parameters(at_end), strict=True)
    wrong = any(float((a - b).abs().max()) > seen.half_the_digits * (1 + float(a.abs().max())) for a, b in pairs)
    return Judgement(finding, (WRONG_WEIGHTS,) if wrong else (), step=at_end - 1)
