"""The first device's parameters are updated and never sent to the others.

Parameter-server style: gradients go to device 0, which steps; the broadcast of the new weights is missing, so the other
devices go on computing gradients at the start. The first step is right on the first device, and one device is right.

Source: d2l-zh chapter, row 2-steps (aggregate, redistribute, update: the redistribution)
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from reference.scatter import gather, split_batch
from reference.sgd import sgd_
from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "replicas"
LOOKS_LIKE = "not written back | drifted apart"


class Mutant(Scratch):
    """`Scratch` with a parameter server on the first device."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        devices = self.per_device.devices
        losses = [
            F.cross_entropy(net(shard), labels, reduction="sum")
            for net, shard, labels in zip(self.nets, *split_batch(X, y, devices), strict=False)
        ]
        for loss in losses:
            loss.backward()
        for server, *others in zip(*self.device_params, strict=True):
            for grad in (param.grad for param in others if param.grad is not None):
                server.grad = grad.to(server.device) if server.grad is None else server.grad + grad.to(server.device)
        sgd_(self.device_params[0], self.lr, global_batch_size)
        for net in self.nets[1:]:
            net.zero_grad()
        return gather([loss.detach() for loss in losses], devices[0]).sum() / global_batch_size
