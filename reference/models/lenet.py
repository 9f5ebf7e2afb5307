"""LeNet as in the lecture notebook: a function of an image batch and a list of eight tensors.

28 -> 26 -> 13 -> 9 -> 4 -> 800 features, 129,068 parameters. `LeNet` has the same tensors as an `nn.Module`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The linear weights are stored (in, out), because the function multiplies from the right.
SHAPES: dict[str, tuple[int, ...]] = {
    "W1": (20, 1, 3, 3),
    "b1": (20,),
    "W2": (50, 20, 5, 5),
    "b2": (50,),
    "W3": (800, 128),
    "b3": (128,),
    "W4": (128, 10),
    "b4": (10,),
}


def lenet_params(generator: torch.Generator | None = None) -> list[Tensor]:
    """Return the eight float32 tensors of `SHAPES`: weights from N(0, 0.01), biases zero."""
    return [
        torch.randn(shape, generator=generator) * 0.01 if len(shape) > 1 else torch.zeros(shape)
        for shape in SHAPES.values()
    ]


def lenet(X: Tensor, params: Sequence[Tensor]) -> Tensor:
    """Return the class scores before the softmax, (n, 10), of images X (n, 1, 28, 28); n may be 0.

    The parameters are the eight tensors of `SHAPES`, in that order, on X's device and of its dtype.
    """
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h1 = F.avg_pool2d(F.relu(F.conv2d(X, W1, b1)), 2)  # (n, 20, 13, 13)
    h2 = F.avg_pool2d(F.relu(F.conv2d(h1, W2, b2)), 2)  # (n, 50, 4, 4)
    h3 = F.relu(h2.flatten(1) @ W3 + b3)  # (n, 128)
    return h3 @ W4 + b4


class LeNet(nn.Module):
    """`lenet` with its parameters, under the names of `SHAPES`, drawn as `lenet_params` does."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in zip(SHAPES, lenet_params(), strict=True):
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, 1, 28, 28) to scores (n, 10)."""
        # By name, because nn.DataParallel's replicas have the attributes but an empty parameters().
        return lenet(X, [getattr(self, name) for name in SHAPES])
