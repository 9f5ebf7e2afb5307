"""The command `sweep`: its options, the files that it writes, how it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.__main__ import main
from suite.cli import sweep
from suite.cli.sweep import FILES
from suite.plan.config import Config
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Prepared
from suite.properties.answers import About
from suite.records.files import read_model
from suite.records.sweep import RULES, Setting, Sweep, Trained
from suite.room.devices import Devices
from suite.run.observations import Observations
from suite.run.session import Say
from tests.support.measurements import LENET, VERSIONS, settings
from tests.support.sweeps import NETS, SMALL, net


class FakeTrainings:
    """Replaces `suite.run.sweep.Trainings`: every net is trained at once.

    Attributes:
        oracle: of the trainer.
        train_samples: of the dataset.
        trained: what was asked for, in order.
        on: called with every setting and seed before it is trained; may raise.
        out: the folder of the sweep, which it makes.
    """

    def __init__(self, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.out, self._capsys = out, capsys
        self.oracle, self.train_samples = "sgd", 1437
        self.trained: list[tuple[Setting, int]] = []
        self.on: Callable[[Setting, int], None] = lambda setting, seed: None

    def __call__(self, run: Observations, sides: object, epochs: int, warmup_epochs: int) -> FakeTrainings:
        self.run, self.epochs, self.warmup_epochs = run, epochs, warmup_epochs
        return self

    def sweep(self, *options: str) -> tuple[int, str]:
        """Run the command, and return its exit status and what it printed."""
        status = main(["sweep", "--out", str(self.out), *options])
        printed = self._capsys.readouterr()
        return status, printed.out + printed.err

    @property
    def kept(self) -> Sweep:
        """The sweep in the folder."""
        return read_model(self.out / FILES[0], Sweep)

    def prepare(self, say: Say) -> None:
        counts = {"train_samples": self.train_samples, "test_samples": 360}
        self.run.datasets["digits"] = Prepared(name="digits", folder="", **counts)
        self.run.versions["candidate"] = VERSIONS
        self.run.trainers["candidate", "ddp"] = About(processes="per-device", oracle=self.oracle)

    def train(self, wanted: Setting, seed: int, say: Say) -> Trained:
        self.on(wanted, seed)
        self.trained.append((wanted, seed))
        say(f"training it, seed {seed}: epoch 1 of {self.epochs}")
        return net(wanted, seed, per_epoch=(0.5,) * self.epochs, train_s=(1.0,) * self.epochs)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> FakeTrainings:
    """Two CPU devices, LeNet, ddp, and a report folder of the test's own."""
    fake = FakeTrainings(tmp_path / "sweep", capsys)
    monkeypatch.setattr(sweep.pytest_run, "sides", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(sweep, "Trainings", fake)
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
            ("--lr-rules", "linear,square", "'square': valid values are constant, linear, linear-warmup, book"),
            ("--epochs", "0", "'0': expected a whole number, 1 or more"),
            ("--seeds", "few", "'few': expected a whole number, 1 or more"),
            ("--warmup-epochs", "-1", "'-1': expected a whole number, 1 or more"),
        ],
    )
    def test_a_bad_value_is_a_usage_error(
        self, capsys: pytest.CaptureFixture[str], option: str, value: str, says: str
    ) -> None:
        with pytest.raises(SystemExit, match="4"):
            main(["sweep", f"{option}={value}"])
        assert says in capsys.readouterr().err

    def test_the_default_grid_is_the_recipe_and_its_neighbourhood(self, workers: FakeTrainings) -> None:
        assert workers.sweep()[0] == 0
        grid = workers.kept.grid
        assert (grid.batches, grid.lrs, grid.rules) == ((16,), (0.025, 0.05, 0.1, 0.2), RULES)
        assert (grid.world_sizes, grid.seeds, workers.epochs, workers.warmup_epochs) == ((1, 2), 3, 10, 2)
        assert len(workers.trained) == 3 * (4 + 13)

    def test_several_numbers_of_epochs_are_one_training_and_a_table_for_each(self, workers: FakeTrainings) -> None:
        """The first two epochs of four are a training of two; the warm-up fits into the shortest."""
        status, said = workers.sweep("--lrs=0.1", "--lr-rules=linear-warmup", "--seeds=1", "--epochs=4,1,2")
        assert (status, workers.epochs, workers.warmup_epochs, len(workers.trained)) == (0, 4, 1, 2)
        assert all(f"{epochs} of" in said for epochs in ("1 epoch", "2 epochs", "4 epochs"))
        shorter = workers.kept.after(2)
        assert shorter.epochs == len(shorter.trained[0].per_epoch) == 2

    def test_values_are_sorted_and_count_once(self, workers: FakeTrainings) -> None:
        assert workers.sweep("--batches=64,32,032", "--lrs=.2,0.20,.1", "--seeds=1")[0] == 0
        assert (workers.kept.grid.batches, workers.kept.grid.lrs) == ((32, 64), (0.1, 0.2))

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
            (settings(), ["--epochs", "3", "--warmup-epochs", "4"], 4, "--warmup-epochs 4 is above --epochs 3"),
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
        assert "batch 64 on 2 device(s) is 128 samples, above the 100 of digits; lower" in said
        assert not workers.trained
        assert not list(tmp_path.iterdir())

    def test_a_warm_up_of_another_optimiser_is_a_usage_error(self, workers: FakeTrainings) -> None:
        workers.oracle = "self"
        status, said = workers.sweep()
        assert status == 4
        assert "oracle is 'self'; use --lr-rules constant,linear,book" in said
        assert workers.sweep("--lr-rules=constant,linear,book")[0] == 0


