"""`reference.book`, the book's entry point: training, the closing line, the command line, what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from reference import book
from reference.book import BookRun, main, train
from reference.trainers.scratch import Scratch
from tests.support.strategies import CPU

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")

TINY = """
import torch
def data():
    X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    y = (X[:, 0] > 0).long()
    return (X, y), (X, y)
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """Return the name of a data set of 40 samples that the toy network can learn."""
    (tmp_path / "tiny.py").write_text(TINY)
    return f"{tmp_path / 'tiny.py'}:data"


@pytest.mark.parametrize("trainer", ["single", "scratch", "data_parallel"])
def test_training_learns_and_ends_with_the_books_line(trainer: str, tiny: str) -> None:
    """Every epoch has a line, then the warm-up, then the closing line."""
    lines: list[str] = []
    run = train(
        2, 8, 1.0, net="toy", trainer=trainer, num_epochs=5, dataset=tiny, devices=[CPU] * 2, report=lines.append
    )
    assert run.accuracies[-1] > 0.9
    assert len(run.accuracies) == len(run.epoch_s) == len(run.losses) == 5
    assert run.losses[-1] < run.losses[0] < 1.0
    assert [line.split(":")[0] for line in lines[:6]] == [
        *(f"epoch {i}" for i in range(1, 6)),
        "first epoch, with warm-up",
    ]
    assert lines[-1] == run.closing_line
    assert re.fullmatch(r"loss \d\.\d{3}, test acc (0\.9\d|1\.00), \d+\.\d sec/epoch on \[cpu, cpu\]", run.closing_line)


def test_every_world_size_trains_the_same_network(tiny: str) -> None:
    runs = [train(k, 8, 0.5, net="toy", num_epochs=2, dataset=tiny, devices=[CPU] * k, report=str) for k in (1, 3)]
    assert runs[0].accuracies == runs[1].accuracies


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
def test_the_books_loader_gives_the_same_run(tiny: str) -> None:
    runs = [
        train(1, 8, 0.5, net="toy", num_epochs=1, dataset=tiny, loader=name, report=str)
        for name in ("book", "resident")
    ]
    assert runs[0].accuracies == runs[1].accuracies


def test_the_warm_up_epoch_is_not_in_the_mean() -> None:
    """The only epoch of a run counts."""
    assert BookRun((0.5, 0.5, 0.5), (9.0, 1.0, 2.0), ("cpu",)).sec_per_epoch == 1.5
    assert BookRun((0.5,), (9.0,), ("cpu",)).sec_per_epoch == 9.0


def test_every_device_is_waited_for_before_a_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU devices need no call."""
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    gpus = [torch.device("cuda:0"), torch.device("cuda:1")]
    book.synchronize([*gpus, CPU])
    assert waited == gpus


def test_max_steps_cuts_the_epoch_short(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    monkeypatch.setattr(Scratch, "step", lambda self, X, y, n: steps.append(n))
    train(1, 8, 0.5, net="toy", num_epochs=2, dataset=tiny, max_steps=3, report=str)
    assert steps == [8] * 6


def test_the_command_line_trains_lenet_on_a_users_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "images.py"
    path.write_text(
        "import torch\npair = torch.rand(20, 1, 28, 28), torch.arange(20) % 10\ndef data(): return pair, pair\n"
    )
    options = ["--num-gpus", "2", "--batch-size", "8", "--lr", ".2", "--epochs", "1", "--dataset", f"{path}:data"]
    assert main(options) == 0
    assert re.search(
        r"^loss \d\.\d+, test acc 0\.\d\d, \d+\.\d sec/epoch on \[.*, .*\]$", capsys.readouterr().out, re.MULTILINE
    )


def test_the_command_line_reports_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trainer", "magic"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: unknown trainer 'magic': choose one of single, scratch, ")
    assert error.count("\n") == 1


def test_the_notebooks_other_name_is_reported_with_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The notebook defines nums_gpus and passes num_gpus, a TypeError; here there is one name."""
    with pytest.raises(SystemExit, match="2"):
        main(["--nums-gpus", "2"])
    assert "--nums-gpus is not an option: the number of devices is --num-gpus" in capsys.readouterr().err
    with pytest.raises(TypeError, match="unexpected keyword argument 'nums_gpus'"):
        train(nums_gpus=2, batch_size=256, lr=0.2)  # type: ignore[call-arg]


def test_without_a_gpu_training_falls_back_to_the_cpu_and_says_so(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documents' try_gpu falls back silently."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lines: list[str] = []
    run = train(2, 8, 0.5, net="toy", num_epochs=1, dataset=tiny, max_steps=1, report=lines.append)
    assert lines[0] == "CUDA shows no device: training on 2 CPU device(s) instead"
    assert run.devices == ("cpu", "cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_gpus": 0}, "num_gpus is 0: it must be at least 1"),
        ({"num_epochs": 0}, "num_epochs is 0: it must be at least 1"),
        ({"max_steps": 0}, "max_steps is 0: it must be at least 1"),
        ({"num_gpus": 1, "trainer": "ddp"}, r"trainer 'ddp' needs a process for each device .*pytest -m scaling"),
        ({"devices": [CPU]}, "devices names 1 devices, but num_gpus is 2: make them agree"),
        ({}, "num_gpus is 2, but CUDA shows 1: ask for at most as many"),
    ],
)
def test_bad_arguments_are_reported_before_any_data_is_read(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=message):
        train(**{"num_gpus": 2, "batch_size": 8, "lr": 0.1} | changes)
