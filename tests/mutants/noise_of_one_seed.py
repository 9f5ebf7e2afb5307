"""The noise in the loss is the same on every rank, because its generator has one seed on all of them.

A generator of its own makes the noise reproducible, and nobody gave it the rank. The masks of dropout differ, since
they come from torch's own generator. Fewer different noises are averaged over than there are samples.

Source: Robbyant/lingbot-vla-v2#41
"""

from __future__ import annotations

import torch

from tests.support.step_trainers import NoisyLoss

KIND = "trainer"
KILLED_BY = "dropout"
LOOKS_LIKE = "same seed"


class Mutant(NoisyLoss):
    """`NoisyLoss` that seeds alike everywhere."""

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(0)
