"""All-reduce of many tensors in few exchanges: neighbours share a bucket, and a bucket is reduced as one vector.

What an exchange costs however small it is, is then paid once a bucket and not once a tensor; and while one bucket is on
its way, the gradients of the next can still be computed (Li et al., "PyTorch Distributed: Experiences on Accelerating
Data Parallel Training", VLDB 2020, section 3.2). That overlap is the caller's: here one bucket follows the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.all_reduce.check import check_alike, check_apart
from reference.all_reduce.protocol import AllReduce
from reference.all_reduce.ring import ring_

BUCKET_BYTES = 25 * 2**20
"""DistributedDataParallel's default, ``bucket_cap_mb=25``."""


@torch.no_grad()
def bucketed_(
    per_device: Sequence[Sequence[Tensor]], bucket_bytes: int = BUCKET_BYTES, all_reduce_: AllReduce = ring_
) -> None:
    """Replace the values of every device's j-th tensor by the sum over all devices' j-th tensors, bucket by bucket.

    Rounds and bytes are those of the other algorithm on each bucket's vector. A bucket of several tensors needs its
    size in memory once more on each device; a tensor alone in its bucket is reduced where it lies.

    Args:
        per_device: for each device its tensors, in the same order, with the same shapes and dtypes on every device;
            none at all is allowed. The tensors of one device lie together, and may be views of one buffer.
        bucket_bytes: at most so much in a bucket of several tensors, see `assign_buckets`.
        all_reduce_: what reduces a bucket.

    Raises:
        ValueError: ``bucket_bytes`` is below 1, or the tensors do not fit together: in number, place, shape or dtype,
            or because they overlap; nothing is changed then.
    """
    _check(per_device)
    for bucket in assign_buckets(per_device[0] if per_device else [], bucket_bytes):
        parts = [[tensors[number] for number in bucket] for tensors in per_device]
        if len(bucket) == 1:
            all_reduce_([tensor for (tensor,) in parts])
            continue
        vectors = [torch.cat([tensor.reshape(-1) for tensor in tensors]) for tensors in parts]
        all_reduce_(vectors)
        for tensors, vector in zip(parts, vectors, strict=True):
            for tensor, values in zip(
                tensors, torch.split(vector, [tensor.numel() for tensor in tensors]), strict=True
            ):
                tensor.copy_(values.view(tensor.shape))


def bucketed_tensor_(tensors: Sequence[Tensor]) -> None:
    """`bucketed_` for one tensor a device: one bucket, so the other algorithm alone.

    Args:
        tensors: one a device, of equal shapes and dtypes; none at all is allowed.

    Raises:
        ValueError: as in `bucketed_`.
    """
    bucketed_([[tensor] for tensor in tensors])


def assign_buckets(tensors: Sequence[Tensor], bucket_bytes: int = BUCKET_BYTES) -> list[list[int]]:
    """Return the numbers of the tensors in each bucket, buckets in the order of their first tensors.

    In the given order, each tensor goes into the bucket that its dtype fills at the moment, or into a new one when it
    does not fit there any more: only tensors of one dtype share a bucket, and a bucket once left is not opened again.
    A tensor larger than a bucket has one to itself. DistributedDataParallel goes the same way, except that it closes a
    bucket once the limit is reached, and so goes beyond it.

    Args:
        tensors: any shapes and dtypes; for buckets to fill while a backward pass runs, in the order in which it
            produces them.
        bucket_bytes: size of a bucket.

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
    """Refuse what cannot be reduced, before the first bucket is."""
    for rank, tensors in enumerate(per_device):
        if len(tensors) != len(per_device[0]):
            raise ValueError(
                f"device {rank} has {len(tensors)} tensors and device 0 has {len(per_device[0])}: "
                f"an all_reduce needs as many on every device, zeros where one has nothing to add"
            )
        places = {str(tensor.device) for tensor in tensors}
        if len(places) > 1:
            raise ValueError(
                f"device {rank} has tensors on {', '.join(sorted(places))}: those of one device must lie together "
                f"to share a bucket; call once for each place"
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
