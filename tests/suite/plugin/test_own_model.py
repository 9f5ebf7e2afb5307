"""A user's own model and first minibatches on k devices and on one: which module differs first is named."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from suite import options
from suite.checks import workload as own
from suite.checks.bench import Bench
from suite.plan.workloads import BUILT_IN, Checked, Workload
from suite.processes.failure import WorkerFailure
from suite.properties.answers import RIGHT, SHARED_DRAWS, Judgement
from suite.properties.modules import _rows
from tests.support import text_trainers
from tests.support.project import Project

HERE = f"{text_trainers.__file__}:"
TEXTS = Workload(name="texts", model="tests.support.texts:Writer", dataset="tests.support.texts:corpus", lr=0.05)
BLOBS = Workload(name="blobs", model="toy", dataset="tests.support.learners:overlapping_blobs", lr=0.05)


def check(bench: Bench, trainer: str, workload: Workload = TEXTS, k: int = 2) -> Judgement:
    return own.check(bench, trainer, workload, k, Path("."))


@pytest.mark.parametrize(
    ("trainer", "workload", "k"),
    [
        ("reference.trainers.ddp_tokens:DDPTokensTrainer", TEXTS, 3),
        (HERE + "Accumulates", TEXTS, 2),
        ("fsdp_tokens", BUILT_IN["gpt-tiny"], 3),
        ("scratch", BLOBS, 5),
        ("data_parallel", BLOBS, 2),
        ("weighted", BLOBS, 2),
        ("ddp", BLOBS, 4),
        ("fsdp", BLOBS, 2),
    ],
)
def test_a_right_trainer_agrees_in_every_module(bench: Bench, trainer: str, workload: Workload, k: int) -> None:
    assert check(bench, trainer, workload, k) == RIGHT


@pytest.mark.parametrize(
    ("trainer", "finding"),
    [
        ("MeanOfRanks", r"step 0: the gradient of 'embed.weight', in 'embed' \(Embedding\), on rank 0 is off"),
        ("OneLayerAlone", r"step 0: the gradient of 'blocks.1.up.weight', in 'blocks.1.up' \(Linear\), .*and 2 of 1"),
        (
            "OneWeightApart",
            r"step 0: the output of 'blocks.0.qkv' \(Linear\) on rank 1 is off .*; it is module 3 of 11",
        ),
        (
            "DividesByZero",
            r"^step 0: on one device alone the gradient of 'place' is infinite or not a number, .*: check the loss",
        ),
        ("MixesTexts", r"one device alone computes something else with another seed.*a factory without dropout"),
    ],
)
def test_the_first_module_that_differs_is_named_with_its_error(bench: Bench, trainer: str, finding: str) -> None:
    said = check(bench, HERE + trainer).finding
    assert re.search(finding, said), said


def test_a_step_that_draws_is_compared_on_the_numbers_of_one_device(bench: Bench) -> None:
    assert check(bench, HERE + "DrawsDropout") == Judgement(note=SHARED_DRAWS)


@pytest.mark.parametrize(
    ("trainer", "factor"),
    [("Doubled", "2 times the right gradient"), ("HiddenByAdam", "0.5 times the right gradient")],
)
def test_a_constant_factor_is_found_even_where_adam_hides_it(bench: Bench, trainer: str, factor: str) -> None:
    assert check(bench, HERE + trainer).suspects[0].startswith(factor)


def test_a_model_that_does_not_fit_is_refused_with_the_remedy(bench: Bench) -> None:
    huge = TEXTS.model_copy(update={"model": f"{__file__}:huge"})
    with pytest.raises(WorkerFailure, match=r"TooLarge: .*huge' has 1,000,000 million values: .* smaller model"):
        check(bench, HERE + "Accumulates", huge)
    smaller = huge.model_copy(update={"correctness": Checked(model="tests.support.texts:tiny", batch=5, steps=1)})
    assert check(bench, HERE + "Accumulates", smaller) == RIGHT


def huge() -> nn.Module:
    return nn.Linear(10**6, 10**6, bias=False, device="meta")


def test_samples_are_told_by_their_values() -> None:
    """Of equal samples the first is named; a tensor that is no part of X leaves it open."""
    tokens, length = torch.tensor([[1, 2], [3, 4], [1, 2]]), torch.tensor([2, 1, 2])
    assert _rows([tokens, length], [tokens[1:], length[1:]]) == [1, 0]
    assert _rows([tokens, length], [tokens[1:], "text"]) == [1, 0]
    assert _rows([tokens, length], [tokens + 1]) is None
    assert _rows([tokens, length], [tokens.double()]) is None
    assert _rows([tokens, length], []) is None


@pytest.mark.parametrize(
    "told",
    [
        ["--scaling-devices=cpu:1"],
        ["--scaling-devices=cpu:3", "--scaling-world-sizes=3"],
        ["--scaling-data-root=d"],
        ["-o", "scaling_devices=cpu:1"],
    ],
    ids=["one device", "three", "data", "ini"],
)
def test_the_command_that_shows_a_failure_again_repeats_the_run(project: Project, told: list[str]) -> None:
    run = ["--pyargs", "suite.checks", "-m", "correctness", "--scaling-trainer=ddp", "--scaling-workload=tiny", *told]
    settings = options.read(project.config(*run))
    [workload] = settings.checked_workloads
    said = own.explain(settings, "ddp", workload, 2, Judgement("wrong"))
    pytest_, *command = shlex.split(said.partition("see it again: ")[2])
    assert (pytest_, command[-2:]) == ("pytest", ["-k", "own_model"])
    assert replace(options.read(project.config(*command)), repeat=()) == replace(settings, repeat=())
    assert command[:2] == ["--pyargs", "suite.checks"]
