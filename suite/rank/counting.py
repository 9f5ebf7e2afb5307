"""Counts what training steps do, and the most memory that this process holds meanwhile (worker's side).

Each step is recorded by torch.profiler on every thread, because the replicas of a trainer that drives several CPU
devices have threads of their own, which a dispatch mode does not reach. A collective is counted where it is dispatched
(`c10d::`), which includes those of C++ code, such as DistributedDataParallel's reducer.

On accelerators torch's allocator tells the memory. On a CPU the kernel does: the resident size of the process, which
includes the pages of libraries and of the mapped dataset, and what the allocator keeps between steps. Not covered:
memory of an accelerator that torch's allocator does not hand out, such as CUDA's context and NCCL's buffers.

`docs/metrics.md` defines every counter, and says what none of them sees.
"""

from __future__ import annotations

import math
import os
import re
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch._C._autograd import DeviceType
from torch._C._profiler import _ExperimentalConfig  # torch's own name for it: there is no public way to every thread
from torch.autograd.profiler import profile  # the one of torch.profiler loads torch's compiler, which takes seconds
from torch.utils.flop_counter import FlopCounterMode

from reference import calling, nest
from reference.all_reduce.traffic import count_traffic
from reference.nest import Nest
from reference.per_device import synchronize
from suite.processes.jobs import Counted, PeakMemory, Tally
from suite.room import accelerator

# By default only the thread that starts the profiler is recorded, and those of autograd that serve it.
EVERY_THREAD = _ExperimentalConfig(profile_all_threads=True)
DEFINITIONS = 2  # raised whenever a counter changes its meaning

KINDS = {
    "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce", "allgather_": "all_gather",
    "_allgather_base_": "all_gather", "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather", "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "broadcast_": "broadcast", "reduce_": "reduce", "gather_": "gather", "gather_into_tensor_": "gather",
    "scatter_": "scatter", "alltoall_": "all_to_all", "alltoall_base_": "all_to_all", "send": "send",
    "recv_": "recv", "recv_any_source_": "recv", "barrier": "barrier", "monitored_barrier_": "barrier",
}  # fmt: skip
OF_GRADIENTS = ("all_reduce", "reduce_scatter")
IN_BACKWARD = ("autograd::engine::", "FSDP::")  # annotations around what hooks of the backward pass start
# Operators whose result the host needs before it can go on. On a GPU it waits for the device.
SYNCHRONISING = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique", "_unique2", "unique_dim",
        "unique_consecutive", "unique_dim_consecutive",
    )
)  # fmt: skip
LAUNCHES = ("LaunchKernel", "LaunchCooperativeKernel")  # in cudaLaunchKernelExC, __cudaLaunchKernel, hipLaunchKernel
NOT_KERNELS = ("Memcpy", "Memset", "CopyHostTo", "CopyDeviceTo", "FillBuffer")  # that a device does besides
ALWAYS = ("operator", "gradient bucket", "host-device synchronisation", "compiled region", "recompilation")
OWN = Path("/proc/self")
RESET = "5"  # written to clear_refs it makes VmHWM the present size (proc(5))
PEAK = re.compile(r"^VmHWM:\s*(\d+) kB$", re.MULTILINE)
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes; getrusage(2)


Key = tuple[str, str, Literal["calls", "bytes"]]  # what, dtype, unit


