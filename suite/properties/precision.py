"""The check `low_precision`: k devices stay within the rounding noise of one, which is measured (worker's side).

**The noise.** Some variants of a case are computed on one device in bfloat16, each with the samples in another order
and with inputs that are moved by up to half an ulp before they are rounded. Under oracle "sgd" the minibatch is also
split in two, whose gradients are added up in bfloat16; each step of a variant begins at the parameters that the trainer
had before it, moved as well, because a text has no inputs that can be moved. These variants are computed on the CPU,
also where the trainer is on GPUs, so every second one has the logarithms of its softmaxes rounded as GPUs do
(`suite.properties.seen`). Under oracle "self" the trainer itself computes the variants, from initial weights
that are moved by up to half an ulp as well. Some of its cases have parameters in float32, which autocast needs. What
torch's optimisers are given is compared, and the change of the parameters where that is not known: Adam makes a whole
step of a gradient that is nothing but rounding error. What a `reference_step` gives them must be within the noise in
the first step; later the two begin at other parameters.

**The bound.** For the gradients of one parameter, with mean m over the variants and standard deviation s, k devices may
be off m by `LIMIT` s, plus what reading adds: 2 u (|p| + |p'|) / lr for the rounding of the parameter before and after
the step, or 2 u |p'| for each step of a change since the start, and 4 u times the largest |m| of all parameters: for
factors such as 1 / n and lr, by which trainers multiply at different places, and for terms that cancel in a sum. The
size of a tensor is its root of summed squares here, and s the root of the summed squares of the deviations over their
number minus 1.

**Repeated.** Two variants are enough for most cases. Where k devices are off them, `suite.checks.bench` asks for eight,
and where they are off these, for more variants of the case on k devices, all of which must be off: a step that Adam
makes of rounding error, or a noise that is zero by chance, is not repeated. docs/correctness.md has the measured rates
of false alarms and misses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from suite.properties.answers import REACTION, RIGHT, Judgement
from suite.properties.observe import Observation
from suite.properties.seen import Seen
from suite.properties.tolerance import roundoff

LIMIT = 6.0
U = roundoff(torch.bfloat16)


def judge_step(seen: Seen, step: int) -> Judgement:
    """Judge what k devices did in a step by the noise of what one device does."""
    compared = list(_compared(seen, step))
    largest = max((_norm(torch.stack(variants).mean(0)) for _, _, variants, _ in compared), default=0.0)
    if not math.isfinite(largest):
        return RIGHT  # one device has diverged, so that nothing can be compared any more
    for what, actual, variants, reading in compared:
        stacked = torch.stack(variants)
        mean = stacked.mean(0)
        off, noise = _norm(actual - mean), _norm(stacked - mean) / (len(variants) - 1) ** 0.5
        allowed = LIMIT * noise + reading + 4 * U * largest
        if not off <= allowed:
            return Judgement(
                f"step {step}: {what} is off the mean of {len(variants)} computations on one device by {off:.3g}, "
                f"where their noise of {noise:.3g} allows {allowed:.3g}"
            )
    return RIGHT


def _compared(seen: Seen, step: int) -> Iterator[tuple[str, Tensor, list[Tensor], float]]:
    """Yield what is compared: its name, that of k devices, those of all variants, and what reading it adds."""
    if seen.oracle == "sgd":
        variants = [seen.disturbed_gradient(step, variant) for variant in range(1, seen.variants + 1)]
        before, after = seen.parameters(step), seen.parameters(step + 1)
        for name, b, a, actual, *disturbed in zip(
            seen.names, before, after, seen.gradient(step), *variants, strict=True
        ):
            yield f"the gradient of {name!r}", actual, disturbed, 2 * U * (_norm(b) + _norm(a)) / seen.case.lr
        return
    compared = {f"on rank {rank}": observed for rank, observed in enumerate(seen.ranks)}
    if step == 0 and seen.alone is not None and seen.has_reference:
        compared["by `reference_step`"] = seen.alone
    for position, name in enumerate(seen.names):
        given = {
            where: [of["gradients"][step][position] for of in (observed, *seen.disturbed)]
            for where, observed in compared.items()
        }
        known = {where: values for where, values in given.items() if all(value is not None for value in values)}
        for where, (actual, *disturbed) in known.items():
            yield f"the gradient of {name!r} that the optimizer is given {where}", actual, disturbed, 0.0
        if not known:
            actual, *disturbed = (_change(of, step, position) for of in (seen.ranks[0], *seen.disturbed))
            # Every step up to this one has rounded the parameters, on both sides.
            reading = 2 * U * (step + 1) * _norm(seen.parameters(step + 1)[position])
            yield f"the change of {name!r} since the start", actual, disturbed, reading


def reacts(here: Observation, there: Observation) -> bool:
    """Return whether what a trainer does changes a little where what it is given changes by `REACTION`.

    What it computes in low precision does not change at all, or by a whole unit in the last place.
    """
    pairs = [(a, b) for a, b in zip(_used(here), _used(there), strict=True) if a or b]
    largest = max((abs(a) for a, _ in pairs), default=0.0)
    small = sum(REACTION * 1e-4 * largest < abs(a - b) < REACTION * 1e3 * largest for a, b in pairs)
    return 2 * small >= len(pairs)


def _used(observed: Observation) -> list[float]:
    """Return what a rank's steps were made of: gradients where optimisers show them, else changes of parameters."""
    numbers: list[float] = []
    pairs = pairwise(observed["parameters"])
    for gradients, others, (before, after) in zip(observed["gradients"], observed["others"], pairs, strict=True):
        given = [*gradients, *(gradient for _, of_others in others for gradient in of_others)]
        known = [one for one in given if one is not None] or [new - old for old, new in zip(before, after, strict=True)]
        numbers += torch.cat(known).tolist()
    return numbers


def _change(observed: Observation, step: int, position: int) -> Tensor:
    """Return what all steps up to this one have added to a parameter."""
    change: Tensor = observed["parameters"][step + 1][position] - observed["parameters"][0][position]
    return change


def _norm(tensor: Tensor) -> float:
    return float(tensor.norm())
