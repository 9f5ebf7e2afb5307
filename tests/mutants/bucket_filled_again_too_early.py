"""A bucket is filled with the next gradient before its result was taken out.

On a GPU it is a race between the exchange and the next copy, wrong now and then and for large models only; here the
result is always taken too late. All ranks agree, because they all take the same wrong values.

Source: deepspeedai/DeepSpeed#7965, deepspeedai/DeepSpeed#8061
"""

from __future__ import annotations

import torch.distributed as dist

from tests.support.step_trainers import PlainStep

KIND = "trainer"
KILLED_BY = "identity"
LOOKS_LIKE = ""


class Mutant(PlainStep):
    """`PlainStep` with one bucket for all gradients."""

    def exchange(self) -> None:
        grads = self.grads
        bucket = grads[0].new_zeros(max(grad.numel() for grad in grads))
        for grad in grads:
            bucket[: grad.numel()] = grad.flatten()
            dist.all_reduce(bucket)
        for grad in grads:
            grad.copy_(bucket[: grad.numel()].view_as(grad))
