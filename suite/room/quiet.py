"""Prepare a process for measuring, so that two equal groups measure equal, and for its end, so that nothing is left.

On a CPU: each rank on its own core, one thread a rank, and an allocator that keeps its memory instead of returning it
after every step and faulting it in again. The allocator is configured before a process starts. docs/log.md has the
figures with and without each measure.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType

_KEEP_BYTES = str(1 << 30)

# glibc reads these once, when the process starts. A value above any tensor of ours sends every allocation to the heap,
# and the heap is neither trimmed nor grown in small steps.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": _KEEP_BYTES,
    "MALLOC_TRIM_THRESHOLD_": _KEEP_BYTES,
    "MALLOC_TOP_PAD_": str(64 << 20),
}
# glibc asks for huge pages under the heap (from 2.35 on, where the kernel gives them on request). With small ones the
# pages that share a line of the cache differ from process to process.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# CPU workers see no GPU, on which a trainer might open a context.
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
# For workers that check and time nothing: cuBLAS adds in one order, and no library of NVIDIA's uses TF32, which images
# may have switched on.
EXACT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NVIDIA_TF32_OVERRIDE": "0"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

OOM_SCORE, MOST_OOM_SCORE = 200, 1000  # thousandths of the machine's memory that count as a worker's in addition

LOOKS, LOOK_S = 5, 0.001  # for another thread that runs

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # a CI system cancels a job; a terminal closes


def environment(inherited: Mapping[str, str], kind: str, *, exact: bool = False) -> dict[str, str]:
    """Return the environment of a launcher and its workers on devices of a kind, "cpu" or "cuda".

    With `exact`, equal work must give equal bits, at the cost of time. The thread limits are for CPU ranks, which share
    the machine's cores among them.
    """
    quiet = {**inherited, **ALLOCATOR}
    for name, tunable in HUGE_PAGES.items():  # in addition to the user's, which win
        quiet[name] = ":".join(filter(None, (tunable, inherited.get(name))))
    # One node, loopback only; another interface would also put the machine's network into the measurement.
    loopback = "lo" if sys.platform == "linux" else "lo0"
    quiet.setdefault("GLOO_SOCKET_IFNAME", loopback)
    quiet.setdefault("NCCL_SOCKET_IFNAME", f"={loopback}")  # without "=", every interface whose name begins so
    # NVML's and nvidia-smi's order. CUDA's own begins with the fastest card, so that readings would be of another one.
    quiet["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if exact:
        quiet |= EXACT
    if kind == "cpu":
        quiet |= ONE_THREAD | NO_GPU
    return quiet


@contextlib.contextmanager
def fast_imports() -> Iterator[None]:
    """Import without collecting garbage: an eighth less time for torch and its compiler, most of a session's start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def pin(cores: Iterable[int]) -> None:
    """Keep this process, and the threads it will start, on `cores`; an empty list leaves it free."""
    chosen = set(cores)
    if chosen and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, chosen)


def unpin(cores: Iterable[int]) -> Callable[[], None]:
    """Return what lets a process that is forked use `cores`, also where its parent is kept on one of them."""
    chosen = set(cores)

    def free() -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setaffinity(0, chosen)

    return free


def take_turns() -> None:
    """Let no thread of this process interrupt another one when it wakes (Linux only; threads to come inherit it).

    A rank's own threads share its core. Where gloo's interrupt the one that trains, steps take longer, in some windows
    more than in others.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def share_cores(loadavg: Path = Path("/proc/loadavg")) -> None:
    """Set this process's scheduling policy, which those that it starts inherit; not for what is timed (Linux only).

    Under the usual policy a rank that wakes may interrupt another one. With more ranks than cores this makes small
    collectives several times slower, and SCHED_BATCH prevents it. Beside busy processes SCHED_BATCH is the slower one,
    because ranks have to wait until those give up a core. So it is chosen only where no other thread runs: the fourth
    field of `loadavg` begins with their number (`python -m docs.evidence.wakeups` at 85bc9f57, docs/log.md).
    """
    with contextlib.suppress(OSError):
        policy = os.SCHED_OTHER
        for _ in range(LOOKS):
            running = loadavg.read_text().split()[3].split("/")[0]
            if running == "1":
                policy = os.SCHED_BATCH
                break
            time.sleep(LOOK_S)
        os.sched_setscheduler(0, policy, os.sched_param(0))


def available_cores() -> list[int]:
    """The cores this process may use, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when its parent ends, so that nothing is left (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by)


def run_out_of_memory_first() -> None:
    """Have the kernel end this process and its children before its parent where memory is short (Linux only).

    A trainer that takes too much then costs its own cells, and not the launcher of all workers.
    """
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        path.write_text(str(min(MOST_OOM_SCORE, int(path.read_text()) + OOM_SCORE)))


def adopt_orphans() -> None:
    """Ask the kernel to make this process the parent of every descendant whose own parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def as_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt, with the signal's name as its text, where one of `SIGNALS` arrives.

    A signal that is ignored (`nohup`) or handled by other code keeps its handler. Without effect outside of the main
    thread, which alone may set handlers.
    """
    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
