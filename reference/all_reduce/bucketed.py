"""All-reduce of many tensors in few exchanges: neighbours share a bucket, and a bucket is reduced as one vector.

The fixed cost of an exchange is then paid once per bucket instead of once per tensor. While one bucket is exchanged,
the gradients of the next one can still be computed (Li et al., "PyTorch Distributed: Experiences on Accelerating Data
Parallel Training", VLDB 2020, section 3.2). This overlap is left to the caller; here the buckets follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.all_reduce.check import AllReduce, check_alike, check_apart
from reference.all_reduce.ring import ring_

BUCKET_BYTES = 25 * 2**20
"""DistributedDataParallel's default, ``bucket_cap_mb=25``."""


@torch.no_grad()
def bucketed_(
    per_device: Sequence[Sequence[Tensor]], bucket_bytes: int = BUCKET_BYTES, all_reduce_: AllReduce = ring_
) -> None:
    """Replace the values of every device's j-th tensor by the sum over all devices' j-th tensors, bucket by bucket.

    Rounds and bytes are those of ``all_reduce_`` on each bucket's vector. A bucket of several tensors is copied to a
    vector of its size on each device; a tensor alone in its bucket is reduced in place.

    Args:
        per_device: for each device its tensors, in the same order, with the same shapes and dtypes on every device; may
            be empty. All tensors of an entry must be on one device, and may be views of one buffer.
        bucket_bytes: maximum size of a bucket of several tensors, see `assign_buckets`.
        all_reduce_: reduces the vectors of a bucket.

    Raises:
        ValueError: as in `assign_buckets`, or the tensors differ in number, place, shape or dtype, or overlap; nothing
            is changed then.
    """
    _check(per_device)
    for bucket in assign_buckets(per_device[0] if per_device else [], bucket_bytes):
        parts = [[tensors[number] for number in bucket] for tensors in per_device]
        if len(bucket) == 1:
            all_reduce_([tensor for (tensor,) in parts])
            continue
        vectors = [torch.cat([tensor.reshape(-1) for tensor in tensors]) for tensors in parts]
        all_reduce_(vectors)
        sizes = [tensor.numel() for tensor in parts[0]]
        for tensors, vector in zip(parts, vectors, strict=True):
            for tensor, values in zip(tensors, torch.split(vector, sizes), strict=True):
                tensor.copy_(values.view(tensor.shape))


def bucketed_tensor_(tensors: Sequence[Tensor]) -> None:
    """Apply `bucketed_` to one tensor per device: a single bucket, reduced by `ring_`."""
    bucketed_([[tensor] for tensor in tensors])


def assign_buckets(tensors: Sequence[Tensor], bucket_bytes: int = BUCKET_BYTES) -> list[list[int]]:
    """Return the indices of the tensors in each bucket, buckets in the order of their first tensors.

    Each tensor in turn goes into the open bucket of its dtype. If it does not fit there, that bucket is closed and a
    new one opened. So only tensors of one dtype share a bucket, and a tensor larger than a bucket is alone in one.
    DistributedDataParallel does the same, except that it closes a bucket after the limit is reached, and so exceeds it.

    For buckets that fill while a backward pass runs, give the tensors in the order in which it produces them.

    Raises:
        ValueError: ``bucket_bytes`` is below 1.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes is {bucket_bytes}: a bucket must hold at least 1 byte")
    buckets: list[list[int]] = []
    filling: dict[torch.dtype, list[int]] = {}
    room: dict[torch.dtype, int] = {}
    for number, tensor in enumerate(tensors):
        dtype = tensor.dtype
        if tensor.nbytes > room.get(dtype, -1):
            filling[dtype], room[dtype] = [], bucket_bytes
            buckets.append(filling[dtype])
        filling[dtype].append(number)
        room[dtype] -= tensor.nbytes
    return buckets


def _check(per_device: Sequence[Sequence[Tensor]]) -> None:
    """Raise ValueError if the tensors cannot be reduced, before the first bucket is changed."""
    for rank, tensors in enumerate(per_device):
        if len(tensors) != len(per_device[0]):
            raise ValueError(
                f"device {rank} has {len(tensors)} tensors and device 0 has {len(per_device[0])}: "
                f"an all_reduce needs as many on every device, zeros where one has nothing to add"
            )
        places = {str(tensor.device) for tensor in tensors}
        if len(places) > 1:
            raise ValueError(
                f"device {rank} has tensors on {', '.join(sorted(places))}: all tensors of one entry must be on one "
                f"device to share a bucket; call once for each device"
            )
    for number, copies in enumerate(zip(*per_device, strict=True)):
        try:
            check_alike(copies)
        except ValueError as error:
            raise ValueError(f"at place {number} of the devices' lists, {error}") from None
    check_apart(
        {
            f"tensor {number} of device {rank}": tensor
            for rank, tensors in enumerate(per_device)
            for number, tensor in enumerate(tensors)
        }
    )
