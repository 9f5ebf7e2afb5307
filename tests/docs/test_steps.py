"""The loops that docs/performance times beside the reference compute the same updates."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from docs.performance import steps
from reference.models.init import build
from reference.trainers.single import Single

CPU = torch.device("cpu")


@pytest.mark.parametrize("k", [1, 2])
def test_the_books_loop_updates_every_replica_as_one_device_does(k: int) -> None:
    net = build("lenet", "xavier").double()
    X, y = torch.rand(8, 1, 28, 28, dtype=torch.float64), torch.randint(10, (8,))
    book, single = steps.Book(net, k, 0.1), Single(net, [CPU], lr=0.1)
    for _ in range(2):
        book.step(X, y, 8)
        single.step(X, y, 8)
    for replica in book.replicas:
        torch.testing.assert_close(list(replica.parameters()), list(single.net.parameters()), rtol=0, atol=1e-12)


def test_the_error_of_a_wrong_gradient_is_its_size() -> None:
    net = build("lenet", "xavier")
    X, y = torch.rand(8, 1, 28, 28), torch.randint(10, (8,))
    exact = steps._gradient(copy.deepcopy(net).double(), X.double(), y)
    assert steps._error(steps.Book(net, 1, steps.HUGE_LR), net, exact, X, y) < 1e-5
    assert steps._error(steps.Book(net, 1, 2 * steps.HUGE_LR), net, exact, X, y) == pytest.approx(1, rel=1e-4)


@pytest.mark.nightly
def test_every_loop_is_timed_and_the_tables_say_what_is_not_installed() -> None:
    found = steps.measure(steps.Setting("lenet", batch=8, windows=1), sessions=1)
    assert found.ratios.keys() == {loop.name for group in steps.GROUPS.values() for loop in group}
    assert all(math.isfinite(ratio.estimate) for ratio in found.ratios.values())
    assert found.errors.keys() == {loop.name for loop in steps.ONE_PROCESS}
    assert all(name in found.markdown for name in (*found.ratios, *steps.LIBRARIES))
