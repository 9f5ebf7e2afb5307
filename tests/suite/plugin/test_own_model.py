"""A user's own model and first minibatches on k devices and on one: which module differs first is named."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from suite.checks import workload as own
from suite.checks.bench import Bench
from suite.plan.workloads import BUILT_IN, Checked, Workload
from suite.processes.failure import WorkerFailure
from suite.properties import contract
from suite.properties.answers import OWN_SIGNATURE, RIGHT, SHARED_DRAWS, Judgement
from suite.rank.own_model import rows_of
from tests.support import own_models, own_signatures, step_trainers, texts
from tests.support.project import Project

HERE = f"{texts.__name__}:"
TEXTS = Workload(name="texts", model="tests.support.texts:Writer", dataset="tests.support.texts:corpus", lr=0.05)
BLOBS = Workload(name="blobs", model="toy", dataset="tests.support.learners:overlapping_blobs", lr=0.05)


OWN = f"{own_models.__name__}:"


def own_blobs(model: str, dataset: str = "tests.support.learners:overlapping_blobs") -> Workload:
    return Workload(name="own", model=OWN + model, dataset=dataset, lr=own_models.LR)


def check(bench: Bench, trainer: str, workload: Workload = TEXTS, k: int = 2) -> Judgement:
    return own.check(bench, trainer, workload, k, Path("."))


@pytest.mark.parametrize(
    ("trainer", "workload", "k"),
    [
        ("reference.trainers.ddp:DDPTokensTrainer", TEXTS, 3),
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


@pytest.mark.parametrize(
    ("trainer", "model", "finding", "suspect"),
    [
        (
            "ByHand",
            "one_output",
            "15 steps .* none of the 2 trained",
            "cross-entropy on one output.* 1",
        ),
        ("HoldsOthers", "two_layers", "15 steps .* none of the 4", "the optimizer holds other parameters"),
        (
            "Detached",
            "two_layers",
            "15 steps .* none of the 4",
            "no gradient reaches .*detached from the model",
        ),
        ("NeverSteps", "two_layers", "15 steps .* none of the 4", "no optimizer of torch's was stepped"),
        (
            "TooSmall",
            "two_layers",
            "15 steps .* none of the 4",
            "4 gradients are there .* smaller than the round",
        ),
        ("NeverWarm", "two_layers", "15 steps .* none of the 4", "the learning rate is 0 in all of 15 steps"),
        ("DecaysOnly", "two_layers", "by weight decay alone: every gradient is exactly 0", "the loss does not depend"),
        ("ByHand", "frozen", "no parameter of the model is trained: all 4 are frozen, .*; let requires_grad be", None),
    ],
)
def test_a_trainer_that_learns_nothing_is_wrong_and_what_keeps_it_is_named(
    bench: Bench, trainer: str, model: str, finding: str, suspect: str | None
) -> None:
    """Two devices that learn nothing agree with one that learns nothing."""
    dataset = "tests.support.own_models:one_class" if model == "one_output" else BLOBS.dataset
    judgement = check(bench, OWN + trainer, own_blobs(model, dataset))
    assert re.search(finding, judgement.finding), judgement
    assert bool(judgement.suspects) == bool(suspect)
    assert not suspect or re.search(suspect, judgement.suspects[0]), judgement


def test_a_rank_whose_step_changes_nothing_is_named(bench: Bench) -> None:
    finding = "step 0: one device changes 4 of 4 trained parameters, and on rank 0 none changes, although"
    assert check(bench, OWN + "UndoesItAlone", own_blobs("two_layers")).finding.startswith(finding)


@pytest.mark.parametrize(
    ("trainer", "model"),
    [
        ("WithLogits", "one_output"),
        ("Decays", "two_layers"),
        ("WarmsUpOnce", "two_layers"),
        ("ComesBack", "two_layers"),
        ("Replaces", "two_layers"),
        ("ByHand", "frozen_below"),
    ],
)
def test_a_trainer_that_learns_little_or_late_is_right(bench: Bench, trainer: str, model: str) -> None:
    dataset = "tests.support.own_models:one_class" if model == "one_output" else BLOBS.dataset
    assert check(bench, OWN + trainer, own_blobs(model, dataset)) == RIGHT


@pytest.mark.parametrize(
    ("trainer", "model", "note"),
    [
        ("WarmsUp", "two_layers", r"in the 2 steps that were compared, .* is that of step 3; set .*\] steps = 5$"),
        ("Scales", "two_layers", r"in the 2 steps that were compared, .* is that of step [2-4]; set .* steps = [4-6]$"),
        ("HoldsHalf", "two_layers", r"^1 of 4 trained parameters did not .*: '2.bias' \(in no optimizer of torch's\)$"),
        (
            "ByHand",
            "HasIdleParts",
            r"^3 of 6 trained .* in 2 steps .*: 'unused' \(without a gradient\), 'cut' \(without a gradient\), "
            r"'muted' \(its gradient is 0\)$",
        ),
    ],
)
def test_what_did_not_move_is_noted(bench: Bench, trainer: str, model: str, note: str) -> None:
    judgement = check(bench, OWN + trainer, own_blobs(model))
    assert not judgement.finding
    assert re.search(note, judgement.note), judgement


IN_EVAL = "compared in eval mode, where one device and 2 agree; in training mode, which the step sets, they do not"


@pytest.mark.parametrize(
    ("trainer", "model", "note"),
    [
        ("Trains", "batch_norm", ""),
        ("Toggles", "batch_norm", ""),
        ("Synchronises", "batch_norm", ""),
        ("Trains", "batch_norm_3d", ""),
        ("Trains", "without_statistics", ""),
        ("Trains", "instance_norm", ""),
        ("Trains", "dropout", ""),
        ("Trains", "Recurrent", ""),
        ("OfLosses", "OfATask", ""),
        ("Trains", "Functional", SHARED_DRAWS),
        ("Trains", "Deep", SHARED_DRAWS),
        ("Trains", "OwnStatistics", f"{IN_EVAL}, .*: step 0: the output of 'last'"),
        ("Trains", "Mixes", f"{IN_EVAL}, .*: one device alone computes something else with another seed"),
    ],
)
def test_a_step_may_set_training_mode(bench: Bench, trainer: str, model: str, note: str) -> None:
    """A right trainer passes, if need be with a note, and one that exchanges nothing is wrong on the same model."""
    workload = BLOBS.model_copy(update={"model": OWN + model})
    right, wrong = (check(bench, OWN + name, workload) for name in (trainer, trainer + "Apart"))
    assert not right.finding
    assert re.match(note, right.note) if note else right == RIGHT, right
    assert wrong.finding.startswith(("step 0: the gradient of", "step 0: the output of"))


@pytest.mark.parametrize(
    ("trainer", "model"),
    [
        ("Calls", "TakesLabels"),
        ("Calls", "NeedsLabels"),
        ("Calls", "ToADataclass"),
        ("Calls", "ToADict"),
        ("Calls", "ToAnObject"),
        ("CallsByName", "ByName"),
        ("CallsForALoss", "OnlyLoss"),
        ("Calls", "Again"),
        ("Wraps", "TakesLabels"),
        ("Compiles", "Again"),
    ],
)
def test_a_model_may_take_and_return_what_it_likes(bench: Bench, trainer: str, model: str) -> None:
    """The outputs of all modules are compared: a weight that is another one on rank 1 is found where it is used."""
    here = f"{own_signatures.__name__}:"
    dataset = "tests.support.own_signatures:masked" if model == "ByName" else BLOBS.dataset
    workload = BLOBS.model_copy(update={"model": here + model, "dataset": dataset})
    assert check(bench, here + trainer, workload) == RIGHT
    wrong = check(bench, f"{here}{trainer}Apart", workload).finding
    assert re.match(r"step 0: the output of 'second.linear' \(Linear\) on rank 1 is off", wrong), wrong


def test_a_model_that_does_not_fit_is_refused_with_the_remedy(bench: Bench) -> None:
    huge = TEXTS.model_copy(update={"model": f"{__name__}:huge"})
    with pytest.raises(WorkerFailure, match=r"TooLarge: .*huge' has 1,000,000 million values: .* smaller model"):
        check(bench, HERE + "Accumulates", huge)
    smaller = huge.model_copy(update={"correctness": Checked(model="tests.support.texts:tiny", batch=5, steps=1)})
    assert check(bench, HERE + "Accumulates", smaller) == RIGHT


def huge() -> nn.Module:
    return nn.Linear(10**6, 10**6, bias=False, device="meta")


def test_outputs_under_torch_func_are_not_compared_with_a_note(bench: Bench) -> None:
    note = "gradients agree; outputs were not compared: the model was given other tensors than X"
    assert check(bench, f"{step_trainers.__name__}:PerSample", BLOBS) == Judgement(note=note)


def test_parameters_of_other_names_on_several_devices_are_refused_with_the_remedy(bench: Bench) -> None:
    workload = BLOBS.model_copy(update={"model": f"{own_signatures.__name__}:TakesLabels"})
    said = check(bench, f"{own_signatures.__name__}:HoldsInAnother", workload).finding
    assert re.match(
        "the trained parameters of rank 0 are not those of one device: '0.first.linear.bias' is on one side only; "
        "return the same module in `replicas`",
        said,
    ), said


@pytest.mark.parametrize("check", ["gradient", "refusals", "not_a_number"])
@pytest.mark.parametrize(
    ("trainer", "called"),
    [("Calls", r"model\(Tensor, Tensor\)"), ("CallsTokensByName", r"model\(labels=dict, tokens=Tensor, .*\)")],
)
def test_a_signature_of_its_own_is_named_with_what_to_use(bench: Bench, trainer: str, called: str, check: str) -> None:
    first = bench.search(f"{own_signatures.__name__}:{trainer}", check, examples=2)
    said = rf"check '{check}': rank \d: {OWN_SIGNATURE}: `step` calls its model as {called}, .*; check it on your own "
    assert re.search(said + ".*--scaling-workload NAME -k own_model\n", first.failure), first.failure
    assert contract.OwnSignature.__name__ == OWN_SIGNATURE


def test_samples_are_told_by_their_values() -> None:
    """Of equal samples the first is named, unless something that is no part of them may tell them apart."""
    tokens, length = torch.tensor([[1, 2], [3, 4], [1, 2]]), torch.tensor([2, 1, 2])
    X, y = [tokens, length], [torch.tensor([0, 1, 1])]
    assert rows_of(X, y, [tokens[1:], length[1:]]) == [1, 0]
    assert rows_of(X, y, [torch.tensor(0.5), length[1:], tokens[1:]]) == [1, 0]
    assert rows_of(X, y, [tokens[1:], y[0][1:]]) == [1, 2]
    assert rows_of(X, y, [y[0]]) is None
    assert rows_of(X, y, [tokens + 1]) is None
    assert rows_of(X, y, [tokens.double()]) is None
    assert rows_of(X, y, [tokens, tokens.double()]) is None
    assert rows_of([tokens[:2]], y, [tokens[1:2], torch.rand(3)]) == [1]
    assert rows_of(X, y, [tokens, length[:2]]) is None
    assert rows_of(X, y, []) is None


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
    settings = project.settings(*run)
    [workload] = settings.checked_workloads
    said = own.explain(settings, "ddp", workload, 2, Judgement("wrong"))
    pytest_, *command = shlex.split(said.partition("see it again: ")[2])
    assert (pytest_, command[-2:]) == ("pytest", ["-k", "own_model"])
    assert replace(project.settings(*command), repeat=()) == replace(settings, repeat=())
    assert command[:2] == ["--pyargs", "suite.checks"]


@pytest.mark.parametrize("shards", ["equal", 2])
def test_a_mean_of_shards_is_right_on_the_shards_that_it_is_said_to_get(bench: Bench, shards: Any) -> None:
    trainer = "tests.support.trainers_under_test:MeanOfMeans"
    judgement = check(bench, trainer, BLOBS, 3)
    assert "the gradient of" in judgement.finding
    assert own.UNEQUAL.format(batch=13) in judgement.suspects
    equal = BLOBS.model_copy(update={"correctness": Checked(shards=shards)})
    assert check(bench, trainer, equal, 3) == RIGHT


def test_a_hang_ends_by_what_one_device_takes_and_counts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.checks.bench.HANG_S", 2.0)
    monkeypatch.setattr("suite.checks.workload.SLOWER", 0.5)
    with pytest.raises(WorkerFailure, match=r"rank.? .*no answer to 'train_model' within \d+ s"):
        check(bench, "tests.support.trainers_under_test:Hangs", BLOBS)
