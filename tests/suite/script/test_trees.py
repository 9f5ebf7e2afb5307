"""Minibatches of several ranks become one, and keep the form that a script expects."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch

from suite.script import trees

Pair = namedtuple("Pair", "X y")
A, B = torch.arange(6.0).reshape(2, 3), torch.arange(6.0, 15.0).reshape(3, 3)


def test_a_union_has_the_rows_of_all_ranks_in_order() -> None:
    parts = [{"X": A, "y": [torch.zeros(2), "first"], "mask": torch.ones(4, 4)}]
    parts += [{"X": B, "y": [torch.ones(3), "first"], "mask": torch.ones(4, 4)}]
    union, padded = trees.united(parts)
    assert not padded
    assert torch.equal(union["X"], torch.cat([A, B]))
    assert union["y"][0].tolist() == [0, 0, 1, 1, 1]
    assert union["y"][1] == "first"
    assert union["mask"].shape == (4, 4)  # the same for every row


def test_a_list_with_an_entry_for_each_row_is_joined() -> None:
    """Texts, and images of several sizes."""
    union, _ = trees.united([[A, ["a", "b"]], [B, ["c", "d", "e"]]])
    assert union[1] == list("abcde")
    images, _ = trees.united([[A, [A, B]], [A, [B, A]]])
    assert [len(image) for image in images[1]] == [2, 3, 3, 2]


def test_rows_of_other_lengths_are_padded_with_what_does_not_count() -> None:
    labels = [torch.tensor([[1, -100]]), torch.tensor([[1, 2, 3]])]
    union, padded = trees.united(labels)
    assert padded
    assert union.tolist() == [[1, -100, -100], [1, 2, 3]]
    union, _ = trees.united([torch.ones(1, 1), torch.ones(1, 2)])
    assert union.tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize(
    "batch", [Pair(A, B), (A, {"y": B}), UserDict(X=A), [A, None, 3]], ids=["named tuple", "tuple", "mapping", "list"]
)
def test_what_was_kept_gets_the_form_of_a_minibatch(batch: Any) -> None:
    filled = trees.filled(batch, trees.plain(batch))
    assert type(filled) is type(batch)
    assert [torch.equal(a, b) for a, b in zip(trees.leaves(filled), trees.leaves(batch), strict=True)]
    assert all(a is not b for a, b in zip(trees.leaves(filled), trees.leaves(batch), strict=True))


def test_an_object_that_is_no_container_is_named() -> None:
    with pytest.raises(trees.NotKept, match=r"builtins\.object"):
        trees.plain([A, object()])


def test_rows_are_told_by_all_their_tensors() -> None:
    digests = trees.row_digests([A, torch.tensor([1, 2]), torch.ones(7)])
    assert len(digests) == 2
    assert digests[0] == trees.row_digests([A[:1], torch.tensor([1])])[0]
    assert digests[0] != trees.row_digests([A[:1], torch.tensor([2])])[0]
    assert trees.row_digests([]) == []


def test_only_floating_point_numbers_are_doubled() -> None:
    doubled = trees.doubled({"X": A, "y": torch.tensor([1]), "z": (A.bfloat16(), "text")})
    assert [tensor.dtype for tensor in trees.leaves(doubled)] == [torch.float64, torch.int64, torch.float64]
