"""A gradient that does not fit into the bucket is never exchanged.

Gradients are copied into a bucket of a fixed size, and the ranks sum the bucket. What does not fit stays outside of it,
and nothing else sends it. All gradients of a small model fit.

Source: deepspeedai/DeepSpeed#3832
"""

from __future__ import annotations

import torch.distributed as dist

from tests.support.step_trainers import PlainStep

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"
BUCKET_BYTES = 1 << 20


class Mutant(PlainStep):
    """`PlainStep` with a bucket of 1 MiB, as the first one of DistributedDataParallel."""

    def exchange(self) -> None:
        for grad in self.grads:
            if grad.nbytes <= BUCKET_BYTES:
                dist.all_reduce(grad)
