"""What an optimizer is given is read where nothing changes it any more."""

from __future__ import annotations

import pytest

from suite.checks.bench import Bench
from suite.properties.case import Case, Net
from tests.support import exchanging_optimizers

CASE = Case(2, (3, 4), net=Net(hidden=(3,)))


@pytest.mark.parametrize("trainer", ["InAHook", "InASubclass", "InAClosure", "NamedClosure"])
def test_gradients_may_be_exchanged_inside_of_the_optimizer(bench: Bench, trainer: str) -> None:
    assert not bench.search(f"{exchanging_optimizers.__name__}:{trainer}", "trajectory", examples=5).failure


@pytest.mark.parametrize("trainer", ["InAHookTwice", "InAClosureTwice"])
def test_a_factor_that_adam_hides_is_seen_there_too(bench: Bench, trainer: str) -> None:
    judgement = bench.judge(f"{exchanging_optimizers.__name__}:{trainer}", "gradient", CASE)
    assert "that the optimizer is given" in judgement.finding
    assert judgement.suspects[0].startswith("2 times the right gradient: Adam divides a factor out again")
