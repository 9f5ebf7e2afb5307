"""The step is k times too small: the loss is divided by the global batch, and DDP averages over the ranks again.

One of the two divisions is needed; the documentation of the wrapper mentions its own in passing. It is right on one
device, and with Adam on any, which divides by the gradient's size. Raising lr "because the batch is larger" hides it.

Source: kubeflow/pytorch-operator#122, facebookresearch/fairseq#494
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "averaged over the devices and divided | times the right gradient"


class Mutant(DDPTrainer):
    """`DDPTrainer` without the factor that undoes DDP's average."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
