"""What a trainer saves on k devices and on one: what is compared, and what is each rank's own."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from reference.trainers.single import Single
from suite.properties import state
from suite.properties.answers import RIGHT
from suite.properties.case import Case
from suite.properties.seen import Seen
from tests.support.tampering import see

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
