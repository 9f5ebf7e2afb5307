"""Numbers that know how wrong they may be: numpy arrays with a bound on the rounding error of every entry.

A formula written for arrays, called with `Bounded` ones, gives its result and a bound that was derived along the way,
operation by operation (running error analysis: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed.,
section 3.3). Nothing is estimated: the exact result lies within ``error`` of ``value``.

**Sums in any order.** A sum of m terms, each a product of p factors, is off by at most gamma * sum |term| with
gamma = (m + p) u / (1 - (m + p) u), in whatever order it is added up (Higham, sections 3.1 and 4.2). Terms that are
exactly zero add no error and are not counted. So the bound holds for a matrix library that blocks, unrolls or fuses.

**Another code for the same formula.** Elementwise steps may be associated differently elsewhere, and a library's exp
and log are good to one unit in the last place rather than half of one. Every elementary step is therefore charged
2u, not u. Then two programs that evaluate the formula differ by at most twice ``error``.

The bounds are themselves computed in floating point; their own rounding, about 1e-12 of them, drowns in that factor.
Not covered: overflow, underflow, and algorithms that are not sums of products (Winograd and FFT convolutions, which
torch does not use in float64).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24}


class Bounded(np.lib.mixins.NDArrayOperatorsMixin):
    """An array and a bound on the error of each entry.

    Supports ``+ - * /``, ``> 0``, np.exp, np.log, np.sqrt, np.einsum, indexing and reshape, mixed with plain arrays,
    which count as exact.

    Args:
        value: the numbers, float64 whatever precision is being analysed.
        error: bound on abs(value - exact), broadcast to the value's shape; 0 for data.
        u: unit round-off of the precision that is being analysed.
    """

    def __init__(self, value: npt.ArrayLike, error: npt.ArrayLike = 0.0, u: float = UNIT_ROUNDOFF["float64"]) -> None:
        self.value: Values = np.asarray(value, dtype=np.float64)
        self.error: Values = np.broadcast_to(np.asarray(error, dtype=np.float64), self.value.shape)
        self.u = u

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the value."""
        return self.value.shape

    def __getitem__(self, index: Any) -> Bounded:
        return Bounded(self.value[index], self.error[index], self.u)

    def reshape(self, *shape: int) -> Bounded:
        """As numpy's."""
        return Bounded(self.value.reshape(*shape), self.error.reshape(*shape), self.u)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs or ufunc not in _RULES:
            return NotImplemented
        operands, u = _operands(inputs)
        return _RULES[ufunc](u, *operands)

    def __array_function__(self, function: Any, types: Any, args: Sequence[Any], kwargs: Any) -> Any:
        if function is not np.einsum:
            return NotImplemented
        operands, u = _operands(args[1:])
        return _einsum(u, args[0], operands)


Array = Values | Bounded


def _operands(inputs: Sequence[Any]) -> tuple[list[Bounded], float]:
    operands = [x if isinstance(x, Bounded) else Bounded(x, u=0.0) for x in inputs]
    return operands, max(operand.u for operand in operands)


def _rounded(u: float, value: Values, error: Values, roundings: int = 2) -> Bounded:
    """Add what storing the value costs: 2u of it, for the reason given above."""
    return Bounded(value, error + roundings * u * np.abs(value), u)


def _add(u: float, a: Bounded, b: Bounded) -> Bounded:
    return _rounded(u, a.value + b.value, a.error + b.error)


def _subtract(u: float, a: Bounded, b: Bounded) -> Bounded:
    return _rounded(u, a.value - b.value, a.error + b.error)


def _multiply(u: float, a: Bounded, b: Bounded) -> Bounded:
    """|ab - (a + da)(b + db)| <= (|a| + ea) eb + ea |b|."""
    error = (np.abs(a.value) + a.error) * b.error + a.error * np.abs(b.value)
    return _rounded(u, a.value * b.value, error)


def _divide(u: float, a: Bounded, b: Bounded) -> Bounded:
    """|a/b - (a + da)/(b + db)| <= (ea + |a/b| eb) / (|b| - eb)."""
    value = a.value / b.value
    smallest = _above_its_error(b, "a divisor", np.abs(b.value))
    return _rounded(u, value, (a.error + np.abs(value) * b.error) / smallest)


def _sqrt(u: float, a: Bounded) -> Bounded:
    """|sqrt(a + da) - sqrt(a)| = |da| / (sqrt(a + da) + sqrt(a))."""
    value = np.sqrt(a.value)
    return _rounded(u, value, a.error / (np.sqrt(_above_its_error(a, "a square root's argument", a.value)) + value))


def _exp(u: float, a: Bounded) -> Bounded:
    value = np.exp(a.value)
    return _rounded(u, value, value * np.expm1(a.error))


def _log(u: float, a: Bounded) -> Bounded:
    """log(a) - log(a - ea) is the larger side."""
    _above_its_error(a, "a logarithm's argument", a.value)
    return _rounded(u, np.log(a.value), -np.log1p(-a.error / a.value))


def _greater(u: float, a: Bounded, b: Bounded) -> npt.NDArray[np.bool_]:
    """Compare, if every exact comparison is certain to come out the same."""
    doubtful = (np.abs(a.value - b.value) <= a.error + b.error) & (a.error + b.error > 0)
    if doubtful.any():
        raise ArithmeticError(
            f"{doubtful.sum()} of {doubtful.size} comparisons are within rounding of a tie: another evaluation may "
            "decide them the other way; draw other samples"
        )
    return a.value > b.value


def _einsum(u: float, subscripts: str, operands: Sequence[Bounded]) -> Bounded:
    """A sum of products: the operands' own errors, one operand at a time, then gamma for the sum."""

    def form(factors: Sequence[Any]) -> Values:
        return np.asarray(np.einsum(subscripts, *factors, optimize=True))

    size = [np.abs(operand.value) for operand in operands]
    largest = [np.abs(operand.value) + operand.error for operand in operands]
    value = form([operand.value for operand in operands])
    error = np.zeros_like(value)
    for i, operand in enumerate(operands):
        if operand.error.any():
            # f(a + da, b + db) - f(a, b) = f(da, b) + f(a + da, db), and so on for more operands.
            error = error + form([*largest[:i], operand.error, *size[i + 1 :]])
    terms = form([(x > 0).astype(np.float64) for x in largest])
    roundings = 2 * (terms + len(operands)) * u
    return Bounded(value, error + roundings / (1 - roundings) * form(largest), u)


def _above_its_error(a: Bounded, what: str, size: Values) -> Values:
    if (size <= a.error).any():
        raise ArithmeticError(f"{what} is within its error of zero: the result has no bound; draw other samples")
    return size - a.error


_RULES: dict[np.ufunc, Callable[..., Any]] = {
    np.add: _add,
    np.subtract: _subtract,
    np.multiply: _multiply,
    np.divide: _divide,
    np.sqrt: _sqrt,
    np.exp: _exp,
    np.log: _log,
    np.greater: _greater,
}
