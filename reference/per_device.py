"""Copy parameters to a device, and run one function on every device at once.

CUDA devices work asynchronously, so a plain loop keeps all GPUs busy. CPU devices do not: each one is a thread that is
bound to its own core and uses one intra-op thread. In a list of both kinds the threads are started first, and the loop
over the GPUs runs at the same time.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
_Jobs = SimpleQueue[Callable[[], None] | None]
_Modes = list[AbstractContextManager[Any]]


def get_params(params: Iterable[Tensor], device: torch.device) -> list[Tensor]:
    """Return leaf copies of ``params`` on ``device`` that require a gradient; ``.grad`` is None.

    They are clones, because ``to`` alone returns the original itself where it is on ``device`` already.
    """
    return [param.detach().clone().to(device).requires_grad_() for param in params]


class PerDevice:
    """Run a function once per device: in parallel on CPU devices, in turn on CUDA devices or on a single device.

    In a list of CPU and CUDA devices the caller's own thread serves the CUDA ones in turn, so that its current streams
    apply. The caller's grad mode, inference mode and CPU autocast apply inside the function on every device. The i-th
    thread is bound to the i-th of the cores that the caller may use when the object is made, modulo their number.
    Threads end with `close`, with the object, or with the interpreter. Not covered: calling `map` from inside a mapped
    function.

    While threads work, Python's garbage collector is off in the whole process (`_NoCollection` says why), and garbage
    is collected between two maps. A collector that the user has switched off stays off. Not covered: a mapped function
    that calls ``gc.enable`` or ``gc.disable`` itself.

    There is one entry per replica; a device may be listed several times. ValueError where there are none.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        if not devices:
            raise ValueError("devices is empty: name at least one device")
        self.devices = list(devices)
        cpu_ranks = [rank for rank, device in enumerate(devices) if device.type == "cpu"] if len(devices) > 1 else []
        self._queues: dict[int, _Jobs] = {rank: SimpleQueue() for rank in cpu_ranks}
        self._end = weakref.finalize(self, _end_all, list(self._queues.values()))
        for rank, queue in self._queues.items():
            # The thread refers to its queue and not to this object, which can therefore be collected. As a daemon it
            # does not delay the interpreter's exit.
            threading.Thread(target=_serve, args=(queue,), name=f"replica-{rank}", daemon=True).start()
        if self._queues:
            caller_threads = torch.get_num_threads()
            bound: list[Future[None]] = [Future() for _ in cpu_ranks]
            for queue, future, core in zip(self._queues.values(), bound, _cores(len(cpu_ranks)), strict=True):
                queue.put(_job(future, list, _bind, (core,)))
            for future in bound:
                future.result()
            # A thread that sets its own number also sets the default for new threads: restore the caller's.
            torch.set_num_threads(caller_threads)

    def map(self, fn: Callable[..., T], *per_device_args: Sequence[Any]) -> list[T]:
        """Call ``fn`` for every device with that device's argument of each sequence, and return the results in order.

        There is at least one sequence, and all have one length; a device beyond it stays idle.

        Raises:
            ValueError: the sequences differ in length, or are longer than the list of devices.
            RuntimeError: the object is closed.
            Exception: what ``fn`` raised on the first device that failed, after all devices have finished.
        """
        if not self._end.alive:
            raise RuntimeError("this PerDevice is closed: make a new one")
        if not per_device_args or len({len(args) for args in per_device_args}) > 1:
            lengths = [len(args) for args in per_device_args]
            raise ValueError(f"arguments for {lengths} devices: give at least one sequence, all of one length")
        if len(per_device_args[0]) > len(self.devices):
            raise ValueError(
                f"arguments for {len(per_device_args[0])} devices, but there are {len(self.devices)}: give one each"
            )
        calls = list(zip(*per_device_args, strict=True))
        modes = _caller_modes()
        futures: list[Future[T]] = [Future() for _ in calls]
        for rank, queue in self._queues.items():
            if rank < len(calls):
                queue.put(_job(futures[rank], modes, fn, calls[rank]))
        for rank, (device, args) in enumerate(zip(self.devices, calls, strict=False)):
            if rank not in self._queues:
                _job(futures[rank], partial(_caller_contexts, device, bool(self._queues)), fn, args)()
        wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads after the jobs that they already have. Closing twice does nothing."""
        self._end()


def helper_thread(name: str) -> ThreadPoolExecutor:
    """Return an executor of one thread, started, with one intra-op thread and bound to no core.

    It is for work that runs at the same time as the replicas', on any core that is free. The thread ends with
    ``shutdown``, with the executor or with the interpreter.
    """
    caller_threads = torch.get_num_threads()
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
    executor.submit(_bind, None).result()
    torch.set_num_threads(caller_threads)
    return executor


def synchronize(devices: Iterable[torch.device]) -> None:
    """Wait until every accelerator in the list is idle; without an argument torch waits for the current one only."""
    for device in devices:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)


def _serve(queue: _Jobs) -> None:
    while (job := queue.get()) is not None:
        job()
        # An idle thread must not keep the last job's tensors alive.
        del job


def _end_all(queues: list[_Jobs]) -> None:
    for queue in queues:
        queue.put(None)


def _job(
    future: Future[T], modes: Callable[[], _Modes], fn: Callable[..., T], args: tuple[Any, ...]
) -> Callable[[], None]:
    def job() -> None:
        try:
            with ExitStack() as stack:
                for mode in modes():
                    stack.enter_context(mode)
                result = fn(*args)
        # BaseException, because the caller waits for the future: without a result it would wait forever.
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    return job


def _caller_modes() -> Callable[[], _Modes]:
    """Read the modes that torch keeps per thread; return a function that makes a job's contexts in another thread."""
    inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    cache = torch.is_autocast_cache_enabled()

    def contexts() -> _Modes:
        return [
            _NO_COLLECTION,
            torch.inference_mode(inference),
            torch.set_grad_enabled(grad),
            torch.autocast("cpu", dtype, autocast, cache),
        ]

    return contexts


