"""Central differences with the error they have: gradients from the forward pass alone.

    D(h) = (f(x + h d) - f(x - h d)) / 2h = f'(x) d + h^2 f'''/6 + h^4 f'''''/120 + ...

**Truncation.** D(2h) - D(h) = h^2 f'''/2 + ..., three times what truncation adds to D(h); its size is the bound. The
h^4 terms are left out: with h about 1e-4 they are 1e-16 of the fifth derivative.

**Rounding.** Each f carries its own bound (`rounding.Bounded`), in which the rounding of x + h d is included; D divides
their sum by 2h.

**Step.** h^2 M/6 + e/h, with e the error of f and M that of the third derivative, is least at h = (3 e / M)^(1/3); for
a direction of length 1 and a loss of order 1, h = e^(1/3) is near it. A poor guess of M widens the bound, which is
computed and not assumed.

**Kinks.** Where a ReLU switches, f has no third derivative. Units must be in the same state at x, x +- h and
x +- 2h. Where one is not, a smaller step is tried, at the price of a larger share of rounding; when none is smooth,
`Kink` is raised and another direction is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tests.support.oracle.rounding import Bounded, Values

Evaluate = Callable[[Sequence[Bounded]], tuple[Bounded, list[npt.NDArray[np.bool_]]]]


class Kink(ArithmeticError):
    """A unit switches between the points of a difference quotient."""


def central(evaluate: Evaluate, point: Sequence[Values], direction: Sequence[Values]) -> tuple[float, float]:
    """Return the derivative along a direction, and how far it may be from the exact one.

    Args:
        evaluate: from the arguments to f, (), and the states of all units.
        point: the arguments, several arrays.
        direction: of the same shapes, of length about 1 altogether.

    Raises:
        Kink: f is not smooth between the points.
    """
    value, states = evaluate([Bounded(x) for x in point])

    def at(step: float) -> Bounded:
        f, there = evaluate([Bounded(x) + step * Bounded(d) for x, d in zip(point, direction, strict=True)])
        switched = sum(int((a != b).sum()) for a, b in zip(states, there, strict=True))
        if switched:
            raise Kink(f"{switched} units switch within a step of {abs(step):.1e}: draw another direction")
        return f

    h = float(np.cbrt(value.error))
    for smaller in (h, h / 8, h / 64):
        try:
            near = (at(smaller) - at(-smaller)) / (2 * smaller)
            far = (at(2 * smaller) - at(-2 * smaller)) / (4 * smaller)
        except Kink as kink:
            found = kink
            continue
        change = far - near
        return float(near.value), float(near.error + np.abs(change.value) + change.error)
    raise found
