"""Oracle "self": what a trainer's ranks did in a step, against the same trainer on one device.

Not covered: what a trainer gets wrong on one device as well, which only its `reference_step` shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.scatter import chunk_sizes
from suite.properties import nets, suspects, tolerance
from suite.properties.answers import RIGHT, Judgement
from suite.properties.observe import Observation
from suite.properties.seen import Seen, flat, has_moved

DIVIDED_OUT = "Adam divides a factor out again, and clipping does not"
UNREAD = (
    "what its optimizer is given could not be read: it is no torch.optim.Optimizer, or one whose `step` calls "
    "another's; a constant factor that the optimizer divides out again stays unseen"
)


def judge_step(seen: Seen, step: int) -> Judgement:
    """Judge what optimisers were given in a step, and the parameters after it."""
    for judge_given in (_given_at, _given_to_others_at):
        given = judge_given(seen, step)
        if given != RIGHT:
            return given
    expected, ours = (_changes(seen, step, rank) for rank in (None, 0))
    allowed = seen.half_the_digits * max(map(tolerance.size, expected))
    bounds = [torch.full_like(value, allowed) for value in expected]
    worst = tolerance.worst(seen.names, expected, ours, bounds)
    if worst is None:
        return RIGHT
    name, error, _ = worst
    less_precise = suspects.lower_precision(flat(ours), flat(expected))
    return Judgement(
        f"after step {step}, {name!r} is off that of {one_device(seen)} by {error:.3g}, where half of the digits of "
        f"the change so far are {allowed:.3g}",
        _looks_like(seen, step) or less_precise or suspects.NOTHING_FITS,
    )


def _changes(seen: Seen, step: int, rank: int | None) -> list[Tensor]:
    """Return by how much each parameter has changed from the start to the end of a step."""
    pairs = zip(seen.parameters(0, rank), seen.parameters(step + 1, rank), strict=True)
    return [after - before for before, after in pairs]


def is_unread(seen: Seen) -> bool:
    """Return whether nothing of what optimisers were given in a case is known, nor that one of them is SGD."""
    records = [*seen.ranks, *([seen.alone] if seen.alone else [])]
    read = any(given is not None and len(given) for of in records for step in of["gradients"] for given in step)
    return not read and not any(any(observed["others"]) or observed["left_out"] for observed in records)


def _given_at(seen: Seen, step: int) -> Judgement:
    """Judge the gradients that optimisers were given in a step, because Adam divides a constant factor out again."""
    for rank in range(len(seen.ranks)):
        pairs = zip(seen.names, seen.given(step, None), seen.given(step, rank), strict=True)
        known = [(name, right, ours) for name, right, ours in pairs if right is not None and ours is not None]
        # Where a loss scale overflows, a fused optimizer is given what it will not use.
        known = [each for each in known if not _both_overflow(*each[1:])]
        names = [name for name, _, _ in known]
        expected, actual = [right for _, right, _ in known], [ours for _, _, ours in known]
        allowed = seen.half_the_digits * max(map(tolerance.size, expected), default=0.0)
        worst = tolerance.worst(names, expected, actual, [torch.full_like(right, allowed) for right in expected])
        if worst is None:
            continue
        name, error, _ = worst
        less_precise = suspects.lower_precision(flat(actual), flat(expected))
        times = suspects.scaled(flat(actual), flat(expected), DIVIDED_OUT)
        return Judgement(
            f"step {step}: the gradient of {name!r} that the optimizer is given on rank {rank} is off that of "
            f"{one_device(seen)} by {error:.3g}, where half of the digits are {allowed:.3g}",
            _looks_like(seen, step, rank) or times or less_precise or suspects.NOTHING_FITS,
        )
    return RIGHT


def _given_to_others_at(seen: Seen, step: int) -> Judgement:
    """Judge what optimisers were given for tensors that are no parameters of `replicas`, such as masters of these.

    An optimizer's tensors are compared by their positions where they have the shapes of those on one device. Where they
    are split over the ranks, and nothing is known of where, all numbers are compared in the order of their size.
    """
    assert seen.alone is not None
    for number, (optimizer, expected) in enumerate(seen.alone["others"][step]):
        lists = [_of_optimizer(observed, step, number, len(seen.alone["others"][step])) for observed in seen.ranks]
        right = _with_empty(expected)
        allowed = seen.half_the_digits * max((tolerance.size(one) for one in right if len(one)), default=0.0)
        for where, ours in _pairs(right, [each for of_rank in lists for each in of_rank]):
            off = max((float((a - b).abs().max()) for a, b in zip(*ours, strict=True) if len(a)), default=0.0)
            if not off <= allowed:
                return Judgement(
                    f"step {step}: the gradients that {optimizer} is given {where} for tensors that are no parameters "
                    f"of `replicas` are off those of {one_device(seen)} by {off:.3g}, where half of the digits are "
                    f"{allowed:.3g}",
                    suspects.scaled(torch.cat(ours[1]), torch.cat(ours[0]), DIVIDED_OUT) or suspects.NOTHING_FITS,
                )
    return RIGHT


def _of_optimizer(observed: Observation, step: int, number: int, optimizers: int) -> list[list[Tensor]]:
    """Return what a process gave to an optimizer in a step: one list, or one for each of its devices' optimizers."""
    there = observed["others"][step]
    chosen = there[number::optimizers] if optimizers and len(there) % optimizers == 0 else []
    return [_with_empty(gradients) for _, gradients in chosen]


