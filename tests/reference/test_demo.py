"""The tutorial's tables, line by line."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from reference import demo
from reference.demo import demonstrate, main, parse_devices
from tests.support.strategies import CPU

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
    assert main([]) == 0
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
        assert main(["--devices", "cpu:1", "--shuffle"]) == 0
    assert capsys.readouterr().out.splitlines() == ["# on 1 virtual CPU device", *expected(1)]
    shuffled, in_order = torch.cat(seen), demo.RandomDataset(5, 100).data
    assert not torch.equal(shuffled, in_order)
    assert torch.equal(shuffled[shuffled[:, 0].argsort()], in_order[in_order[:, 0].argsort()])


def test_gpus_are_used_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[torch.device]] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(demo, "demonstrate", lambda devices, shuffle: asked.append(devices))
    assert main([]) == 0
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
    assert main(["--devices", "cuda:2"]) == 1
    error = "error: devices 'cuda:2': CUDA shows 1; ask for at most as many, or for cpu:2\n"
    assert capsys.readouterr() == ("", error)


@pytest.mark.gpu
def test_the_tables_on_gpus_are_the_tutorials() -> None:
    for devices in (k for k in TABLE if k <= torch.cuda.device_count()):
        lines: list[str] = []
        demonstrate(parse_devices(f"cuda:{devices}"), lines.append)
        assert lines == [line.replace("virtual CPU device", "GPU") for line in expected(devices)]
