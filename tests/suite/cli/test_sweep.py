"""The command `sweep`: its options, what it keeps and goes on with, how it ends; and once with real workers."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from suite import __main__ as commands
from suite.cli import sweep
from suite.cli.sweep_folder import FILES, alone_in
from suite.plan.config import Config
from suite.processes.failure import WorkerFailure
from suite.records import sweep as sweep_record
from suite.records.record import RecordError
from suite.records.sweep import RULES, Setting, Sweep, Trained
from suite.room.devices import Devices
from suite.room.quiet import available_cores
from suite.run.observations import Observations
from suite.run.session import Say
from suite.run.sweep import GivenUp
from tests.support.measurements import LENET, VERSIONS, settings
from tests.support.project import Project
from tests.support.sweeps import EPOCHS, net

needs_two_cores = pytest.mark.skipif(len(available_cores()) < 2, reason="two CPU workers need two cores")

SMALL = ["--lrs", "0.1,0.2", "--lr-rules", "constant,linear", "--epochs", str(EPOCHS), "--seeds", "2"]
NETS = 2 * (2 + 3)  # of each seed: .1 and .2 on one device; .1, .2 and .4 on two


class Pretending:
    """In the place of `suite.run.sweep.Trainings`: nets that come to what they are told.

    Attributes:
        oracle: of the trainer.
        train_samples: of the dataset.
        trained: what was asked for, in order.
        on: called with every setting and seed before it is trained; may raise.
    """

    def __init__(self) -> None:
        self.oracle, self.train_samples = "sgd", 1437
        self.trained: list[tuple[Setting, int]] = []
        self.on: Callable[[Setting, int], None] = lambda setting, seed: None

    def __call__(self, run: Observations, root: Path, epochs: int, warmup_epochs: int) -> Pretending:
        self.run, self.epochs, self.warmup_epochs = run, epochs, warmup_epochs
        return self

    def __enter__(self) -> Pretending:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def prepare(self, say: Say) -> None:
        counts = {"train_samples": self.train_samples, "test_samples": 360}
        self.run.datasets["digits"] = {"name": "digits", "folder": "", **counts}
        self.run.versions["candidate"] = VERSIONS
        self.run.trainers["candidate", "ddp"] = {"oracle": self.oracle}

    def train(self, wanted: Setting, seed: int, say: Say) -> Trained:
        self.on(wanted, seed)
        self.trained.append((wanted, seed))
        say(f"training it, seed {seed}: epoch 1 of {self.epochs}")
        return net(wanted, seed, per_epoch=(0.5,) * self.epochs, train_s=(1.0,) * self.epochs)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Pretending:
    """Two CPU devices, LeNet, ddp, unless a test says otherwise."""
    made = Pretending()
    monkeypatch.setattr(sweep, "Trainings", made)
    monkeypatch.setattr(sweep.gate, "settings", lambda arguments: settings())
    return made


def kept(folder: Path) -> Sweep:
    found = sweep_record.read(folder / FILES[0])
    assert found is not None
    return found


def asked(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    sweep.add_arguments(parser)
    return parser.parse_args(arguments)


class TestOptions:
    """What a user can ask, and what is wrong to ask."""

    @pytest.mark.parametrize(
        ("option", "value", "says"),
        [
            ("--batches", "0", "'0': expected whole numbers from 1"),
            ("--batches", "32,x", "'32,x': expected whole numbers from 1"),
            ("--lrs", "-0.1", "'-0.1': expected learning rates above 0"),
            ("--lrs", "nan", "'nan': expected learning rates above 0"),
            ("--lrs", "inf", "'inf': expected learning rates above 0"),
            ("--lrs", ",", "',': expected learning rates above 0"),
            ("--lr-rules", "linear,square", "valid values are constant, linear, linear-warmup, book"),
            ("--epochs", "0", "'0': expected whole numbers from 1"),
            ("--seeds", "few", "'few': expected a whole number from 1"),
            ("--warmup-epochs", "-1", "'-1': expected a whole number from 1"),
        ],
    )
    def test_a_bad_value_is_a_usage_error(
        self, workers: Pretending, capsys: pytest.CaptureFixture[str], option: str, value: str, says: str
    ) -> None:
        with pytest.raises(SystemExit, match="4"):
            commands.main(["sweep", f"{option}={value}"])
        assert says in capsys.readouterr().err

    def test_without_any_a_recipe_and_its_neighbourhood_are_swept(self, workers: Pretending, tmp_path: Path) -> None:
        assert sweep.run(asked("--out", str(tmp_path)), []) == 0
        grid = kept(tmp_path).grid
        assert (grid.batches, grid.lrs, grid.rules) == ((16,), (0.025, 0.05, 0.1, 0.2), RULES)
        assert (grid.world_sizes, grid.seeds, workers.epochs, workers.warmup_epochs) == ((1, 2), 3, 10, 2)
        assert len(workers.trained) == 3 * (4 + 13)

    def test_a_sweep_of_one_epoch_warms_up_in_it(self, workers: Pretending, tmp_path: Path) -> None:
        assert sweep.run(asked("--epochs", "1", "--out", str(tmp_path)), []) == 0
        assert workers.warmup_epochs == 1

    def test_several_numbers_of_epochs_are_one_training_and_a_table_for_each(
        self, workers: Pretending, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """The first two epochs of four are a training of two."""
        options = ("--lrs", "0.1", "--lr-rules", "linear-warmup", "--seeds", "1", "--epochs", "4,1,2")
        assert sweep.run(asked(*options, "--out", str(tmp_path)), []) == 0
        assert (workers.epochs, workers.warmup_epochs, len(workers.trained)) == (4, 1, 2)
        said = capsys.readouterr().out
        assert [said.count(f"{epochs} epoch") > 0 for epochs in (1, 2, 4)] == [True] * 3
        assert kept(tmp_path).after(2).epochs == len(kept(tmp_path).after(2).trained[0].per_epoch) == 2

    def test_values_that_stand_twice_count_once(self) -> None:
        assert asked("--batches", "64,32,032").batches == (32, 64)
        assert asked("--lrs", ".2,0.20,.1").lrs == (0.1, 0.2)

    def test_what_is_pytests_is_judged_by_pytest(self, workers: Pretending, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[list[str]] = []

        def refuse(arguments: list[str]) -> int:
            seen.append(arguments)
            return 4

        monkeypatch.setattr(sweep.gate, "settings", refuse)
        assert commands.main(["sweep", "--scaling-devices", "cpu:2", "--seeds", "2"]) == 4
        assert seen == [["--scaling-devices", "cpu:2", "--scaling-trainer=ddp"]]

    @pytest.mark.parametrize(
        ("config", "options", "status", "says"),
        [
            (settings(trainers=("ddp", "fsdp")), [], 4, "--scaling-trainer names 2: a sweep is of one"),
            (settings(workloads=(LENET, LENET)), [], 4, "--scaling-workload names 2: a sweep is of one"),
            (
                settings(workloads=(LENET.model_copy(update={"accuracy": None}),)),
                [],
                4,
                r"workload 'lenet' has no recipe to train by: add [tool.scaling.workloads.lenet.accuracy]",
            ),
            (settings(), ["--epochs", "3", "--warmup-epochs", "4"], 4, "--warmup-epochs 4 is above --epochs 3"),
            (settings(devices=Devices("cuda", ("cuda:97",), ())), [], 1, "check the driver (nvidia-smi), or use"),
            (settings(devices=Devices("cuda", (), ()), world_sizes=()), [], 1, "CUDA shows"),
        ],
    )
    def test_what_does_not_fit_together_is_said_before_anything_starts(
        self,
        workers: Pretending,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        config: Config,
        options: list[str],
        status: int,
        says: str,
    ) -> None:
        monkeypatch.setattr(sweep.gate, "settings", lambda arguments: config)
        assert sweep.run(asked(*options, "--out", str(tmp_path / "out")), []) == status
        said = capsys.readouterr().err
        assert said.startswith("sweep: error: ")
        assert says in said
        assert not (tmp_path / "out").exists()

    def test_a_batch_above_the_data_is_a_usage_error(
        self, workers: Pretending, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        workers.train_samples = 100
        assert sweep.run(asked("--batches", "32,64", "--out", str(tmp_path)), []) == 4
        assert "batch 64 on 2 device(s) is 128 samples, above the 100 of digits; lower" in capsys.readouterr().err
        assert workers.trained == []

    def test_a_warm_up_of_another_optimiser_is_a_usage_error(
        self, workers: Pretending, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        workers.oracle = "self"
        assert sweep.run(asked("--out", str(tmp_path)), []) == 4
        assert "oracle is 'self'; use --lr-rules constant,linear,book" in capsys.readouterr().err
        assert sweep.run(asked("--lr-rules", "constant,linear,book", "--out", str(tmp_path)), []) == 0


class TestGoingOn:
    """What is kept, when, and what a second command does with it."""

    def test_everything_is_trained_kept_and_shown(
        self, workers: Pretending, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        assert sweep.run(asked(*SMALL, "--out", str(tmp_path)), []) == 0
        assert len(workers.trained) == len(set(workers.trained)) == NETS
        assert kept(tmp_path).missing() == []
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
        said = capsys.readouterr().out
        assert f"sweep: {NETS} nets to train, 0 are there" in said
        assert "sweep: training it, seed 1: epoch 1 of 3; 1 of 10" in said
        assert "linear" in said
        assert f"sweep: kept in {tmp_path} (sweep.json, summary.md, sweep.html)" in said

    def test_an_interrupt_keeps_what_is_done_and_the_same_command_goes_on(
        self, workers: Pretending, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        def interrupt(setting: Setting, seed: int) -> None:
            if len(workers.trained) == 3:
                raise KeyboardInterrupt

        workers.on = interrupt
        command = ["sweep", *SMALL, "--out", str(tmp_path)]
        assert commands.main(command) == 130
        assert f"interrupted: 3 of {NETS} nets are kept; the same command goes on" in capsys.readouterr().out
        first = kept(tmp_path).trained
        assert len(first) == 3
        assert f"{NETS - 3} nets are missing" in (tmp_path / "summary.md").read_text()
        workers.on = lambda setting, seed: None
        assert commands.main(command) == 0
        assert f"{NETS - 3} nets to train, 3 are there" in capsys.readouterr().out
        assert kept(tmp_path).trained[:3] == first
        assert len(workers.trained) == len(set(workers.trained)) == NETS

    def test_a_larger_grid_trains_only_what_is_new(self, workers: Pretending, tmp_path: Path) -> None:
        sweep.run(asked(*SMALL, "--out", str(tmp_path)), [])
        assert sweep.run(asked(*SMALL, "--seeds", "3", "--out", str(tmp_path)), []) == 0
        assert len(workers.trained) == len(set(workers.trained)) == NETS + NETS // 2
        assert {seed for _, seed in workers.trained[NETS:]} == {3}

    def test_other_nets_are_not_mixed_in(
        self, workers: Pretending, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        sweep.run(asked(*SMALL, "--out", str(tmp_path)), [])
        before = kept(tmp_path)
        assert sweep.run(asked(*SMALL, "--epochs", "5", "--out", str(tmp_path)), []) == 1
        said = capsys.readouterr().err
        assert "has nets that must not stand in one figure with these: epochs 3 and not 5. Name another folder" in said
        assert kept(tmp_path) == before

    def test_every_net_is_in_the_file_before_the_next_is_trained(self, workers: Pretending, tmp_path: Path) -> None:
        seen: list[int] = []

        def count(setting: Setting, seed: int) -> None:
            path = tmp_path / FILES[0]
            seen.append(len(json.loads(path.read_text())["trained"]) if path.exists() else 0)

        workers.on = count
        sweep.run(asked(*SMALL, "--out", str(tmp_path)), [])
        assert seen == list(range(NETS))

    def test_by_default_it_lies_in_the_report_folder(
        self, workers: Pretending, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(sweep.gate, "settings", lambda arguments: settings(report_dir=tmp_path))
        assert sweep.run(asked(*SMALL), []) == 0
        [found] = tmp_path.glob("*/sweeps/ddp-lenet/sweep.json")
        assert found.parts[-4] == kept(found.parent).machine.key


class TestFailures:
    """A net that cannot be trained, a folder that cannot be used."""

    def test_the_others_go_on_and_it_is_tried_again(
        self, workers: Pretending, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        def fail(setting: Setting, seed: int) -> None:
            if setting.lr == 0.4:
                raise WorkerFailure("sweep-1-2", "rank 1: gone", ["its stack"])

        workers.on = fail
        assert sweep.run(asked(*SMALL, "--out", str(tmp_path)), []) == 1
        assert len(workers.trained) == NETS - 2
        said = capsys.readouterr().out
        assert "sweep: failed: sweep-1-2: rank 1: gone\nits stack" in said
        assert "2 nets are missing" in said
        assert "- failed: 2 device(s), batch 32, lr 0.4, seed 1: rank 1: gone\n" in (tmp_path / FILES[1]).read_text()
        workers.on = lambda setting, seed: None
        assert sweep.run(asked(*SMALL, "--out", str(tmp_path)), []) == 0
        assert kept(tmp_path).failed == ()

    def test_a_world_size_that_was_given_up_is_said_once(
        self, workers: Pretending, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        def give_up(setting: Setting, seed: int) -> None:
            if setting.world_size == 2:
                raise GivenUp("3 nets in a row failed on 2 device(s)")

        workers.on = give_up
        assert sweep.run(asked(*SMALL, "--out", str(tmp_path)), []) == 1
        assert capsys.readouterr().out.count("sweep: 3 nets in a row failed on 2 device(s)") == 1
        assert len(kept(tmp_path).trained) == 4

    def test_two_sweeps_at_once_do_not_write_into_one_folder(
        self, workers: Pretending, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        with alone_in(tmp_path):
            assert sweep.run(asked(*SMALL, "--out", str(tmp_path)), []) == 1
        assert f"{tmp_path}: another sweep is at work in it; wait for it, or name" in capsys.readouterr().err
        assert sweep.run(asked(*SMALL, "--out", str(tmp_path)), []) == 0

    def test_a_folder_that_cannot_be_made_is_a_clear_error(
        self, workers: Pretending, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        assert sweep.run(asked(*SMALL, "--out", str(tmp_path / "file" / "out")), []) == 1
        assert "Not a directory; choose another --out" in capsys.readouterr().err

    def test_a_disk_that_fills_up_keeps_the_nets_before(
        self, workers: Pretending, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        from suite.cli import sweep_folder as sweep_folder

        def full(path: Path, text: str) -> None:
            if len(workers.trained) > 3:
                raise OSError(28, "No space left on device")
            path.write_text(text)

        monkeypatch.setattr(sweep_folder, "write_atomically", full)
        assert sweep.run(asked(*SMALL, "--out", str(tmp_path)), []) == 1
        assert "sweep.json: No space left on device; choose another --out" in capsys.readouterr().err
        assert len(kept(tmp_path).trained) == 3

    def test_a_broken_file_is_left_alone(
        self, workers: Pretending, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        (tmp_path / FILES[0]).write_text("{")
        assert sweep.run(asked(*SMALL, "--out", str(tmp_path)), []) == 1
        assert "not a whole JSON file" in capsys.readouterr().err
        assert (tmp_path / FILES[0]).read_text() == "{"
        with pytest.raises(RecordError):
            kept(tmp_path)


@pytest.mark.end_to_end
@needs_two_cores
def test_real_workers_are_interrupted_and_the_same_command_goes_on(project: Project) -> None:
    """From a project that only has the suite installed; three epochs of a tiny net on one and two devices."""
    options = ["--scaling-workload", "tiny", "--scaling-devices", "cpu:2", "--scaling-trainer", "scratch"]
    command = [sys.executable, "-m", "suite", "sweep", *SMALL, *options, "--out", "kept"]
    path = project.path / "kept" / FILES[0]
    first = subprocess.Popen(
        command,
        cwd=project.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell's background job ignores SIGINT, and so would this.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 120
        while not path.exists() and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        first.send_signal(signal.SIGINT)
        said, _ = first.communicate(timeout=60)
    finally:
        first.kill()
    assert first.returncode == 130, said
    assert "nets are kept; the same command goes on with the others" in said
    before = kept(project.path / "kept")
    assert 1 <= len(before.trained) < NETS
    second = subprocess.run(command, cwd=project.path, capture_output=True, text=True, timeout=200)
    assert second.returncode == 0, second.stdout + second.stderr
    after = kept(project.path / "kept")
    assert after.trained[: len(before.trained)] == before.trained, "nothing is trained twice"
    assert after.missing() == []
    assert all(0.9 < one.per_epoch[-1] <= 1 for one in after.trained), "the blobs are far apart"
    assert {one.warmup for one in after.trained} == {False}
    assert "linear" in second.stdout
    assert (project.path / "kept" / FILES[2]).read_text().startswith("<!doctype html>")
