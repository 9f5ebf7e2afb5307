"""The command `sweep`: its options, the files that it writes, how it goes on and ends, and how a net is trained."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.__main__ import main
from suite.cli import sweep
from suite.cli.sweep import FILES
from suite.plan.cells import Arm
from suite.plan.config import Config
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Epoch, Prepared
from suite.records.files import read_model
from suite.records.sweep import Setting, Sweep, Trained
from suite.room.devices import Devices
from suite.run.observations import Observations
from suite.run.plan import FIRST_STEP_TIMEOUT_S
from suite.run.session import Say
from suite.run.timer import hang_timeout_s
from tests.support.measurements import LENET, VERSIONS, cell, job, run_of, settings
from tests.support.sweeps import NETS, SMALL, net


class FakeTrainings:
    """Workers that train every net at once.

    Attributes:
        train_samples: of the dataset.
        lost: why the trainer cannot be used; empty where it can.
        trained: what was asked for, in order.
        on: called with every setting and seed before it is trained; may raise.
        out: the folder of the sweep, which it makes.
    """

    def __init__(self, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.out, self._capsys = out, capsys
        self.train_samples, self.lost = 1437, ""
        self.trained: list[tuple[Setting, int]] = []
        self.on: Callable[[Setting, int], None] = lambda setting, seed: None

    def sweep(self, *options: str) -> tuple[int, str]:
        """Run the command, and return its exit status and what it printed."""
        status = main(["sweep", "--out", str(self.out), *options])
        printed = self._capsys.readouterr()
        return status, printed.out + printed.err

    @property
    def kept(self) -> Sweep:
        """The sweep in the folder."""
        return read_model(self.out / FILES[0], Sweep)

    def prepare(self, run: Observations, sides: object, arms: Sequence[Arm], say: Say) -> None:
        """Replace `suite.run.preparing.prepare`."""
        counts = {"train_samples": self.train_samples, "test_samples": 360}
        run.datasets["digits"] = Prepared(name="digits", folder="", **counts)
        run.versions["candidate"] = VERSIONS
        if self.lost:
            run.lost[arms[0]] = WorkerFailure("helper-1", self.lost)

    def train(self, run: Observations, sides: object, wanted: Setting, seed: int, epochs: int, say: Say) -> Trained:
        """Replace `suite.cli.sweep.train`."""
        self.on(wanted, seed)
        self.trained.append((wanted, seed))
        say(f"training it, seed {seed}: epoch 1 of {epochs}")
        return net(wanted, seed, per_epoch=(0.5,) * epochs, train_s=(1.0,) * epochs)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> FakeTrainings:
    """Two CPU devices, LeNet, ddp, and a report folder of the test's own."""
    fake = FakeTrainings(tmp_path / "sweep", capsys)
    monkeypatch.setattr(sweep.pytest_run, "sides", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(sweep.preparing, "prepare", fake.prepare)
    monkeypatch.setattr(sweep, "train", fake.train)
    monkeypatch.setattr(sweep.pytest_run, "settings", lambda arguments: settings(report_dir=tmp_path / "reports"))
    return fake


class TestOptions:
    """What a user can ask, and what is wrong to ask."""

    @pytest.mark.parametrize(
        ("option", "value", "says"),
        [
            ("--batches", "0", "'0': expected a whole number, 1 or more"),
            ("--batches", "32,x", "'x': expected a whole number, 1 or more"),
            ("--lrs", "-0.1", "'-0.1': expected a number above 0, such as 0.25"),
            ("--lrs", "nan", "'nan': expected a number above 0"),
            ("--lrs", ",", "'': expected a number above 0"),
            ("--epochs", "0", "'0': expected a whole number, 1 or more"),
            ("--seeds", "few", "'few': expected a whole number, 1 or more"),
        ],
    )
    def test_a_bad_value_is_a_usage_error(
        self, capsys: pytest.CaptureFixture[str], option: str, value: str, says: str
    ) -> None:
        with pytest.raises(SystemExit, match="4"):
            main(["sweep", f"{option}={value}"])
        assert says in capsys.readouterr().err

    def test_the_default_grid_is_the_recipe_and_its_neighbourhood(self, workers: FakeTrainings) -> None:
        """With the rate that each rule makes of the recipe's for two devices."""
        assert workers.sweep()[0] == 0
        kept = workers.kept
        assert (kept.batches, kept.lrs) == ((16,), (0.025, 0.05, 0.075, 0.1, 0.2))
        assert (kept.world_sizes, kept.seeds, kept.epochs) == ((1, 2), 3, 10)
        assert len(workers.trained) == 3 * 2 * 5
        rules = [rule for setting in kept.settings for rule in kept.rules(setting)]
        assert rules == ["constant", "book", "linear"]

    def test_several_numbers_of_epochs_are_one_training_and_a_column_for_each(self, workers: FakeTrainings) -> None:
        status, said = workers.sweep("--lrs=0.1", "--seeds=1", "--epochs=4,1,2")
        assert (status, workers.kept.epochs, len(workers.trained)) == (0, 4, 2)
        assert all(f"accuracy, {epochs}" in said for epochs in ("1 epoch", "2 epochs", "4 epochs"))

    def test_values_are_sorted_and_count_once(self, workers: FakeTrainings) -> None:
        assert workers.sweep("--batches=64,32,032", "--lrs=.2,0.20,.1", "--seeds=1")[0] == 0
        assert (workers.kept.batches, workers.kept.lrs) == ((32, 64), (0.1, 0.2))

    @pytest.mark.parametrize(
        ("config", "options", "status", "says"),
        [
            (settings(trainers=("ddp", "fsdp")), [], 4, "--scaling-trainer names 2: a sweep is of one"),
            (settings(workloads=(LENET, LENET)), [], 4, "--scaling-workload names 2: a sweep is of one"),
            (
                settings(workloads=(LENET.model_copy(update={"accuracy": None}),)),
                [],
                4,
                "'lenet' has no recipe to train by; set its epochs, or write [tool.scaling.workloads.lenet.accuracy]",
            ),
            (
                settings(devices=Devices("cuda", ("cuda:97",), ())),
                [],
                1,
                "check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES, or use",
            ),
            (settings(devices=Devices("cuda", (), ()), world_sizes=()), [], 1, "CUDA shows"),
            (settings(world_sizes=()), [], 1, "no world size of the settings fits cpu:2"),
        ],
    )
    def test_a_contradiction_is_reported_before_anything_starts(
        self,
        workers: FakeTrainings,
        monkeypatch: pytest.MonkeyPatch,
        config: Config,
        options: list[str],
        status: int,
        says: str,
    ) -> None:
        monkeypatch.setattr(sweep.pytest_run, "settings", lambda arguments: config)
        ended, said = workers.sweep(*options)
        assert ended == status
        assert said.startswith("sweep: ")
        assert says in said
        assert not workers.out.exists()

    def test_a_batch_above_the_data_is_a_usage_error(self, workers: FakeTrainings, tmp_path: Path) -> None:
        workers.train_samples = 100
        status, said = workers.sweep("--batches=32,64")
        assert status == 4
        assert "a batch of 128 is above the 100 samples of digits; lower --batches or" in said
        assert not workers.trained
        assert not list(tmp_path.iterdir())

    def test_a_trainer_that_cannot_be_used_is_reported_first(self, workers: FakeTrainings) -> None:
        workers.lost = "no such trainer"
        status, said = workers.sweep()
        assert (status, workers.trained) == (1, [])
        assert "no such trainer" in said


class TestFiles:
    """What is kept, when and where."""

    def test_everything_is_trained_kept_and_shown(self, workers: FakeTrainings) -> None:
        status, said = workers.sweep(*SMALL)
        assert len(workers.trained) == len(set(workers.trained)) == NETS
        assert (status, workers.kept.missing) == (0, [])
        assert sorted(path.name for path in workers.out.iterdir()) == sorted(FILES)
        assert f"sweep: {NETS} nets to train; they are kept in {workers.out} (sweep.json, sweep.html)" in said
        assert "sweep: 8 of 8: 2 device(s), batch 32, lr 0.2, seed 2: accuracy 0.500" in said
        assert "mean curve" in said

    def test_by_default_each_sweep_has_a_folder_among_the_reports(self, workers: FakeTrainings, tmp_path: Path) -> None:
        assert main(["sweep", *SMALL]) == 0
        [path] = tmp_path.glob("reports/*/sweeps/ddp-lenet-*/sweep.json")
        assert path.parts[-4] == read_model(path, Sweep).machine.key

    @pytest.mark.parametrize("done", [0, 3])
    def test_an_interrupt_keeps_the_nets_that_are_done_and_the_same_command_goes_on(
        self, workers: FakeTrainings, done: int
    ) -> None:
        """Every net is in the file before the next is trained."""
        seen: list[int] = []

        def interrupt(setting: Setting, seed: int) -> None:
            seen.append(len(workers.kept.trained) if (workers.out / FILES[0]).exists() else 0)
            if len(workers.trained) == done:
                raise KeyboardInterrupt

        workers.on = interrupt
        assert workers.sweep(*SMALL)[0] == 130
        assert seen == list(range(done + 1))
        if done:
            assert len(workers.kept.missing) == NETS - done
            assert f"Missing: {NETS - done} nets" in (workers.out / FILES[1]).read_text()
        workers.on = lambda setting, seed: None
        assert workers.sweep(*SMALL)[0] == 0
        assert len(workers.trained) == len(set(workers.trained)) == NETS
        assert workers.kept.missing == []

    def test_more_seeds_and_rates_may_be_added(self, workers: FakeTrainings) -> None:
        assert workers.sweep(*SMALL)[0] == 0
        assert workers.sweep("--lrs=0.1,0.2,0.4", "--epochs=3", "--seeds=3")[0] == 0
        assert len(workers.trained) == 2 * 3 * 3

    def test_another_sweep_is_neither_continued_nor_overwritten(self, workers: FakeTrainings) -> None:
        assert workers.sweep(*SMALL)[0] == 0
        before = workers.kept
        status, said = workers.sweep(*SMALL, "--epochs=4")
        assert status == 4
        assert f"{workers.out} has another sweep, whose epochs differ; choose another --out" in said
        assert workers.kept == before
        (workers.out / FILES[0]).write_text("{")
        status, said = workers.sweep(*SMALL)
        assert status == 4
        assert "not a whole JSON file" in said

    def test_a_net_that_fails_is_named_the_others_are_trained_and_it_is_tried_again(
        self, workers: FakeTrainings
    ) -> None:
        def fail(setting: Setting, seed: int) -> None:
            if setting == Setting(2, 32, 0.2):
                raise WorkerFailure("sweep-1-2", "rank 1: gone", ["its stack"])

        workers.on = fail
        status, said = workers.sweep(*SMALL)
        assert (status, len(workers.trained)) == (1, NETS - 2)
        assert "sweep: failed: sweep-1-2: rank 1: gone\nits stack" in said
        assert "Missing: 2 nets" in said
        page = (workers.out / FILES[1]).read_text()
        assert "failed: 2 device(s), batch 32, lr 0.2, seed 1: rank 1: gone" in page
        workers.on = lambda setting, seed: None
        assert workers.sweep(*SMALL)[0] == 0
        assert workers.kept.failed == ()

    def test_a_sweep_ends_where_three_nets_fail_in_a_row(self, workers: FakeTrainings) -> None:
        def fail(setting: Setting, seed: int) -> None:
            if setting.world_size == 2:
                raise WorkerFailure("sweep-1-2", "rank 1: gone")

        workers.on = fail
        assert workers.sweep("--seeds=1", "--epochs=1")[0] == 1
        assert (len(workers.trained), len(workers.kept.failed)) == (5, 3)

    def test_a_folder_that_cannot_be_made_is_a_clear_error(self, workers: FakeTrainings, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        status, said = workers.sweep(*SMALL, "--out", str(tmp_path / "file" / "out"))
        assert status == 1
        assert "Not a directory; choose another --out" in said

    def test_a_disk_that_fills_up_keeps_the_nets_before(
        self, workers: FakeTrainings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(path: Path, text: str) -> None:
            if len(workers.trained) > 3:
                raise OSError(28, "No space left on device")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

        monkeypatch.setattr(sweep, "write_atomically", full)
        status, said = workers.sweep(*SMALL)
        assert (status, len(workers.kept.trained)) == (1, 3)
        assert f"sweep: {workers.out}: No space left on device; choose another --out" in said


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
    monkeypatch.setattr(sweep.time, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def train(world: World) -> Train:
    """Train a net for three epochs on workers that the world plays."""
    run = run_of(cell(1), cell(2, mode="weak"), config=settings(workloads=(LENET,)))
    run.jobs = {arm: replace(job(arm), devices=("cpu",)) for arm in map(run.plan.own, run.plan.cells)}
    assert LENET.accuracy is not None
    run.datasets = {LENET.accuracy.dataset: DATASET}
    sides = types.SimpleNamespace(pools={"candidate": world})
    return lambda setting, seed, say: sweep.train(run, sides, setting, seed, 3, say)  # type: ignore[arg-type]


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
