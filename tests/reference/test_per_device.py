"""`PerDevice`: one lasting thread for each CPU device, what holds in it, and how errors and threads end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from reference.per_device import PerDevice
from tests.support.project import REPOSITORY
from tests.support.strategies import CPU

OTHER_KIND = torch.device("meta")
"""Stands for a device that is not a CPU where no kernel is run."""
WAIT_S = 10.0
"""The longest wait for something that must happen."""


@pytest.fixture
def two() -> Iterator[PerDevice]:
    devices = PerDevice([CPU] * 2)
    yield devices
    devices.close()


def test_each_cpu_device_is_one_lasting_thread_bound_to_its_own_core() -> None:
    """The threads use the cores that the caller may use, in turn; the caller is not bound."""
    allowed, devices = os.sched_getaffinity(0), PerDevice([CPU] * 3)

    def where(rank: int) -> tuple[int, set[int], int]:
        return threading.get_ident(), os.sched_getaffinity(0), torch.get_num_threads()

    first, second = devices.map(where, range(3)), devices.map(where, range(3))
    assert first == second
    assert len({ident for ident, _, _ in first} | {threading.get_ident()}) == 4
    cores = sorted(allowed)
    assert [core for _, core, _ in first] == [{cores[rank % len(cores)]} for rank in range(3)]
    assert [threads for _, _, threads in first] == [1] * 3
    assert os.sched_getaffinity(0) == allowed
    devices.close()


def test_the_callers_number_of_threads_stays_and_is_the_default_of_later_threads() -> None:
    before = torch.get_num_threads()
    devices, seen = PerDevice([CPU] * 2), []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert [torch.get_num_threads(), *seen] == [before, before]
    devices.close()


@pytest.mark.parametrize("k", [1, 3])
def test_results_come_in_order_and_spare_devices_stay_idle(k: int) -> None:
    devices = PerDevice([CPU] * k)
    assert devices.map(lambda a, b: (a, b), [1, 2, 3][:k], "xyz"[:k]) == [(1, "x"), (2, "y"), (3, "z")][:k]
    assert devices.map(abs, []) == []
    devices.close()


def test_the_callers_modes_hold_in_the_threads(two: PerDevice) -> None:
    """Grad mode, inference mode and autocast are per thread in torch."""

    def modes(rank: int) -> tuple[bool, bool, torch.dtype]:
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), product.dtype

    assert two.map(modes, range(2)) == [(True, False, torch.float32)] * 2
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert two.map(modes, range(2)) == [(False, False, torch.bfloat16)] * 2
    with torch.inference_mode():
        assert two.map(modes, range(2)) == [(False, True, torch.float32)] * 2


@pytest.mark.parametrize("first", [CPU, OTHER_KIND], ids=str)
def test_an_error_is_raised_in_the_caller_once_all_devices_have_ended(first: torch.device) -> None:
    """A thread would otherwise go on with tensors that the caller has given up. The devices stay usable."""
    devices, ended = PerDevice([first, CPU, CPU]), []

    def work(rank: int) -> None:
        if rank == 0:
            raise KeyError("device 0")
        time.sleep(0.05)
        ended.append(rank)

    with pytest.raises(KeyError, match="device 0"):
        devices.map(work, range(3))
    assert sorted(ended) == [1, 2]
    assert devices.map(abs, [-1, -2, -3]) == [1, 2, 3]
    devices.close()


def test_the_caller_serves_a_device_of_another_kind_while_cpu_threads_work() -> None:
    """The caller keeps its number of intra-op threads, and a single CPU device has a thread of its own."""
    before, devices = torch.get_num_threads(), PerDevice([OTHER_KIND, CPU])
    meeting = threading.Barrier(2)

    def meet(rank: int) -> tuple[str, int]:
        meeting.wait(WAIT_S)
        return threading.current_thread().name, torch.get_num_threads()

    assert devices.map(meet, range(2)) == [(threading.current_thread().name, before), ("replica-1", 1)]
    devices.close()


@pytest.mark.parametrize("forget", [False, True], ids=["close", "del"])
def test_threads_end_with_close_or_with_the_object(forget: bool) -> None:
    devices = PerDevice([CPU] * 2)
    threads = devices.map(lambda rank: threading.current_thread(), range(2))
    if forget:
        del devices
        gc.collect()
    else:
        devices.close()
        devices.close()
        with pytest.raises(RuntimeError, match="this PerDevice is closed: make a new one"):
            devices.map(abs, [1, 2])
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_busy_thread_of_an_unclosed_object_does_not_keep_the_interpreter_alive() -> None:
    code = """
import threading, time, torch
from reference.per_device import PerDevice
devices = PerDevice([torch.device("cpu")] * 2)
threading.Thread(target=devices.map, args=(time.sleep, [600, 600]), daemon=True).start()
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([1, 2, 3],), "arguments for 3 devices, but there are 2"),
        (([1, 2], [1]), r"arguments for \[2, 1\] devices: give at least one sequence, all of one length"),
        ((), r"arguments for \[\] devices"),
    ],
)
def test_arguments_that_do_not_match_the_devices_are_reported(
    two: PerDevice, args: tuple[list[int], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        two.map(max, *args)
    with pytest.raises(ValueError, match="devices is empty: name at least one device"):
        PerDevice([])


# The garbage collector is off while replicas compute: docs/upstream/get_rng_state_deadlock.md says why.


@pytest.fixture(params=[True, False], ids=["on", "off"])
def was_on(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The collector as the user has it."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def collects(_: int = 0) -> bool:
    return gc.isenabled()


def test_the_collector_is_off_in_the_threads_and_as_it_was_afterwards(two: PerDevice, was_on: bool) -> None:
    assert two.map(collects, range(2)) == [False, False]
    assert gc.isenabled() is was_on
    with pytest.raises(ZeroDivisionError):
        two.map(lambda n: 1 / n, [1, 0])
    assert gc.isenabled() is was_on


def test_the_collector_is_off_where_a_cpu_thread_works_and_else_left_alone(was_on: bool) -> None:
    """The caller's thread serves a device of another kind, and a single device."""
    devices = PerDevice([OTHER_KIND, CPU])
    assert devices.map(collects, range(2)) == [False, False]
    devices.close()
    assert PerDevice([CPU]).map(collects, [0]) == [was_on]
    assert PerDevice([CPU]).map(lambda _: threading.get_ident(), [0]) == [threading.get_ident()]


def test_the_collector_stays_off_until_the_last_of_several_maps_has_ended(two: PerDevice, was_on: bool) -> None:
    """As with two trainers that two threads use at once."""
    second = PerDevice([CPU] * 2)
    begun, go_on, seen = threading.Event(), threading.Event(), []

    def wait(_: int) -> bool:
        begun.set()
        assert go_on.wait(WAIT_S)
        return gc.isenabled()

    longer = threading.Thread(target=lambda: seen.extend(two.map(wait, range(2))))
    longer.start()
    assert begun.wait(WAIT_S)
    assert second.map(collects, range(2)) == [False, False]
    assert not gc.isenabled()
    go_on.set()
    longer.join(WAIT_S)
    assert seen == [False, False]
    assert gc.isenabled() is was_on
    second.close()
