"""Names the known bugs that would have computed a wrong gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from reference.scatter import chunk_sizes
from suite.properties.answers import FACTOR, NO_EXCHANGE, NONE_FITS, OF_PRECISION

ALIKE = 1e-6  # the relative difference up to which a gradient is attributed to a bug
# The most precise comes first, because an error that it explains would be explained by the others too.
LOW_PRECISION = {"float32": torch.float32, "16 bits (bfloat16 or float16)": torch.bfloat16}
BEYOND_ROUNDING = 0.1  # a factor nearer to 1 may also be an error of low precision
NOT_FINITE = "not a number: an overflow, or an average over no samples"
WRONG_FACTOR = "the learning rate or the average is off by that factor"
NOTHING_FITS = (NONE_FITS,)


@dataclass(frozen=True)
class Evidence:
    """A wrong gradient and the right ones; each gradient is one flat float64 vector.

    Attributes:
        actual: what the trainer used.
        sums: summed gradients of the shards that the samples were split into, in order; torch's chunk rule.
        n: samples in the minibatch.
        world_size: devices, idle ones too.
        earlier: right gradients of the steps before, oldest first.
        vectors: which entries belong to parameters of one dimension.
        parameters: before the step.
        idle: whether no step of the case has changed a parameter.
    """

    actual: Tensor
    sums: list[Tensor]
    n: int
    world_size: int
    earlier: list[Tensor]
    vectors: Tensor
    parameters: Tensor
    idle: bool = True

    @property
    def right(self) -> Tensor:
        """The gradient of the mean loss."""
        return torch.stack(self.sums).sum(0) / self.n


def fitting(evidence: Evidence, off: str = WRONG_FACTOR) -> tuple[str, ...]:
    """Return a line on every bug that would have computed this gradient; several may fit a small case.

    `off` says what a factor means to the optimizer.
    """
    actual, right = evidence.actual, evidence.right
    if not bool(actual.isfinite().all()):
        return (NOT_FINITE,)
    lines = dict.fromkeys(line for line, gradient in _candidates(evidence) if _explains(gradient, actual, right))
    if lines:
        return tuple(lines)
    if factors := scaled(actual, right, off):
        return factors
    decay = factor(actual - right, evidence.parameters)
    if decay and alike(actual - right, decay * evidence.parameters):
        return (f"the right gradient plus {decay:.3g} times the parameters: weight decay",)
    wrong = (actual - right).abs() > ALIKE * right.abs().max()
    matrices = right[~evidence.vectors]
    if bool(wrong.any()) and bool(matrices.any()) and bool((wrong <= evidence.vectors).all()):
        return ("only one-dimensional parameters are wrong: biases that are not exchanged",)
    near = scaled(actual, right, off, beyond=10 * ALIKE)
    if rounded := _rounded(actual, right, 2 * len(evidence.sums)):
        what = "a computation" if evidence.world_size == 1 else "gradients exchanged"
        near = (*near, f"{OF_PRECISION}a sum in {rounded}: {what} in lower precision")
    return near or NOTHING_FITS


def lower_precision(actual: Tensor, right: Tensor) -> tuple[str, ...]:
    """Return a line where lower precision explains the error of a float64 gradient, or of what it has changed."""
    name = _rounded(actual, right, 4)
    if name is None:
        return ()
    return (
        f"{OF_PRECISION}{name}: the trainer computes in less precision than its float64 parameters have; leave a "
        "precision policy or a cast out where parameters are float64, because `low_precision` checks it",
    )


def fitting_tokens(actual: Tensor, right: Tensor, shards: list[Tensor], world_size: int) -> tuple[str, ...]:
    """Return a line on every bug that would have computed this gradient of a language model.

    Args:
        actual: what the trainer used; each gradient is one flat float64 vector.
        right: that of one device on the whole minibatch.
        shards: those of each shard, divided by what counts in the shard alone; zeros where nothing does.
        world_size: devices, idle ones too.
    """
    if not bool(actual.isfinite().all()):
        return ("not a number: a rank none of whose labels counts divides by 0 (allenai/OLMo-core#657)",)
    candidates = {
        "nothing was learned: the gradient was lost, or the minibatch left out": [torch.zeros_like(right)],
        "summed over the devices instead of averaged": [right * world_size],
        "averaged over the devices and divided by what counts over all of them as well": [right / world_size],
        "mean of the ranks' own means: each divided by what counts on its rank (pytorch/torchtitan#2206, "
        "huggingface/transformers#34242)": [torch.stack(shards).sum(0) / k for k in {world_size, len(shards)}],
        NO_EXCHANGE: shards,
    }
    lines = [line for line, made in candidates.items() if any(_explains(each, actual, right) for each in made)]
    return tuple(lines) or scaled(actual, right)


def factor(actual: Tensor, right: Tensor) -> float:
    """Return the factor that brings the right gradient nearest to the actual one; 0 where the right one is 0."""
    square = float(right @ right)
    return float(actual @ right) / square if square else 0.0


def _rounded(actual: Tensor, right: Tensor, steps: int) -> str | None:
    """Return the name of the most precise kind of numbers of which so many roundings explain the error."""
    error = float((actual - right).abs().max()) / float(right.abs().max() or 1)
    fitting = (name for name, dtype in LOW_PRECISION.items() if error <= steps * torch.finfo(dtype).eps)
    return next(fitting, None)


def scaled(actual: Tensor, right: Tensor, off: str = WRONG_FACTOR, beyond: float = BEYOND_ROUNDING) -> tuple[str, ...]:
    """Return a line where a gradient is the right one times a factor; one of 0 may have many causes.

    The factor has to differ from 1 by more than `beyond`; `off` says what it means to the optimizer.
    """
    share = factor(actual, right)
    if share and abs(share - 1) > beyond and alike(actual, share * right):
        return (f"{share:.6g} {FACTOR}: {off}",)
    return ()


def _candidates(evidence: Evidence) -> Iterator[tuple[str, Tensor]]:
    right, sums, n, k = evidence.right, evidence.sums, evidence.n, evidence.world_size
    sizes = chunk_sizes(n, k)
    if evidence.idle:
        yield "nothing was learned: the gradient was lost, or the minibatch left out", torch.zeros_like(right)
    if k > 1:
        yield "summed over the devices instead of averaged", right * k
        yield "averaged over the devices and divided by the global batch as well", right / k
        means = torch.stack([total / size for total, size in zip(sums, sizes, strict=True)]).sum(0)
        for divisor in {float(k), float(len(sums))}:
            yield (
                "mean of the shards' means: each shard divided by its own size "
                "(huggingface/transformers#608, pytorch/pytorch#67253)",
                means / divisor,
            )
        idle = [torch.zeros_like(right)] if len(sums) < k else []
        for total, size in zip([*sums, *idle], [*sizes, 1], strict=False):
            # A gradient that was meant to be averaged has been multiplied by the world size before.
            for divisor in {float(n), n / k, float(size)}:
                yield f"{NO_EXCHANGE} (a synchronisation skipped)", total / divisor
    if len(sums) > 1:
        for divisor in {float(n), float(n - sizes[-1])}:
            yield "the last shard left out (pytorch/pytorch#15161)", (right * n - sums[-1]) / divisor
    if evidence.earlier:
        yield "stale: the gradient of the step before", evidence.earlier[-1]
        yield "gradients of earlier steps added: they are never cleared", right + torch.stack(evidence.earlier).sum(0)
        yield "the gradient of the step before added: it was not cleared", right + evidence.earlier[-1]


def _explains(made: Tensor, actual: Tensor, right: Tensor) -> bool:
    """Return whether a bug made this gradient, and not the right one, which it may be in a small case."""
    return alike(actual, made) and not alike(made, right)


def alike(a: Tensor, b: Tensor) -> bool:
    """Return whether two gradients differ by less than `ALIKE` of the larger one."""
    return float((a - b).norm()) <= ALIKE * float(max(a.norm(), b.norm()))
