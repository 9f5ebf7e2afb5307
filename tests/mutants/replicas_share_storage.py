"""The "copies" on CPU devices are the master itself, so gradients of all shards meet in one place and are summed again.

``p.to(device)`` copies between devices and returns the very same tensor within one. On GPUs all is well; on virtual
CPU devices, or two replicas on one GPU, the all-reduce adds a tensor to itself: 2 ** (k - 1) times the gradient.

Source: lecture notebook, row 0-params (the book clones for this reason); pytorch/pytorch#1051
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference.scatter import split_batch
from reference.sgd import sgd_

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "times the right gradient"


class Mutant:
    """The book's training loop without the clones; one device after the other."""

    processes: Literal["one"] = "one"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        self.devices, self.lr = devices, lr
        self.replicas = [model.to(device) for device in devices]

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = X.new_zeros(())
        for net, shard, labels in zip(self.replicas, *split_batch(X, y, self.devices), strict=False):
            mine = F.cross_entropy(net(shard), labels, reduction="sum")
            mine.backward()
            loss += mine.detach().to(loss.device)
        for copies in zip(*(net.parameters() for net in self.replicas), strict=True):
            grads = [param.grad for param in copies if param.grad is not None]
            for grad in grads[1:]:
                grads[0] += grad.to(grads[0].device)
            for grad in grads[1:]:
                grad.copy_(grads[0])
        for net in self.replicas:
            sgd_(net.parameters(), self.lr, global_batch_size)
        return loss / global_batch_size
