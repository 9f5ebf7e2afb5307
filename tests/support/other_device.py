"""A made-up device whose floats differ from this CPU's as a GPU's do, and right trainers whose steps run on it.

CUDA's functions err by two units in the last place (ulp) at most ("CUDA C++ Programming Guide", section "Mathematical
Functions", the tables of maximum errors: tanhf, expf, logf, rsqrtf, sinf and cosf), its kernels add in another order,
and its compiler leaves out the rounding of a product that goes into a sum. So under `OtherDevice`

- tanh, exp, log, rsqrt, sin and cos move by up to two ulp, and products in an update and in tanh's derivative by one;
- softmax, cross-entropy and normalisations are made of such functions and sums;
- sums, matrix products, convolutions and their derivatives add in another order;
- what has fewer digits than float32 is computed in float32 and rounded once.

All this depends on the numbers alone, so that equal inputs give equal bits on every replica, as with deterministic
kernels. Not covered: the order in which collectives add, which differs among CPUs as well, and random numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from reference.per_device import PerDevice
from reference.trainers import data_parallel, ddp, scratch, scratch_overlap, single

aten = torch.ops.aten
MOVED = (aten.tanh, aten.exp, aten.log, aten.rsqrt, aten.sin, aten.cos)
UPDATES = {aten.add_: 1, aten.sub_: -1}
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
ODD = 0x1E3779B97F4A7C15  # times which the bits of a number look random


class OtherDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Compute as another device does.

    Args:
        ulps: by which functions are off at most.
        toward: 1 or -1 where all of them are off by as much, away from 0 or to it; 0 where it looks random.
    """

    def __init__(self, ulps: int, toward: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ulps, self.toward = ulps, toward

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled, and torch would load its compiler for seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operator as that device would."""
        kwargs, kind = kwargs or {}, func.overloadpacket
        if kind in UPDATES and kwargs.get("alpha", 1) != 1:
            return args[0].copy_(_wide(args[0]) + UPDATES[kind] * self.moved(_wide(args[1]) * kwargs["alpha"], 1))
        if kind not in MOVED and kind not in ADDED and kind not in MADE and kind is not aten.tanh_backward:
            return func(*args, **kwargs)
        narrow = next((leaf.dtype for leaf in tree_leaves(args) if _is_narrow(leaf)), None)
        if narrow is not None:
            with self:
                found = func(*tree_map(_wide, args), **kwargs)
            return tree_map(lambda leaf: leaf.to(narrow) if _is_float32(leaf) else leaf, found)
        if kind in MOVED:
            return self.moved(func(*args, **kwargs), self.ulps, bounded=kind is aten.tanh)
        if kind is aten.tanh_backward:
            return args[0] * (1 - self.moved(args[1] * args[1], 1))
        if kind in ADDED:
            return ADDED[kind](func, *args, **kwargs)
        with self:  # its parts come here, too
            return MADE[kind](*args, **kwargs)

    def moved(self, values: Tensor, ulps: int, *, bounded: bool = False) -> Tensor:
        """Return values that are up to so many ulp off; 0, 1, infinity and NaN are exact on every device."""
        bits = values.contiguous().view(INTEGERS[values.dtype])
        random = (bits.long() * ODD >> 33) % (2 * ulps + 1) - ulps
        off = (bits + (self.toward * ulps if self.toward else random.to(bits.dtype))).view(values.dtype)
        size = values.abs()
        inexact = (size > torch.finfo(values.dtype).tiny) & (size != 1) & size.isfinite()
        return torch.where(inexact, off.clamp(-1, 1) if bounded else off, values)


def _is_narrow(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype in (torch.bfloat16, torch.float16)


def _is_float32(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype == torch.float32


def _wide(leaf: Any) -> Any:
    return leaf.float() if _is_narrow(leaf) else leaf


@functools.cache
def _order(n: int) -> Tensor:
    return torch.tensor(sorted(range(n), key=lambda i: i * 0.618 % 1), dtype=torch.int64)


def _sum(func: Any, x: Tensor, dims: int | Sequence[int] | None = None, *args: Any, **kwargs: Any) -> Any:
    for dim in [dims] if isinstance(dims, int) else dims or range(x.ndim):
        x = x.index_select(dim, _order(x.shape[dim]))
    return func(x, *(() if dims is None else (dims,)), *args, **kwargs)


def _product(func: Any, a: Tensor, b: Tensor) -> Tensor:
    """Multiply in two halves, whose results are added."""
    order = _order(a.shape[-1])
    halves = [half for half in order.tensor_split(2) if len(half)] or [order]
    products = [func(a.index_select(-1, half), b.index_select(-2, half)) for half in halves]
    return products[0] if len(products) == 1 else products[0] + products[1]


def _convolution(func: Any, x: Tensor, weight: Tensor, *args: Any) -> Tensor:
    """Convolve what is turned by 180 degrees, with its channels in another order."""
    order = _order(x.shape[1])
    return func(x.flip(2, 3)[:, order], weight.flip(2, 3)[:, order], *args).flip(2, 3)


def _convolution_backward(func: Any, grad: Tensor, x: Tensor, weight: Tensor, *args: Any) -> tuple[Any, ...]:
    order, samples = _order(x.shape[1]), _order(len(x))
    turned = grad.flip(2, 3)[samples], x.flip(2, 3)[samples][:, order], weight.flip(2, 3)[:, order]
    of_x, of_weight, of_bias = func(*turned, *args)
    channels, rows = order.argsort(), samples.argsort()
    of_x = None if of_x is None else of_x[rows][:, channels].flip(2, 3)
    return of_x, None if of_weight is None else of_weight[:, channels].flip(2, 3), of_bias


def _nll_loss(func: Any, x: Tensor, y: Tensor, weight: Any, reduction: int, ignored: int) -> tuple[Tensor, ...]:
    order = _order(len(x)) if reduction else torch.arange(len(x))
    return func(x[order], y[order], weight, reduction, ignored)


def _embedding_backward(func: Any, grad: Tensor, indices: Tensor, *args: Any) -> Tensor:
    order = _order(indices.numel())
    return func(grad.flatten(0, -2)[order], indices.flatten()[order], *args)


ADDED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.sum, aten.mean), _sum),
    **dict.fromkeys((aten.mm, aten.bmm), _product),
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
    aten.nll_loss_forward: _nll_loss,
    aten.embedding_dense_backward: _embedding_backward,
}


def _addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return bias + a @ b


def _logsumexp(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    most = x.amax(dims, keepdim=True)
    total = most + (x - most).exp().sum(dims, keepdim=True).log()
    return total if keepdim else total.squeeze(dims)


def _log_softmax(x: Tensor, dim: int, _: bool) -> Tensor:
    x = x - x.amax(dim, keepdim=True)
    return x - x.exp().sum(dim, keepdim=True).log()


def _softmax(x: Tensor, dim: int, _: bool) -> Tensor:
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


def _log_softmax_backward(grad: Tensor, out: Tensor, dim: int, _: torch.dtype) -> Tensor:
    return grad - out.exp() * grad.sum(dim, keepdim=True)


def _softmax_backward(grad: Tensor, out: Tensor, dim: int, _: torch.dtype) -> Tensor:
    return grad * out - out * (grad * out).sum(dim, keepdim=True)


def _back(grad: Tensor, hat: Tensor, rstd: Tensor, dims: list[int], mean: bool = True) -> Tensor:
    """Return the gradient of what was normalised over some axes, given that of the normalised."""
    through = grad - hat * (grad * hat).mean(dims, keepdim=True)
    return rstd * (through - grad.mean(dims, keepdim=True) if mean else through)


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
    mean = x.mean(-1, keepdim=True)
    rstd = ((x - mean).square().mean(-1, keepdim=True) + eps).rsqrt()
    return (x - mean) * rstd * weight + bias, mean, rstd


def _layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Any, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor, mask: Any
) -> tuple[Tensor, ...]:
    hat, others = (x - mean) * rstd, list(range(x.ndim - 1))
    return _back(grad * weight, hat, rstd, [-1]), (grad * hat).sum(others), grad.sum(others)


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor, eps: float | None) -> tuple[Tensor, Tensor]:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return x * rstd * weight, rstd


def _rms_norm_backward(
    grad: Tensor, x: Tensor, shape: Any, rstd: Tensor, weight: Tensor, mask: Any
) -> tuple[Tensor, ...]:
    hat = x * rstd
    return _back(grad * weight, hat, rstd, [-1], mean=False), (grad * hat).sum(list(range(x.ndim - 1)))


def _batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, means: Tensor, variances: Tensor, training: bool, share: float, eps: float
) -> tuple[Tensor, ...]:
    mean, n = x.mean(0), len(x)
    variance = (x - mean).square().mean(0)
    rstd = (variance + eps).rsqrt()
    means.lerp_(mean, share)
    variances.lerp_(variance * (n / (n - 1)), share)
    return (x - mean) * rstd * weight + bias, mean, rstd


def _batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, means: Any, variances: Any, mean: Tensor, rstd: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    hat = (x - mean) * rstd
    return _back(grad * weight, hat, rstd, [0]), (grad * hat).sum(0), grad.sum(0)


MADE: dict[Any, Callable[..., Any]] = {
    aten.addmm: _addmm,
    aten.logsumexp: _logsumexp,
    aten._log_softmax: _log_softmax,
    aten._log_softmax_backward_data: _log_softmax_backward,
    aten._softmax: _softmax,
    aten._softmax_backward_data: _softmax_backward,
    aten.native_layer_norm: _layer_norm,
    aten.native_layer_norm_backward: _layer_norm_backward,
    aten._fused_rms_norm: _rms_norm,
    aten._fused_rms_norm_backward: _rms_norm_backward,
    aten.native_batch_norm: _batch_norm,
    aten.native_batch_norm_backward: _batch_norm_backward,
}


@contextmanager
def on_other_device(ulps: int, toward: int = 0) -> Iterator[None]:
    """Compute on the other device inside, and in the threads of replicas."""
    map_here = PerDevice.map

    def map_there(self: PerDevice, fn: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
        def call(*each: Any) -> Any:
            with OtherDevice(ulps, toward):
                return fn(*each)

        return map_here(self, call, *arguments)

    PerDevice.map = map_there  # type: ignore[method-assign]
    try:
        with OtherDevice(ulps, toward):
            yield
    finally:
        PerDevice.map = map_here  # type: ignore[method-assign]


class _Step:
    """Takes a trainer's steps on the other device; what is `toward` is in `OtherDevice`."""

    ulps: ClassVar[int] = 2
    toward: ClassVar[int] = 0

    def step(self, X: Any, y: Any, global_batch_size: int) -> Tensor:
        with on_other_device(self.ulps, self.toward):
            loss: Tensor = super().step(X, y, global_batch_size)  # type: ignore[misc]
            return loss


class Single(_Step, single.Single):
    """One device."""


class SingleAbove(Single):
    """One device, whose functions are all too large by as much."""

    toward = 1


class SingleBelow(Single):
    """One device, whose functions are all too small by as much."""

    toward = -1


class SingleTokens(_Step, ddp.TokenLoss, single.Single):
    """One device with language models."""


class SingleTokensAbove(SingleTokens):
    """One device with language models, whose functions are all too large by as much."""

    toward = 1


class Scratch(_Step, scratch.Scratch):
    """The book's data parallelism."""


class ScratchOverlap(_Step, scratch_overlap.ScratchOverlap):
    """The same with buckets."""


class DataParallel(_Step, data_parallel.DataParallelTrainer):
    """nn.DataParallel, or what stands for it on CPUs."""


class DDP(_Step, ddp.DDPTrainer):
    """torch's DistributedDataParallel."""


class DDPTokens(_Step, ddp.DDPTokensTrainer):
    """The same with language models."""


ONE_PROCESS = (
    *("Single", "SingleAbove", "SingleBelow", "SingleTokens", "SingleTokensAbove"),
    *("Scratch", "ScratchOverlap", "DataParallel"),
)
RANKS = ("DDP", "DDPTokens")
