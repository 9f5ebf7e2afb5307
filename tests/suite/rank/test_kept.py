"""Values with tensors in files: what is written comes back, without pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from suite.rank import kept

WHOLE = torch.arange(24)


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 2, dtype=torch.float64),
        {"tokens": WHOLE.reshape(4, 6), "mask": WHOLE > 3, "weights": torch.ones(4, dtype=torch.bfloat16)},
        (WHOLE, [torch.tensor(1.5), {"a": None, "b": [1, "two", 0.1], 3: True}]),
        WHOLE.reshape(4, 6).T[1:],
        WHOLE.reshape(4, 6)[:1, 2],
        torch.empty(0, 5),
        torch.complex(WHOLE.float(), -WHOLE.float()).conj(),
        "no tensor at all",
        (torch.ones(3, dtype=torch.bool), torch.tensor(0.1, dtype=torch.complex128), [-0.0, float("inf"), 5e-324]),
    ],
    ids=["tensor", "dict", "mixed", "view", "stride", "empty", "conjugate", "text", "unaligned"],
)
def test_what_is_written_comes_back(value: Any, tmp_path: Path) -> None:
    kept.write(value, tmp_path / "value")
    back = kept.read(tmp_path / "value")
    ours, theirs = pytree.tree_flatten(value), pytree.tree_flatten(back)
    assert ours[1] == theirs[1]
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert (a.dtype, a.shape, bool((a == b).all())) == (b.dtype, b.shape, True) if isinstance(a, Tensor) else a == b


def test_a_reader_that_changes_its_map_changes_no_file(tmp_path: Path) -> None:
    kept.write(WHOLE, tmp_path / "value")
    kept.read(tmp_path / "value").zero_()
    assert torch.equal(kept.read(tmp_path / "value"), WHOLE)


def test_a_file_that_is_written_again_stays_what_it_was_for_its_reader(tmp_path: Path) -> None:
    kept.write(WHOLE, tmp_path / "value")
    read = kept.read(tmp_path / "value")
    kept.write(WHOLE[:2] + 1, tmp_path / "value")
    assert torch.equal(read, WHOLE)
    assert kept.read(tmp_path / "value").tolist() == [1, 2]


def test_a_file_is_the_bytes_of_its_tensors_and_json(tmp_path: Path) -> None:
    kept.write([WHOLE, 0.5], tmp_path / "value")
    written = (tmp_path / "value").read_bytes()
    described = written.removeprefix(WHOLE.numpy().tobytes())[: -kept.LENGTH]
    assert json.loads(described) == ["list", [["tensor", "int64", [24], 0], ["value", 0.5]]]
