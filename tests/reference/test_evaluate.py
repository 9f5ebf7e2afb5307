"""Accuracy on one and on several devices: models of any signature, modes, devices, statistics, and what is refused.

That every sample is counted once: `tests/properties/test_properties.py -k evaluation`.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reference import calling, evaluate
from reference.calling import NoScores
from reference.evaluate import accuracy, count_correct, score_texts
from reference.trainers.data_parallel import DataParallelTrainer, data_parallel
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


class Recorder(nn.Module):
    """Predicts the class of the first feature, and records the modes of its calls and each thread's samples."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.seen: dict[str, list[float]] = {}
        self.modes: set[tuple[bool, bool]] = set()

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, d) to scores (n, 3)."""
        self.seen.setdefault(threading.current_thread().name, []).extend(X[:, 0].tolist())
        self.modes.add((self.dropout.training, torch.is_grad_enabled()))
        return nn.functional.one_hot(X[:, 0].long() % 3, 3).float()


def test_evaluation_is_in_eval_mode_without_gradients_and_leaves_each_module_as_it_was() -> None:
    net = Recorder()
    net.dropout.eval()
    count_correct([net], [CPU], torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    assert net.modes == {(False, False)}
    assert net.training
    assert not net.dropout.training


def test_modes_are_restored_when_the_forward_raises() -> None:
    net = Recorder()
    with pytest.raises(IndexError):
        count_correct([net], [CPU], torch.zeros(3), torch.zeros(3, dtype=torch.int64))
    assert net.training
    assert net.dropout.training


class Repeats(nn.Module):
    """Predicts that every token is followed by itself; its classes are the last axis, or the second."""

    def __init__(self, classes_last: bool) -> None:
        super().__init__()
        self.classes_last = classes_last

    def forward(self, X: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Map {"tokens" (n, t)} to scores (n, t, 5) or (n, 5, t), and something else."""
        scores = nn.functional.one_hot(X["tokens"], 5).float()
        return scores if self.classes_last else scores.movedim(-1, 1), X["tokens"]


@pytest.mark.parametrize("classes_last", [True, False])
def test_tokens_are_counted_where_their_label_is_not_ignored(classes_last: bool) -> None:
    tokens = torch.tensor([[0, 1, 2], [3, 4, 0], [1, 1, 1]])
    y = {"weights": torch.ones(3), "labels": torch.tensor([[0, 1, -100], [4, 4, -100], [-100] * 3])}
    net = Repeats(classes_last)
    assert count_correct([net, net], [CPU] * 2, {"tokens": tokens}, y, batch_size=1) == 3
    assert accuracy([net], [CPU], {"tokens": tokens}, y) == 3 / 4
    # Scores are 1 for one class and 0 for four others: of four labels three have it.
    nats = [4 * math.log(math.e + 4) - 3, math.log(math.e + 4) - 1]
    assert score_texts([net, net], [CPU] * 2, {"tokens": tokens}, y, 1) == (3, pytest.approx(nats[0]))
    one = {"weights": torch.ones(1), "labels": torch.tensor([[-7, 1, -100]])}
    assert score_texts([net], [CPU], {"tokens": tokens[:1]}, one) == (1, pytest.approx(nats[1]))
    with pytest.raises(ValueError, match="all labels of y are negative, which means ignored"):
        accuracy([net], [CPU], {"tokens": tokens}, {"labels": torch.full((3, 3), -100)})
    with pytest.raises(ValueError, match=r"y is \{'weights': float32 \(n,\)\}: class labels must be int64"):
        accuracy([net], [CPU], {"tokens": tokens}, {"weights": torch.ones(3)})
    with pytest.raises(ValueError, match="X has 0 samples: an accuracy needs at least one"):
        accuracy([net], [CPU], {"tokens": tokens[:0]}, {"labels": tokens[:0]})


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (torch.rand(4), r"the model returns tensors of \[\(4,\)\] for labels of \(4,\): .* of two or more classes"),
        (torch.rand(4, 1), r"the model returns tensors of \[\(4, 1\)\] for labels"),
        (torch.rand(4, 2, 3), r"the model returns tensors of \[\(4, 2, 3\)\] for labels"),
        ("text", r"the model returns tensors of \[\] for labels"),
        ((), r"the model returns tensors of \[\] for labels"),
    ],
    ids=["one axis", "one class", "one axis too many", "a text", "nothing"],
)
def test_what_is_no_scores_of_classes_has_no_accuracy(output: Any, says: str) -> None:
    """As of a regression on counts, whose targets are int64, too."""

    class Net(nn.Module):
        def forward(self, X: Tensor) -> Any:
            return output

    with pytest.raises(NoScores, match=says):
        count_correct([Net()], [CPU], torch.rand(4, 2), torch.tensor([0, 1, 0, 1]))


def test_a_single_module_is_evaluated_on_all_its_devices_as_the_book_does() -> None:
    """nn.DataParallel's trainer has one module for all its devices; batches and shards are uneven."""
    trainer = DataParallelTrainer(Recorder(), [CPU] * 3, lr=0.1)
    X = torch.arange(11.0).reshape(11, 1)
    assert count_correct(trainer.replicas, [CPU] * 3, X, torch.zeros(11, dtype=torch.int64), batch_size=7) == 4
    seen = trainer.module.seen
    assert {name: len(samples) for name, samples in seen.items()} == {"replica-0": 5, "replica-1": 5, "replica-2": 1}
    assert sorted(sample for samples in seen.values() for sample in samples) == X.flatten().tolist()
    trainer.close()


def test_a_module_that_cannot_be_replicated_is_evaluated_as_it_is() -> None:
    """A replica of a compiled module would call the original."""
    net = Recorder()
    net._compiled_call_impl = net._call_impl
    assert accuracy([net], [CPU] * 4, torch.arange(5.0).reshape(5, 1), torch.zeros(5, dtype=torch.int64)) == 0.4
    assert not evaluate._can_be_replicated(nn.Linear(1, 1), torch.device("cuda:0"))
    assert evaluate._can_be_replicated(nn.Linear(1, 1), CPU)


def test_replicas_with_statistics_of_their_own_are_one_net() -> None:
    """All evaluate with the first replica's statistics, and keep their own for training."""
    nets = [nn.Sequential(nn.BatchNorm1d(2), nn.Identity()) for _ in range(2)]
    for net, mean in zip(nets, (0.0, 10.0), strict=True):
        net[0].running_mean[0] = mean
    X, y = torch.tensor([[3.0, 0.0]] * 8), torch.zeros(8, dtype=torch.int64)
    assert count_correct(nets, [CPU] * 2, X, y) == 8
    assert count_correct(nets[::-1], [CPU] * 2, X, y) == 0
    assert [float(net[0].running_mean[0]) for net in nets] == [0.0, 10.0]


@pytest.mark.parametrize(
    ("replicas", "samples", "labels", "batch_size", "message"),
    [
        (0, 3, 3, 8, "0 replicas on 2 devices"),
        (3, 3, 3, 8, "3 replicas on 2 devices"),
        (1, 3, 2, 8, "X has 3 samples and y has 2"),
        (1, 3, 3, 0, "batch_size is 0: it must be at least 1"),
    ],
)
def test_count_correct_reports_bad_values(
    replicas: int, samples: int, labels: int, batch_size: int, message: str
) -> None:
    X, y = torch.zeros(samples, 1), torch.zeros(labels, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        count_correct([Recorder() for _ in range(replicas)], [CPU] * 2, X, y, batch_size)
