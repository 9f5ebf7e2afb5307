"""The workers of a sweep, without processes: what they are told, how long they may take, and what a failure costs."""

from __future__ import annotations

import types
from dataclasses import replace
from typing import Any

import pytest

from suite.processes.answers import Epoch
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Prepared, WarmUp
from suite.records.sweep import Setting
from suite.run import sweep as sweeping
from suite.run.plan import FIRST_STEP_TIMEOUT_S
from suite.run.sweep import GIVEN_UP_AFTER, Trainings
from suite.run.timer import hang_timeout_s
from tests.support.measurements import LENET, cell, job, run_of, settings

ONE, TWO = Setting(1, 32, 0.1, False), Setting(2, 64, 0.2, False)
WARM = TWO._replace(warmup=True)
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
    monkeypatch.setattr(sweeping.time, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def made(world: World) -> Trainings:
    """Trainings of three epochs on one and two devices, whose workers the world plays."""
    run = run_of(cell(1), cell(2, mode="weak"), config=settings(workloads=(LENET,)))
    run.jobs = {arm: replace(job(arm), devices=("cpu",)) for arm in map(run.plan.own, run.plan.cells)}
    assert LENET.accuracy is not None
    run.datasets = {LENET.accuracy.dataset: DATASET}
    sides = types.SimpleNamespace(pools={"candidate": world})
    return Trainings(run, sides, epochs=3, warmup_epochs=2)  # type: ignore[arg-type]


def quietly(line: str) -> None:
    """Hear nothing."""


def test_a_net_is_trained_as_its_setting_says(world: World, made: Trainings) -> None:
    net = made.train(TWO, 7, quietly)
    assert (net.setting, net.seed, net.per_epoch, net.train_s) == (TWO, 7, (0.5,) * 3, (0.5,) * 3)
    told = [told for _, told in world.asked if told["recipe"].epochs == 3]
    assert [one["epoch"] for one in told] == [0, 1, 2]
    recipe = told[0]["recipe"]
    assert (recipe.batch, recipe.lr, recipe.init, recipe.warmup) == (64, 0.2, "xavier", None)
    assert (recipe.dataset, recipe.samples) == (DATASET, None)
    assert (told[0]["arm"].seed, told[0]["arm"].world_size) == (7, 2)


def test_a_warm_up_climbs_from_the_one_device_rate_and_progress_names_the_net(world: World, made: Trainings) -> None:
    said: list[str] = []
    assert made.train(WARM, 1, said.append).setting == WARM
    assert world.asked[-1][1]["recipe"].warmup == WarmUp(start=0.1, epochs=2)
    what = "training ddp on 2 device(s), batch 64, lr 0.2 after warm-up, seed 1"
    assert (said[0], said[-1]) == (f"{what}: epoch 1 of 3", f"{what}: epoch 3 of 3, accuracy 0.50 ▅▅▅")


def test_processes_are_kept_from_net_to_net(world: World, made: Trainings) -> None:
    for seed in (1, 2):
        for setting in (ONE, TWO, WARM):
            made.train(setting, seed, quietly)
    assert world.groups == [("sweep-1", 1), ("sweep-2", 1), ("sweep-2", 1)] * 2


def test_a_deadline_comes_from_a_trial_of_one_step_trained_twice(world: World, made: Trainings) -> None:
    """Once for each world size and batch. The first step builds and loads; what the second takes counts."""
    for setting, seed in ((TWO, 1), (TWO, 2), (WARM, 1)):
        made.train(setting, seed, quietly)
    trials = [(timeout_s, told["recipe"]) for timeout_s, told in world.asked if told["recipe"].epochs == 1]
    assert [(timeout_s, recipe.samples) for timeout_s, recipe in trials] == [(FIRST_STEP_TIMEOUT_S, 64)] * 2


@pytest.mark.parametrize(("request_s", "epoch_s"), [(0.5, hang_timeout_s(4 * 0.5)), (0.001, 20.0)])
def test_an_epoch_may_take_many_times_its_steps(
    world: World, made: Trainings, request_s: float, epoch_s: float
) -> None:
    """Two minibatches of 64 to train on, and two to evaluate."""
    world.request_s = request_s
    made.train(TWO, 1, quietly)
    deadlines = [timeout_s for timeout_s, told in world.asked if told["recipe"].epochs == 3]
    assert deadlines == pytest.approx([FIRST_STEP_TIMEOUT_S + epoch_s, epoch_s, epoch_s])


def test_a_world_size_is_given_up_after_failures_in_a_row(world: World, made: Trainings) -> None:
    """A net that is trained in between starts the count again; the other world size goes on."""
    for fails in (True, True, False, True, True, True):
        world.fails = fails
        if fails:
            with pytest.raises(WorkerFailure, match="rank 0: gone"):
                made.train(TWO, 1, quietly)
        else:
            made.train(TWO, 1, quietly)
    with pytest.raises(WorkerFailure, match=rf"not tried: {GIVEN_UP_AFTER} nets in a row failed on 2 device\(s\)"):
        made.train(TWO, 9, quietly)
    world.fails = False
    made.train(ONE, 1, quietly)


def test_a_trainer_or_dataset_that_cannot_be_used_is_reported_first(
    made: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(run: Any, sides: Any, arms: list[Any], say: Any) -> None:
        run.lost[arms[0]] = WorkerFailure("helper-1", "rank 0: no such trainer")

    monkeypatch.setattr(sweeping, "preparing", types.SimpleNamespace(prepare=prepare))
    with pytest.raises(WorkerFailure, match="no such trainer"):
        made.prepare(quietly)
