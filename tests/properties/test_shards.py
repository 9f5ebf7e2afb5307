"""Trainers that say which minibatches they take, and failures that only unequal shards show."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from suite.checks import draw
from suite.checks.bench import Bench
from suite.checks.search import EQUAL_ONLY
from suite.properties import contract
from suite.properties.case import Case
from tests.support.trainers_under_test import MeanOfMeans

HERE = f"{__name__}:"
UNEQUAL = "only with unequal shards: it is right with minibatches of [2]; a trainer that is never given others says"


class OnEqualShards(MeanOfMeans):
    """Right on the shards that it says it gets."""

    shards: ClassVar[Any] = "equal"


class OnEvenShards(MeanOfMeans):
    """Refuses what it says it does not get."""

    shards: ClassVar[Any] = 2

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if len(X) % 2 or not len(X):
            raise ValueError(f"{len(X)} samples")
        return super().step(X, y, global_batch_size)


class OnHalfShards(MeanOfMeans):
    """Says something that there is not."""

    shards: ClassVar[Any] = 0.5


def test_a_failure_of_unequal_shards_names_the_setting(bench: Bench) -> None:
    result = bench.search("tests.support.trainers_under_test:MeanOfMeans", "gradient")
    assert UNEQUAL in result.failure
    assert result.suspects[0].startswith("mean of the shards' means")


def test_a_failure_of_any_shards_does_not(bench: Bench) -> None:
    failure = bench.search("tests.support.trainers_under_test:NoExchange", "trajectory").failure
    assert failure
    assert "unequal shards" not in failure


@pytest.mark.parametrize(("trainer", "said"), [("OnEqualShards", '"equal"'), ("OnEvenShards", "2")])
@pytest.mark.parametrize("check", ["trajectory", "refusals"])
def test_what_a_trainer_says_is_what_it_gets(bench: Bench, trainer: str, said: str, check: str) -> None:
    """In what is drawn and in what is not; the cases of all checks are looked at below."""
    result = bench.search(HERE + trainer, check, examples=6)
    assert not result.failure
    assert EQUAL_ONLY.format(shards=said) in result.notes


@given(st.data(), st.sampled_from(list(draw.CHECKS)), st.sampled_from([1, 2, 5]))
def test_every_case_has_such_shards(data: st.DataObject, check: str, multiple: int) -> None:
    drawn = data.draw(draw.cases(check, 4, "sgd", shards=multiple))
    for case in (drawn, *draw.fixed(check, 4, "samples", multiple)):
        assert all(n and n % (case.world_size * multiple) == 0 for n in case.batches)


def test_an_unknown_kind_of_shards_breaks_the_protocol() -> None:
    with pytest.raises(contract.ContractError, match=r"`shards` is 0\.5: expected shards = \"equal\", or a number"):
        contract.load_trainer(HERE + "OnHalfShards")


def test_minibatches_are_rounded_up() -> None:
    assert Case(3, (1, 3, 7)).with_shards(1).batches == (3, 3, 9)
    assert Case(2, (5,)).with_shards(4).batches == (8,)
