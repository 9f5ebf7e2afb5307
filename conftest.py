"""Loads the plugin from a clone; where the distribution is installed, its entry point of the same name already has."""

from __future__ import annotations

import pytest
from hypothesis import settings

pytest_plugins = ["suite.plugin", "pytester", "tests.support.deadlines", "tests.support.collecting"]

# No deadline: a shared machine may hold up any example. Derandomised by default, so that a red run can be repeated.
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=1000)
settings.load_profile("default")

# Cases of a check on a trainer in a run of all tests; `-m correctness` puts 20 to it. In so many, each trainer of
# `tests.mutants` is found by the check that its file names; in 4, one is not. Those of sharded trainers take four times
# as long.
CASES_AMONG_ALL = 5
CASES_OF_SHARDED = 4


@pytest.fixture
def correctness_examples(pytestconfig: pytest.Config, fresh_examples: bool, correctness_trainer: str) -> int | None:
    """Put fewer cases to the trainers of the reference where their checks are a part of all tests."""
    if "not scaling" not in pytestconfig.option.markexpr or fresh_examples:
        return None
    return CASES_OF_SHARDED if correctness_trainer.startswith("fsdp") else CASES_AMONG_ALL
