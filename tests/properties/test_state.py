"""What a trainer saves on k devices and on one, and whether it resumes from it; what a wrong one lost is named."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

from reference.trainers.fsdp import FSDPTrainer
from reference.trainers.single import Single
from suite.checks import draw
from suite.checks.bench import Bench
from suite.checks.search import SearchResult
from suite.properties import state
from suite.properties.answers import RIGHT, Judgement
from suite.properties.case import Case, Net
from suite.properties.contract import ContractError
from suite.properties.seen import Seen
from suite.properties.trainer import judge
from tests.mutants import resumed_with_rank_0s_slices
from tests.support.in_this_process import see

CASE = Case(2, (3, 4))
pytestmark = pytest.mark.usefixtures("one_intra_op_thread")


class Saving(Single):
    """Saves what a test gives it: before the first step and after the last."""

    saves: list[dict[str, Any]]

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.stepped = False

    def step(self, *arguments: Any) -> Any:
        self.stepped = True
        return super().step(*arguments)

    def state_dict(self) -> dict[str, Any]:
        return self.saves[self.stepped]

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def judged(ranks: list[tuple[Any, Any]], alone: tuple[Any, Any]) -> Any:
    """Judge ranks and one device by what each saves at the start and at the end."""

    def run(pair: tuple[Any, Any], case: Case) -> Any:
        class Given(Saving):
            saves = [{"part": pair[0]}, {"part": pair[1]}]  # noqa: RUF012

        return see(Given, case, "state")

    seen = Seen(CASE, [run(pair, CASE) for pair in ranks], run(alone, CASE.alone()))
    return state.judge(seen)


@pytest.mark.parametrize(
    ("ranks", "alone"),
    [
        ([(0, 2), (0, 2)], (0, 2)),
        ([(0.0, 2.0 + 1e-9)], (0.0, 2.0)),
        ([(5, 7), (6, 9)], (5, 8)),  # each rank's own from the start
        ([([1.0], [2.0, 3.0])], ([1.0], [2.0])),  # another number of parts: split over ranks
        ([({0: 1.0}, {0: 9.0, 1: 1.0})], ({0: 1.0}, {0: 2.0})),
        ([([torch.ones(2)], [torch.tensor([1.0, 1e-17])])], ([torch.ones(2)], [torch.tensor([1.0, 3e-17])])),
        ([([1.0, 0.0], [1.0, 1e-17])], ([1.0, 0.0], [1.0, 3e-17])),  # nothing but rounding beside a number
    ],
)
def test_what_agrees_or_cannot_be_compared_is_right(ranks: list[tuple[Any, Any]], alone: tuple[Any, Any]) -> None:
    assert not judged(ranks, alone).finding


@pytest.mark.parametrize(
    ("ranks", "alone", "says"),
    [
        ([(0, 4)], (0, 2), r"\['part'\] of what `state_dict` returns on rank 0 is 4, and 2 on one device"),
        ([(0.0, 2.0), (0.0, 3.0)], (0.0, 2.0), "on rank 1 is off that on one device by 1"),
        ([(1.0, 1.0)], (1.0, 2.0), "it has not changed since the first step, and it has on one device"),
        ([({"ema": 1.0}, {"ema": 2.5})], ({"ema": 1.0}, {"ema": 2.0}), r"\['part'\]\['ema'\]"),
        ([("warm", "warm")], ("warm", "done"), "is warm, and done on one device"),
        ([(torch.ones(2), torch.ones(2) * 3)], (torch.ones(2), torch.ones(2) * 2), "off that on one device by 1"),
    ],
)
def test_what_differs_is_named(ranks: list[tuple[Any, Any]], alone: tuple[Any, Any], says: str) -> None:
    finding = judged(ranks, alone).finding
    assert finding.startswith("after 2 steps, ['part']")
    assert re.search(says, finding)


def test_states_of_generators_are_each_ranks_own() -> None:
    """One device and rank 0 have the same seed, and may draw differently."""

    class Draws(Single):
        def step(self, X: Any, y: Any, global_batch_size: int) -> Any:
            torch.rand(len(X))
            return super().step(X, y, global_batch_size)

        def state_dict(self) -> dict[str, Any]:
            return {"generator": torch.get_rng_state(), "count": 1}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    seen = Seen(CASE, [see(Draws, CASE, "state")], see(Draws, Case(1, (2, 9)), "state"))
    assert seen.ranks[0]["of_generators"] == ['["generator"]']
    assert state.judge(seen) == RIGHT


def test_parts_are_told_by_their_paths() -> None:
    parts = state.flattened({"a": [torch.ones(2, dtype=torch.bfloat16), {"b": 1j * torch.ones(1)}], "c": None})
    assert {state.shown(path): leaf["kind"] for path, leaf in parts.items()} == {
        "['a'][0]": "torch.bfloat16",
        "['a'][1]['b']": "torch.complex64",
        "['c']": "NoneType",
    }
    widened = state.flattened({"a": [torch.ones(2), {}], "c": None})
    assert state.changed(parts, widened) == [
        "['a'][0] is torch.float32 and was torch.bfloat16",
        "['a'][1]['b'] is missing",
    ]


RESUMED = Case(1, (3, 2, 4), net=Net(hidden=(8,), dropout=True, buffer=True), resumed=2)


def test_a_trainer_of_one_process_resumes_to_the_bit(bench: Bench) -> None:
    """`test_texts.py` and `test_steps.py` have trainers of several."""
    assert bench.search("single", "resume", examples=5) == SearchResult("", [], 5)


class ShardedMomentum(resumed_with_rank_0s_slices.Mutant):
    """Right: every rank gets its own slices of the momentum."""

    load_state_dict = FSDPTrainer.load_state_dict


def test_a_sharded_trainer_resumes_with_the_state_of_its_optimizer(bench: Bench) -> None:
    assert bench.search(f"{__name__}:ShardedMomentum", "resume", examples=4) == SearchResult("", [], 4)


def test_a_difference_of_rounding_is_a_note_on_more_than_two_ranks_and_wrong_on_two() -> None:
    """DistributedDataParallel sums in another order in the first step of an instance (docs/log.md)."""
    seen = see(Single, RESUMED)
    seen["parameters"][3][0][0] += 2**-50
    notes = {k: state.judge_resumed(Seen(replace(RESUMED, world_size=k), [seen])).note for k in (1, 2, 3, 4)}
    assert notes == {1: "", 2: "", 3: state.ROUNDED, 4: state.ROUNDED}
    seen["parameters"][2][0][0] += 2**-50  # what was loaded must be what was saved
    assert (
        "off the weights that were saved" in state.judge_resumed(Seen(replace(RESUMED, world_size=3), [seen])).finding
    )
    seen["parameters"][2], seen["parameters"][3][0][0] = seen["uninterrupted"][2], 1.0
    assert "of the uninterrupted run" in state.judge_resumed(Seen(replace(RESUMED, world_size=3), [seen])).finding


class WithoutWeights(Single):
    """Wrong: its weights stay those that it was made with."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "net": self.net.state_dict()})