class _NoCollection:
    """Keep Python's garbage collector off while any thread is inside; leave it off where it was off before.

    `torch.get_rng_state`, which `torch.utils.checkpoint` calls, holds the generator's mutex and the interpreter's lock
    (GIL) while it allocates its result. A collection that starts there may free a tensor, and torch releases the GIL to
    do so. If another replica then takes the GIL and waits for the mutex, the process is deadlocked: torch 2.15 on
    Python 3.11, docs/upstream/get_rng_state_deadlock.md.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant, because a finalizer that runs while a thread enters may enter too
        self._inside = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._was_on:
                gc.enable()


# One for the process, because there is one collector, and maps of several objects may overlap in time.
_NO_COLLECTION = _NoCollection()


def _caller_contexts(device: torch.device, threads_run: bool) -> _Modes:
    """Make the contexts of a job in the caller's thread: a CUDA device becomes torch's current one."""
    current: _Modes = [] if device.type == "cpu" else [torch.accelerator.device_index(device.index)]
    return [_NO_COLLECTION, *current] if threads_run else current


def _cores(count: int) -> list[int | None]:
    """Return a core for each of ``count`` threads, or None where the system cannot bind them (macOS, Windows)."""
    if not hasattr(os, "sched_setaffinity"):
        return [None] * count
    allowed = sorted(os.sched_getaffinity(0))
    return [allowed[rank % len(allowed)] for rank in range(count)]


def _bind(core: int | None) -> None:
    """Bind the calling thread, and no other, to a core (None: to no core), and give it one intra-op thread."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    # A thread copies its number from the common default when torch first reads it: read it before it is set.
    torch.get_num_threads()
    torch.set_num_threads(1)
