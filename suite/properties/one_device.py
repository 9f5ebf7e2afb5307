"""What a trainer's ranks did, against what one device does, where no formula bounds the difference (worker's side).

**Oracle "self"** (`judge_step`): the ranks' steps against those of the same trainer on one device. Not covered: what a
trainer gets wrong on one device as well, which only its `reference_step` shows.

**The check `low_precision`** (`judge_noise`): k devices stay within the rounding noise of one, which is measured.

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
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from reference.scatter import chunk_sizes
from suite.properties import suspects, tolerance
from suite.properties.answers import REACTION, RIGHT, Judgement
from suite.properties.observe import Observation
from suite.properties.seen import Seen, flat, has_moved
from suite.properties.tolerance import roundoff

LIMIT = 6.0
U = roundoff(torch.bfloat16)
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
        f"after step {step}, {name!r} is off that of {described(seen)} by {error:.3g}, where half of the digits of "
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
            f"{described(seen)} by {error:.3g}, where half of the digits are {allowed:.3g}",
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
                    f"of `replicas` are off those of {described(seen)} by {off:.3g}, where half of the digits are "
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
    lines = suspects.fitting(evidence(seen, step, rank, actual, sums, earlier), DIVIDED_OUT)
    return () if lines == suspects.NOTHING_FITS else lines


def evidence(
    seen: Seen, step: int, rank: int, actual: Tensor, sums: list[Tensor], earlier: list[Tensor]
) -> suspects.Evidence:
    """Return what is known of a wrong step of a rank; where not every parameter is, nothing is said of parameters."""
    before = seen.parameters(step, rank)
    vectors, parameters = flat([torch.full_like(p, p.ndim == 1) for p in before]).bool(), flat(before)
    whole = len(parameters) == len(actual)
    return suspects.Evidence(
        actual=actual,
        sums=sums,
        n=seen.case.batches[step],
        world_size=seen.case.world_size,
        earlier=[one for one in earlier if len(one) == len(actual)],
        vectors=vectors if whole else torch.zeros(len(actual), dtype=torch.bool),
        parameters=parameters if whole else torch.zeros_like(actual),
        idle=not has_moved(seen.ranks[rank]),
    )


def _used(seen: Seen, observed: Observation, step: int) -> Tensor:
    """Return what a step was made of: the known gradients, or in a first step the change over the rate."""
    known = [values for values in observed["gradients"][step] if values is not None]
    if known:
        return torch.cat(known)
    if step:
        return torch.empty(0, dtype=torch.float64)
    before, after = map(torch.cat, observed["parameters"][:2])
    return (before - after) / seen.case.lr


def described(seen: Seen) -> str:
    """Return what the ranks are compared with, in words."""
    return ("`reference_step`" if seen.has_reference else "the same trainer") + " on one device"


def judge_noise(seen: Seen, step: int) -> Judgement:
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
    pairs = [(a, b) for a, b in zip(_numbers_used(here), _numbers_used(there), strict=True) if a or b]
    largest = max((abs(a) for a, _ in pairs), default=0.0)
    small = sum(REACTION * 1e-4 * largest < abs(a - b) < REACTION * 1e3 * largest for a, b in pairs)
    return 2 * small >= len(pairs)


def _numbers_used(observed: Observation) -> list[float]:
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
