"""What ranks were given is given again on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from suite.script.tape import Tape

OWN = torch.zeros(1)


def recorded(rank: int) -> dict[str, Any]:
    """Return a record of two minibatches of two rows at one place, whose loader has no more."""
    tape = Tape()
    for number in range(2):
        tape.drawn("place", torch.full((2,), 10.0 * number + rank))
    with pytest.raises(StopIteration):
        tape.drawn_after_end("place", OWN)
    tape.called("targets", torch.tensor([rank]))
    return tape.record([{"draws": 1}])


RANKS = [recorded(0), recorded(1)]


@pytest.mark.parametrize(
    ("mode", "given"),
    [
        ("unions", [[0, 0, 1, 1], [10, 10, 11, 11]]),
        ("singles", [[0, 0], [1, 1], [10, 10], [11, 11]]),
        ("1", [[1, 1], [11, 11]]),
    ],
)
def test_minibatches_come_again_until_the_recorded_loaders_had_no_more(mode: str, given: list[list[float]]) -> None:
    tape = Tape(RANKS, mode)
    assert [tape.drawn("place", OWN).tolist() for _ in given[1:]] == given[:-1]
    assert tape.drawn_after_end("place", OWN).tolist() == given[-1]  # which its own loader has no more of
    with pytest.raises(StopIteration):
        tape.drawn("place", OWN)
    assert tape.draws == len(given)


def test_what_no_rank_was_given_is_the_scripts_own_and_noted() -> None:
    tape = Tape(RANKS, "unions", double=True)
    assert tape.drawn("elsewhere", OWN).dtype == torch.float64
    assert tape.record([])["unfed"] == 1
    assert Tape(RANKS, "unions").called("targets", OWN) is OWN  # a loader gave the rows


def test_without_a_loader_a_model_and_its_losses_are_given_what_was_recorded() -> None:
    tape = Tape()
    tape.called("targets", torch.tensor([3]))
    tape.drawn("place", object())
    record = tape.record([{"draws": 0}])
    assert record["not_kept"] == "builtins.object"
    again = Tape([record] * 2, "unions")
    assert again.called("targets", torch.tensor([0])).tolist() == [3, 3]
