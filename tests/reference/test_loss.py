"""Which targets the built-in trainers' losses take, and the update by a summed gradient divided by the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from reference.loss import why_unfit
from reference.nest import Nest
from reference.sgd import sgd_
from reference.trainers.single import Single

WEIGHTS = torch.ones(4)
SOFT = torch.rand(4, 3, generator=torch.Generator().manual_seed(0)).softmax(1)


@pytest.mark.parametrize("y", [torch.tensor([0, 1, 2, 0]), SOFT, SOFT.double(), SOFT.bfloat16()], ids=str)
def test_single_trains_what_fits(y: Tensor) -> None:
    assert why_unfit(y) == ""
    trainer = Single(
        nn.Linear(2, 3).to(y.dtype if y.is_floating_point() else torch.float32), [torch.device("cpu")], lr=0.1
    )
    X = torch.rand(4, 2, dtype=next(trainer.net.parameters()).dtype)
    assert trainer.step(X, y, 4).isfinite()


@pytest.mark.parametrize(
    ("y", "described"),
    [
        (torch.rand(4), "float32 (n,)"),
        (torch.rand(4, 3), "float32 (n, 3)"),
        (torch.tensor([True, False] * 2), "bool (n,)"),
        (torch.arange(4, dtype=torch.int32), "int32 (n,)"),
        (torch.ones(4, 2, dtype=torch.complex64), "complex64 (n, 2)"),
        ({"mean": WEIGHTS, "scale": [WEIGHTS]}, "{'mean': float32 (n,), 'scale': [float32 (n,)]}"),
        ((torch.arange(4), WEIGHTS), "[int64 (n,), float32 (n,)]"),
    ],
)
def test_other_targets_are_described(y: Nest, described: str) -> None:
    assert why_unfit(y) == f"its loss is the mean cross-entropy, and y is {described}"


def test_texts_fit() -> None:
    assert why_unfit({"labels": torch.ones(4, 2, dtype=torch.int64), "weights": WEIGHTS}) == ""


def test_sgd_divides_the_summed_gradient_by_the_batch_and_clears_it() -> None:
    """1 - 0.5 * 8 / 4 = 0; a parameter without a gradient stays as it is."""
    param, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    param.grad = torch.full((2,), 8.0)
    sgd_([param, unused], lr=0.5, batch_size=4)
    assert (param.tolist(), unused.tolist()) == ([0.0, 0.0], [1.0, 1.0])
    assert param.grad is None


def test_sgd_reports_an_empty_batch() -> None:
    with pytest.raises(ValueError, match="batch_size is 0: a step needs at least one sample"):
        sgd_([], lr=0.1, batch_size=0)
