"""An exception is a refusal only where a plain case trains; a trainer that hangs again and again is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

from reference.trainers.ddp import DDPTrainer
from reference.trainers.single import Single
from suite.checks import search
from suite.checks.bench import MOST_HANGS, Bench
from suite.checks.search import EMPTY_SHARD
from suite.properties.case import Case, Net

HERE = f"{__name__}:"
CASES = {
    "refusals": Case(2, (4, 4), net=Net(hidden=(2,), unused="nowhere")),
    "not_a_number": Case(2, (4, 4), spoiled=0),
    "batch_norm": Case(2, (4,), net=Net(hidden=(2,), norm="batch")),
}


class CallsWhatIsNotThere(DDPTrainer):
    """Wrong: a generated net has no such method, whatever the case."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.model.configure_optimizers()  # type: ignore[attr-defined]
        return super().step(X, y, global_batch_size)


class BreaksOnSeveralDevices(DDPTrainer):
    """Wrong: right on one device, and a name is missing on several."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_world_size() > 1:
            global_batch_size += missing  # type: ignore[name-defined]  # noqa: F821
        return super().step(X, y, global_batch_size)


class RaisesOnRankOne(DDPTrainer):
    """Wrong: one rank raises while the others wait for it."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            raise KeyError("labels")
        return super().step(X, y, global_batch_size)


class RefusesAll(Single):
    """Right: raises on what the checks allow it to refuse, on one device as on several."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        kinds = {type(layer).__name__ for layer in self.net.modules()}
        if bool(X.isnan().any()) or "BatchNorm1d" in kinds or getattr(self.net, "unused", "none") != "none":
            raise ValueError("not trained")
        return super().step(X, y, global_batch_size)


@pytest.mark.parametrize(
    ("trainer", "says", "check"),
    [
        *(("CallsWhatIsNotThere", "has no attribute", check) for check in CASES),
        ("BreaksOnSeveralDevices", "NameError", "refusals"),
        ("RaisesOnRankOne", "KeyError: 'labels'", "refusals"),
    ],
)
def test_a_programming_error_is_no_refusal(bench: Bench, trainer: str, says: str, check: str) -> None:
    judgement = bench.judge(HERE + trainer, check, CASES[check])
    assert says in judgement.finding
    assert "so that this is no refusal" in judgement.finding
    assert judgement.crashed


@pytest.mark.parametrize("check", CASES)
def test_a_trainer_that_raises_on_what_it_may_refuse_passes_with_its_words(bench: Bench, check: str) -> None:
    judgement = bench.judge(HERE + "RefusesAll", check, CASES[check])
    assert judgement.refused
    assert judgement.note.endswith("step 0: ValueError: not trained")


class AlwaysHangs(DDPTrainer):
    """Wrong: rank 0 waits for a collective that no other rank begins."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_world_size() > 1 and dist.get_rank() == 0:
            dist.barrier()
        return super().step(X, y, global_batch_size)


def test_the_checks_of_a_trainer_that_always_hangs_end_and_say_that_they_were_not_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default the two deadlines are 60 and 20 s."""
    deadlines: list[float] = []
    for name, seconds in (("HANG_S", 2.0), ("HANG_AGAIN_S", 1.0)):
        monkeypatch.setattr(f"suite.checks.bench.{name}", seconds)
    place = bench.place

    def counted(*arguments: Any) -> Any:
        group, job = place(*arguments)
        request = group.request

        def noted(kind: Any, command: str, timeout_s: float = 0.0, **told: Any) -> Any:
            deadlines.append(timeout_s)
            return request(kind, command, timeout_s, **told)

        monkeypatch.setattr(group, "request", noted)
        return group, job

    monkeypatch.setattr(bench, "place", counted)
    results = [bench.search(HERE + "AlwaysHangs", check) for check in ("gradient", "trajectory", "replicas")]
    assert "no answer to 'observe' within 2 s" in results[0].failure
    assert EMPTY_SHARD not in results[0].suspects  # it hangs on equal shards as well
    assert [bool(result.failure) for result in results[1:]].count(True) <= 1
    assert results[2].not_run == search.NOT_RUN.format(trainer=HERE + "AlwaysHangs", hangs=MOST_HANGS)
    assert sum(deadlines) <= 2.0 + 1.0
