"""The concise chapter's two runs as a user would have them: its network, and a trainer that redraws weights.

The chapter draws the weights of every linear layer and convolution from N(0, .01) before each run. In the first run its
residual blocks are still lazy and escape; in the second, on two devices, nothing does (docs/log.md). The network is an
eighth as wide and sees digits of a quarter of the side, so that a core trains it in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from docs.evidence import book_mechanism
from docs.evidence.book_mechanism import STEM_STD, normal_weights_
from reference.trainers.data_parallel import DataParallelTrainer


def first_run() -> nn.Sequential:
    """The chapter's network as its first run starts it: normal on stem and head alone."""
    return nn.Sequential(nn.AvgPool2d(4), book_mechanism.first_run(None, STEM_STD))


class RedrawsWeights(DataParallelTrainer):
    """Redraws all weights where there are several devices, as the chapter does before its second run."""

    def __init__(self, model: nn.Sequential, devices: Sequence[torch.device], *, lr: float) -> None:
        if len(devices) > 1:
            normal_weights_(model[1], STEM_STD)
        super().__init__(model, devices, lr=lr)
