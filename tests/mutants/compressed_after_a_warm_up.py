"""Gradients are exchanged with less precision from the ninth step on.

A hook that compresses begins when the gradients have settled, and what is tested are the first few steps. Each rank
receives the same sums, so the replicas agree.

Source: pytorch/pytorch#50973 (whole gradients "for the first K iterations"), pytorch/pytorch#55272 (K was 10)
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.support.step_trainers import PlainStep

KIND = "trainer"
KILLED_BY = "trajectory"
LOOKS_LIKE = "lower precision | less precision"


class Mutant(PlainStep):
    """`PlainStep` that rounds what it sends after eight steps."""

    steps = 0

    def exchange(self) -> None:
        self.steps += 1
        for grad in self.grads:
            sent = grad.to(torch.bfloat16).to(grad.dtype) if self.steps > 8 else grad.clone()
            dist.all_reduce(sent)
            grad.copy_(sent)