class TestFiles:
    """What is kept, when and where."""

    def test_everything_is_trained_kept_and_shown(self, workers: FakeTrainings) -> None:
        status, said = workers.sweep(*SMALL)
        assert len(workers.trained) == len(set(workers.trained)) == NETS
        assert (status, workers.kept.missing()) == (0, 0)
        assert sorted(path.name for path in workers.out.iterdir()) == sorted(FILES)
        assert f"sweep: {NETS} nets to train" in said
        assert "sweep: training it, seed 1: epoch 1 of 3; 1 of 10" in said
        assert "constant" in said
        assert f"sweep: kept in {workers.out} (sweep.json, summary.md)" in said

    def test_by_default_each_sweep_has_a_folder_among_the_reports(self, workers: FakeTrainings, tmp_path: Path) -> None:
        assert main(["sweep", *SMALL]) == 0
        [path] = tmp_path.glob("reports/*/sweeps/ddp-lenet-*/sweep.json")
        assert path.parts[-4] == read_model(path, Sweep).machine.key

    def test_a_sweep_that_is_there_is_not_overwritten(self, workers: FakeTrainings) -> None:
        assert workers.sweep(*SMALL)[0] == 0
        before = workers.kept
        status, said = workers.sweep(*SMALL)
        assert status == 1
        assert f"{workers.out}: File exists; choose another --out" in said
        assert workers.kept == before

    @pytest.mark.parametrize("done", [0, 3])
    def test_an_interrupt_keeps_the_nets_that_are_done(self, workers: FakeTrainings, tmp_path: Path, done: int) -> None:
        """Every net is in the file before the next is trained; without a net there is no file."""
        seen: list[int] = []

        def interrupt(setting: Setting, seed: int) -> None:
            seen.append(len(workers.kept.trained) if (workers.out / FILES[0]).exists() else 0)
            if len(workers.trained) == done:
                raise KeyboardInterrupt

        workers.on = interrupt
        status, said = workers.sweep(*SMALL)
        assert status == 130
        assert f"interrupted: {done} of {NETS} nets are kept in {workers.out}" in said
        assert seen == list(range(done + 1))
        if done:
            assert len(workers.kept.trained) == done
            assert f"{NETS - done} nets are missing" in (workers.out / FILES[1]).read_text()
        else:
            assert not list(tmp_path.iterdir())

    def test_a_net_that_fails_is_named_and_the_others_are_trained(self, workers: FakeTrainings) -> None:
        def fail(setting: Setting, seed: int) -> None:
            if setting.lr == 0.4:
                raise WorkerFailure("sweep-1-2", "rank 1: gone", ["its stack"])

        workers.on = fail
        status, said = workers.sweep(*SMALL)
        assert (status, len(workers.trained)) == (1, NETS - 2)
        assert "sweep: failed: sweep-1-2: rank 1: gone\nits stack" in said
        assert "2 nets are missing" in said
        assert "- failed: 2 device(s), batch 32, lr 0.4, seed 1: rank 1: gone\n" in (workers.out / FILES[1]).read_text()

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
            path.write_text(text)

        monkeypatch.setattr(sweep, "write_atomically", full)
        status, said = workers.sweep(*SMALL)
        assert (status, len(workers.kept.trained)) == (1, 3)
        assert f"sweep: {workers.out}: No space left on device; choose another --out" in said
