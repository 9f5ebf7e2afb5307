"""Which parameter of a net is not finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suite.rank.finite import first_bad_sample, first_not_finite


class Kinds(nn.Module):
    """Parameters of several kinds, which are all finite."""

    def __init__(self) -> None:
        super().__init__()
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.large = nn.Parameter(torch.full((4,), torch.finfo(torch.float32).max))
        self.narrow = nn.Parameter(torch.full((4,), 6e4, dtype=torch.float16))
        self.brain = nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16))
        self.tiny = nn.Parameter(torch.ones(3).to(torch.float8_e4m3fn), requires_grad=False)
        self.count = nn.Parameter(torch.tensor([1, 2]), requires_grad=False)
        self.last = nn.Linear(2, 2)


def test_a_finite_net_is_found_finite() -> None:
    """Sums of these numbers would overflow."""
    assert first_not_finite(Kinds()) == ""
    assert first_not_finite(nn.ReLU()) == ""


@pytest.mark.parametrize("name", ["large", "narrow", "brain", "last.bias"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_number_is_enough(name: str, value: float) -> None:
    net = Kinds()
    with torch.no_grad():
        net.get_parameter(name).view(-1)[-1] = value
    assert first_not_finite(net) == name


def test_a_complex_number_has_two_parts() -> None:
    assert first_bad_sample("y", torch.tensor([1j, complex(1, torch.inf)])) == "(1+infj) in y, sample 1"
    assert first_bad_sample("y", torch.tensor([1j, 2.0])) == ""


def test_a_float8_that_is_not_a_number_is_found() -> None:
    net = Kinds()
    net.tiny.data = torch.full((3,), torch.nan).to(torch.float8_e4m3fn)
    assert first_not_finite(net) == "tiny"


@pytest.mark.parametrize(
    ("key", "place", "value", "says"),
    [
        ("tokens", 0, 7, ""),
        ("mask", (4, 1), -torch.inf, "-inf in train_X['mask'], sample 4"),
        ("parts", 2, torch.nan, "nan in train_X['parts'][1], sample 2"),
    ],
)
def test_a_sample_that_is_not_finite_is_named_with_its_field(key: str, place: object, value: float, says: str) -> None:
    samples = {"tokens": torch.zeros(5, 3).long(), "mask": torch.zeros(5, 3), "parts": (torch.ones(5), torch.ones(5))}
    part = samples[key]
    (part[1] if isinstance(part, tuple) else part)[place] = value  # type: ignore[index]
    assert first_bad_sample("train_X", samples) == says
