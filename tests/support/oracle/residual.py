"""The residual block's gradients by hand: `reference.models.resnet.Residual` in training mode, in numpy.

    Y = relu(bn2(conv2(relu(bn1(conv1(X))))) + shortcut(X))

The 3x3 convolutions are padded by 1. With a 1x1 shortcut convolution among the parameters, it and conv1 have stride 2;
without, the shortcut is X itself. Parameters carry the module's names. Arrays or `rounding.Bounded` ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tests.support.oracle import layers
from tests.support.oracle.rounding import Array

Params = Mapping[str, Array]


class Trace(NamedTuple):
    """What the forward pass went through: c after a convolution, z before a ReLU."""

    c1: Array
    z1: Array
    h1: Array
    c2: Array
    z2: Array


def forward(params: Params, X: Array) -> Trace:
    """Map X (n, c, h, w) up to what the last ReLU reads."""
    stride = _stride(params)
    c1 = layers.conv2d(X, params["conv1.weight"], params["conv1.bias"], stride, padding=1)
    z1 = layers.batch_norm(c1, params["bn1.weight"], params["bn1.bias"])
    h1 = layers.relu(z1)
    c2 = layers.conv2d(h1, params["conv2.weight"], params["conv2.bias"], padding=1)
    shortcut = X
    if "shortcut.weight" in params:
        shortcut = layers.conv2d(X, params["shortcut.weight"], params["shortcut.bias"], stride)
    return Trace(c1, z1, h1, c2, layers.batch_norm(c2, params["bn2.weight"], params["bn2.bias"]) + shortcut)


def gradients(params: Params, X: Array, dY: Array) -> dict[str, Array]:
    """Return the gradients of sum(dY * Y), of every parameter by its name and of X as "X".

    The sum before the last ReLU hands its gradient on to both of its terms, and X collects from both branches.
    """
    stride = _stride(params)
    trace = forward(params, X)
    dz2 = layers.relu_backward(dY, trace.z2)
    found: dict[str, Array] = {}
    if "shortcut.weight" in params:
        weight = params["shortcut.weight"]
        of_X, found["shortcut.weight"], found["shortcut.bias"] = layers.conv2d_backward(dz2, X, weight, stride)
    else:
        of_X = dz2
    dc2, found["bn2.weight"], found["bn2.bias"] = layers.batch_norm_backward(dz2, trace.c2, params["bn2.weight"])
    dh1, found["conv2.weight"], found["conv2.bias"] = layers.conv2d_backward(
        dc2, trace.h1, params["conv2.weight"], padding=1
    )
    dz1 = layers.relu_backward(dh1, trace.z1)
    dc1, found["bn1.weight"], found["bn1.bias"] = layers.batch_norm_backward(dz1, trace.c1, params["bn1.weight"])
    dX, found["conv1.weight"], found["conv1.bias"] = layers.conv2d_backward(
        dc1, X, params["conv1.weight"], stride, padding=1
    )
    found["X"] = dX + of_X
    return found


def loss(params: Params, X: Array, dY: Array) -> tuple[Array, list[npt.NDArray[np.bool_]]]:
    """Return sum(dY * Y), (), and which units are on."""
    trace = forward(params, X)
    return np.einsum("nchw,nchw->", layers.relu(trace.z2), dY), [trace.z1 > 0, trace.z2 > 0]


def _stride(params: Params) -> int:
    return 2 if "shortcut.weight" in params else 1
