"""Put data on devices: MXNet's ``split_and_load`` and ``copyto``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference import nest
from reference.nest import Nest
from reference.scatter import CHUNK_RULES, scatter


def split_and_load(
    data: Nest, devices: Sequence[torch.device], *, even_split: bool = True, rule: str = "mxnet_newer"
) -> list[Nest]:
    """Split a minibatch along its first axis and put shard i on device i (gluon.utils.split_and_load).

    Args:
        data: (n, ...), any dtype, or a nest of such tensors.
        devices: at least one; a device may be listed several times.
        even_split: require equal shards.
        rule: a name in `CHUNK_RULES`, used where shards may be unequal. With "mxnet_newer" idle devices get empty
            shards, with "torch" they get none, and "mxnet_older" leaves no device idle.

    Raises:
        ValueError: an unknown rule, no devices, samples that do not divide evenly with ``even_split``, or fewer samples
            than devices where no device may be idle.
    """
    if rule not in CHUNK_RULES:
        raise ValueError(f"unknown rule {rule!r}: choose one of {', '.join(CHUNK_RULES)}")
    n, k = nest.samples(data), len(devices)
    sizes = CHUNK_RULES[rule](n, k)
    if n < k and (even_split or rule == "mxnet_older"):
        raise ValueError(
            f"{n} samples are too few for {k} devices, each needs one: use fewer devices, or leave some idle with "
            "even_split=False and rule='mxnet_newer'"
        )
    if even_split and n % k:
        raise ValueError(
            f"{n} samples cannot be split evenly over {k} devices: use a batch size that is a multiple of {k}, or "
            "even_split=False"
        )
    return scatter(data, devices, sizes)


@torch.no_grad()
def copyto(source: Tensor, target: Tensor | torch.device) -> Tensor:
    """Copy into a tensor in place and return it, or to a device and return the new tensor, detached (NDArray.copyto).

    A target of the same shape is overwritten and keeps its device and dtype. A new tensor shares no memory with the
    source, even on the same device.

    Raises:
        ValueError: the shapes differ (torch alone would broadcast).
    """
    if not isinstance(target, Tensor):
        return source.to(target, copy=True)
    if target.shape != source.shape:
        raise ValueError(
            f"cannot copy {tuple(source.shape)} into {tuple(target.shape)}: copyto needs equal shapes, it does not "
            "broadcast"
        )
    return target.copy_(source)
