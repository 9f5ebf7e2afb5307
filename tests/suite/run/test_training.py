"""A net in a worker: epoch by epoch through its recipe, its warm-up, its end, and a rank that dies on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from reference.data import feed
from reference.evaluate import accuracy
from reference.models.init import build
from reference.schedule import warmup
from reference.trainers.single import Single
from suite.checks.bench import Bench
from suite.processes.failure import WorkerFailure
from suite.properties.contract import ContractError
from suite.rank import commands
from suite.rank.arm import open_dataset
from suite.rank.commands import State
from suite.rank.training import Training
from suite.run.learning import learn
from tests.support.learners import TEST, TRAIN, Noted, order, prepared, recipe

CPU = torch.device("cpu")
NOTED = "tests.support.learners:Noted"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return prepared(tmp_path_factory.mktemp("training"))


@pytest.fixture(autouse=True)
def noted() -> Iterator[list[Noted]]:
    Noted.made.clear()
    yield Noted.made
    Noted.made.clear()


def curve(told: dict[str, Any], trainer: str = "single", seed: int = 1) -> list[float]:
    training = Training(0, [CPU], order(trainer, seed=seed), told)
    return [training.epoch(number)["accuracy"] for number in range(told["epochs"])]


def test_the_curve_is_that_of_the_same_net_trained_by_hand(dataset: dict[str, Any]) -> None:
    """And of no other: another seed has another one."""
    whole = open_dataset(dataset, CPU, "float32")
    trainer = Single(build("toy", "default", 1), [CPU], lr=0.2)
    by_hand = []
    for epoch in range(3):
        for X, y in feed(whole, "resident", 32, seed=1, epoch=epoch):
            trainer.step(X, y, len(X))
        by_hand.append(accuracy(trainer.replicas, [CPU], whole.test_X, whole.test_y))
    assert curve(recipe(dataset)) == by_hand
    assert curve(recipe(dataset), seed=2) != by_hand


def test_an_epoch_answers_how_much_was_trained_and_how_long(dataset: dict[str, Any]) -> None:
    answer = Training(0, [CPU], order("single"), recipe(dataset)).epoch(0)
    assert (answer["train_samples"], answer["test_samples"]) == (TRAIN, TEST)
    assert 0 < answer["train_s"] < 60
    cut = Training(0, [CPU], order("single"), recipe(dataset, samples=48)).epoch(0)
    assert (cut["train_samples"], cut["test_samples"]) == (48, 48)


@pytest.mark.parametrize("trainer", ["single", "scratch", "data_parallel", "gluon"])
def test_the_loss_of_an_epoch_is_the_mean_over_its_samples(dataset: dict[str, Any], trainer: str) -> None:
    """By hand, the short last minibatch counted by its samples; no more is computed for it than the steps return."""
    whole = open_dataset(dataset, CPU, "float32")
    by_hand, losses = Single(build("toy", "default", 1), [CPU], lr=0.2), []
    for X, y in feed(whole, "resident", 50, seed=1, epoch=0):
        losses.append(float(F.cross_entropy(by_hand.net(X), y, reduction="sum").detach()))
        by_hand.step(X, y, len(X))
    answer = Training(0, [CPU] * 2, order(trainer), recipe(dataset, batch=50)).epoch(0)
    assert answer["loss"] == pytest.approx(sum(losses) / TRAIN, rel=1e-5)


def test_a_trainer_that_returns_no_loss_has_none(dataset: dict[str, Any]) -> None:
    assert Training(0, [CPU], order("tests.support.learners:Silent"), recipe(dataset)).epoch(0)["loss"] is None


def test_one_process_evaluates_replicas_with_batch_norm_as_one_net(dataset: dict[str, Any]) -> None:
    """With the statistics of the first, on all samples, as ranks do."""
    told = order("scratch")
    told["workload"] |= {"model": "tests.support.learners:normalised"}
    training = Training(0, [CPU] * 2, told, recipe(dataset, epochs=1))
    first = training._trainer.replicas[0]
    found = training.epoch(0)["accuracy"]
    whole = open_dataset(dataset, CPU, "float32")
    own = [accuracy([replica], [CPU], whole.test_X, whole.test_y) for replica in training._trainer.replicas]
    assert own[0] != own[1], "their statistics differ by so much that it shows"
    assert found == accuracy([first], [CPU], whole.test_X, whole.test_y) == own[0]


@pytest.mark.parametrize(("done", "asked"), [(0, 1), (1, 0), (1, 2), (3, 3)])
def test_an_epoch_out_of_turn_is_refused(dataset: dict[str, Any], done: int, asked: int) -> None:
    training = Training(0, [CPU], order("single"), recipe(dataset))
    for number in range(done):
        training.epoch(number)
    with pytest.raises(ValueError, match=f"epoch {asked} was asked for after {done} of 3: .* once and in order"):
        training.epoch(asked)


def test_a_step_is_divided_by_its_samples_the_short_last_one_too(dataset: dict[str, Any], noted: list[Noted]) -> None:
    curve(recipe(dataset, batch=50, epochs=2), NOTED)
    assert noted[0].divisors == [50, 50, 50, 42] * 2


def test_the_rate_climbs_from_the_one_device_rate_and_stays(dataset: dict[str, Any], noted: list[Noted]) -> None:
    curve(recipe(dataset, batch=50, warmup={"start": 0.1, "epochs": 2}), NOTED)
    divisors, sizes = noted[0].divisors, [50, 50, 50, 42] * 3
    rates = [0.2 * size / divisor for size, divisor in zip(sizes, divisors, strict=True)]
    expected = [warmup(0.2, step, 8, start=0.1) for step in range(12)]
    assert rates == pytest.approx(expected, rel=0.5 / 42)
    assert rates == sorted(rates)
    assert rates[0] < 0.12
    assert rates[7:] == pytest.approx([0.2] * 5)


def test_a_divided_gradient_is_a_smaller_rate(dataset: dict[str, Any]) -> None:
    """Twice the samples, half the rate: bit for bit the net that was trained at half the rate."""
    nets = [Single(build("toy", "default", 1), [CPU], lr=lr) for lr in (0.2, 0.1)]
    X, y = open_dataset(dataset, CPU, "float32").train_X[:32], torch.arange(32) % 2
    nets[0].step(X, y, 64)
    nets[1].step(X, y, 32)
    for halved, slower in zip(nets[0].net.parameters(), nets[1].net.parameters(), strict=True):
        assert torch.equal(halved, slower)


def test_only_plain_sgd_can_be_warmed_up(dataset: dict[str, Any]) -> None:
    climb = recipe(dataset, warmup={"start": 0.1, "epochs": 1})
    with pytest.raises(
        ContractError, match=r"'tests.support.learners:OwnOracle' has oracle 'self': .* train it without"
    ):
        Training(0, [CPU], order("tests.support.learners:OwnOracle"), climb)
    assert Training(0, [CPU], order("tests.support.learners:OwnOracle"), recipe(dataset, warmup=None)).epoch(0)


class TestTheCommand:
    """`train` in one worker: what it keeps from epoch to epoch, and when it lets go."""

    pytestmark = pytest.mark.usefixtures("one_intra_op_thread")

    def test_begins_with_epoch_0_and_ends_with_the_last(self, dataset: dict[str, Any], noted: list[Noted]) -> None:
        state, told = State(0), recipe(dataset)
        for epoch in range(3):
            assert [net.closed for net in noted] == [0] * bool(epoch)
            answer = commands.train(state, order(NOTED), told, epoch)
        assert answer["accuracy"] == curve(told)[-1]
        assert [net.closed for net in noted] == [1]
        assert state.learner is None
        with pytest.raises(ValueError, match="epoch 3 was asked for and no net is in training: epoch 0 begins"):
            commands.train(state, order(NOTED), told, 3)

    def test_a_net_that_was_left_unfinished_is_let_go(self, dataset: dict[str, Any], noted: list[Noted]) -> None:
        """By the next one, and by the worker's end."""
        state = State(0)
        commands.train(state, order(NOTED), recipe(dataset), 0)
        commands.train(state, order(NOTED, seed=2), recipe(dataset), 0)
        assert [net.closed for net in noted] == [1, 0]
        state.close()
        assert [net.closed for net in noted] == [1, 1]


def test_a_rank_that_dies_in_the_third_epoch_is_named_and_two_epochs_were_said(
    dataset: dict[str, Any], bench: Bench
) -> None:
    said: list[str] = []
    group = bench.group(2)
    with pytest.raises(WorkerFailure, match=r"rank 1: its process ended with signal 9 \(SIGKILL\)"):
        order_ = order("tests.support.learners:DiesInTheThirdEpoch", 2)
        learn(group.request, order_, recipe(dataset), 60.0, "it", said.append)
    assert not group.alive
    assert [line.partition(", accuracy")[0] for line in said] == [
        "training it: epoch 1 of 3",
        "training it: epoch 1 of 3",
        "training it: epoch 2 of 3",
    ]