def over_steps(step: Callable[[], Any], steps: int, devices: Sequence[torch.device]) -> Counted:
    """Count one or more warmed-up steps one by one."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes lines about itself where a crash is explained
    each = [one_step(step, devices) for _ in range(steps)]
    tallies = []
    for key in dict.fromkeys(key for counts in each for key in counts):
        values = [counts[key] for counts in each]
        tallies.append(Tally(*key, min(values), max(values)))
    return Counted(f"torch {torch.__version__}, definitions {DEFINITIONS}", steps, tuple(tallies))


def one_step(step: Callable[[], Any], devices: Sequence[torch.device]) -> Counter[Key]:
    """Return what one call of `step` does."""
    accelerators = [device for device in devices if device.type != "cpu"]
    synchronize(devices)
    peak = Peak(accelerators)
    compiled = _compilations()
    recording = profile(
        use_kineto=True,
        use_device=accelerators[0].type if accelerators else None,
        record_shapes=True,
        experimental_config=EVERY_THREAD,
    )
    with count_traffic() as traffic, recording as profiler:
        step()
        synchronize(devices)
    counts = Counter[Key]({(what, "", "calls"): 0 for what in ALWAYS})
    counts["recompilation", "", "calls"] += _compilations() - compiled
    results: Any = profiler.kineto_results
    for root in results.experimental_event_tree():
        _add_events(root, counts)
    if sent := sum(traffic.link_messages.values()):
        counts["device copy", "", "calls"] += sent
        counts["device copy", "", "bytes"] += sum(traffic.link_bytes.values())
    if accelerators:
        counts["kernel launch", "", "calls"] += _launches(results.events())
        counts["peak memory", "", "bytes"] += peak.growth_bytes()
    return counts


def _launches(events: Iterable[Any]) -> int:
    """Return how many kernels were launched: by the runtime's calls, or by the kernels that ran, if those are more.

    A profiler may call the newest calls INVALID (pytorch/kineto#1400), and may lose the first kernels. A captured graph
    is one call and runs all of its kernels.
    """
    called = ran = 0
    for event in events:
        if event.device_type() == DeviceType.CPU:
            called += any(part in event.name() for part in LAUNCHES)
        else:
            ran += not event.is_user_annotation() and not event.name().startswith(NOT_KERNELS)
    return max(called, ran)


def _compilations() -> int:
    """Return how many frames torch's compiler has compiled in this process so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["frames"]["total"])


def _add_events(root: Any, counts: Counter[Key]) -> None:
    """Count an event of the profiler's tree and everything inside it."""
    waiting = [(root, False, False)]  # event, inside the backward pass, inside a counted synchronisation
    while waiting:
        event, backward, synchronising = waiting.pop()
        name = event.name
        if name.startswith("aten::"):
            counts["operator", "", "calls"] += 1
            waits = name in SYNCHRONISING or (name == "aten::copy_" and _leaves_the_device(event))
            if waits and not synchronising:
                counts["host-device synchronisation", "", "calls"] += 1
            synchronising = synchronising or waits
        elif name.startswith("Torch-Compiled Region"):
            counts["compiled region", "", "calls"] += 1
        elif (kind := KINDS.get(name.removeprefix("c10d::"))) and name.startswith("c10d::"):
            n_bytes, dtype = _message(event.extra_fields.inputs)
            counts[kind, dtype, "calls"] += 1
            counts[kind, dtype, "bytes"] += n_bytes
            counts["gradient bucket", "", "calls"] += backward and kind in OF_GRADIENTS
        backward = backward or name.startswith(IN_BACKWARD)
        waiting += [(child, backward, synchronising) for child in event.children]


def _message(inputs: Iterable[Any]) -> tuple[int, str]:
    """Return bytes and dtype of a collective's message: of its arguments, lists included, the largest."""
    messages = [list(_tensors(argument)) for argument in inputs]
    sized = [(sum(math.prod(t.sizes) * t.dtype.itemsize for t in message), message) for message in messages if message]
    n_bytes, message = max(sized, key=lambda each: each[0], default=(0, []))
    return n_bytes, str(message[0].dtype).removeprefix("torch.") if message else ""


def _tensors(argument: Any) -> Iterator[Any]:
    """Yield what the profiler knows of the tensors in an argument."""
    if isinstance(argument, list):
        for each in argument:
            yield from _tensors(each)
    elif hasattr(argument, "sizes"):
        yield argument


def _leaves_the_device(event: Any) -> bool:
    """Return whether an aten::copy_ takes a tensor from a device to the host."""
    into, values = (next(_tensors(argument), None) for argument in event.extra_fields.inputs[:2])
    return into is not None and values is not None and into.device.type == "cpu" != values.device.type


def of_a_sample(model: nn.Module, X: Nest, y: Nest) -> int:
    """Return the FLOP of a forward and a backward on one sample, as torch counts them: two for a multiply-add.

    Only shapes are computed (torch's device "meta"), so nothing is allocated and no device is used. Matrix products,
    convolutions and attention count, the masked half of causal attention too; elementwise operations do not. The result
    is 0 where the model cannot be run without values, such as one that looks into its input.

    Args:
        model: on any device; it does not change.
        X: samples (n, ...), or a nest of them.
        y: their labels, for a model that takes them.
    """

    def shape_of(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)

    try:
        state = {name: shape_of(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        sample = [nest.each(shape_of, nest.take(part, slice(1))) for part in (X, y)]
        args, kwargs = calling.calls(model, *sample)[-1]  # with y where it may have that, because a loss needs it
        with FlopCounterMode(display=False) as counter:
            output = torch.func.functional_call(model, state, args, kwargs)
            torch.autograd.backward(next(each for each in calling.tensors(output) if each.requires_grad).sum())
    except Exception:  # whatever a model of the user's own raises on a device that it was not made for
        return 0
    return int(counter.get_total_flops())


class Peak:
    """The peak of this process from the moment this object is made."""

    def __init__(self, devices: Iterable[torch.device], own: Path = OWN) -> None:
        """Let the peak begin with what is held now; `own` is the kernel's folder on this process."""
        every = list(dict.fromkeys(devices))
        self._own = own
        self._accelerators = [device for device in every if device.type != "cpu"]
        self._on_cpu = len(self._accelerators) < len(every)
        self._before = [torch.accelerator.memory_allocated(device) for device in self._accelerators]
        for device in self._accelerators:
            torch.accelerator.reset_peak_memory_stats(device)
        self._reset = self._on_cpu and _reset(own)

    def read(self) -> PeakMemory:
        """Return the peak until now; accelerators in the order of the devices."""
        resident_bytes, since_start = None, False
        if self._on_cpu:
            resident_bytes = _peak_bytes(self._own) if self._reset else None
            if since_start := resident_bytes is None:
                resident_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT
        reserved = [torch.accelerator.max_memory_reserved(device) for device in self._accelerators]
        kept = map(torch.accelerator.memory_reserved, self._accelerators)
        return PeakMemory(
            allocated_bytes=self._allocated(),
            reserved_bytes=tuple(reserved),
            resident_bytes=resident_bytes,
            since_start=since_start,
            returned_bytes=tuple(most - now for most, now in zip(reserved, kept, strict=True)),
            free_bytes=tuple(map(accelerator.free_bytes, self._accelerators)),
        )

    def growth_bytes(self) -> int:
        """Return by how much the allocated bytes grew at their peak, over all accelerators."""
        return sum(self._allocated()) - sum(self._before)

    def _allocated(self) -> tuple[int, ...]:
        return tuple(torch.accelerator.max_memory_allocated(device) for device in self._accelerators)


def _reset(own: Path) -> bool:
    """Return whether the kernel lets the peak of the resident size be reset."""
    try:
        (own / "clear_refs").write_text(RESET, encoding="ascii")
    except OSError:
        return False
    return True


def _peak_bytes(own: Path) -> int | None:
    """Return the peak of the resident size; None where the kernel does not say."""
    try:
        shown: Sequence[str] = PEAK.findall((own / "status").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return int(shown[0]) * 1024 if shown else None
