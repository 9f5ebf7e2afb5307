"""What an exception says, and the remedy where torch's text has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from suite.room.errors import described

REMEDY = (
    "; cross_entropy takes class labels (int64) or probabilities of classes: for other targets give the trainer a "
    "`loss` of its own (docs/your-trainer.md)"
)


def said(y: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy) -> str:
    with pytest.raises((RuntimeError, ValueError, IndexError)) as raised:
        loss(torch.rand(4, 3), y)
    return described(raised.value)


@pytest.mark.parametrize(
    "y",
    [torch.rand(4), torch.tensor([True] * 4), torch.ones(4).int(), torch.ones(4, 3).long()],
    ids=["float", "bool", "int32", "a table"],
)
def test_targets_that_cross_entropy_cannot_take_need_another_loss(y: Tensor) -> None:
    text = said(y)
    assert text.endswith(REMEDY)
    assert text.count(REMEDY) == 1


def test_other_errors_have_their_own_words() -> None:
    assert "cross_entropy takes" not in said(torch.tensor([0, 1, 2, 9]))
    assert "cross_entropy takes" not in said(torch.rand(2, 3), lambda output, y: output @ y)
    assert described(ValueError("a target")) == "ValueError: a target"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (
            "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File\n"
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)\n",
            "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)",
        ),
        (
            "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are "
            "out of shared memory. Please try to raise your shared memory limit.",
            "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are "
            "out of shared memory. Please try to raise your shared memory limit.",
        ),
    ],
    ids=["no page", "no page when it was written to"],
)
def test_a_loader_without_shared_memory_is_one_line_with_a_remedy(text: str, short: str) -> None:
    """In torch's words; tests/processes/test_containers.py has the first of them from a real loader."""
    assert described(RuntimeError(text)) == (
        f"RuntimeError: {short}: /dev/shm is full; give the container more (docker run --shm-size=1g; in Kubernetes, "
        "mount an emptyDir with medium: Memory there)"
    )
