"""The fixture `on_ranks` on real ranks: what comes back, and how a rank that raises, dies or hangs is told."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from suite.checks.ranks import OnRanks, named
from suite.processes.failure import WorkerFailure
from suite.room.devices import Devices


def mean(values: list[float]) -> float:
    mine = torch.tensor(values[dist.get_rank()])
    dist.all_reduce(mine)
    return float(mine) / dist.get_world_size()


def misses_a_file() -> None:
    if dist.get_rank() == 1:
        raise FileNotFoundError("no such data")
    dist.barrier()


def dies() -> None:
    if dist.get_rank() == 1:
        print("the last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()


def waits_for_nothing() -> None:
    if dist.get_rank() == 0:
        dist.barrier()


def slow_on_rank_1(seconds: float, said: str) -> str:
    if dist.get_rank() == 1:
        time.sleep(seconds)
    return said


def a_tensor() -> torch.Tensor:
    return torch.zeros(2)


def leaves_a_dtype() -> str:
    before = str(torch.get_default_dtype())
    torch.set_default_dtype(torch.float64)
    return before


class Group:
    """Functions may be in a class."""

    @staticmethod
    def rank() -> int:
        return dist.get_rank()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_rank_runs_the_function_in_a_process_group(on_ranks: OnRanks, world_size: int) -> None:
    values = [1.0, 3.0, 5.0]
    expected = sum(values[:world_size]) / world_size
    assert on_ranks(mean, world_size, values=values) == [expected] * world_size
    assert on_ranks(Group.rank, world_size) == list(range(world_size))
    assert on_ranks("torch.distributed:get_world_size", world_size) == [world_size] * world_size


@pytest.mark.parametrize("attempt", [1, 2])
def test_what_a_test_leaves_behind_changes_no_other(on_ranks: OnRanks, attempt: int) -> None:
    assert on_ranks(leaves_a_dtype, 1) == ["torch.float32"]


def test_the_traceback_of_the_rank_that_raised_is_shown_and_the_next_call_works(on_ranks: OnRanks) -> None:
    with pytest.raises(
        WorkerFailure, match=r"misses_a_file on 2 rank\(s\): rank 1: FileNotFoundError: no such"
    ) as caught:
        on_ranks(misses_a_file, 2)
    assert 'raise FileNotFoundError("no such data")' in str(caught.value)
    assert on_ranks(Group.rank, 2) == [0, 1]


def test_a_signal_and_the_end_of_stderr_are_shown(on_ranks: OnRanks) -> None:
    with pytest.raises(WorkerFailure, match=r"rank 1: its process ended with signal 11 \(SIGSEGV\)") as caught:
        on_ranks(dies, 2)
    assert "the last words" in str(caught.value)


def test_a_hang_is_ended_and_shows_the_stack_of_every_rank(on_ranks: OnRanks) -> None:
    with pytest.raises(WorkerFailure, match="rank 0: no answer to 'call' within 2 s, ended") as caught:
        on_ranks(waits_for_nothing, 2, timeout_s=2.0)
    assert "in waits_for_nothing" in str(caught.value)


def test_a_call_that_is_interrupted_leaves_no_answers_for_the_next_one(on_ranks: OnRanks) -> None:
    """As by pytest-timeout, which raises in the main thread while the ranks go on."""

    def interrupt(*_: object) -> None:
        raise TimeoutError("the test's deadline")

    on_ranks(Group.rank, 2)
    before, left = signal.signal(signal.SIGALRM, interrupt), signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(TimeoutError, match="the test's deadline"):
            on_ranks(slow_on_rank_1, 2, seconds=1.0, said="first")
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)
    assert on_ranks(slow_on_rank_1, 2, seconds=0.5, said="second") == ["second", "second"]


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (lambda: 1, "has no name that a rank could import; define it at the top level"),
        (functools.partial(mean, values=[1.0]), "has no name that a rank could import"),
    ],
    ids=["a lambda", "a partial"],
)
def test_a_function_without_a_name_is_refused(on_ranks: OnRanks, function: object, cause: str) -> None:
    with pytest.raises(TypeError, match=cause):
        on_ranks(function, 1)  # type: ignore[arg-type]


def test_tensors_do_not_travel(on_ranks: OnRanks) -> None:
    with pytest.raises(
        TypeError, match=r"the arguments of .*mean cannot be sent to a rank: .*; pass lists, not tensors"
    ):
        on_ranks(mean, 1, values=torch.ones(1))
    with pytest.raises(WorkerFailure, match=r"rank 0: TypeError: what .*a_tensor returned is not JSON"):
        on_ranks(a_tensor, 1)


@pytest.mark.parametrize(("world_size", "names"), [(0, ("cpu",)), (1, ())])
def test_no_rank_and_no_device_are_refused(on_ranks: OnRanks, world_size: int, names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="expected 1 or more ranks, and a device"):
        OnRanks(on_ranks.pool, Devices("cpu", names, ()))(Group.rank, world_size)


def test_a_module_of_a_package_is_named_and_any_other_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert named(mean) == (f"{__name__}:mean", str(Path(__file__).parents[2]))
    (tmp_path / "alone.py").write_text("def f(): ...\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("def f(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    import alone
    import package

    assert named(alone.f) == (f"{tmp_path / 'alone.py'}:f", "")
    assert named(package.f) == ("package:f", str(tmp_path))
