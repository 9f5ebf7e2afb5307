"""Accuracy on one and on several devices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.evaluate import accuracy, count_correct
from tests.strategies import CPU, world_sizes


class Recorder(nn.Module):
    """Says "class of the first feature", and remembers the mode and the samples it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.seen: list[float] = []
        self.modes: set[tuple[bool, bool]] = set()

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, d) to scores (n, 3)."""
        self.seen += X[:, 0].tolist()
        self.modes.add((self.dropout.training, torch.is_grad_enabled()))
        return nn.functional.one_hot(X[:, 0].long() % 3, 3).float()


@given(n=st.integers(1, 60), k=world_sizes, batch_size=st.integers(1, 20), wrong=st.integers(0, 60))
def test_every_sample_is_counted_once_on_any_number_of_devices(n: int, k: int, batch_size: int, wrong: int) -> None:
    """Uneven shards and batches included: the count is that of one device on everything."""
    X = torch.arange(float(n)).reshape(n, 1)
    y = torch.arange(n) % 3
    y[:wrong] = (y[:wrong] + 1) % 3
    replicas = [Recorder() for _ in range(k)]
    assert count_correct(replicas, [CPU] * k, X, y, batch_size) == max(n - wrong, 0)
    assert [sample for replica in replicas for sample in replica.seen] == X.flatten().tolist()


def test_evaluation_is_in_eval_mode_without_gradients_and_leaves_each_module_as_it_was() -> None:
    """A part that was frozen in eval mode stays so."""
    net = Recorder()
    net.dropout.eval()
    count_correct([net], [CPU], torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    assert net.modes == {(False, False)}
    assert net.training
    assert not net.dropout.training


def test_modes_are_restored_when_the_forward_raises() -> None:
    """A failing evaluation must not leave dropout off."""
    net = Recorder()
    with pytest.raises(IndexError):
        count_correct([net], [CPU], torch.zeros(3), torch.zeros(3, dtype=torch.int64))
    assert net.training
    assert net.dropout.training


def test_one_replica_on_many_devices_sees_everything() -> None:
    """nn.DataParallel's trainer has one module for all its devices."""
    net = Recorder()
    assert accuracy([net], [CPU] * 4, torch.arange(5.0).reshape(5, 1), torch.zeros(5, dtype=torch.int64)) == 0.4


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
    """The message names what does not fit."""
    X, y = torch.zeros(samples, 1), torch.zeros(labels, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        count_correct([Recorder() for _ in range(replicas)], [CPU] * 2, X, y, batch_size)


def test_accuracy_of_no_samples_is_reported() -> None:
    """0 / 0 is neither right nor wrong."""
    with pytest.raises(ValueError, match="X has 0 samples: an accuracy needs at least one"):
        accuracy([Recorder()], [CPU], torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))
