"""Which steps of torch's optimizers make an update."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD

from suite.script.updates import Updates, period


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([0, 0, 0, 0], 1),
        ([0, 1, 0, 1], 2),
        ([0, 0, 1, 0, 0, 1], 3),
        ([0, 0, 1, 0, 0, 1, 0], 3),
        ([0, 1, 2, 0, 1], 0),
        ([0, 0, 0, 1], 0),
    ],
)
def test_the_shortest_cycle_that_repeats_is_an_update(calls: list[int], expected: int) -> None:
    assert period(calls) == expected


def optimizers(count: int) -> list[SGD]:
    """Return so many, each with a parameter that has a gradient."""
    made = []
    for _ in range(count):
        parameter = torch.nn.Parameter(torch.zeros(1))
        parameter.grad = torch.ones(1)
        made.append(SGD([parameter], lr=0.1))
    return made


@pytest.mark.parametrize(
    ("order", "cycles", "updates"),
    [([0], 9, 6), ([0, 1], 5, 4), ([0, 0, 0, 1], 4, 3)],  # the first ones show the cycle
)
def test_an_update_ends_with_the_last_step_of_its_cycle(order: list[int], cycles: int, updates: int) -> None:
    stepped: list[int] = []
    seen: list[int] = []
    known = optimizers(max(order) + 1)
    watched = Updates(lambda: seen.append(stepped[-1]))
    try:
        for which in order * cycles:
            stepped.append(which)
            known[which].step()
    finally:
        watched.close()
    assert seen == [order[-1]] * updates
    assert watched.optimizers == known


def test_a_step_that_a_grad_scaler_skips_is_no_update() -> None:
    seen: list[None] = []
    [optimizer] = optimizers(1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    watched = Updates(lambda: seen.append(None))
    try:
        for gradient in [1.0] * 5 + [float("inf"), 1.0]:
            optimizer.param_groups[0]["params"][0].grad = torch.full((1,), gradient)
            scaler.scale(torch.zeros(1))
            scaler.step(optimizer)
            scaler.update()
    finally:
        watched.close()
    assert len(seen) == 3  # of six: the first four show the cycle
