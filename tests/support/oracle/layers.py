"""Layers and their gradients in numpy, each backward derived where it stands.

L is the scalar that is differentiated, and dA stands for dL/dA, of A's shape. Every layer here is either multilinear
(a sum of products with one factor from each argument), or elementwise, or both in turn. For a multilinear

    Y_o = sum over i, p of  X_i W_p T_iop      (T constant)

the chain rule leaves the same sum with another factor replaced by dY:

    dX_i = sum over o, p of  dY_o W_p T_iop,   dW_p = sum over i, o of  dY_o X_i T_iop.

So one einsum a gradient, with the letters of its forward. Arguments are float64 arrays, or `rounding.Bounded` ones,
which give a bound on the rounding error with every result. All shapes are torch's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tests.support.oracle.rounding import Array

Windows = npt.NDArray[np.bool_]


def windows(size: int, kernel: int, stride: int, padding: int) -> Windows:
    """Return T (size, outputs, kernel): whether input h is read by output y at kernel position i.

    That is where h = stride * y + i - padding. Padded zeros are inputs that no h stands for. As a factor in a sum, true
    counts as 1, in the precision of the others.
    """
    outputs = (size + 2 * padding - kernel) // stride + 1
    h, y, i = np.ogrid[:size, :outputs, :kernel]
    return np.asarray(h == stride * y + i - padding)


def conv2d(X: Array, W: Array, b: Array, stride: int = 1, padding: int = 0) -> Array:
    """Cross-correlate, Y_noyx = b_o + sum over c, i, j of W_ocij X_nc(sy+i-p)(sx+j-p).

    Args:
        X: (n, c, h, w).
        W: (o, c, kh, kw).
        b: (o,).

    Returns:
        Y (n, o, y, x).
    """
    patches = _patches(X, *_conv_windows(X, W, stride, padding))
    return np.einsum("ncyxij,ocij->noyx", patches, W) + b[:, None, None]


def conv2d_backward(dY: Array, X: Array, W: Array, stride: int = 1, padding: int = 0) -> tuple[Array, Array, Array]:
    """Return dX, dW, db of `conv2d`, which is multilinear in X and W; b_o is added to every Y_noyx."""
    T_h, T_w = _conv_windows(X, W, stride, padding)
    dW = np.einsum("noyx,ncyxij->ocij", dY, _patches(X, T_h, T_w))
    dpatches = np.einsum("noyx,ocij->ncyxij", dY, W)
    dX = np.einsum("nchxj,wxj->nchw", np.einsum("ncyxij,hyi->nchxj", dpatches, T_h), T_w)
    return dX, dW, np.einsum("noyx->o", dY)


def avg_pool2d(X: Array, size: int) -> Array:
    """Average size x size squares of X (n, c, h, w); rows and columns that fill no square are left out."""
    T_h, T_w = _pool_windows(X.shape, size)
    return np.einsum("ncyw,wx->ncyx", np.einsum("nchw,hy->ncyw", X, T_h), T_w) / size**2


def avg_pool2d_backward(dY: Array, shape: tuple[int, ...], size: int) -> Array:
    """Return dX of the given shape: every input of a square gets 1 / size^2 of its dY, one left out gets 0."""
    T_h, T_w = _pool_windows(shape, size)
    return np.einsum("nchx,wx->nchw", np.einsum("ncyx,hy->nchx", dY, T_h), T_w) / size**2


def linear(X: Array, W: Array, b: Array) -> Array:
    """Return X W + b, with X (n, i), W (i, o) and b (o,)."""
    return np.einsum("ni,io->no", X, W) + b


def linear_backward(dY: Array, X: Array, W: Array) -> tuple[Array, Array, Array]:
    """Return dX = dY W^T, dW = X^T dY, db = the sum of dY's rows."""
    return np.einsum("no,io->ni", dY, W), np.einsum("no,ni->io", dY, X), np.einsum("no->o", dY)


def relu(Z: Array) -> Array:
    """Return max(Z, 0)."""
    return Z * (Z > 0)


def relu_backward(dY: Array, Z: Array) -> Array:
    """Return dY where Z > 0, else 0; at the kink Z = 0 too, as torch chooses."""
    return dY * (Z > 0)


