"""Right trainers whose step has many parts pass the checks; `tests.mutants` has each part wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suite.checks import draw
from suite.checks.bench import Bench
from suite.checks.draw import CHECKS
from suite.properties.answers import RIGHT, Judgement
from suite.properties.case import Case, Net
from suite.properties.contract import describe, load_trainer
from suite.properties.hooks import Noise
from tests import mutants
from tests.support import step_trainers

CHECKED = ("trajectory", "replicas", "loss", "not_a_number")  # a trajectory begins with what "gradient" looks at


def passes(bench: Bench, trainer: str, check: str, examples: int) -> None:
    outcome = bench.search(f"{step_trainers.__name__}:{trainer}", check, examples=examples)
    assert not outcome.failure
    assert outcome.examples


@pytest.mark.parametrize("check", CHECKS)
def test_a_right_trainer_with_a_whole_step_passes(bench: Bench, check: str) -> None:
    passes(bench, "WholeStep", check, 4)


@pytest.mark.parametrize("check", CHECKED)
@pytest.mark.parametrize("trainer", ["PlainStep", "ClippedByValue", "Hybrid", "Muon", "Gathering"])
def test_right_trainers_of_other_steps_pass(bench: Bench, trainer: str, check: str) -> None:
    passes(bench, trainer, check, 4)


def test_a_loss_scale_that_overflows_on_one_rank_is_not_that_ranks_affair(bench: Bench) -> None:
    """A sample that is NaN does not show it, because NaN is not infinite."""
    wrong, right = (f"{step_trainers.__name__}:{name}" for name in ("OwnOverflow", "WholeStep"))
    [case] = draw.fixed("not_a_number", 2, "samples")
    assert bench.judge(wrong, "not_a_number", replace(case, overflows=False)).finding == ""
    assert "of rank 1 differs from rank 0's" in bench.judge(wrong, "not_a_number", case).finding
    assert bench.judge(right, "not_a_number", case) == RIGHT


@pytest.mark.parametrize(("name", "alone"), [("WholeStep", True), ("WithReference", False)])
def test_a_trainer_with_a_reference_step_is_compared_with_more_than_itself(name: str, alone: bool) -> None:
    assert describe(load_trainer(f"{step_trainers.__name__}:{name}")).only_with_itself is alone


@pytest.mark.parametrize("check", ["gradient", "trajectory", "identity", "loss", "not_a_number"])
def test_a_right_trainer_equals_its_reference_step(bench: Bench, check: str) -> None:
    passes(bench, "WithReference", check, 4)


@pytest.mark.parametrize(
    ("mutant", "check", "compared", "looks_like"),
    [
        ("adam_hides_the_world_size", "gradient", "the same trainer", "summed over the devices instead of averaged"),
        (
            "adam_hides_accumulation",
            "identity",
            "`reference_step`",
            "2 times the right gradient: Adam divides a factor out again",
        ),
    ],
)
def test_a_factor_that_adam_hides_is_named(
    bench: Bench, mutant: str, check: str, compared: str, looks_like: str
) -> None:
    failure = bench.search(f"{mutants.__path__[0]}/{mutant}.py:Mutant", check).failure
    assert f"that the optimizer is given on rank 0 is off that of {compared} on one device" in failure
    assert f"looks like: {looks_like}" in failure


@pytest.mark.parametrize("check", ["gradient", "trajectory", "loss", "inputs", "low_precision"])
def test_a_right_trainer_of_one_gradient_a_sample_passes(bench: Bench, check: str) -> None:
    passes(bench, "PerSample", check, 4)


@pytest.mark.parametrize("trainer", ["WithReference", "WithALossOfReference"])
def test_a_wrong_loss_is_found_beside_a_reference_step(bench: Bench, trainer: str) -> None:
    """Whether or not the `reference_step` returns one."""
    case = Case(2, (4,))
    assert bench.judge(f"{step_trainers.__name__}:{trainer}", "loss", case) == RIGHT
    finding = bench.judge(f"{step_trainers.__name__}:{trainer}Misreporting", "loss", case).finding
    assert "which is off that of" in finding


@pytest.mark.parametrize("trainer", ["Float16", "Float16Overflowing"])
def test_a_step_that_a_loss_scale_skips_is_not_compared(bench: Bench, trainer: str) -> None:
    case = Case(2, (2, 1), dtype="bfloat16", net=Net(classes=3))
    judgement = bench.judge(f"{step_trainers.__name__}:{trainer}", "low_precision", case)
    assert judgement.finding == ""
    noted = "not compared in low precision from a step on that torch's GradScaler skipped: its scale was too large"
    assert judgement.note.partition(";")[0] == noted


def test_steps_before_and_without_a_skipped_one_are_compared(bench: Bench) -> None:
    case = Case(2, (8, 8), dtype="float32", lr=0.1)
    assert bench.judge(f"{step_trainers.__name__}:Float16", "low_precision", case) == RIGHT
    wrong = f"{step_trainers.__name__}:Float16WithoutExchange"
    assert "is off the mean of" in bench.judge(wrong, "low_precision", case).finding


def test_a_loss_that_one_device_does_not_return_is_not_compared(bench: Bench) -> None:
    judgement = bench.judge(f"{step_trainers.__name__}:SilentAlone", "loss", Case(2, (4, 4)))
    assert judgement == Judgement(note="on one device the step returns no loss, so that of k devices was not compared")


def test_noise_that_every_rank_draws_for_itself_is_right(bench: Bench) -> None:
    passes(bench, "NoisyLoss", "dropout", 5)


def test_numbers_that_ranks_share_are_no_noise_where_a_rank_has_as_many_samples(bench: Bench) -> None:
    """Three random factors and three samples a rank; the next step has four samples a rank, and three factors again."""
    shared, wrong = f"{step_trainers.__name__}:SharedFactors", "tests.mutants.noise_of_one_seed:Mutant"
    case = Case(2, (6, 8), net=Net(hidden=(64,), dropout=True))
    assert bench.judge(shared, "dropout", case) == RIGHT
    assert "drew the same noise for their samples" in bench.judge(wrong, "dropout", case).finding


def test_a_random_tensor_with_a_row_for_each_sample_is_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    with Noise(5, {2, 3}) as noise:
        torch.randn(5, 2, generator=generator)
        torch.zeros(5, 1).normal_()
        torch.bernoulli(torch.full((5, 64), 0.5))
        assert len(noise.digests) == 3
        torch.bernoulli(torch.full((5, 2), 0.5))  # so few bits can be equal by chance
        torch.randint(3, (5,))
        torch.randn(4, 5)
        torch.ones(5, 3).exp()
    assert len(set(noise.digests)) == 3
    for samples, sizes in ((1, ()), (5, (5,))):  # a number for all samples; a random start for each parameter
        with Noise(samples, sizes) as noise:
            torch.randn(samples, 3)
        assert noise.digests == []


@pytest.mark.parametrize("check", ["gradient", "batch_norm", "dropout"])
@pytest.mark.parametrize("trainer", ["Sharpened", "WeighsClasses"])
def test_right_trainers_with_a_loss_of_their_own_pass(bench: Bench, trainer: str, check: str) -> None:
    outcome = bench.search(f"tests.support.trainers_under_test:{trainer}", check, examples=5)
    assert not outcome.failure


CASE = Case(2, (3, 4), net=Net(hidden=(3,)))


@pytest.mark.parametrize("trainer", ["InAHook", "InASubclass", "InAClosure", "InANamedClosure"])
def test_gradients_may_be_exchanged_inside_of_the_optimizer(bench: Bench, trainer: str) -> None:
    assert not bench.search(f"{step_trainers.__name__}:Exchanges{trainer}", "trajectory", examples=5).failure


@pytest.mark.parametrize("trainer", ["InAHookTwice", "InAClosureTwice"])
def test_a_factor_that_adam_hides_is_seen_there_too(bench: Bench, trainer: str) -> None:
    judgement = bench.judge(f"{step_trainers.__name__}:Exchanges{trainer}", "gradient", CASE)
    assert "that the optimizer is given" in judgement.finding
    assert judgement.suspects[0].startswith("2 times the right gradient: Adam divides a factor out again")
