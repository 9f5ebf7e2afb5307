"""For how long others had the cores of a process, and which parameter of a net is not finite.

Real processes use a real core, and a kernel does not count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

from suite.rank.timing import CPUS, TASKS, Others, first_bad_sample, first_not_finite

COUNTED = pytest.mark.skipif(
    not list(CPUS.glob("cpu0/cpuidle/state*/time")), reason="this kernel does not count idle time by core"
)
SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass\n"


@pytest.fixture
def core() -> Iterator[int]:
    """Bind this thread to one of its cores."""
    before = os.sched_getaffinity(0)
    chosen = max(before)
    os.sched_setaffinity(0, {chosen})
    yield chosen
    os.sched_setaffinity(0, before)


@pytest.fixture
def no_children(tmp_path: Path) -> Path:
    """Return the folder of a process whose only thread has no children; pytest's own may have some."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "children").write_text("")
    return tmp_path


@contextmanager
def spinning(core: int) -> Iterator[None]:
    """Have another process use this core."""
    with subprocess.Popen([sys.executable, "-c", SPIN, str(core)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            yield
        finally:
            other.kill()


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def waited_ns() -> int:
    """Return for how long this thread was ready to run and another had its core, as the scheduler counts it."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


@COUNTED
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a busy process"])
def test_others_had_the_core_while_a_busy_process_waited(beside: bool, core: int, no_children: Path) -> None:
    """Alone it waits too, where the machine has other processes.

    The two counts agree in one of five spans: where a quota stops this thread, or another thread of this process runs
    on another core, it waits while nobody else has its core.
    """
    differences = []
    with spinning(core) if beside else nullcontext():
        for _ in range(5):
            others, waited_before_ns = Others(tasks=no_children), waited_ns()
            spin(0.1)
            taken_ns, waited = others.read_ns(), waited_ns() - waited_before_ns
            assert taken_ns is not None
            assert waited > (0.02e9 if beside else -1)
            differences.append(abs(taken_ns - waited) - 0.1 * waited)
    assert min(differences) < 0.01e9


def test_an_idle_core_is_nobodys(core: int, no_children: Path, tmp_path: Path) -> None:
    """A kernel that counts the sleep, and no more, as idle."""
    state = tmp_path / f"cpu{core}" / "cpuidle" / "state0"
    state.mkdir(parents=True)
    (state / "time").write_text("1000")
    start = time.perf_counter()
    others, before = Others(cpus=tmp_path, tasks=no_children), time.perf_counter()
    time.sleep(0.1)
    slept_s = time.perf_counter() - before
    (state / "time").write_text(str(1000 + round(slept_s * 1e6)))
    taken_ns = others.read_ns()
    assert taken_ns is not None
    assert taken_ns <= 1e9 * (time.perf_counter() - start - slept_s) + 1000


@COUNTED
def test_all_cores_of_a_process_count(core: int, no_children: Path) -> None:
    """And its thread is bound to all of them again."""
    before = os.sched_getaffinity(0)
    both = {core, min(os.sched_getaffinity(os.getppid()))}
    os.sched_setaffinity(0, both)
    with spinning(core):
        others, start = Others(tasks=no_children), time.perf_counter()
        time.sleep(0.25)
        taken_ns, wall_s = others.read_ns(), time.perf_counter() - start
    assert os.sched_getaffinity(0) == both
    os.sched_setaffinity(0, before)
    assert taken_ns is not None
    assert taken_ns > 0.5e9 * wall_s


@COUNTED
def test_a_process_with_children_does_not_tell(core: int) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            told = Others(tasks=TASKS).read_ns()
        finally:
            child.kill()
    assert told is None


@pytest.mark.parametrize("content", [None, "not a number"])
def test_a_kernel_that_does_not_count_tells_nothing(
    content: str | None, core: int, no_children: Path, tmp_path: Path
) -> None:
    if content is not None:
        state = tmp_path / f"cpu{core}" / "cpuidle" / "state0"
        state.mkdir(parents=True)
        (state / "time").write_text(content)
    assert Others(cpus=tmp_path, tasks=no_children).read_ns() is None


class Kinds(nn.Module):
    """Parameters of several kinds, which are all finite."""

    def __init__(self) -> None:
        super().__init__()
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.large = nn.Parameter(torch.full((4,), torch.finfo(torch.float32).max))
        self.narrow = nn.Parameter(torch.full((4,), 6e4, dtype=torch.float16))
        self.brain = nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16))
        self.tiny = nn.Parameter(torch.ones(3).to(torch.float8_e4m3fn), requires_grad=False)
        self.count = nn.Parameter(torch.tensor([1, 2]), requires_grad=False)
        self.last = nn.Linear(2, 2)


def test_a_finite_net_is_found_finite() -> None:
    """Sums of these numbers would overflow."""
    assert first_not_finite(Kinds()) == ""
    assert first_not_finite(nn.ReLU()) == ""


@pytest.mark.parametrize("name", ["large", "narrow", "brain", "last.bias"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_number_is_enough(name: str, value: float) -> None:
    net = Kinds()
    with torch.no_grad():
        net.get_parameter(name).view(-1)[-1] = value
    assert first_not_finite(net) == name


def test_a_complex_number_has_two_parts() -> None:
    assert first_bad_sample("y", torch.tensor([1j, complex(1, torch.inf)])) == "(1+infj) in y, sample 1"
    assert first_bad_sample("y", torch.tensor([1j, 2.0])) == ""


def test_a_float8_that_is_not_a_number_is_found() -> None:
    net = Kinds()
    net.tiny.data = torch.full((3,), torch.nan).to(torch.float8_e4m3fn)
    assert first_not_finite(net) == "tiny"


@pytest.mark.parametrize(
    ("key", "place", "value", "says"),
    [
        ("tokens", 0, 7, ""),
        ("mask", (4, 1), -torch.inf, "-inf in train_X['mask'], sample 4"),
        ("parts", 2, torch.nan, "nan in train_X['parts'][1], sample 2"),
    ],
)
def test_a_sample_that_is_not_finite_is_named_with_its_field(key: str, place: object, value: float, says: str) -> None:
    samples = {"tokens": torch.zeros(5, 3).long(), "mask": torch.zeros(5, 3), "parts": (torch.ones(5), torch.ones(5))}
    part = samples[key]
    (part[1] if isinstance(part, tuple) else part)[place] = value  # type: ignore[index]
    assert first_bad_sample("train_X", samples) == says
