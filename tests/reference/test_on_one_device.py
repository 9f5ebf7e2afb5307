"""Trainers that the table says to be as `single` on one device: their steps there, compared with its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.autograd.profiler import profile

from reference.load import load_named
from reference.trainers import PLAIN_ON_ONE, TRAINERS, trains
from suite.properties import nets
from suite.properties.case import Case, Net, Text
from tests.support.strategies import CPU, LR, values

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")

PRODUCTS = {f"aten::{name}" for name in ("convolution", "convolution_backward", "addmm", "mm", "bmm")}
BATCHES = (4, 3, 5)
STEPS = ("step", "step_unsynced")


@pytest.fixture
def _world_of_one() -> Iterator[None]:
    """Initialise the default process group in this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(name: str, case: Case, step_name: str) -> tuple[list[torch.Tensor], Counter[str]]:
    """Return the weights after all steps of a case, and how many products of matrices the last step took."""
    trainer: Any = load_named(name, TRAINERS, "trainer")(nets.build(case), [CPU], lr=LR)
    last = len(case.batches) - 1
    for step, n in enumerate(case.batches):
        X, y = nets.minibatch(case, step)
        with profile(enabled=step == last) as recorded:
            getattr(trainer, step_name)(X, y, n)
    getattr(trainer, "close", lambda: None)()
    work = Counter(event.name for event in recorded.function_events or () if event.name in PRODUCTS)
    return values(trainer.replicas[0]), work


@pytest.mark.usefixtures("_world_of_one")
@pytest.mark.parametrize(
    ("name", "step_name"),
    [(name, step) for name in PLAIN_ON_ONE for step in STEPS if hasattr(load_named(name, TRAINERS, "trainer"), step)],
)
def test_their_steps_have_the_results_and_the_work_of_single(name: str, step_name: str) -> None:
    """In float64 they are apart by rounding: some divide the loss by the batch, and some its gradient."""
    text, net = Text(blocks=1, ignored=True, weighted=True), Net(inputs=36, hidden=(4,), conv=True, tied=True)
    case = Case(1, BATCHES, net=net) if "samples" in trains(name) else Case(1, BATCHES, text=text)
    expected, work = trained("single", case, "step")
    found, own_work = trained(name, case, step_name)
    assert own_work == work
    assert sum(work.values()) > len(BATCHES)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
