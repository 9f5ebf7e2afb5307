"""LeNet's gradients derived by hand in numpy: an oracle that shares no line with torch's autograd.

    X -> conv 3x3 -> relu -> pool 2 -> conv 5x5 -> relu -> pool 2 -> linear -> relu -> linear -> cross-entropy

This is the network of `reference.models.lenet`; parameters are W1, b1, W2, b2, W3, b3, W4, b4, all float64, in torch's
shapes. L is the scalar that is differentiated, and dA stands for dL/dA, of A's shape. A layer that is a sum of products
keeps that sum in its gradient, with the wanted factor replaced by dY, so that each gradient is one einsum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Values = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def conv2d(X: Values, W: Values, b: Values) -> Values:
    """Return Y_noyx = b_o + sum over c, i, j of W_ocij X_nc(y+i)(x+j), with X (n, c, h, w) and W (o, c, kh, kw)."""
    return np.einsum("ncyxij,ocij->noyx", _patches(X, W), W, optimize=True) + b[:, None, None]


def conv2d_backward(dY: Values, X: Values, W: Values) -> tuple[Values, Values, Values]:
    """Return dX, dW, db of `conv2d`."""
    dX = np.zeros_like(X)
    height, width = dY.shape[2:]
    for i, j in np.ndindex(*W.shape[2:]):
        dX[:, :, i : i + height, j : j + width] += np.einsum("noyx,oc->ncyx", dY, W[:, :, i, j], optimize=True)
    return dX, np.einsum("noyx,ncyxij->ocij", dY, _patches(X, W), optimize=True), dY.sum((0, 2, 3))


def avg_pool2d(X: Values) -> Values:
    """Return the means of 2 x 2 squares of X (n, c, h, w); a last row or column that fills no square is left out."""
    n, c, height, width = X.shape
    squares = X[:, :, : height // 2 * 2, : width // 2 * 2].reshape(n, c, height // 2, 2, width // 2, 2)
    return np.asarray(squares.mean((3, 5)))


def avg_pool2d_backward(dY: Values, shape: tuple[int, ...]) -> Values:
    """Return dX of the given shape: a quarter of dY at every input of a square, 0 at one that was left out."""
    dX = np.zeros(shape)
    height, width = 2 * dY.shape[2], 2 * dY.shape[3]
    dX[:, :, :height, :width] = dY.repeat(2, axis=2).repeat(2, axis=3) / 4
    return dX


def linear_backward(dY: Values, X: Values, W: Values) -> tuple[Values, Values, Values]:
    """Return dX, dW, db of Y = X W + b, with X (n, i), W (i, o) and b (o,)."""
    return dY @ W.T, X.T @ dY, dY.sum(0)


def relu_backward(dY: Values, Z: Values) -> Values:
    """Return dZ of max(Z, 0): dY where Z > 0, else 0."""
    return dY * (Z > 0)


def cross_entropy_backward(scores: Values, y: Labels) -> Values:
    """Return dscores (n, classes) of the loss summed over samples: softmax(scores) - one_hot(y), with labels y (n,)."""
    exp = np.exp(scores - scores.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True) - np.eye(scores.shape[1])[y]


def gradients(params: Sequence[Values], X: Values, y: Labels) -> list[Values]:
    """Return the gradients of the summed loss by each parameter, for images X (n, 1, 28, 28) and labels y (n,)."""
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    z1 = conv2d(X, W1, b1)  # (n, 20, 26, 26)
    h1 = avg_pool2d(np.maximum(z1, 0))  # (n, 20, 13, 13)
    z2 = conv2d(h1, W2, b2)  # (n, 50, 9, 9)
    h2 = avg_pool2d(np.maximum(z2, 0)).reshape(len(X), -1)  # (n, 800)
    z3 = h2 @ W3 + b3  # (n, 128)
    h3 = np.maximum(z3, 0)
    dscores = cross_entropy_backward(h3 @ W4 + b4, y)
    dh3, dW4, db4 = linear_backward(dscores, h3, W4)
    dh2, dW3, db3 = linear_backward(relu_backward(dh3, z3), h2, W3)
    dr2 = avg_pool2d_backward(dh2.reshape(-1, 50, 4, 4), z2.shape)
    dh1, dW2, db2 = conv2d_backward(relu_backward(dr2, z2), h1, W2)
    dr1 = avg_pool2d_backward(dh1, z1.shape)
    _, dW1, db1 = conv2d_backward(relu_backward(dr1, z1), X, W1)
    return [dW1, db1, dW2, db2, dW3, db3, dW4, db4]


def _patches(X: Values, W: Values) -> Values:
    """Return what each output of a convolution reads, (n, c, y, x, i, j)."""
    return sliding_window_view(X, W.shape[2:], axis=(2, 3))
