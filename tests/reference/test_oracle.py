"""Gradients worked out by hand against torch's, both against difference quotients, and the trainers against them.

Every tolerance is a bound computed with the result (`tests.support.oracle.rounding`): two evaluations of one formula
differ by at most twice its error. Beside the right formulas stand wrong ones, which the same comparisons must reject.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from reference.models.init import build
from reference.models.resnet import Residual
from reference.scatter import chunk_sizes
from reference.trainers.scratch import Scratch
from reference.trainers.single import Single
from tests.support.oracle import layers, lenet, residual
from tests.support.oracle.differences import Kink, central
from tests.support.oracle.rounding import UNIT_ROUNDOFF, Array, Bounded, Values
from tests.support.strategies import CPU, seeds

LR = 0.5
RESIDUAL_CASES = [(2, 2, False), (2, 3, True)]
"""In channels, out channels, downsample."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Keep torch and numpy to one thread: on a busy machine a second one is waited for at every small operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(before)


class Problem:
    """A function of several arrays with torch's gradients, the hand-derived ones, and the means for differences."""

    names: list[str]
    point: list[Values]
    """The arguments: every parameter, then X."""

    def torch(self) -> list[Values]:
        """Return the gradients by autograd."""
        raise NotImplementedError

    def oracle(self) -> list[Bounded]:
        """Return the gradients by hand, with their errors."""
        raise NotImplementedError

    def evaluate(self, point: Sequence[Any]) -> Any:
        """Return the function's value at a point, and which units are on."""
        raise NotImplementedError


class LeNetProblem(Problem):
    """The summed loss of LeNet with random biases on n samples."""

    def __init__(self, seed: int, n: int, init: str = "xavier") -> None:
        self.rng = np.random.default_rng(seed)
        self.net = build("lenet", init, seed).double()
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter += 0.01 * torch.from_numpy(self.rng.standard_normal(parameter.shape))
        self.X, self.y = self.rng.standard_normal((n, 1, 28, 28)), self.rng.integers(10, size=n)
        self.names = [*(name for name, _ in self.net.named_parameters()), "X"]
        self.point = [*(parameter.detach().numpy() for parameter in self.net.parameters()), self.X]

    def torch(self) -> list[Values]:
        X = torch.from_numpy(self.X).requires_grad_()
        loss = F.cross_entropy(self.net(X), torch.from_numpy(self.y), reduction="sum")
        return [g.numpy() for g in torch.autograd.grad(loss, [*self.net.parameters(), X])]

    def oracle(self, part: slice = slice(None)) -> list[Any]:
        params = [Bounded(value) for value in self.point[:-1]]
        return lenet.gradients(params, Bounded(self.X[part]), self.y[part])

    def evaluate(self, point: Sequence[Any]) -> Any:
        return lenet.loss(point[:-1], point[-1], self.y)


