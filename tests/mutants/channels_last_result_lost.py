"""Convolutions keep each rank's own gradient, because the sum went into a contiguous copy of a channels-last one.

Of a contiguous gradient ``contiguous`` returns the tensor itself, and so it does of a convolution with one channel. All
other parameters are exchanged.

Source: NVIDIA/Megatron-LM#5337, pytorch/pytorch#192920
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"


class Mutant(DDPTrainer):
    """Gradients exchanged by hand, in the memory format that is fastest."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model.to(memory_format=torch.channels_last), devices, lr=lr)  # type: ignore[call-overload]

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        net = self.net.module
        loss = F.cross_entropy(net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        loss.backward()
        for param in net.parameters():
            if param.requires_grad:
                param.grad = torch.zeros_like(param) if param.grad is None else param.grad
                dist.all_reduce(param.grad.contiguous())
        self.optimizer.step()
        return loss.detach()
