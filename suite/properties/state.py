"""What a trainer saves, and two checks: k devices save what one does, and training resumes from it.

`flattened` makes plain JSON of it: the parts of what `state_dict` returned, by their paths (worker's side).

The check `state` does not compare states of generators, which each rank has of its own; what ranks had different before
the first step; and what is split over ranks, whose shapes or positions differ from those on one device. Generated nets
for it normalise no batches. The check `resume` does not cover other world sizes than the one that was saved, one file
for all ranks, and where the data goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from suite.properties.answers import RIGHT, Judgement
from suite.properties.hooks import whole

if TYPE_CHECKING:
    from suite.properties.seen import Seen

NOT_LOADED = "its weights stay what they were"

Leaf = dict[str, Any]
"""One part of a state: "kind", its dtype or type; "shape" of a tensor; "values", a list of numbers or a plain value."""

State = dict[str, Leaf]
"""The parts of a state by their paths, which are JSON lists of keys."""
WRONG_WEIGHTS = "the weights differ as well: see the checks `gradient` and `trajectory`"
GENERATORS = (
    "generators (torch's, NumPy's, Python's) are not resumed, or all ranks got those of rank 0 (radixark/miles#3187)"
)
UNSAVED = (
    "something that training goes on from is in no part of `state_dict`, such as momentum "
    "(KempnerInstitute/KempnerForge#115), a schedule (lightly-ai/lightly-train#301), a scale, a count, or weights in "
    "more precision (TensorAuto/OpenTau#185)"
)
WITHOUT_WEIGHTS = "the weights are not in what `state_dict` returns, or `load_state_dict` puts them elsewhere"
RELOADED = "the instance that goes on does not hold what it has loaded: {what}"
ROUNDED = (
    "resumed to rounding and not to the bit on more than two ranks, as with DistributedDataParallel, which sums in "
    "another order in the first step of an instance"
)


def alike(a: Tensor, b: Tensor) -> bool:
    """Return whether parameters are equal to the last digit; 0 equals -0, and NaN equals NaN."""
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def flattened(state: Any) -> State:
    """Return the parts of what `state_dict` returned; every rank must call it, because shards are gathered."""
    return {json.dumps(path): _leaf(value) for path, value in _parts(state, [])}


def changed(before: State, after: State) -> list[str]:
    """Return in words how the second of two states differs from the first; empty where they are alike to the bit."""
    words = []
    for path, leaf in before.items():
        other = after.get(path)
        if other is None:
            words.append(f"{shown(path)} is missing")
        elif leaf["kind"] != other["kind"]:
            words.append(f"{shown(path)} is {other['kind']} and was {leaf['kind']}")
        elif repr(leaf) != repr(other):
            words.append(f"{shown(path)} is another value")
    return words


def shown(path: str) -> str:
    """Return a path as a user writes it: ['optimizer']['state'][0]."""
    return "".join(f"[{key!r}]" for key in json.loads(path))


def _parts(value: Any, path: list[Any]) -> Iterator[tuple[list[Any], Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(part, [*path, key if isinstance(key, int) else str(key)])
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _parts(part, [*path, number])
    else:
        yield path, value


def _leaf(value: Any) -> Leaf:
    if isinstance(value, Tensor):
        [full] = whole([torch.view_as_real(value) if value.is_complex() else value])
        return {"kind": str(value.dtype), "shape": list(full.shape), "values": full.flatten().tolist()}
    plain = value if isinstance(value, bool | int | float | str | None) else repr(value)
    return {"kind": type(value).__name__, "shape": None, "values": plain}


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


def judge_resumed(seen: Seen) -> Judgement:
    """Compare the parameters of a resumed run with those of the uninterrupted one, on every rank.

    They must be equal to the bit. On more than two ranks a sum depends on the order of its terms, and
    DistributedDataParallel has another order in the first step of an instance. There half of the digits of the change
    so far must agree, with a note.
    """
    assert seen.case.resumed is not None
    judgement = RIGHT
    for step in range(len(seen.case.batches) + 1):
        for rank, observed in enumerate(seen.ranks):
            whole, resumed = observed["uninterrupted"], observed["parameters"][step]
            begin, right, values = map(torch.cat, (whole[0], whole[step], resumed))
            if alike(right, values):
                continue
            off = float((right - values).abs().max())
            rounding = seen.half_the_digits * float((right - begin).abs().max())
            if not (seen.case.world_size > 2 and step > seen.case.resumed and off <= rounding):
                pairs = zip(seen.names, whole[step], resumed, strict=True)
                name = next(name for name, ours, theirs in pairs if not torch.equal(ours, theirs))
                return _not_resumed(seen, step, f"{name!r} on rank {rank}", off)
            judgement = Judgement(note=ROUNDED)
    return judgement


def _not_resumed(seen: Seen, step: int, what: str, off: float) -> Judgement:
    """Say what differs before a step: before, at or after the interruption."""
    resumed = seen.case.resumed
    assert resumed is not None
    if step < resumed:
        return Judgement(
            f"two runs of one case differ before the interruption: {what} by {off:.3g} before step {step}",
            ("randomness without a seed, or threads that draw from one generator in any order",),
        )
    if step == resumed:
        return Judgement(
            f"resumed before step {step}, {what} is off the weights that were saved by {off:.3g}",
            (WITHOUT_WEIGHTS,) if any(NOT_LOADED in observed["reloaded"] for observed in seen.ranks) else (),
        )
    reloaded = dict.fromkeys(words for observed in seen.ranks for words in observed["reloaded"])
    unsaved = (GENERATORS, UNSAVED) if seen.case.drops or seen.drew else (UNSAVED,)
    return Judgement(
        f"resumed before step {resumed}, {what} is off that of the uninterrupted run by {off:.3g} after step "
        f"{step - 1}",
        (RELOADED.format(what=", ".join(reloaded)),) if reloaded else unsaved,
    )
