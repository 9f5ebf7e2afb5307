"""The FLOP of a model: as many as are counted by hand, and none where a model needs values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reference.models.init import build
from suite.rank import counting
from tests.support import own_signatures

LABELS = torch.zeros(7, dtype=torch.int64)


class Looks(nn.Module):
    """A layer that looks into its input, which has no values while FLOP are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, 4) to (n, 3)."""
        return self.layer(X) if float(X.sum()) > 0 else X


def test_a_gpts_flop_are_those_of_its_matrices_and_its_attention() -> None:
    """Two for a multiply-add, three times the forward's; tokens have no gradient, and embedding is no product."""
    net, tokens = build("gpt-tiny"), torch.zeros(5, 64, dtype=torch.int64)
    before = [parameter.clone() for parameter in net.parameters()]
    width, positions, blocks, vocabulary = 64, 64, 2, 32
    matrices = blocks * 12 * width**2 + width * vocabulary
    attention = blocks * 2 * positions * width  # scores and values, for each token
    assert counting.of_a_sample(net, tokens, tokens) == 3 * 2 * positions * (matrices + attention)
    assert all(torch.equal(*pair) for pair in zip(before, net.parameters(), strict=True))
    assert all(parameter.grad is None and parameter.device.type == "cpu" for parameter in net.parameters())


def test_images_and_nests_are_counted_too() -> None:
    """A linear layer of 5 x 2 without a gradient of its input: forward, and that of the weight."""
    assert counting.of_a_sample(build("toy"), torch.zeros(7, 5), LABELS) == 2 * 2 * 5 * 2
    by_name = nn.ModuleDict({"toy": build("toy")})
    by_name.forward = lambda X: by_name["toy"](X["image"])  # type: ignore[method-assign]
    assert counting.of_a_sample(by_name, {"image": torch.zeros(7, 5)}, LABELS) == 2 * 2 * 5 * 2


def test_a_model_that_takes_labels_is_counted_with_them() -> None:
    """Two layers and a head, of all samples, which this model computes with labels only."""
    width, backward = own_signatures.WIDTH, 3
    expected = 2 * (backward * (width * width + 2 * width) + 2 * 5 * width)
    assert counting.of_a_sample(own_signatures.NeedsLabels(), torch.zeros(7, 5), LABELS) == expected


def test_a_model_that_needs_values_has_none() -> None:
    assert counting.of_a_sample(Looks(), torch.ones(2, 4), LABELS[:2]) == 0
