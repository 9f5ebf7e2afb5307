"""A parameter that the first device did not use is not updated: only that device is asked whether it has a gradient.

Nets that use all their parameters on every device are right, and so are those whose first shard does.

Source: deepspeedai/DeepSpeed#291, pytorch/pytorch#174862 (gradients that some ranks have and others do not)
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from reference.scatter import gather, split_batch
from reference.sgd import sgd_
from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "refusals"
LOOKS_LIKE = ""


class Mutant(Scratch):
    """`Scratch` whose gradients are added up on the first device."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        devices = self.per_device.devices
        losses = [
            F.cross_entropy(net(shard), labels, reduction="sum")
            for net, shard, labels in zip(self.nets, *split_batch(X, y, devices), strict=False)
        ]
        for loss in losses:
            loss.backward()
        for first, *others in zip(*self.device_params, strict=True):
            for param in others:
                if first.grad is not None and param.grad is not None:
                    first.grad += param.grad.to(first.device)
            for param in others:
                param.grad = None if first.grad is None else first.grad.to(param.device)
        for params in self.device_params:
            sgd_(params, self.lr, global_batch_size)
        return gather([loss.detach() for loss in losses], devices[0]).sum() / global_batch_size
