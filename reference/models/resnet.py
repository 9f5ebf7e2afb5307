"""Two small ResNets for 28x28 images: d2l's variant of ResNet-18 and the Gluon chapter's.

Both use the book's residual block, whose convolutions have biases and whose shortcut has no normalisation; with zero
biases and the same weights it equals torchvision's BasicBlock (He et al. 2015, arXiv:1512.03385).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """Two 3x3 convolutions with batch normalisation, added to their input.

    ``downsample`` halves height and width, and passes the shortcut through a 1x1 convolution; the channels of input and
    output may differ only with it.
    """

    def __init__(self, in_channels: int, out_channels: int, *, downsample: bool = False) -> None:
        super().__init__()
        stride = 2 if downsample else 1
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride) if downsample else nn.Identity()

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, in_channels, h, w) to (n, out_channels, h, w), with ``downsample`` to half of h and w."""
        h = F.relu(self.bn1(self.conv1(X)))
        return F.relu(self.bn2(self.conv2(h)) + self.shortcut(X))


def resnet18(num_classes: int = 10, in_channels: int = 1, width: int = 64) -> nn.Sequential:
    """Return d2l's ResNet-18: a 3x3 stem without max-pooling, then 64, 128, 256, 512 channels, two blocks each.

    It maps (n, in_channels, h, w) to (n, num_classes) and has 11,175,818 parameters with the defaults. torchvision's
    network of the same name is another one: it has a 7x7 stem and max-pooling. A smaller ``width``, the channels of the
    stem, makes a narrower net of the same depth.
    """
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        *_two_blocks(width, width),
        *_two_blocks(width, 2 * width),
        *_two_blocks(2 * width, 4 * width),
        *_two_blocks(4 * width, 8 * width),
        *_head(8 * width, num_classes),
    )


def gluon_resnet18(num_classes: int = 10, in_channels: int = 1, width: int = 64) -> nn.Sequential:
    """Return the Gluon chapter's network: the input normalised, a valid 3x3 convolution, max-pooling, six blocks.

    It maps (n, in_channels, h, w) to (n, num_classes): 28 -> 26 -> 12 -> 6 -> 3 with ``width``, 2 ``width`` and
    4 ``width`` channels (64, 128 and 256 in the chapter).
    """
    return nn.Sequential(
        nn.BatchNorm2d(in_channels),
        nn.Conv2d(in_channels, width, 3),
        nn.MaxPool2d(3, 2),
        *_two_blocks(width, width),
        *_two_blocks(width, 2 * width),
        *_two_blocks(2 * width, 4 * width),
        *_head(4 * width, num_classes),
    )


def _two_blocks(in_channels: int, out_channels: int) -> tuple[nn.Module, ...]:
    downsample = in_channels != out_channels
    return Residual(in_channels, out_channels, downsample=downsample), Residual(out_channels, out_channels)


def _head(channels: int, num_classes: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)
