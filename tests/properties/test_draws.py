"""Steps that draw random numbers are compared on those that one device draws for each sample."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from reference.scatter import shard_bounds
from suite.checks.bench import Bench
from suite.properties.answers import SHARED_DRAWS, Judgement
from suite.properties.case import Case, Net, Text
from suite.properties.hooks import DrawsOfOneDevice
from suite.properties.one_device import UNREAD
from suite.room import accelerator
from tests.support import drawing_trainers

SAMPLES = 5
ON_THREE = Case(3, (5, 4, 6), net=Net(hidden=(3,)))
TEXTS = Case(3, (5, 4, 6), text=Text(vocabulary=4, positions=3, width=4, blocks=1, ignored=True))


def named(trainer: str) -> str:
    return f"{drawing_trainers.__name__}:{trainer}"


def drawn(draw: Callable[[int, slice], Tensor], rank: int, world_size: int) -> Tensor:
    """Return what a rank draws after all have been seeded alike."""
    accelerator.seed([torch.device("cpu")], 3)
    mine = shard_bounds(SAMPLES, world_size, rank)
    with DrawsOfOneDevice(SAMPLES, mine) as draws:
        torch.rand(())  # one number for the minibatch, before
        values = draw(mine.stop - mine.start, mine)
    assert draws.drew
    return values


DRAWS: dict[str, Callable[[int, slice], Tensor]] = {
    "rand": lambda rows, _: torch.rand(rows, 3),
    "randn": lambda rows, _: torch.randn(rows, 20, dtype=torch.float64),
    "randint": lambda rows, _: torch.randint(0, 1000, (rows,)),
    "rand_like": lambda rows, _: torch.rand_like(torch.zeros(rows, 2, 2)),
    "normal_": lambda rows, _: torch.zeros(rows, 3).normal_(2.0, 0.1),
    "exponential_": lambda rows, _: torch.zeros(rows).exponential_(),
    "in a view": lambda rows, _: torch.zeros(rows, 4)[:, ::2].uniform_(),
    "dropout": lambda rows, _: F.dropout(torch.ones(rows, 16)),
    "bernoulli": lambda rows, mine: torch.bernoulli(torch.linspace(0, 1, SAMPLES)[mine]),
    "multinomial": lambda rows, mine: torch.multinomial(torch.eye(SAMPLES)[mine] + 0.1, 2),
    "tokens": lambda rows, _: torch.rand(rows * 7).reshape(rows, 7),
    "own generator": lambda rows, mine: torch.rand(rows, generator=torch.Generator().manual_seed(mine.start)),
    "whole minibatch": lambda rows, mine: torch.rand(SAMPLES, 2)[mine],
}


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_ranks_draw_for_their_samples_what_one_device_draws(
    draw: Callable[[int, slice], Tensor], world_size: int
) -> None:
    alone = drawn(draw, 0, 1)
    assert torch.equal(torch.cat([drawn(draw, rank, world_size) for rank in range(world_size)]), alone)
    assert len(alone.flatten().unique()) > 1


def test_a_rank_without_samples_draws_what_has_no_rows_for_any() -> None:
    with DrawsOfOneDevice(2, slice(2, 2)) as draws:
        assert torch.rand(0, 3).shape == (0, 3)
        assert torch.rand(4).shape == (4,)
    assert draws.drew


def test_what_is_computed_is_no_draw() -> None:
    with DrawsOfOneDevice(4, slice(0, 2)) as draws:
        assert torch.ones(2, 3).sum() == 6
    assert not draws.drew


def test_python_and_numpy_draw_from_the_seed_too() -> None:
    def both() -> tuple[float, float]:
        accelerator.seed([], 5)
        return random.random(), float(numpy.random.rand())

    assert both() == both()


@pytest.mark.parametrize(
    ("trainer", "check"),
    [
        *(("NoisyLoss", check) for check in ("trajectory", "loss", "not_a_number", "refusals")),
        *(("OwnLoss", check) for check in ("gradient", "identity", "batch_norm")),
        *(("WeighsTexts", check) for check in ("trajectory", "loss")),
    ],
)
def test_a_right_step_that_draws_passes(bench: Bench, trainer: str, check: str) -> None:
    assert not bench.search(named(trainer), check, examples=4).failure


@pytest.mark.parametrize(
    ("trainer", "case"), [("NoisyLoss", ON_THREE), ("OwnLoss", ON_THREE), ("OfNumPy", ON_THREE), ("WeighsTexts", TEXTS)]
)
def test_it_is_said_that_a_step_draws(bench: Bench, trainer: str, case: Case) -> None:
    assert bench.judge(named(trainer), "gradient", case) == Judgement(note=SHARED_DRAWS)


def test_a_trainer_that_draws_before_it_splits_the_minibatch_needs_no_help(bench: Bench) -> None:
    assert bench.judge(named("OneProcess"), "gradient", ON_THREE) == Judgement(note=UNREAD)


@pytest.mark.parametrize(
    ("trainer", "case", "looks_like"),
    [
        ("NoisyMeanOfMeans", ON_THREE, "no bug in particular"),
        ("WeighsTextsByRank", TEXTS, "mean of the ranks' own means"),
        ("MixesSamples", ON_THREE, "random numbers that the suite cannot also give to one device"),
        ("NotMeanCrossEntropy", ON_THREE, "random numbers in the step, of which mean cross-entropy has none"),
    ],
)
def test_a_wrong_step_that_draws_is_found(bench: Bench, trainer: str, case: Case, looks_like: str) -> None:
    judgement = bench.judge(named(trainer), "gradient", case)
    assert judgement.finding
    assert [line for line in judgement.suspects if line.startswith(looks_like)]


@pytest.mark.parametrize("check", ["gradient", "replicas"])
def test_replicas_that_drift_apart_by_their_draws_are_found(bench: Bench, check: str) -> None:
    """With the draws of one device they would not."""
    assert bench.judge(named("NoisyWeights"), check, ON_THREE).finding


def test_low_precision_of_a_step_that_draws_is_not_compared(bench: Bench) -> None:
    case = Case(2, (5, 4), dtype="bfloat16", net=Net(hidden=(3,)))
    judgement = bench.judge(named("NoisyLoss"), "low_precision", case)
    assert judgement == Judgement(note="not compared in low precision: the step draws random numbers")


def test_generators_that_are_not_resumed_are_named(bench: Bench) -> None:
    """Torch's are in the trainer's `state_dict`, and NumPy's are not."""
    judgement = bench.judge(named("OfNumPy"), "resume", replace(ON_THREE, resumed=1))
    assert judgement.suspects[0].startswith("generators (torch's, NumPy's, Python's) are not resumed")
    assert bench.judge(named("OwnLoss"), "resume", replace(ON_THREE, resumed=2)).finding == ""
