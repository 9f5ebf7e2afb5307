"""The update: a summed gradient divided by the batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reference.sgd import sgd_


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
