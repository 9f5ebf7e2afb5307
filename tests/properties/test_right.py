"""Unusual right trainers pass (`python -m tests.right` puts many more cases to them), and its table is right."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from suite.checks.bench import Bench
from suite.properties.contract import load_trainer
from tests.right import RIGHT
from tests.right.__main__ import checks, table


@pytest.mark.parametrize("name", RIGHT)
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


def test_a_check_that_compares_nothing_is_not_counted(bench: Bench) -> None:
    assert checks(bench, "Joins", ("gradient", "batch_norm")) == ["gradient", "batch_norm"]
    assert checks(bench, "Lion", ("gradient", "batch_norm")) == ["gradient"]


def test_the_table_has_every_alarm_with_its_command() -> None:
    alarm = "Lion, check 'loss': step 0\n  see it again: python -m suite.checks tests:Lion loss '{}'"
    lines = [
        {"trainer": "Lion", "check": "loss", "seed": 7, "cases": 20, "finding": alarm},
        {"trainer": "Lion", "check": "start", "seed": 7, "cases": 25, "finding": ""},
        {"trainer": "Joins", "check": "loss", "seed": 8, "cases": 25, "finding": "no answer"},
    ]
    shown = table(lines)
    assert "| Lion | 45 | 1 |" in shown
    assert "False alarms among 70 cases" in shown
    assert "`python -m suite.checks tests:Lion loss '{}'`" in shown
    assert "`python -m tests.right --again Joins loss 8`" in shown