class ResidualProblem(Problem):
    """sum(dY * block(X)) in training mode, every parameter random, dY random."""

    def __init__(
        self, seed: int, shape: tuple[int, int, int], in_channels: int, out_channels: int, downsample: bool
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.block = Residual(in_channels, out_channels, downsample=downsample).double()
        with torch.no_grad():
            for parameter in self.block.parameters():
                parameter.copy_(torch.from_numpy(self.rng.standard_normal(parameter.shape)))
        n, height, width = shape
        self.X = self.rng.standard_normal((n, in_channels, height, width))
        self.dY = self.rng.standard_normal(self.block(torch.from_numpy(self.X)).shape)
        self.names = [*(name for name, _ in self.block.named_parameters()), "X"]
        self.point = [*(parameter.detach().numpy() for parameter in self.block.parameters()), self.X]

    def torch(self) -> list[Values]:
        X = torch.from_numpy(self.X).requires_grad_()
        total = (self.block(X) * torch.from_numpy(self.dY)).sum()
        return [g.numpy() for g in torch.autograd.grad(total, [*self.block.parameters(), X])]

    def oracle(self) -> list[Any]:
        *params, X = map(Bounded, self.point)
        found = residual.gradients(dict(zip(self.names, params, strict=False)), X, Bounded(self.dY))
        return [found[name] for name in self.names]

    def evaluate(self, point: Sequence[Any]) -> Any:
        return residual.loss(dict(zip(self.names, point, strict=False)), point[-1], self.dY)


def ratio(found: Values, expected: Bounded, other_error: Values | None = None) -> float:
    """Return the largest difference over what rounding allows two evaluations, entry by entry; above 1 is wrong."""
    difference = np.abs(found - expected.value)
    allowed = expected.error + (expected.error if other_error is None else other_error)
    # An entry that may not err at all (a unit that is off everywhere) and does not, is right.
    return float(np.max(np.divide(difference, allowed, out=np.where(difference > 0, np.inf, 0.0), where=allowed > 0)))


def ratios(problem: Problem) -> dict[str, float]:
    """Return `ratio` of torch's gradient to the hand-derived one, by argument."""
    return {
        name: ratio(found, expected)
        for name, found, expected in zip(problem.names, problem.torch(), problem.oracle(), strict=True)
    }


def dot(gradients: Sequence[Any], direction: Sequence[Values]) -> Bounded:
    """Return the derivative along a direction that the gradients give."""
    total = Bounded(0.0)
    for gradient, part in zip(gradients, direction, strict=True):
        total = total + np.einsum("i,i->", Bounded.reshape(gradient, -1), part.reshape(-1))
    return total


def along_everything(problem: Any) -> list[Values]:
    """Draw a direction of length 1 in which every entry moves, and every argument equally far: biases count too."""
    drawn = [problem.rng.standard_normal(value.shape) for value in problem.point]
    return [part / np.linalg.norm(part) / math.sqrt(len(drawn)) for part in drawn]


def along_one_entry(problem: Any, argument: int) -> list[Values]:
    """Draw one entry of one argument."""
    direction = [np.zeros(value.shape) for value in problem.point]
    direction[argument].flat[problem.rng.integers(direction[argument].size)] = 1
    return direction


def differences(problem: Any, draw: Callable[[], list[Values]]) -> tuple[list[Values], float, float]:
    """Return a smooth direction, drawn again while a unit switches along it, and `central` along it."""
    for _ in range(20):
        direction = draw()
        try:
            return direction, *central(problem.evaluate, problem.point, direction)
        except Kink:
            continue
    raise AssertionError("no smooth direction in 20 draws")


def disagreement(gradients: Sequence[Any], direction: list[Values], estimate: float, error: float) -> float:
    """Return how far gradients are from a difference quotient, over what its error and theirs allow."""
    found = dot(gradients, direction)
    return float(abs(found.value - estimate) / (2 * found.error + error))


def bounded(found: Sequence[Values], like: Sequence[Bounded]) -> list[Bounded]:
    """Give torch's gradients the errors that the hand-derived ones came with."""
    return [Bounded(value, other.error) for value, other in zip(found, like, strict=True)]


@settings(max_examples=20)
@given(seed=seeds, n=st.integers(1, 10), init=st.sampled_from(["normal", "default", "xavier"]))
def test_lenets_gradients_by_hand_are_torchs(seed: int, n: int, init: str) -> None:
    """All 129,068 parameters and the input, any batch size."""
    problem = LeNetProblem(seed, n, init)
    assert sum(value.size for value in problem.point[:-1]) == 129_068
    assert max(ratios(problem).values()) <= 1, ratios(problem)


def test_lenets_gradients_of_uneven_shards_add_up_to_torchs_of_the_whole_batch() -> None:
    """4, 4 and 2 samples: sums, so no shard needs a weight. Means of the shards would be off, and are caught."""
    problem = LeNetProblem(seed=1, n=10)
    sizes = chunk_sizes(10, 3)
    starts = np.cumsum([0, *sizes])
    shards = [problem.oracle(slice(start, start + size)) for start, size in zip(starts, sizes, strict=False)]
    for found, whole, parts in zip(problem.torch(), problem.oracle(), zip(*shards, strict=True), strict=True):
        if found.shape == problem.X.shape:
            total = np.concatenate([part.value for part in parts])
            assert ratio(total, whole) <= 1
            continue
        summed = parts[0] + parts[1] + parts[2]
        assert ratio(found, summed, whole.error) <= 1
        mean_of_means = (parts[0] / 4 + parts[1] / 4 + parts[2] / 2) * (10 / 3)
        assert ratio(found, mean_of_means, whole.error) > 1e3


@pytest.mark.parametrize(("in_channels", "out_channels", "downsample"), RESIDUAL_CASES)
@settings(max_examples=25)
@given(seed=seeds, shape=st.tuples(st.integers(1, 5), st.integers(3, 6), st.integers(3, 6)))
def test_a_residual_blocks_gradients_by_hand_are_torchs(
    in_channels: int, out_channels: int, downsample: bool, seed: int, shape: tuple[int, int, int]
) -> None:
    """Through the mean and the variance of both normalisations; even and odd sides."""
    problem = ResidualProblem(seed, shape, in_channels, out_channels, downsample)
    assert max(ratios(problem).values()) <= 1, ratios(problem)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "lenet": lambda: LeNetProblem(3, n=1),
    "residual": lambda: ResidualProblem(3, (3, 5, 4), *RESIDUAL_CASES[0]),
    "downsample": lambda: ResidualProblem(3, (3, 5, 4), *RESIDUAL_CASES[1]),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_both_gradients_agree_with_difference_quotients(name: str) -> None:
    """Along random directions, and along single entries of every parameter and of the input."""
    problem = PROBLEMS[name]()
    by_hand = problem.oracle()
    by_torch = bounded(problem.torch(), by_hand)
    draws = [lambda: along_everything(problem)] * 4
    draws += [lambda i=i: along_one_entry(problem, i) for i in range(len(problem.point)) for _ in range(2)]
    for draw in draws:
        direction, estimate, error = differences(problem, draw)
        assert disagreement(by_hand, direction, estimate, error) <= 1
        assert disagreement(by_torch, direction, estimate, error) <= 1


def no_variance_term(dY: Array, X: Array, weight: Array, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    """Batch normalisation as if the variance were a constant."""
    m = X.shape[0] * X.shape[2] * X.shape[3]
    xhat, s = layers._normalised(X, eps)
    g = weight[:, None, None] * dY
    dX = (g - (np.einsum("nchw->c", g) / m)[:, None, None]) / s[:, None, None]
    return dX, np.einsum("nchw,nchw->c", dY, xhat), np.einsum("nchw->c", dY)


def statistics_held_fixed(dY: Array, X: Array, weight: Array, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    """Batch normalisation's backward of eval mode, in training."""
    xhat, s = layers._normalised(X, eps)
    dX = weight[:, None, None] * dY / s[:, None, None]
    return dX, np.einsum("nchw,nchw->c", dY, xhat), np.einsum("nchw->c", dY)


_conv2d_backward, _linear_backward, _avg_pool2d_backward, _cross_entropy_backward = (
    layers.conv2d_backward,
    layers.linear_backward,
    layers.avg_pool2d_backward,
    layers.cross_entropy_backward,
)


def flipped_kernel(dY: Array, X: Array, W: Array, stride: int = 1, padding: int = 0) -> tuple[Array, Array, Array]:
    """Turn the kernel round in dX, which cancels only where kernels are symmetric."""
    _, dW, db = _conv2d_backward(dY, X, W, stride, padding)
    return _conv2d_backward(dY, X, W[:, :, ::-1, ::-1], stride, padding)[0], dW, db


WRONG: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "batch norm without the variance term": ("residual", "batch_norm_backward", no_variance_term),
    "batch norm with fixed statistics": ("residual", "batch_norm_backward", statistics_held_fixed),
    "batch norm with another eps": ("residual", "batch_norm", lambda *a, f=layers.batch_norm: f(*a, eps=2e-5)),
    "kernel flipped": ("lenet", "conv2d_backward", flipped_kernel),
    "kernel flipped, padded": ("residual", "conv2d_backward", flipped_kernel),
    "pooling without its quarter": ("lenet", "avg_pool2d_backward", lambda *a: 4 * _avg_pool2d_backward(*a)),
    "relu that lets everything back": ("lenet", "relu_backward", lambda dY, Z: dY),
    "mean loss for the sum": ("lenet", "cross_entropy_backward", lambda s, y: _cross_entropy_backward(s, y) / len(y)),
    "softmax without its label": (
        "lenet",
        "cross_entropy_backward",
        lambda s, y: _cross_entropy_backward(s, y) + layers._one_hot(y, s),
    ),
    "bias gradient of the first sample": (
        "lenet",
        "linear_backward",
        lambda dY, X, W: (*_linear_backward(dY, X, W)[:2], dY[0]),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_formula_is_caught_by_torch_and_by_difference_quotients(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a thousand times what rounding allows against torch; a wrong forward shows against torch alone."""
    net, function, wrong = WRONG[name]
    problem = LeNetProblem(5, n=2) if net == "lenet" else ResidualProblem(5, (3, 5, 4), 2, 3, True)
    direction, estimate, error = differences(problem, lambda: along_everything(problem))
    assert max(ratios(problem).values()) <= 1
    assert disagreement(problem.oracle(), direction, estimate, error) <= 1
    monkeypatch.setattr(layers, function, wrong)
    assert max(ratios(problem).values()) > 1e3
    if function.endswith("_backward"):
        assert disagreement(problem.oracle(), direction, estimate, error) > 10, (name, error)


@pytest.mark.parametrize(("trainer", "devices"), [(Single, 1), (Scratch, 1), (Scratch, 3), (Scratch, 8)])
def test_a_trainers_step_is_the_one_worked_out_by_hand(trainer: type[Single] | type[Scratch], devices: int) -> None:
    """That is p - lr g / B, on shards of 10, of 4, 4, 2 and of 2 x 5 samples; dividing by a shard is caught."""
    problem = LeNetProblem(seed=7, n=10)
    made = trainer(problem.net, [CPU] * devices, lr=LR)
    made.step(torch.from_numpy(problem.X), torch.from_numpy(problem.y), 10)
    for replica in made.replicas:
        for taken, p, g in zip(replica.parameters(), problem.point, problem.oracle(), strict=False):
            assert ratio(taken.detach().numpy(), p - LR / 10 * g) <= 1
            assert ratio(taken.detach().numpy(), p - LR / 4 * g) > 1e3
    if isinstance(made, Scratch):
        made.close()


def float32_chain(convert: Callable[[Values], Any]) -> Any:
    """Return conv -> batch norm -> pool -> linear -> cross-entropy and its way back, on converted arguments."""
    rng = np.random.default_rng(0)
    X, W, V = (convert(rng.standard_normal(shape)) for shape in [(4, 2, 6, 6), (3, 2, 3, 3), (12, 5)])
    b, weight, bias, c = (convert(rng.standard_normal(size)) for size in (3, 3, 3, 5))
    y = np.arange(4)
    c1 = layers.conv2d(X, W, b)
    z1 = layers.batch_norm(c1, weight, bias)
    features = layers.avg_pool2d(z1, 2).reshape(4, -1)
    dscores = layers.cross_entropy_backward(layers.linear(features, V, c), y)
    dfeatures, dV, _ = layers.linear_backward(dscores, features, V)
    dz1 = layers.avg_pool2d_backward(dfeatures.reshape(4, 3, 2, 2), z1.shape, 2)
    dc1, dweight, _ = layers.batch_norm_backward(dz1, c1, weight)
    dX, dW, _ = layers.conv2d_backward(dc1, X, W)
    return [dV, dweight, dW, dX]


def test_the_bounds_hold_in_a_precision_whose_errors_can_be_seen() -> None:
    """float32 stays within float32's bound of the float64 result, and far outside float64's."""

    def data(values: Values) -> Values:
        return values.astype(np.float32).astype(np.float64)

    u = UNIT_ROUNDOFF["float32"]
    found = float32_chain(lambda values: values.astype(np.float32))
    expected = float32_chain(lambda values: Bounded(data(values), u=u))
    too_narrow = float32_chain(lambda values: Bounded(data(values)))
    for single, wide, narrow in zip(found, expected, too_narrow, strict=True):
        assert single.dtype == np.float32
        assert ratio(single, wide) <= 1
        assert ratio(single, narrow) > 1e3


@given(st.lists(st.tuples(*[st.floats(-1e3, 1e3)] * 2), min_size=1, max_size=30))
def test_a_sum_of_products_lies_within_its_bound_of_the_exact_one(pairs: list[tuple[float, float]]) -> None:
    """Against rational arithmetic."""
    a, b = np.array(pairs).T
    found = np.einsum("i,i->", Bounded(a), Bounded(b))
    exact = sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction())
    # What underflow takes from a product is not in the bound: at most the smallest subnormal each.
    assert abs(Fraction(float(found.value)) - exact) <= Fraction(float(found.error)) + len(pairs) * Fraction(2) ** -1074


ELEMENTWISE: dict[np.ufunc, Callable[..., Decimal]] = {
    np.add: lambda a, b: a + b,
    np.subtract: lambda a, b: a - b,
    np.multiply: lambda a, b: a * b,
    np.divide: lambda a, b: a / b,
    np.sqrt: Decimal.sqrt,
    np.exp: Decimal.exp,
    np.log: Decimal.ln,
}


@pytest.mark.parametrize("ufunc", ELEMENTWISE)
@given(
    values=st.lists(st.floats(0.1, 20), min_size=2, max_size=2),
    errors=st.lists(st.sampled_from([0.0, 1e-16, 1e-9, 0.05]), min_size=2, max_size=2),
    negative=st.booleans(),
)
def test_an_elementwise_step_lies_within_its_bound_wherever_its_arguments_may_be(
    ufunc: np.ufunc, values: list[float], errors: list[float], negative: bool
) -> None:
    """Both ends of every argument, in 200 digits; without the arguments' errors the bound would be too small."""
    values = values[: ufunc.nin]
    if negative and ufunc not in (np.sqrt, np.log):
        values[0] = -values[0]
    found = ufunc(*(Bounded(value, error) for value, error in zip(values, errors, strict=False)))
    with localcontext(prec=200):
        furthest = Decimal(0)
        for signs in np.ndindex(*[2] * ufunc.nin):
            exact = ELEMENTWISE[ufunc](
                *(Decimal(v) + (2 * int(s) - 1) * Decimal(e) for v, e, s in zip(values, errors, signs, strict=False))
            )
            furthest = max(furthest, abs(exact - Decimal(float(found.value))))
        assert furthest <= Decimal(float(found.error)) * (1 + Decimal("1e-12"))
        if max(errors[: ufunc.nin]) == 0.05:
            assert furthest > Decimal(float(found.error)) / 4, "the bound is far from what can happen"


def test_a_comparison_within_rounding_of_a_tie_is_refused() -> None:
    """Another evaluation might switch the unit the other way; an exact zero is no tie."""
    with pytest.raises(ArithmeticError, match=r"1 of 3 comparisons are within rounding of a tie.*draw other samples"):
        layers.relu(Bounded([1.0, 1e-9, -1.0], 1e-8))
    assert layers.relu(Bounded([0.0, 2.0])).value.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: 1 / x, "a divisor"),
        (np.log, "a logarithm's argument"),
        (np.sqrt, "a square root's argument"),
    ],
)
def test_a_step_without_a_bound_is_refused(call: Callable[[Bounded], object], what: str) -> None:
    """Nothing can be said near a pole."""
    with pytest.raises(ArithmeticError, match=f"{what} is within its error of zero: the result has no bound"):
        call(Bounded(1e-9, 1e-8))


def test_an_operation_without_a_rule_is_refused() -> None:
    """Rather than losing the error on the way."""
    with pytest.raises(TypeError):
        np.sin(Bounded(1.0))
    with pytest.raises(TypeError):
        np.sum(Bounded([1.0, 2.0]))


def test_a_difference_quotient_across_a_kink_is_refused() -> None:
    """At a relu that even the smallest step passes; one that only the first step passes is no obstacle."""

    def evaluate(point: Sequence[Bounded]) -> Any:
        # An error of 1e-9 makes the first step 1e-3, and the last one a 64th of that.
        return np.einsum("i->", layers.relu(point[0])) + Bounded(0.0, 1e-9), [point[0] > 0]

    direction = [np.array([1.0, 0.0])]
    with pytest.raises(Kink, match=r"1 units switch within a step of .*: draw another direction"):
        central(evaluate, [np.array([1e-6, 1.0])], direction)
    for smooth in (0.5, 1e-4):
        estimate, error = central(evaluate, [np.array([smooth, 1.0])], direction)
        assert abs(estimate - 1) <= error < 1e-3


def test_a_difference_quotients_error_is_that_of_its_truncation() -> None:
    """At 0 exp has the derivative 1, the quotient with step .1 is off by h^2/6, and the bound is three times that."""

    def evaluate(point: Sequence[Bounded]) -> Any:
        return np.exp(point[0]) + Bounded(0.0, 1e-3), []

    estimate, error = central(evaluate, [np.array(0.0)], [np.array(1.0)])
    rounding = 2 * 1e-3 / (2 * 0.1) + 2 * 1e-3 / (4 * 0.1) + 1e-3 / 0.1
    assert abs(estimate - 1) == pytest.approx(0.1**2 / 6, rel=0.01)
    assert error - rounding == pytest.approx(3 * 0.1**2 / 6, rel=0.1)


def test_windows_are_what_a_convolution_reads() -> None:
    """Size 4, kernel 3, stride 2, padding 1: output 0 reads a padded zero, 0 and 1; output 1 reads 1, 2 and 3."""
    reads = layers.windows(4, 3, 2, 1)
    assert reads.shape == (4, 2, 3)
    assert [np.argwhere(reads[:, y])[:, 0].tolist() for y in range(2)] == [[0, 1], [1, 2, 3]]