def _with_empty(gradients: Sequence[Tensor | None]) -> list[Tensor]:
    """Return gradients, an empty one where there is none."""
    return [torch.empty(0, dtype=torch.float64) if one is None else one for one in gradients]


def _pairs(right: list[Tensor], lists: list[list[Tensor]]) -> list[tuple[str, tuple[list[Tensor], list[Tensor]]]]:
    """Return what can be compared: where, and the tensors on one device and there. Nothing where shapes differ."""
    sizes = list(map(len, right))
    if all(list(map(len, ours)) == sizes for ours in lists):
        return [(f"in process {number}", (right, ours)) for number, ours in enumerate(lists)]
    joined = torch.cat([torch.empty(0, dtype=torch.float64), *(one for ours in lists for one in ours)])
    padding = len(joined) - sum(sizes)
    # Shards are padded to one length, by less than a number for each rank and tensor.
    if not 0 <= padding < max(1, sum(map(len, lists))):
        return []
    whole = torch.cat([*right, joined.new_zeros(padding)])
    return [("on all ranks together", ([whole.sort().values], [joined.sort().values]))]


def _both_overflow(a: Tensor, b: Tensor) -> bool:
    return not bool(a.isfinite().all()) and torch.equal(a.isfinite(), b.isfinite())


def _looks_like(seen: Seen, step: int, rank: int = 0) -> tuple[str, ...]:
    """Return the bugs that would have made this of what one device makes of each rank's samples alone."""
    n, k = seen.case.batches[step], seen.case.world_size
    if not seen.parts or seen.alone is None:
        return ()
    used = [_used(seen, observed, step) for observed in (seen.ranks[rank], seen.alone, *seen.parts)]
    if any(len(each) != len(used[0]) for each in used):
        return ()
    actual, right, *parts = used
    sums = [part * size for part, size in zip(parts, chunk_sizes(n, k), strict=True)]
    if not suspects.alike(torch.stack(sums).sum(0) / n, right):  # it is no mean over samples, such as one over tokens
        return suspects.fitting_tokens(actual, right, parts, k)
    earlier = [_used(seen, seen.alone, before) for before in range(step)]
    vectors = flat([torch.full_like(p, p.ndim == 1) for p in nets.build(seen.case).parameters()]).bool()
    whole = len(vectors) == len(right)
    lines = suspects.fitting(
        suspects.Evidence(
            actual=actual,
            sums=sums,
            n=n,
            world_size=k,
            earlier=[one for one in earlier if len(one) == len(right)],
            vectors=vectors if whole else torch.zeros(len(right), dtype=torch.bool),
            parameters=flat(seen.parameters(step, rank)) if whole else torch.zeros_like(right),
            idle=not has_moved(seen.ranks[rank]),
        ),
        DIVIDED_OUT,
    )
    return () if lines == suspects.NOTHING_FITS else lines


def _used(seen: Seen, observed: Observation, step: int) -> Tensor:
    """Return what a step was made of: the known gradients, or in a first step the change over the rate."""
    known = [values for values in observed["gradients"][step] if values is not None]
    if known:
        return torch.cat(known)
    if step:
        return torch.empty(0, dtype=torch.float64)
    before, after = map(torch.cat, observed["parameters"][:2])
    return (before - after) / seen.case.lr


def one_device(seen: Seen) -> str:
    """Return what the ranks are compared with, in words."""
    return ("`reference_step`" if seen.has_reference else "the same trainer") + " on one device"
