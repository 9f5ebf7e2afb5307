"""Every way of breaking the trainer protocol is named with the missing part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reference.trainers import TRAINERS, trains
from suite.properties import contract
from suite.properties.contract import ContractError
from tests.support import trainers_under_test

HERE = f"{trainers_under_test.__file__}:"
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", TRAINERS)
def test_built_in_trainers_keep_the_protocol(name: str) -> None:
    about = contract.describe(contract.load_trainer(name))
    assert about.processes in contract.PROCESSES
    assert about.oracle == "sgd"
    assert not about.only_with_itself
    assert about.trains in trains(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoProcesses", '`processes` is missing: processes = "one" or "per-device"'),
        ("NoStep", r"`processes` is 'many'.*`step` is missing: def step\(self, X, y, global_batch_size\)"),
        ("WrongInit", r"`__init__` does not take \(model, devices, \*, lr\)"),
        ("OtherOracle", "`oracle` is 'mse': expected one of 'sgd', 'self'"),
        ("TrainsWords", "`trains` is 'words': expected one of 'samples', 'tokens'"),
        ("TokensWithoutLoss", "`trains` is 'tokens' and `loss` is missing: expected def loss"),
        ("HalfShards", r"`shards` is 0\.5: expected shards = \"equal\", or a number"),
        ("SavesOnly", r"`load_state_dict` is missing, and its counterpart is there: expected def load_state_dict"),
        ("LoadsNothing", r"`load_state_dict` does not take \(state\): def load_state_dict\(self, state\)"),
        ("MethodReplicas", "`replicas` is a method: expected a property returning"),
        ("not_a_class", "is a builtin_function_or_method, not a class"),
    ],
)
def test_a_missing_part_is_named(name: str, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        contract.load_trainer(HERE + name)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "`replicas` is missing"),
        ({"replicas": []}, r"`replicas` is \[\]"),
        ({"replicas": [torch.nn.Linear(1, 1)] * 2}, r"\['Linear', 'Linear'\] on 1 device"),
    ],
)
def test_replicas_are_checked_on_the_instance(parts: dict[str, Any], message: str) -> None:
    trainer = type("Trainer", (trainers_under_test.NoReplicas,), parts)(torch.nn.Linear(1, 1), [CPU], lr=0.1)
    with pytest.raises(ContractError, match=message):
        contract.check_instance(trainer, [CPU])


def test_a_module_of_torch_is_resumed_only_with_methods_of_its_own() -> None:
    """What nn.Module saves is weights, which a trainer that is one has not chosen as its state."""
    resumes = {
        name: contract.describe(contract.load_trainer(HERE + name)).resumes
        for name in ("Resumable", "ResumableModule", "PlainModule", "NoReplicas")
    }
    assert resumes == {"Resumable": True, "ResumableModule": True, "PlainModule": False, "NoReplicas": False}


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda batch: None, r"protocol: `loss` takes \(batch\): expected def loss\(self, output, y\)"),
        (0.5, r"`loss` is a float: expected def loss\(self, output, y\).*; rename it if it is something else"),
    ],
)
def test_a_loss_with_other_arguments_is_reported_with_its_signature(loss: object, message: str) -> None:
    trainer = contract.load_trainer("single")(torch.nn.Linear(1, 1), [CPU], lr=0.1)
    trainer.loss = loss
    with pytest.raises(ContractError, match=message):
        contract.check_instance(trainer, [CPU])


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_may_be_a_mean_or_one_value_a_sample(reduction: str) -> None:
    loss, y = torch.nn.CrossEntropyLoss(reduction=reduction), torch.tensor([0, 1, 1])
    assert contract.apply_loss(loss, torch.eye(3, 2), y).shape == (() if reduction == "mean" else (3,))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            lambda output, y: F.mse_loss(output, y[:, 7]),
            r"`loss` called with output \(3, 2\) and y \(3,\) raised IndexError: .*: expected def loss",
        ),
        (
            lambda output, y: output.mean(dim=0).repeat(100),
            r"returned a tensor \(200,\): expected def loss\(self, output, y\), a tensor: the mean",
        ),
        (
            torch.nn.CrossEntropyLoss(reduction="sum"),
            r"y \(3,\) returned the sum over the samples: expected def loss\(self, output, y\), a tensor: the mean",
        ),
        (
            torch.tensor(0.5),
            r"`loss` became a Tensor in the steps: expected def loss.*; rename it if it is something else",
        ),
    ],
)
def test_a_loss_that_is_none_is_reported_when_it_is_applied(loss: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        contract.apply_loss(loss, torch.eye(3, 2), torch.tensor([0, 1, 1]))


def contrastive(output: Tensor, y: Tensor) -> Tensor:
    """Compare every sample with all others, as CLIP does."""
    return F.cross_entropy(output @ output.T, torch.arange(len(output)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "loss",
    [
        lambda output, y: F.cross_entropy(output, y),
        lambda output, y: F.cross_entropy(output, y, weight=torch.tensor([1.0, 3.0]).to(output)),
        lambda output, y: F.cross_entropy(output, y, ignore_index=1),
        lambda output, y: F.cross_entropy(output, y, ignore_index=0),  # one sample counts, or none
        lambda output, y: F.cross_entropy(output, y) + 1e-3 * output.logsumexp(1).square().mean(),
        lambda output, y: F.cross_entropy(F.dropout(output), y),
        lambda output, y: F.cross_entropy(output + torch.randn_like(output), y),
        lambda output, y: F.cross_entropy(output, y) * 0,
        lambda output, y: contrastive(output, y),
        lambda output, y: contrastive(0 * output, y),  # log n, and log 4 is twice log 2
    ],
)
@pytest.mark.parametrize("labels", [[0], [0, 1], [0, 1, 1, 1]])
def test_no_mean_is_taken_for_a_sum(loss: Any, dtype: torch.dtype, labels: list[int]) -> None:
    output = torch.eye(len(labels), 2, dtype=dtype, requires_grad=True)
    for seed in range(3):
        torch.manual_seed(seed)
        given = loss(output, torch.tensor(labels))
        then = torch.get_rng_state()
        torch.manual_seed(seed)
        assert torch.equal(contract.apply_loss(loss, output, torch.tensor(labels)).nan_to_num(), given.nan_to_num())
        assert torch.equal(torch.get_rng_state(), then)
