"""LeNet's loss and gradients by hand: the network of `reference.models.lenet`, in numpy.

    X -> conv 3x3 -> relu -> pool 2 -> conv 5x5 -> relu -> pool 2 -> linear -> relu -> linear -> cross-entropy

Parameters are W1, b1, W2, b2, W3, b3, W4, b4, the linear weights (in, out). Arrays or `rounding.Bounded` ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tests.support.oracle import layers
from tests.support.oracle.rounding import Array


class Trace(NamedTuple):
    """What the forward pass went through: z before a ReLU, h what the next layer reads."""

    z1: Array  # (n, 20, 26, 26)
    h1: Array  # (n, 20, 13, 13)
    z2: Array  # (n, 50, 9, 9)
    h2: Array  # (n, 800)
    z3: Array  # (n, 128)
    h3: Array  # (n, 128)
    scores: Array  # (n, 10)


def forward(params: Sequence[Array], X: Array) -> Trace:
    """Map images X (n, 1, 28, 28) to scores, and keep what lies between."""
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    z1 = layers.conv2d(X, W1, b1)
    h1 = layers.avg_pool2d(layers.relu(z1), 2)
    z2 = layers.conv2d(h1, W2, b2)
    h2 = layers.avg_pool2d(layers.relu(z2), 2).reshape(X.shape[0], -1)
    z3 = layers.linear(h2, W3, b3)
    h3 = layers.relu(z3)
    return Trace(z1, h1, z2, h2, z3, h3, layers.linear(h3, W4, b4))


def gradients(params: Sequence[Array], X: Array, y: npt.NDArray[np.int64]) -> list[Array]:
    """Return the gradients of the summed loss: of the eight parameters, then of X."""
    W1, _, W2, _, W3, _, W4, _ = params
    trace = forward(params, X)
    dscores = layers.cross_entropy_backward(trace.scores, y)
    dh3, dW4, db4 = layers.linear_backward(dscores, trace.h3, W4)
    dh2, dW3, db3 = layers.linear_backward(layers.relu_backward(dh3, trace.z3), trace.h2, W3)
    dr2 = layers.avg_pool2d_backward(dh2.reshape(-1, 50, 4, 4), trace.z2.shape, 2)
    dh1, dW2, db2 = layers.conv2d_backward(layers.relu_backward(dr2, trace.z2), trace.h1, W2)
    dr1 = layers.avg_pool2d_backward(dh1, trace.z1.shape, 2)
    dX, dW1, db1 = layers.conv2d_backward(layers.relu_backward(dr1, trace.z1), X, W1)
    return [dW1, db1, dW2, db2, dW3, db3, dW4, db4, dX]


def loss(params: Sequence[Array], X: Array, y: npt.NDArray[np.int64]) -> tuple[Array, list[npt.NDArray[np.bool_]]]:
    """Return the summed loss, (), and which units are on."""
    trace = forward(params, X)
    return layers.cross_entropy(trace.scores, y), [z > 0 for z in (trace.z1, trace.z2, trace.z3)]
