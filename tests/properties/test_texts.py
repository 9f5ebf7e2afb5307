"""Generated language models: what is drawn, that padding and positions are right, and which bugs are named."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from suite.checks import draw
from suite.checks.bench import Bench
from suite.checks.search import SearchResult
from suite.properties import contract, nets, suspects, tolerance
from suite.properties.case import Case, Text
from suite.properties.nets import Entry
from tests.support import texts
from tests.support.trainers_under_test import TokensWithoutLoss

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")


@settings(max_examples=15)
@given(text=st.one_of(*draw.TEXT_CHECKS.values()), n=st.integers(1, 13), seed=st.integers(0, 99))
def test_every_text_that_is_drawn_can_be_built_alike_twice_and_scored(text: Text, n: int, seed: int) -> None:
    case = Case(3, (n,), seed, text=dataclasses.replace(text, checkpoint=False))  # which would load torch's compiler
    first, second = nets.build(case), nets.build(case.alone())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    X, y = nets.minibatch(case, 0)
    assert first(X).shape == (n, text.positions, text.vocabulary)
    assert first({name: part[:0] for name, part in X.items()}).shape == (0, text.positions, text.vocabulary)
    labels = y["labels"]
    assert labels[0, 0] >= 0, "one label counts, whatever is ignored"
    assert bool((labels[torch.arange(text.positions) >= X["length"][:, None]] < 0).all())
    assert bool((labels[max(1, n - text.silent) :] < 0).all()) or not text.silent
    assert [entry["samples"] for entry in first.log] == [list(range(n)), []][: 2 * text.dropout]
    others = nets.build(case, rank=1)
    assert not torch.equal(first.embed.weight, others.embed.weight)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_what_follows_a_text_and_what_comes_later_changes_no_score(norm: str) -> None:
    case = Case(1, (4,), text=Text(5, 4, 4, blocks=2, norm=norm, rotary=True, unequal=True))
    net, (X, _) = nets.build(case), nets.minibatch(case, 0)
    other = {**X, "tokens": X["tokens"].clone()}
    for row, length in enumerate(X["length"].tolist()):
        other["tokens"][row, length:] = 4
        other["tokens"][row, length - 1] = (X["tokens"][row, length - 1] + 1) % 5
        before, after = net(X)[row, : length - 1], net(other)[row, : length - 1]
        assert torch.equal(before, after)
        assert not torch.equal(net(X)[row, length - 1], net(other)[row, length - 1])


def test_rotary_products_depend_on_the_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 4, generator=generator, dtype=torch.float64).expand(1, 6, 4) for _ in range(2))
    products = nets.rotate(q)[0] @ nets.rotate(k)[0].mT
    for distance in range(3):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal))
    assert not torch.isclose(products[0, 0], products[0, 1])


def test_a_block_that_is_recomputed_with_another_mask_is_noted() -> None:
    """Two calls with one entry of the log are a forward and its recomputation."""
    case = Case(1, (3,), text=Text(5, 8, 8, blocks=2, dropout=True))
    net, (X, _) = nets.build(case), nets.minibatch(case, 0)
    assert isinstance(net, nets.TextNet)
    net(X)
    [entry] = net.log
    assert [len(mask) for mask in entry["masks"]] == [2 * 8 * 8] * 3
    block, entry = net.blocks[0], Entry([0.0, 1.0, 2.0], redrawn=False, drawn=[])
    h, seen = torch.zeros(3, 8, 8, dtype=torch.float64), torch.ones(3, 8, 8, dtype=torch.bool)
    state = torch.get_rng_state()
    block(h, seen, entry)
    torch.set_rng_state(state)
    block(h, seen, entry)
    assert not entry["redrawn"]
    block(h, seen, entry)
    assert entry["redrawn"]


@pytest.mark.parametrize(("trainer", "examples"), [("ddp_tokens", 4), ("fsdp_tokens", 2)])
@pytest.mark.parametrize("check", draw.TEXT_CHECKS)
def test_the_references_trainers_of_tokens_are_right(bench: Bench, check: str, trainer: str, examples: int) -> None:
    outcome = bench.search(trainer, check, examples=examples)
    assert not outcome.failure
    assert outcome.examples == examples or check == "refusals"  # what was refused once is not asked again


def test_an_expert_whose_gradient_only_its_own_ranks_apply_is_found(bench: Bench) -> None:
    wrong = f"{texts.__name__}:UnusedNotReceived"
    assert not bench.search(wrong, "gradient", examples=5).failure
    assert "'expert.weight' of rank 1 differs from rank 0's" in bench.search(wrong, "refusals", examples=5).failure
    assert bench.search("ddp_tokens", "refusals", examples=5).notes[0].startswith("refused: ")


def test_checks_without_texts_say_so(bench: Bench) -> None:
    for check, reason in draw.WITHOUT_TEXTS.items():
        assert bench.search("ddp_tokens", check) == SearchResult("", [reason], 0)


def test_a_step_that_a_rank_skips_by_its_own_loss_is_found(bench: Bench) -> None:
    failure = bench.search(f"{texts.__name__}:SkipsAlone", "not_a_number", examples=5).failure
    assert "ecmwf/WeatherGenerator#2718" in failure
    assert '"spoiled": ' in failure


def test_a_mean_over_each_ranks_own_tokens_is_named_and_shrunk(bench: Bench) -> None:
    failure = bench.search(f"{texts.__name__}:MeanOfRanks", "gradient", examples=15).failure
    assert "looks like: mean of the ranks' own means" in failure
    assert "pytorch/torchtitan#2206" in failure
    assert "unequal shards" not in failure  # equal shards of texts have other numbers of tokens
    assert re.search(r"smallest case found: 2 device\(s\), minibatches of \[\d\], float64, .* text \{", failure)


def test_known_bugs_of_tokens_are_told_apart() -> None:
    generator = torch.Generator().manual_seed(1)
    right, *shards = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(4))

    def named(actual: Tensor) -> list[str]:
        return [line.partition(":")[0] for line in suspects.fitting_tokens(actual, right, shards, 3)]

    assert named(3 * right) == ["summed over the devices instead of averaged"]
    assert named(right / 3)[0].startswith("averaged over the devices")
    assert named(sum(shards) / 3) == ["mean of the ranks' own means"]
    assert named(shards[1]) == ["no exchange"]
    assert named(0 * right) == ["nothing was learned"]
    assert named(right / 0) == ["not a number"]
    assert named(0.2 * right)[0].startswith("0.2 times the right gradient")
    assert named(torch.arange(6.0, dtype=torch.float64)) == []


def test_the_bound_is_half_of_the_digits_of_the_largest_entry_and_the_reading() -> None:
    gradient = [torch.tensor([4.0, 0.0], dtype=torch.float64), torch.tensor([0.1], dtype=torch.float64)]
    parameters = [torch.zeros(2, dtype=torch.float64), torch.tensor([100.0], dtype=torch.float64)]
    first, second = tolerance.half_of_the_largest(gradient, parameters, 0.1, 1e-8)
    assert first.tolist() == pytest.approx([4e-8, 4e-8])
    assert float(second) == pytest.approx(4e-8 + 1e-16 * 100 / 0.1)


class LossOfEveryText(TokensWithoutLoss):
    """Has a loss for each text, from which the right weights cannot be told."""

    def loss(self, output: Tensor, y: dict[str, Tensor]) -> Tensor:
        return output.sum((1, 2))


def test_a_trainer_of_tokens_has_one_loss_of_all_texts() -> None:
    assert contract.describe(contract.load_trainer(f"{__file__}:LossOfEveryText")).trains == "tokens"
    y = {"labels": torch.zeros(3, 2, dtype=torch.int64), "weights": torch.ones(3)}
    said = r"y \[\(3, 2\), \(3,\)\] returned a tensor \(3,\): expected .* of a nest one value"
    with pytest.raises(contract.ContractError, match=said):
        contract.apply_loss(LossOfEveryText(None, [], lr=0.1).loss, torch.zeros(3, 2, 5), y)