def batch_norm(X: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    """Normalise each channel over samples and positions, as torch does in training mode.

    With m = n h w entries a channel: mean mu = sum x / m, biased variance v = sum (x - mu)^2 / m,
    xhat = (x - mu) / sqrt(v + eps), y = weight xhat + bias.

    Args:
        X: (n, c, h, w).
        weight: (c,).
        bias: (c,).
    """
    xhat, _ = _normalised(X, eps)
    return weight[:, None, None] * xhat + bias[:, None, None]


def batch_norm_backward(dY: Array, X: Array, weight: Array, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    """Return dX, dweight, dbias.

    dweight = sum dy xhat and dbias = sum dy, by y's definition. With g = weight dy = dL/dxhat and s = sqrt(v + eps),
    x reaches L along three ways:

        directly        g / s
        through v       dL/dv = sum g (x - mu) (-1/2) s^-3 = -sum(g xhat) / (2 s^2), and dv/dx = 2 (x - mu) / m
                        (the mean's own share in dv is -2/m sum (x - mu) = 0), so: -xhat sum(g xhat) / (m s)
        through mu      dL/dmu = -sum g / s, and dmu/dx = 1 / m, so: -sum g / (m s)

    Together dX = (g - sum g / m - xhat sum(g xhat) / m) / s.
    """
    m = X.shape[0] * X.shape[2] * X.shape[3]
    xhat, s = _normalised(X, eps)
    g = weight[:, None, None] * dY
    through_mean = np.einsum("nchw->c", g) / m
    through_variance = np.einsum("nchw,nchw->c", g, xhat) / m
    dX = (g - through_mean[:, None, None] - xhat * through_variance[:, None, None]) / s[:, None, None]
    return dX, np.einsum("nchw,nchw->c", dY, xhat), np.einsum("nchw->c", dY)


def cross_entropy(scores: Array, y: npt.NDArray[np.int64]) -> Array:
    """Return the cross-entropy of the softmax, summed over the samples, ().

    L = sum over n of (log sum_k exp(s_nk) - s_ny). No shift by the largest score: above 709 exp would overflow.

    Args:
        scores: (n, classes).
        y: labels (n,).
    """
    total = np.einsum("nk->n", np.exp(scores))
    return np.einsum("n->", np.log(total)) - np.einsum("nk,nk->", scores, _one_hot(y, scores))


def cross_entropy_backward(scores: Array, y: npt.NDArray[np.int64]) -> Array:
    """Return dscores = softmax(scores) - one_hot(y): the derivative of log sum exp is the softmax."""
    exp = np.exp(scores)
    return exp / np.einsum("nk->n", exp)[:, None] - _one_hot(y, scores)


def _conv_windows(X: Array, W: Array, stride: int, padding: int) -> tuple[Windows, Windows]:
    return (
        windows(X.shape[2], W.shape[2], stride, padding),
        windows(X.shape[3], W.shape[3], stride, padding),
    )


def _patches(X: Array, T_h: Windows, T_w: Windows) -> Array:
    """Return what each output reads, (n, c, y, x, i, j): one axis at a time, which einsum would not find by itself."""
    return np.einsum("ncwyi,wxj->ncyxij", np.einsum("nchw,hyi->ncwyi", X, T_h), T_w)


def _pool_windows(shape: tuple[int, ...], size: int) -> tuple[Windows, Windows]:
    return windows(shape[2], size, size, 0).any(axis=2), windows(shape[3], size, size, 0).any(axis=2)


def _normalised(X: Array, eps: float) -> tuple[Array, Array]:
    """Return xhat (n, c, h, w) and s (c,)."""
    m = X.shape[0] * X.shape[2] * X.shape[3]
    centred = X - (np.einsum("nchw->c", X) / m)[:, None, None]
    s = np.sqrt(np.einsum("nchw,nchw->c", centred, centred) / m + eps)
    return centred / s[:, None, None], s


def _one_hot(y: npt.NDArray[np.int64], scores: Array) -> npt.NDArray[np.bool_]:
    return np.eye(scores.shape[1], dtype=np.bool_)[y]
