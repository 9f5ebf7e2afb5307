"""Unusual right trainers pass; `python -m tests.right` puts many more cases to them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from suite.checks.bench import Bench
from suite.properties.contract import load_trainer
from tests.right import RIGHT


def some_of_each_file() -> Iterator[Any]:
    """Yield all right trainers; those after the first three of their file are nightly."""
    seen = Counter[str]()
    for name, trainer in RIGHT.items():
        file = trainer.partition(":")[0]
        seen[file] += 1
        yield pytest.param(name, marks=[pytest.mark.nightly] if seen[file] > 3 else [])


@pytest.mark.parametrize("name", list(some_of_each_file()))
def test_an_unusual_right_trainer_passes(bench: Bench, name: str) -> None:
    outcome = bench.search(RIGHT[name], "trajectory", examples=2)
    assert not outcome.failure
    assert outcome.examples == 2


def test_every_right_trainer_is_in_the_table() -> None:
    modules = {import_module(trainer.partition(":")[0]) for trainer in RIGHT.values()}
    there = {
        name
        for module in modules
        for name, each in vars(module).items()
        if inspect.isclass(each) and each.__module__ == module.__name__ and hasattr(each, "processes")
    }
    assert there == set(RIGHT)


def test_a_right_trainer_says_what_is_unusual() -> None:
    assert all(inspect.getdoc(load_trainer(trainer)) for trainer in RIGHT.values())
    assert len({inspect.getdoc(load_trainer(trainer)) for trainer in RIGHT.values()}) == len(RIGHT)
