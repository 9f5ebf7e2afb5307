"""The net and the data of docs/examples/digits.py for a trainer, beside which `docs.evidence.runs` times the script."""

from __future__ import annotations

from torch import Tensor, nn

from docs.examples import digits

Part = tuple[Tensor, Tensor]


def make() -> nn.Sequential:
    """Return the net."""
    return digits.make()


def data() -> tuple[Part, Part]:
    """Return images and labels, to train and to test."""
    train, held_out = digits.load()
    return train.tensors, held_out.tensors
