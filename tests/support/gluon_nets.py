"""What the tests of Gluon's semantics share: nets on several devices, and the chapter's loop up to the step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference.gluon import Net
from reference.scatter import balanced_sizes, split_batch
from tests.support.strategies import CPU, bit_equal, smooth_net

# A tensor on any of these lies on "cpu", but the names can be told apart.
FIRST, SECOND = torch.device("cpu:0"), torch.device("cpu:1")


def lazy_net() -> nn.Module:
    """Return a network that learns its shapes from its input, with buffers and dropout: (n, c, h, w) to (n, 4)."""
    return nn.Sequential(
        nn.LazyConv2d(3, 3), nn.LazyBatchNorm2d(), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.LazyLinear(4)
    )


def net_on(k: int, module: nn.Module | None = None) -> Net:
    """Return a small network on k virtual CPU devices."""
    return Net(smooth_net() if module is None else module, [CPU] * k)


def minibatch(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return n samples for `smooth_net`, float32, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=generator), torch.randint(4, (n,), generator=generator)


def backward(net: Net, X: Tensor, y: Tensor, sizes: Sequence[int] | None = None) -> None:
    """Accumulate the summed loss's gradient of each shard on its device, as the chapter's loop does."""
    shards = split_batch(X, y, net.devices, sizes or balanced_sizes(len(X), len(net.devices)))
    for replica, X_shard, y_shard in zip(net.replicas, *shards, strict=True):
        F.cross_entropy(replica(X_shard), y_shard, reduction="sum").backward()


def synced(net: Net) -> bool:
    """Say whether all replicas are bit-equal."""
    return all(bit_equal(replica, net.replicas[0]) for replica in net.replicas)
