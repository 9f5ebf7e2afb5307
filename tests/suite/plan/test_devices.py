"""Reading `--scaling-devices`, and counting GPUs as CUDA would show them."""

from __future__ import annotations

import pytest

from suite.room import devices
from suite.room.quiet import available_cores

UUIDS = ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-bbcc-3"]


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (None, UUIDS),
        ("", []),
        ("1,0", ["GPU-bbbb-2", "GPU-aaaa-1"]),
        ("0,7,1", ["GPU-aaaa-1"]),
        ("-1", []),
        ("GPU-bbbb", ["GPU-bbbb-2"]),
        ("GPU-bb", []),
        ("0,0", []),
        (" 2 , 1 ", ["GPU-bbcc-3", "GPU-bbbb-2"]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(setting: str | None, shown: list[str]) -> None:
    assert devices.visible(UUIDS, setting) == shown


def test_cpu_devices_get_a_core_each() -> None:
    found = devices.parse("cpu")
    assert (found.kind, found.cores) == ("cpu", tuple(available_cores()))
    assert not found.oversubscribed(len(found.names))


def test_more_cpu_workers_than_cores_are_oversubscribed() -> None:
    cores = len(available_cores())
    found = devices.parse(f"cpu:{cores + 1}")
    assert not found.oversubscribed(cores)
    assert found.oversubscribed(cores + 1)
    assert "(oversubscribed)" in str(found)


def test_in_a_list_the_number_names_a_gpu_which_may_occur_twice() -> None:
    assert devices.parse("cuda:3").names == ("cuda:0", "cuda:1", "cuda:2")
    assert devices.parse("cuda:3,cuda:1").names == ("cuda:3", "cuda:1")
    twice = devices.parse("cuda:0,cuda:0")
    assert (twice.oversubscribed(1), twice.oversubscribed(2)) == (False, True)


def test_auto_takes_gpus_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cuda_count", lambda: 2)
    assert devices.parse("auto").names == ("cuda:0", "cuda:1")
    monkeypatch.setattr(devices, "cuda_count", lambda: 0)
    assert devices.parse("auto").kind == "cpu"


@pytest.mark.parametrize("setting", ["gpu", "cpu:0", "cpu:-1", "cuda:x", "cuda:0,cpu", "", "cuda:0,"])
def test_anything_else_is_refused_with_what_is_valid(setting: str) -> None:
    with pytest.raises(ValueError, match=r"expected auto, cpu\[:N\], cuda\[:N\]"):
        devices.parse(setting)


def test_two_ranks_on_one_gpu_talk_through_gloo() -> None:
    two = devices.parse("cuda:0,cuda:1")
    assert two.backend(two.names) == "nccl"
    assert two.backend(["cuda:0", "cuda:0"]) == "gloo"
    assert devices.parse("cpu:2").backend(["cpu", "cpu"]) == "gloo"
