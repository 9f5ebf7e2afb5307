"""Batch normalisation over the batches of all ranks, on any device; torch's own `nn.SyncBatchNorm` refuses the CPU.

Forward: each rank reduces its shard to a count, a mean and a sum of squared deviations per channel, all ranks gather
these three, and each rank combines them by the formula of Chan, Golub and LeVeque ("Updating formulae and a pairwise
algorithm for computing sample variances", 1979), because the mean square minus the squared mean suffers from
cancellation. Backward: the two sums over the batch that the input's gradient needs are gathered in the same way. The
gradients of weight and bias are this rank's own; the trainer sums them over the ranks. Shards may be uneven or empty.

CPU and CUDA run the same code, so the CPU tests cover both; `nn.SyncBatchNorm`'s fused kernels are faster on CUDA. Like
them it waits for the device once per forward, to read the number of values. Not covered: gradients of gradients, and
ranks that call their layers in different orders.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

Gather = Callable[[Tensor], Tensor]
"""From (m,) on every rank to (world_size, m), the same on every rank, in the order of ranks."""


def all_gather(row: Tensor) -> Tensor:
    """Return every rank's ``row`` (m,) as (world_size, m), in the default process group."""
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    return torch.stack(rows)


def convert(module: nn.Module, gather: Gather = all_gather) -> nn.Module:
    """Return a module whose BatchNorm layers normalise by the batches of all ranks.

    The new module holds the same parameter and buffer tensors, so an optimiser of the old one updates it too. The old
    one stays as it is. `nn.SyncBatchNorm` layers are kept, because they exchange already. Each layer calls `gather`
    once per forward and once per backward.

    Raises:
        ValueError: a layer is lazy, or its class is derived from BatchNorm1d, 2d or 3d and may have its own forward.
    """
    # The memo says that the tensors are copied already, so deepcopy keeps them.
    tensors: list[Tensor] = [*module.parameters(), *module.buffers()]
    converted = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    for name, layer in converted.named_modules():
        if isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm | SyncBatchNorm):
            if type(layer) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                raise ValueError(
                    f"layer {name!r} is a {type(layer).__name__}: only BatchNorm1d, 2d and 3d themselves can be "
                    "converted; put such a layer in its place, or run a lazy one first"
                )
            # Changing only the class keeps the layer's hooks, its name and all references to it.
            layer.__class__ = SyncBatchNorm
        if isinstance(layer, SyncBatchNorm):
            layer.gather = gather
    return converted


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation of the whole minibatch, of which this rank has a shard; made by `convert`.

    As in torch, evaluation does not exchange: it uses the running statistics, or this rank's batch where there are none
    (``track_running_stats=False``).
    """

    gather: Gather

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, channels, ...) to the same shape and dtype; n may be 0 on some ranks.

        Raises:
            ValueError: X is not (n, num_features, ...), or there is at most one value per channel over all ranks.
        """
        if not self.training:
            return super().forward(X)
        self._check_input_dim(X)
        Y, mean, variance, count = _Normalise.apply(X, self.weight, self.bias, self.eps, self.gather)
        self._track(mean, variance * (count / (count - 1)))
        return Y  # type: ignore[no-any-return]

    def _check_input_dim(self, X: Tensor) -> None:
        if X.ndim < 2 or X.shape[1] != self.num_features:
            shape = ", ".join(map(str, X.shape))
            raise ValueError(f"X is ({shape}): this layer normalises (n, {self.num_features}, ...), channels second")

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics by ``momentum``, or to the mean over all batches where that is None."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)


class _Normalise(torch.autograd.Function):
    """Normalisation by the statistics of all ranks' X; returns them too: mean, biased variance (c,), count ()."""

    @staticmethod
    def forward(
        ctx: Any, X: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, gather: Gather
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # At least single precision, because a sum over a batch has too many terms for less.
        x = X.to(torch.promote_types(X.dtype, torch.float32))
        others = [axis for axis in range(X.ndim) if axis != 1]
        n = X.numel() // X.shape[1]
        local_mean = x.sum(others) / max(n, 1)
        deviations = (x - _per_channel(local_mean, x)).square().sum(others)

        rows = gather(torch.cat([x.new_tensor([n]), local_mean, deviations]))
        counts, (means, sums) = rows[:, :1], rows[:, 1:].chunk(2, dim=1)  # (k, 1), (k, c), (k, c)
        count = counts.sum()
        if count < 2:
            raise ValueError(
                f"X has {int(count)} values per channel over {len(rows)} ranks: a variance needs at least 2, so give "
                "the minibatch more samples, or call eval() first"
            )
        mean = (counts * means).sum(0) / count
        variance = (sums + counts * (means - mean).square()).sum(0) / count

        inverse_deviation = (variance + eps).rsqrt()
        normal = (x - _per_channel(mean, x)) * _per_channel(inverse_deviation, x)
        Y = normal
        if weight is not None:
            Y = Y * _per_channel(weight, x)
        if bias is not None:
            Y = Y + _per_channel(bias, x)
        ctx.save_for_backward(normal, weight, inverse_deviation, count)
        ctx.others, ctx.gather, ctx.dtypes = others, gather, [t if t is None else t.dtype for t in (weight, bias)]
        ctx.mark_non_differentiable(mean, variance, count)
        return Y.to(X.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dY: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        normal, weight, inverse_deviation, count = ctx.saved_tensors
        dy = dY.to(normal.dtype)
        sum_dy, sum_dy_normal = dy.sum(ctx.others), (dy * normal).sum(ctx.others)
        dX = None
        if ctx.needs_input_grad[0]:
            mean_dy, mean_dy_normal = (ctx.gather(torch.cat([sum_dy, sum_dy_normal])).sum(0) / count).chunk(2)
            scale = inverse_deviation if weight is None else inverse_deviation * weight
            centred = dy - _per_channel(mean_dy, dy) - normal * _per_channel(mean_dy_normal, dy)
            dX = (centred * _per_channel(scale, dy)).to(dY.dtype)
        weight_dtype, bias_dtype = ctx.dtypes
        dweight = sum_dy_normal.to(weight_dtype) if ctx.needs_input_grad[1] else None
        dbias = sum_dy.to(bias_dtype) if ctx.needs_input_grad[2] else None
        return dX, dweight, dbias, None, None


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    """Give values (c,) the axes that broadcast over (n, c, ...)."""
    return values.to(like.dtype).view(-1, *[1] * (like.ndim - 2))
