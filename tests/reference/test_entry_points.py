"""The entry points: the book's training and the tutorial's tables, from the command line and from code."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from reference import book, demo
from reference.book import BookRun, train
from reference.demo import demonstrate, parse_devices
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
    assert book.main(options) == 0
    assert re.search(
        r"^loss \d\.\d+, test acc 0\.\d\d, \d+\.\d sec/epoch on \[.*, .*\]$", capsys.readouterr().out, re.MULTILINE
    )


def test_the_command_line_reports_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert book.main(["--trainer", "magic"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: unknown trainer 'magic': choose one of single, scratch, ")
    assert error.count("\n") == 1


def test_the_notebooks_other_name_is_reported_with_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The notebook defines nums_gpus and passes num_gpus, a TypeError; here there is one name."""
    with pytest.raises(SystemExit, match="2"):
        book.main(["--nums-gpus", "2"])
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


TABLE = {
    1: [[30], [10]],
    2: [[15, 15], [5, 5]],
    3: [[10, 10, 10], [4, 4, 2]],
    8: [[4, 4, 4, 4, 4, 4, 4, 2], [2, 2, 2, 2, 2]],
}
"""Shards of 30 and of 10 samples, by devices: the tutorial's own figures."""


def inside(n: int) -> str:
    return f"\tIn Model: input size torch.Size([{n}, 5]) output size torch.Size([{n}, 2])"


def outside(n: int) -> str:
    return f"Outside: input size torch.Size([{n}, 5]) output_size torch.Size([{n}, 2])"


def expected(devices: int) -> list[str]:
    """Return the tutorial's lines, with shards in the replicas' order."""
    of_30, of_10 = ([*map(inside, shards), outside(sum(shards))] for shards in TABLE[devices])
    return [*([f"Let's use {devices} virtual CPU devices!"] if devices > 1 else []), *of_30, *of_30, *of_30, *of_10]


def test_the_whole_output_is_the_four_tables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of eight devices stay idle in the last minibatch."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    before = set(threading.enumerate())
    assert demo.main([]) == 0
    tables = []
    for devices in TABLE:
        name = "1 virtual CPU device" if devices == 1 else f"{devices} virtual CPU devices"
        tables.append("\n".join([f"# on {name}", *expected(devices), ""]))
    assert capsys.readouterr().out == "\n".join(tables)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=30)
        assert not thread.is_alive(), "a replica's thread is still there"


def test_lines_keep_the_replicas_order_whatever_order_the_threads_run_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last replica runs first here."""
    turn = threading.Condition()
    order: list[int] = []

    class Backwards(demo.Announced):
        def forward(self, X: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            replica = int(rows[0]) // 4
            with turn:
                assert turn.wait_for(lambda: len(order) == 2 - replica, timeout=30)
                output = super().forward(X, rows)
                order.append(replica)
                turn.notify_all()
            return output

    monkeypatch.setattr(demo, "Announced", Backwards)
    monkeypatch.setattr(demo, "RandomDataset", lambda size, length: torch.zeros(10, size))
    lines: list[str] = []
    demonstrate([CPU] * 3, lines.append)
    assert order == [2, 1, 0]
    assert lines[1:] == [inside(4), inside(4), inside(2), outside(10)]


def test_shuffled_samples_are_the_same_ones_in_another_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes, and so the tables, stay the same."""
    seen: list[torch.Tensor] = []
    hook = nn.modules.module.register_module_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0]) if isinstance(module, demo.Announced) else None
    )
    with hook:
        assert demo.main(["--devices", "cpu:1", "--shuffle"]) == 0
    assert capsys.readouterr().out.splitlines() == ["# on 1 virtual CPU device", *expected(1)]
    shuffled, in_order = torch.cat(seen), demo.RandomDataset(5, 100).data
    assert not torch.equal(shuffled, in_order)
    assert torch.equal(shuffled[shuffled[:, 0].argsort()], in_order[in_order[:, 0].argsort()])


def test_gpus_are_used_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[torch.device]] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(demo, "demonstrate", lambda devices, shuffle: asked.append(devices))
    assert demo.main([]) == 0
    cuda = [torch.device("cuda", index) for index in range(2)]
    assert asked == [cuda[:1], cuda, [CPU] * 3, [CPU] * 8]


@pytest.mark.parametrize("setting", ["3", "cpu", "cpu:0", "tpu:2", "cuda:x", "cpu:2,cpu:3"])
def test_a_malformed_setting_is_reported_with_the_valid_forms(setting: str) -> None:
    with pytest.raises(ValueError, match=f"devices '{setting}': expected cpu:N or cuda:N with N >= 1"):
        parse_devices(setting)


def test_more_gpus_than_there_are_end_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert demo.main(["--devices", "cuda:2"]) == 1
    error = "error: devices 'cuda:2': CUDA shows 1; ask for at most as many, or for cpu:2\n"
    assert capsys.readouterr() == ("", error)


@pytest.mark.gpu
def test_the_tables_on_gpus_are_the_tutorials() -> None:
    for devices in (k for k in TABLE if k <= torch.cuda.device_count()):
        lines: list[str] = []
        demonstrate(parse_devices(f"cuda:{devices}"), lines.append)
        assert lines == [line.replace("virtual CPU device", "GPU") for line in expected(devices)]
