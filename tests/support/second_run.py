"""The concise chapter's two runs as a user would have them: its network, and a trainer that redraws weights.

The chapter draws the weights of every linear layer and convolution from N(0, 0.01) before each run. In the first run
its residual blocks are still lazy and escape; in the second, on two devices, nothing does (docs/log.md). The network is
an eighth as wide and sees digits of a quarter of the side, so that a core trains it in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from reference.models.resnet import Residual
from reference.trainers.data_parallel import DataParallelTrainer

WIDTHS = (8, 16, 32, 64)  # the chapter's are 64, 128, 256, 512, two blocks each, at four times the pixels
STD = 0.01


def resnet() -> nn.Sequential:
    """Return the chapter's network, an eighth as wide, with torch's default start; images (n, 1, 14, 14)."""
    blocks: list[nn.Module] = []
    channels = WIDTHS[0]
    for width in WIDTHS:
        blocks += [Residual(channels, width, downsample=channels != width), Residual(width, width)]
        channels = width
    stem = (nn.Conv2d(1, WIDTHS[0], 3, padding=1), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def normal_weights_(layers: Iterable[nn.Module]) -> None:
    """Draw the weights of the linear layers and convolutions among these anew; biases stay."""
    for layer in layers:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.normal_(layer.weight, std=STD)


def first_run() -> nn.Sequential:
    """The chapter's network as its first run starts it: normal on stem and head alone."""
    net = resnet()
    normal_weights_((net[0], net[-1]))
    return nn.Sequential(nn.AvgPool2d(4), net)


class RedrawsWeights(DataParallelTrainer):
    """Redraws all weights where there are several devices, as the chapter does before its second run."""

    def __init__(self, model: nn.Sequential, devices: Sequence[torch.device], *, lr: float) -> None:
        if len(devices) > 1:
            normal_weights_(model.modules())
        super().__init__(model, devices, lr=lr)
