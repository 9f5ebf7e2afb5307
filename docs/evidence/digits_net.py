"""The net and the data of docs/examples/digits.py for a trainer, beside which `docs.evidence.runs` times the script."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from docs.examples import digits
from reference.data import Dataset


def make() -> nn.Sequential:
    """Return the net."""
    return digits.make()


def data(data_root: Path) -> Dataset:
    """Return the images and their labels; `data_root` is not used."""
    train, held_out = digits.load()
    return Dataset("digits of the script", *train.tensors, *held_out.tensors)
