"""Which statistics of a batch normalisation are right, and what a trainer that keeps others is told."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from reference.trainers.scratch import Scratch
from reference.trainers.single import Single
from suite.properties.case import Case, Net
from suite.properties.observe import Observation
from suite.properties.trainer import judge
from tests.support.in_this_process import tampered

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")


def share(seen: Observation) -> None:
    """Say that the first step's samples went through the net in two parts, of four samples and of the others."""
    [entry] = seen["log"][0]
    seen["log"][0] = [{**entry, "samples": entry["samples"][:4]}, {**entry, "samples": entry["samples"][4:]}]


@pytest.mark.parametrize(("name", "start"), [("running_mean", 0.0), ("running_var", 1.0)])
def test_running_statistics_that_stay_at_their_start_are_lost(name: str, start: float) -> None:
    case = Case(1, (6,), net=Net(hidden=(3,), norm="batch"))

    def lose(seen: Observation) -> None:
        seen["buffers"][f"norms.0.{name}"] = torch.full((3,), start, dtype=torch.float64)

    assert judge("batch_norm", tampered(lambda seen: None, case=case)).finding == ""
    assert "pytorch/pytorch#1051" in judge("batch_norm", tampered(lose, case=case)).suspects[0]


def test_a_sample_that_the_net_never_saw_is_found_to_be_missing() -> None:
    case = Case(1, (6,), net=Net(hidden=(3,), norm="batch"))

    def lose(seen: Observation) -> None:
        seen["log"][0][0]["samples"].pop()

    finding = judge("batch_norm", tampered(lose, case=case)).finding
    assert finding == "step 0: the minibatch has samples 0 to 5, but the net saw [[0, 1, 2, 3, 4]]"


def test_a_shard_of_one_sample_has_no_statistics_to_compare_with() -> None:
    """Normalised over all ranks, its gradient is right."""
    case = Case(1, (5,), net=Net(hidden=(3,), norm="batch"))

    assert judge("batch_norm", tampered(share, case=case)).note == "batch normalisation over the whole minibatch"


class ByShardLater(Scratch):
    """Normalises the first minibatch as a whole, and later ones by shard."""

    started = False

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if self.started:
            return super().step(X, y, global_batch_size)
        self.started = True
        loss = nn.functional.cross_entropy(self.nets[0](X), y)
        loss.backward()
        with torch.no_grad():
            for first, *others in zip(*self.device_params, strict=True):
                first -= self.lr * first.grad
                first.grad = None
                for other in others:
                    other.copy_(first)
        return loss.detach()


def test_statistics_are_of_the_same_kind_in_every_step() -> None:
    case = Case(2, (8, 8), net=Net(hidden=(3,), norm="batch"))
    assert judge("batch_norm", tampered(lambda seen: None, Scratch, case)).note == "batch normalisation by shard"

    finding = judge("batch_norm", tampered(share, ByShardLater, case)).finding
    assert finding == "step 1: batch normalisation by shard, and earlier steps were over the whole minibatch"


def test_layers_that_are_called_synchronised_are() -> None:
    case = Case(2, (8,), net=Net(hidden=(3,), norm="batch"))

    def rename(seen: Observation) -> None:
        seen["synchronised"] = True

    finding = judge("batch_norm", tampered(rename, Scratch, case)).finding
    assert finding == "step 0: batch normalisation by shard, and its layers are called SyncBatchNorm"
    assert judge("batch_norm", tampered(rename, Single, case)).note == "batch normalisation over the whole minibatch"
