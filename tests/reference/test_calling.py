"""Models of any signature: how they are called, and where their scores are."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reference import calling
from reference.evaluate import count_correct, score_texts
from reference.trainers.data_parallel import data_parallel
from tests.support.own_signatures import (
    ByName,
    ModelOutput,
    NeedsLabels,
    OnlyLoss,
    Output,
    TakesLabels,
    ToADataclass,
    ToADict,
    ToAnObject,
)
from tests.support.strategies import CPU

X, Y = torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64)
NAMED: dict[str, Tensor] = {"ids": X, "mask": X}


def net(forward: Any) -> nn.Module:
    """A module with this forward, which gets no self."""
    module = nn.Module()
    module.forward = forward  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize(
    ("forward", "X", "y", "expected"),
    [
        (lambda X: X, X, Y, [((X,), {})]),
        (lambda X: X, NAMED, Y, [((NAMED,), {})]),
        (lambda X, scale=2: X, X, Y, [((X,), {})]),
        (lambda X, y: X, X, Y, [((X,), {"y": Y})]),
        (lambda X, wanted: X, X, Y, [((X,), {"wanted": Y})]),
        (lambda idx, targets=None: idx, X, Y, [((X,), {}), ((X,), {"targets": Y})]),
        (lambda ids, mask=None: ids, NAMED, Y, [((), NAMED)]),
        (lambda *, ids, mask, labels=None: ids, NAMED, Y, [((), NAMED), ((), {**NAMED, "labels": Y})]),
        (lambda **given: given, NAMED, Y, [((), NAMED)]),
        (lambda ids, mask, labels: ids, NAMED, {"labels": Y, "weights": X}, [((), {**NAMED, "labels": Y})]),
        (lambda X, labels, weights: X, X, {"labels": Y, "weights": X}, [((X,), {"labels": Y, "weights": X})]),
        (lambda X, y: X, X, {"labels": Y}, [((X,), {"y": {"labels": Y}})]),
        (lambda X, *others: X, X, Y, [((X,), {})]),
    ],
)
def test_a_model_is_called_as_its_signature_says(forward: Any, X: Any, y: Any, expected: list[calling.Call]) -> None:
    named, wrapped = net(forward), data_parallel(net(forward), [CPU, CPU])
    for model in (named, wrapped):
        assert calling.calls(model, X, y) == expected


def test_tensors_are_found_in_whatever_a_model_returns() -> None:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    around: dict[str, Any] = {"a": a}
    around["again"] = around
    for value in (
        Output(a, b, (c,)),
        ModelOutput(loss=a, logits=b, past=[c, None]),
        OrderedDict(x=a, y=(b, [c])),
        SimpleNamespace(x=a, deep=Output(None, b, (c,)), name="text"),
        [around, {"b": b}, c, None, 3, nn.Linear(1, 1), Tensor],
    ):
        assert list(map(len, calling.tensors(value))) == [1, 2, 3]


def right(model: nn.Module) -> int:
    """How many of some labels a model gets right; it must have some wrong."""
    torch.manual_seed(0)
    data = torch.randn(21, 5)
    given = {"features": data, "mask": torch.ones(21, 5, dtype=torch.bool)} if isinstance(model, ByName) else data
    labels = torch.arange(21) % 2
    correct = count_correct([model], [CPU], given, labels, batch_size=4)
    assert score_texts([model], [CPU], given, labels)[0] == correct
    return correct


@pytest.mark.parametrize("kind", [TakesLabels, NeedsLabels, ToADataclass, ToADict, ToAnObject, ByName])
def test_accuracy_is_that_of_the_scores_wherever_they_are_returned(kind: type[TakesLabels]) -> None:
    torch.manual_seed(1)
    model = kind()
    torch.manual_seed(0)
    data = torch.randn(21, 5)
    plain = model.head(model.hidden(data, None)).argmax(1)
    expected = int((plain == torch.arange(21) % 2).sum())
    assert right(model) == expected
    assert 0 < expected < 21


def test_outputs_without_scores_are_refused_with_what_they_are() -> None:
    with pytest.raises(
        calling.NoScores, match=r"returns tensors of \[\(\)\] for labels of \(4,\): .*; return them, also"
    ):
        right(OnlyLoss())
