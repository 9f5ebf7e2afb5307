"""The workers of a sweep, without processes: what they are told, how long they may take, and what a failure costs."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from suite.cli import sweep as command
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Epoch, Prepared
from suite.records.sweep import Setting, Trained
from suite.run.plan import FIRST_STEP_TIMEOUT_S
from suite.run.session import Say
from suite.run.timer import hang_timeout_s
from tests.support.measurements import LENET, cell, job, run_of, settings

Train = Callable[[Setting, int, Say], Trained]
ONE, TWO = Setting(1, 32, 0.1), Setting(2, 64, 0.2)
DATASET = Prepared(name="digits", folder="", train_samples=128, test_samples=96)


class World:
    """Groups that answer, and a clock that moves when one is asked.

    Attributes:
        request_s: what a command takes.
        fails: whether the next command fails.
        groups: names and sizes that were asked for, in order.
        asked: what every group was told, with its deadline.
    """

    def __init__(self) -> None:
        self.now, self.request_s, self.fails = 0.0, 0.5, False
        self.groups: list[tuple[str, int]] = []
        self.asked: list[tuple[float, dict[str, Any]]] = []

    def group(self, name: str, size: int) -> World:
        self.groups.append((name, size))
        return self

    def request(self, kind: type[Epoch], command: str, timeout_s: float, **told: Any) -> list[Epoch]:
        assert command == "train"
        self.asked.append((timeout_s, told))
        self.now += self.request_s
        if self.fails:
            raise WorkerFailure("group", "rank 0: gone")
        samples = {"train_samples": DATASET.train_samples, "test_samples": DATASET.test_samples}
        return [kind(accuracy=0.5, train_s=self.request_s, **samples)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(command.time, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def train(world: World) -> Train:
    """Train a net for three epochs on workers that the world plays."""
    run = run_of(cell(1), cell(2, mode="weak"), config=settings(workloads=(LENET,)))
    run.jobs = {arm: replace(job(arm), devices=("cpu",)) for arm in map(run.plan.own, run.plan.cells)}
    assert LENET.accuracy is not None
    run.datasets = {LENET.accuracy.dataset: DATASET}
    sides = types.SimpleNamespace(pools={"candidate": world})
    return lambda setting, seed, say: command.train(run, sides, setting, seed, 3, say)  # type: ignore[arg-type]


def quietly(line: str) -> None:
    """Hear nothing."""


def test_a_net_is_trained_as_its_setting_says(world: World, train: Train) -> None:
    net = train(TWO, 7, quietly)
    assert (net.setting, net.seed, net.per_epoch, net.train_s) == (TWO, 7, (0.5,) * 3, (0.5,) * 3)
    told = [told for _, told in world.asked if told["recipe"].epochs == 3]
    assert [one["epoch"] for one in told] == [0, 1, 2]
    recipe = told[0]["recipe"]
    assert (recipe.batch, recipe.lr, recipe.init) == (64, 0.2, "xavier")
    assert (recipe.dataset, recipe.samples) == (DATASET, None)
    assert (told[0]["arm"].seed, told[0]["arm"].world_size) == (7, 2)


def test_progress_names_the_net(train: Train) -> None:
    said: list[str] = []
    train(TWO, 1, said.append)
    what = "training ddp on 2 device(s), batch 64, lr 0.2, seed 1"
    assert (said[0], said[-1]) == (f"{what}: epoch 1 of 3", f"{what}: epoch 3 of 3, accuracy 0.50 ▅▅▅")


def test_processes_are_kept_from_net_to_net(world: World, train: Train) -> None:
    for seed in (1, 2):
        for setting in (ONE, TWO):
            train(setting, seed, quietly)
    assert world.groups == [("sweep-1", 1), ("sweep-2", 1)] * 2


def test_a_deadline_comes_from_a_trial_of_one_step_trained_twice(world: World, train: Train) -> None:
    """The first step builds and loads; what the second takes counts."""
    train(TWO, 1, quietly)
    trials = [(timeout_s, told["recipe"]) for timeout_s, told in world.asked if told["recipe"].epochs == 1]
    assert [(timeout_s, recipe.samples) for timeout_s, recipe in trials] == [(FIRST_STEP_TIMEOUT_S, 64)] * 2


@pytest.mark.parametrize(("request_s", "epoch_s"), [(0.5, hang_timeout_s(4 * 0.5)), (0.001, 20.0)])
def test_an_epoch_may_take_many_times_its_steps(world: World, train: Train, request_s: float, epoch_s: float) -> None:
    """Two minibatches of 64 to train on, and two to evaluate."""
    world.request_s = request_s
    train(TWO, 1, quietly)
    deadlines = [timeout_s for timeout_s, told in world.asked if told["recipe"].epochs == 3]
    assert deadlines == pytest.approx([FIRST_STEP_TIMEOUT_S + epoch_s, epoch_s, epoch_s])


def test_a_rank_that_dies_costs_its_net_alone(world: World, train: Train) -> None:
    world.fails = True
    with pytest.raises(WorkerFailure, match="rank 0: gone"):
        train(TWO, 1, quietly)
    world.fails = False
    assert train(TWO, 2, quietly).seed == 2
