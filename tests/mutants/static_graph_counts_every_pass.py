"""From the second step on nothing is exchanged, because the recorder of a static graph counted all passes.

In the first step the hooks count how often gradients are written; later a gradient is exchanged when it has been
written as often. The count includes the passes under ``no_sync``, but later steps look at the last pass only, and the
number is never reached. The first step is right, and so is training without accumulation.

Source: pytorch/pytorch#187732
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "replicas"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"


class Mutant(DDPTrainer):
    """Gradients exchanged by hooks, in two micro-batches."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.module, self.expected, self.last = self.net.module, 0, False
        self.written: Counter[Tensor] = Counter()
        for param in self.module.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(self.on_gradient)

    def on_gradient(self, param: Tensor) -> None:
        """Exchange a gradient that has been written as often as in the first step."""
        if self.last or not self.expected:
            self.written[param] += 1
            if self.written[param] == self.expected:
                dist.all_reduce(param.grad)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.optimizer.zero_grad()
        self.written.clear()
        total = X.new_zeros(())
        for last, (part, labels) in enumerate(zip(X.tensor_split(2), y.tensor_split(2), strict=True)):
            self.last = bool(last)
            loss = F.cross_entropy(self.module(part), labels, reduction="sum") / global_batch_size
            loss.backward()
            total += loss.detach()
        if not self.expected:
            self.expected = max(self.written.values())
            for param in self.module.parameters():
                if param.requires_grad:
                    param.grad = torch.zeros_like(param) if param.grad is None else param.grad
                    dist.all_reduce(param.grad)
        self.optimizer.step()
        return total