class WithoutGenerators(Single):
    """Wrong: its dropout masks are those of another seed."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])


class Unseeded(Single):
    """Wrong: what it draws is never the same."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        torch.seed()
        return super().step(X, y, global_batch_size)


def resumed(trainer: type[Any], case: Case = RESUMED) -> Judgement:
    return judge("resume", Seen(case, [see(trainer, case)]))


@pytest.mark.parametrize(
    ("trainer", "finding", "suspect"),
    [
        (Unseeded, "differ before the interruption: 'hidden.0.weight' on rank 0 by", "randomness without a seed"),
        (
            WithoutWeights,
            "before step 2, 'hidden.0.weight' on rank 0 is off the weights that",
            "the weights",
        ),
        (
            WithoutGenerators,
            "resumed before step 2, 'hidden.0.weight' on rank 0 is off that of",
            "the instance that goes on does not hold what it has loaded: ['generators'][0] is another value",
        ),
    ],
)
def test_what_was_lost_is_named(trainer: type[Any], finding: str, suspect: str) -> None:
    judgement = resumed(trainer)
    assert finding in judgement.finding
    assert judgement.suspects[0].startswith(suspect)


def test_generators_are_no_suspects_where_nothing_is_drawn() -> None:
    assert resumed(WithoutGenerators, Case(1, (3, 2), resumed=1)) == RIGHT
    seen = Seen(RESUMED, [see(Single, RESUMED)])
    seen.ranks[0]["parameters"][3][0][0] += 2**-50
    assert state.judge_resumed(seen).suspects == (state.GENERATORS, state.UNSAVED)
    without = Case(1, RESUMED.batches, net=Net(hidden=(8,), buffer=True), resumed=2)
    drew_nothing = [{**seen.ranks[0], "drew": False}]
    assert state.judge_resumed(Seen(without, drew_nothing)).suspects == (state.UNSAVED,)


class Unsafe(Single):
    """Its state has what only an unpickler that runs code can read."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "numpy": np.random.RandomState(0)}


class Unwritable(Single):
    """Its state has a function."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "schedule": lambda step: 0.1**step}


@pytest.mark.parametrize(
    ("trainer", "reason"), [(Unsafe, "Unsupported global: GLOBAL numpy"), (Unwritable, "Error: Can't .*lambda")]
)
def test_a_state_that_no_file_can_keep_safely_breaks_the_protocol(trainer: type[Any], reason: str) -> None:
    said = rf"torch.load\(weights_only=True\): .*{reason}.*; make it of tensors, numbers, texts, and dicts"
    with pytest.raises(ContractError, match=said):
        see(trainer, RESUMED)


def test_a_state_that_cannot_be_kept_ends_the_check_with_its_case(bench: Bench) -> None:
    outcome = bench.search(f"{__name__}:Unsafe", "resume", examples=3)
    assert outcome.crashed
    assert "what `state_dict` returned cannot go through torch.save" in outcome.failure
    assert '"resumed": 1' in outcome.failure


class Closes(Single):
    """Notes what happens to its instances."""

    notes: list[str] = []  # noqa: RUF012

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.notes.append("made")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.notes.append("loaded")

    def close(self) -> None:
        self.notes.append("closed")


def test_the_first_instance_is_closed_before_the_second_is_made() -> None:
    assert resumed(Closes) == RIGHT
    assert Closes.notes == ["made", "closed", "made", "closed", "made", "loaded", "closed"]


@given(draw.cases("resume", 4, "self") | draw.cases("resume", 4, "self", "tokens"))
def test_every_case_has_an_interruption_with_steps_on_both_sides(case: Case) -> None:
    assert case.resumed is not None
    assert 0 < case.resumed < len(case.batches)
