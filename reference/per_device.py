"""Parameters on every device, and one function run on every device at once.

CUDA works behind the caller's back, so a plain loop keeps all GPUs busy. A CPU does not: there every device is a thread
of its own, bound to a core of its own, with one intra-op thread. In a list of both kinds the threads are started first,
and the loop over the GPUs runs beside them.
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

    They are clones: ``to`` alone would hand back the original itself when it lies on ``device`` already.
    """
    return [param.detach().clone().to(device).requires_grad_() for param in params]


class PerDevice:
    """Runs a function once per device: in parallel on CPU devices, in turn on CUDA or on a single device.

    CPU devices beside CUDA ones have threads too; the CUDA ones are then served, in turn, by the caller's own thread,
    so that its current streams hold. The caller's grad mode, inference mode and CPU autocast hold inside the function
    everywhere. The i-th thread is bound to the i-th core, modulo their number, that the caller may use when the object
    is made. Threads end with `close`, with the object, or with the interpreter. Not covered: calling `map` from inside
    a mapped function.

    While threads work, Python's garbage collector is off in the whole process (`_NoCollection` says why); what has
    become garbage is collected between two maps. A collector that the user has switched off stays off. Not covered: a
    mapped function that calls ``gc.enable`` or ``gc.disable`` itself.

    Args:
        devices: one entry a replica; the same device may stand there several times.

    Raises:
        ValueError: there are no devices.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        if not devices:
            raise ValueError("devices is empty: name at least one device")
        self.devices = list(devices)
        cpu_ranks = [rank for rank, device in enumerate(devices) if device.type == "cpu"] if len(devices) > 1 else []
        self._queues: dict[int, _Jobs] = {rank: SimpleQueue() for rank in cpu_ranks}
        self._end = weakref.finalize(self, _end_all, list(self._queues.values()))
        for rank, queue in self._queues.items():
            # The thread holds its queue and not this object, which can so be collected; a daemon never delays an exit.
            threading.Thread(target=_serve, args=(queue,), name=f"replica-{rank}", daemon=True).start()
        if self._queues:
            caller_threads = torch.get_num_threads()
            settled: list[Future[None]] = [Future() for _ in cpu_ranks]
            for queue, future, core in zip(self._queues.values(), settled, _cores(len(cpu_ranks)), strict=True):
                queue.put(_job(future, list, _settle, (core,)))
            for future in settled:
                future.result()
            # A thread that sets its own number also sets the default of threads to come: put the caller's back.
            torch.set_num_threads(caller_threads)

    def map(self, fn: Callable[..., T], *per_device_args: Sequence[Any]) -> list[T]:
        """Call ``fn`` for every device with that device's argument of each sequence, and return the results in order.

        Args:
            fn: called as ``fn(args_0[i], args_1[i], ...)`` for device i.
            per_device_args: at least one; equally long sequences. A device beyond their length stays idle.

        Raises:
            ValueError: the sequences differ in length, or are longer than the devices.
            RuntimeError: the object is closed.
            Exception: what ``fn`` raised on the first device where it did, once all have come to an end.
        """
        if not self._end.alive:
            raise RuntimeError("this PerDevice is closed: make a new one")
        if not per_device_args or len({len(args) for args in per_device_args}) > 1:
            lengths = [len(args) for args in per_device_args]
            raise ValueError(f"arguments for {lengths} devices: give at least one sequence, all of one length")
        if len(per_device_args[0]) > len(self.devices):
            raise ValueError(f"arguments for {len(per_device_args[0])} devices, but there are {len(self.devices)}")
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
        """End the threads; what they are doing is finished first. Closing twice does nothing."""
        self._end()


def helper_thread(name: str) -> ThreadPoolExecutor:
    """Return an executor of one thread, started, with one intra-op thread and bound to no core.

    For work beside the replicas': it takes whatever core is free. The thread ends with ``shutdown``, with the executor
    or with the interpreter.
    """
    caller_threads = torch.get_num_threads()
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
    executor.submit(_settle, None).result()
    torch.set_num_threads(caller_threads)
    return executor


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
        # BaseException: whatever ends the job must reach the caller, who would wait for it forever.
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    return job


def _caller_modes() -> Callable[[], _Modes]:
    """Read the modes that torch keeps per thread; the result makes the contexts of a job in another thread."""
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
    """Keeps Python's garbage collector off while any thread is inside; leaves it off where it was off before.

    `torch.get_rng_state`, which `torch.utils.checkpoint` calls, holds the generator's mutex and the interpreter's lock
    (GIL) while it allocates its result. A collection that starts there may free a tensor, and torch lets go of the GIL
    for that. If another replica takes the GIL now and waits for the mutex, the whole process is frozen for ever: torch
    2.15 on Python 3.11, docs/upstream/get_rng_state_deadlock.md.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant: a finalizer that runs while a thread enters may enter too
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


# One for the process, as the collector is: maps of several objects may overlap in time.
_NO_COLLECTION = _NoCollection()


def _caller_contexts(device: torch.device, beside_threads: bool) -> _Modes:
    """Make the contexts of a job in the caller's thread: there a CUDA device is made torch's current one."""
    current: _Modes = [torch.cuda.device(device)] if device.type == "cuda" else []
    return [_NO_COLLECTION, *current] if beside_threads else current


def _cores(count: int) -> list[int | None]:
    """Return a core for each of ``count`` threads, or None where the system cannot bind them (macOS, Windows)."""
    if not hasattr(os, "sched_setaffinity"):
        return [None] * count
    allowed = sorted(os.sched_getaffinity(0))
    return [allowed[rank % len(allowed)] for rank in range(count)]


def _settle(core: int | None) -> None:
    """Bind the calling thread, and no other, to its core."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    # torch sets a thread's number at its first use of it, from the common default: that must not come after ours.
    torch.get_num_threads()
    torch.set_num_threads(1)
