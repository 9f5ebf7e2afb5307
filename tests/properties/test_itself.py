"""What k devices are compared with under oracle "self", and what a failure there is said to look like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from suite.checks.bench import Bench
from suite.properties.answers import RIGHT
from suite.properties.case import Case, Net
from suite.properties.one_device import UNREAD
from suite.properties.trainer import CONDITIONED
from tests.support.trainers_under_test import Adam

HERE = f"{__name__}:"
MEAN_OF_SHARD_MEANS = "tests.mutants.adam_mean_of_shard_means:Mutant"


class ExchangesIn(Adam):
    """Wrong in float64: gradients go through a dtype of fewer digits."""

    dtype = torch.bfloat16

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if not getattr(self, "hooked", False):
            self.hooked = True
            self.optimizer.register_step_pre_hook(self.lose_digits)
        return super().step(X, y, global_batch_size)

    def lose_digits(self, *_: Any) -> None:
        if dist.get_world_size() > 1:
            for param in self.net.parameters():
                if param.grad is not None:
                    param.grad.copy_(param.grad.to(self.dtype))


class ExchangesInFloat32(ExchangesIn):
    """The same in float32."""

    dtype = torch.float32


class SlightlyTooLarge(ExchangesIn):
    """Wrong: an error of about a percent that has nothing to do with precision."""

    def lose_digits(self, *_: Any) -> None:
        if dist.get_world_size() > 1:
            for number, param in enumerate(self.net.parameters()):
                if param.grad is not None:
                    param.grad.mul_(1 + 0.004 * (number + 1))


class Amplifies(Adam):
    """Right, and so steep that rounding decides where it goes: a line search would be so."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = super().step(X, y, global_batch_size)
        with torch.no_grad():
            for param in self.net.parameters():
                param.add_(0.1 * torch.sin(param * 1e13))
        return loss


class ByTheRules(Adam):
    """Right: its optimizer is none of torch's."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size
        (loss * dist.get_world_size()).backward()
        with torch.no_grad():
            for param in self.net.parameters():
                if param.grad is not None:
                    param -= 0.1 * param.grad
        return loss.detach()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("trainer", "check", "begins"),
    [
        (MEAN_OF_SHARD_MEANS, "gradient", "mean of the shards' means"),
        (MEAN_OF_SHARD_MEANS, "trajectory", "mean of the shards' means"),
        ("tests.mutants.forward_on_old_weights:Mutant", "trajectory", "no bug in particular"),
        (HERE + "ExchangesIn", "gradient", "the error of a sum in 16 bits"),
        (HERE + "ExchangesInFloat32", "gradient", "the error of a sum in float32"),
        (HERE + "SlightlyTooLarge", "gradient", "no bug in particular"),
    ],
)
def test_what_a_failure_looks_like_fits_larger_cases_as_well(
    bench: Bench, trainer: str, check: str, begins: str
) -> None:
    result = bench.search(trainer, check)
    assert result.failure
    assert [line for line in result.suspects if not line.startswith(begins)] == [], result.failure
    assert result.suspects


def test_where_rounding_moves_one_device_as_far_nothing_is_compared(bench: Bench) -> None:
    case = Case(3, (7, 4), net=Net(hidden=(3,)))
    assert bench.judge(HERE + "Amplifies", "trajectory", case).note == CONDITIONED


def test_a_wrong_trainer_is_not_excused_by_rounding(bench: Bench) -> None:
    assert bench.judge(MEAN_OF_SHARD_MEANS, "trajectory", Case(3, (7, 4), net=Net(hidden=(3,)))).finding


def test_it_is_said_where_nothing_of_the_optimizer_could_be_read(bench: Bench) -> None:
    assert bench.judge(HERE + "ByTheRules", "gradient", Case(2, (3,))).note == UNREAD
    assert bench.judge("tests.support.trainers_under_test:Adam", "gradient", Case(2, (3,))) == RIGHT


@pytest.mark.parametrize(
    ("trainer", "check", "case"),
    [
        ("optimizers:LionWithoutDecay", "trajectory", Case(2, (1, 1, 1, 1), net=Net(inputs=1))),
        ("optimizers:Lion", "trajectory", Case(2, (1, 1, 1, 1), net=Net(inputs=1))),
        (
            "optimizers:LBFGSWithLineSearch",
            "trajectory",
            Case(4, (9, 11, 4, 1, 12), 9627, lr=0.1, net=Net(inputs=3, hidden=(1,), classes=4, activation="relu")),
        ),
        (
            "exchanges:OuterOptimizer",
            "low_precision",
            Case(3, (12, 2), 5960, "bfloat16", 0.1, Net(hidden=(5,), classes=3, frozen=True)),
        ),
    ],
)
def test_what_right_trainers_were_blamed_for(bench: Bench, trainer: str, check: str, case: Case) -> None:
    """Signs that return to the start, a line search at a kink, and updates that were rounded twice."""
    assert not bench.judge(f"tests.right.{trainer}", check, case).finding
