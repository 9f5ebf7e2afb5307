"""Oracle "self": what a trainer's ranks did in a step, against the same trainer on one device.

Not covered: what a trainer gets wrong on one device as well, which only its `reference_step` shows.
"""

from __future__ import annotations

import torch

from suite.properties import suspects, tolerance
from suite.properties.answers import RIGHT, Judgement
from suite.properties.seen import Seen, flat

MISSING_EXCHANGE = "a missing exchange"
OFF_ONE_DEVICE = (
    f"{suspects.NONE_FITS}; often {MISSING_EXCHANGE}, a mean of the shards' means, clipping before the exchange, a "
    "schedule that advances in every micro-batch, or accumulation divided by the wrong count "
    "(huggingface/transformers#34191)",
)


def judge_step(seen: Seen, step: int) -> Judgement:
    """Judge what optimisers were given in a step, and the parameters after it."""
    given = _given_at(seen, step)
    if given != RIGHT:
        return given
    begin, expected, ours = seen.parameters(0, None), seen.parameters(step + 1, None), seen.parameters(step + 1)
    change = max(float((e - b).abs().max()) for e, b in zip(expected, begin, strict=True))
    allowed = seen.half_the_digits * change
    bounds = [torch.full_like(value, allowed) for value in expected]
    worst = tolerance.worst(seen.names, expected, ours, bounds)
    if worst is None:
        return RIGHT
    name, error, _ = worst
    less_precise = suspects.lower_precision(flat(ours) - flat(begin), flat(expected) - flat(begin))
    return Judgement(
        f"after step {step}, {name!r} is off that of {one_device(seen)} by {error:.3g}, where half of the digits of "
        f"the change so far are {allowed:.3g}",
        less_precise or OFF_ONE_DEVICE,
    )


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
        return Judgement(
            f"step {step}: the gradient of {name!r} that the optimizer is given on rank {rank} is off that of "
            f"{one_device(seen)} by {error:.3g}, where half of the digits are {allowed:.3g}",
            _given_suspects(flat(expected), flat(actual), allowed, seen.case.batches[step]),
        )
    return RIGHT


def _both_overflow(a: torch.Tensor, b: torch.Tensor) -> bool:
    return not bool(a.isfinite().all()) and torch.equal(a.isfinite(), b.isfinite())


def _given_suspects(right: torch.Tensor, ours: torch.Tensor, allowed: float, samples: int) -> tuple[str, ...]:
    """Return what an optimizer's wrong gradient looks like, all parameters in one vector."""
    times = suspects.factor(ours, right)
    if not tolerance.size(ours - times * right) <= max(times, 1) * allowed:
        return suspects.lower_precision(ours, right) or OFF_ONE_DEVICE
    factor = f"{times:.6g} times the right gradient: Adam divides a factor out again, and clipping does not"
    # The one sample of a minibatch may also be that of a rank that gets nothing from the others.
    return (factor, MISSING_EXCHANGE) if samples == 1 else (factor,)


def one_device(seen: Seen) -> str:
    """Return what the ranks are compared with, in words."""
    return ("`reference_step`" if seen.has_reference else "the same trainer") + " on one device"
