"""What the judge says of weights that nothing has written, and of ranks that are weighed otherwise."""

from __future__ import annotations

import pytest
import torch

from suite.script import judge, judge_data, judge_replay
from tests.suite.script.test_judge import gradient, loader, rates, record, schedule, step


def test_weights_that_nothing_has_written_are_named() -> None:
    """Their gradients are not numbers either, and the item `moves` says where to look."""
    ranks = [record(step(float("nan")), unwritten=["blocks.0.weight", "blocks.1.weight"])] * 2
    verdict = judge.start(ranks)
    assert verdict.finding.startswith("rank 0 begins with 2 parameter(s) or buffer(s) that are not numbers, such as")
    assert "to_empty" in verdict.looks_like[0]
    assert judge.moves(ranks).finding.endswith("see the item 'start'")


@pytest.mark.parametrize(("weights", "explains"), [((0.3, 0.5), True), ((0.8, -0.2), False)])
def test_a_clipped_mean_of_the_ranks_own_means_is_explained(weights: tuple[float, float], *, explains: bool) -> None:
    """A gradient that is clipped after the exchange is no mean of what ranks would have clipped alone."""
    one, other = torch.arange(6.0).double(), torch.tensor([1.0, -1.0, 2.0, 0.0, 0.5, 3.0]).double()
    parts = tuple(record(step(gradients={"w": each})) for each in (one, other))
    actual = step(gradients={"w": weights[0] * one + weights[1] * other})
    looks_like = gradient(actual, step(gradients={"w": (one + other) / 2}), parts).looks_like
    assert looks_like == ((judge_replay.WEIGHED,) if explains else ())


def test_a_schedule_that_cannot_be_judged_may_still_be_known_to_advance_for_each_process() -> None:
    said = schedule(rates(0.1, 0.3, 0.5, 0.7), rates(0.1, 0.2, 0.3, 0.4, batches=[16])).unchecked
    assert said.endswith("; each rate is the one that one device has after 2 times as many updates")


def test_ranks_that_split_their_data_apart_are_told_from_ranks_whose_samplers_differ() -> None:
    def verdict(*subsets: str) -> tuple[str, str]:
        plans = ([0, 1, 2, 3, 4], [3, 4, 5, 6, 7])
        ranks = [record(step(), loaders=[loader(plan, subset=of)]) for plan, of in zip(plans, subsets, strict=True)]
        found = judge_data.data(ranks)
        return found.finding, found.looks_like[0]

    apart, alike = verdict("one", "other"), verdict("one", "one")
    assert apart[0].endswith("split the data alike on all ranks, from one seed")
    assert apart[1].startswith("a random_split without a seed")
    assert alike[1].startswith("a DistributedSampler whose seed differs")
