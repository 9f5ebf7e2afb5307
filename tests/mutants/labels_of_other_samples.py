"""Samples are dealt out in turn and labels in blocks, so that most samples get another one's label.

Inputs come from a strided sampler, ``X[rank::k]``, labels from a tensor that was split as a whole. The sizes agree,
the loss goes down to the entropy of the labels and stays there. With one device, or equal labels, it is right.

Source: pytorch/pytorch#12474 (the two ways to share out samples, and data mixed up between them)
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "loss"
LOOKS_LIKE = ""


class Mutant(Scratch):
    """`Scratch` after a feed that reorders the samples and not their labels."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        k = len(self.nets)
        return super().step(torch.cat([X[rank::k] for rank in range(k)]), y, global_batch_size)
