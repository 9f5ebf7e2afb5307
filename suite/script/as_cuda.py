"""Shows a script the CPU as its GPU, so that one which asks for CUDA is checked where there is none (worker's side).

A mode of torch sends to the CPU what the script sends to a GPU. Questions about GPUs are answered as on a machine that
has one for each rank if the script asks them; torch itself is told the truth. Not covered: streams, events and
graphs, kernels of the script's own, and calls of CUDA's libraries.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from suite.script.patching import wrap

NAME = "the CPU as a GPU"
TO_DEVICE = (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.pin_memory)
NOTHING = (
    "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats", "reset_max_memory_allocated", "manual_seed",
    "manual_seed_all", "set_device", "init",
)  # fmt: skip
ZERO = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "utilization")


def install(gpus: int) -> None:
    """Pretend that there are so many, in this thread and for as long as the process lives."""
    rank = int(os.environ["LOCAL_RANK"])
    ToCpu().__enter__()  # type: ignore[no-untyped-call]
    answers: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            **dict.fromkeys(NOTHING),
            **dict.fromkeys(ZERO, 0),
            "is_available": True,
            "is_bf16_supported": True,
            "device_count": gpus,
            "current_device": rank,
            "get_device_name": NAME,
            "get_device_capability": (8, 0),
            "get_device_properties": SimpleNamespace(name=NAME, major=8, minor=0, total_memory=2**34),
        },
        torch.accelerator: {
            **dict.fromkeys(("set_device_index", "set_device_idx", "synchronize", "empty_cache")),
            "is_available": True,
            "device_count": gpus,
            "current_accelerator": torch.device("cuda"),
            "current_device_index": rank,
        },
    }
    for module, by_name in answers.items():
        for name, answer in by_name.items():
            _answer(module, name, answer)
    for module, name in (
        (dist, "init_process_group"),
        (dist, "new_group"),
        (dist, "init_device_mesh"),
        (torch, "load"),
        (torch, "set_default_device"),
    ):
        wrap(module, name, _call_on_cpu)
    vars(torch)["Generator"] = class_on_cpu(torch.Generator)
    wrap(DistributedDataParallel, "__init__", _wrap_on_cpu)


class ToCpu(TorchFunctionMode):
    """Puts on the CPU what a function of torch would put on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function with the CPU in the place of a GPU."""
        kwargs = dict(kwargs or {})
        if func in TO_DEVICE[1:]:
            return args[0]
        if func is TO_DEVICE[0]:
            args = (args[0], *(_cpu(argument, numbers=True) for argument in args[1:]))
        else:
            args = tuple(map(_cpu, args))
        if "device" in kwargs:
            kwargs["device"] = _cpu(kwargs["device"], numbers=True)
        return func(*args, **kwargs)


def _cpu(argument: Any, *, numbers: bool = False) -> Any:
    """Return the CPU for a GPU, which a number may stand for, gloo for NCCL, and anything else as it is."""
    if isinstance(argument, torch.device):
        return torch.device("cpu") if argument.type == "cuda" else argument
    if isinstance(argument, str) and (argument == "cuda" or argument.startswith("cuda:")):
        return "cpu"
    if isinstance(argument, str) and "nccl" in argument.split(":")[-1]:
        return "gloo"
    return torch.device("cpu") if numbers and type(argument) is int else argument


def _call_on_cpu(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    kwargs.pop("device_id", None)  # of a process group, which NCCL binds to it
    return call(*map(_cpu, args), **{name: _cpu(value) for name, value in kwargs.items()})


def _wrap_on_cpu(init: Callable[..., None], wrapper: Any, module: Any, *args: Any, **kwargs: Any) -> None:
    kwargs.pop("device_ids", None)
    kwargs.pop("output_device", None)
    init(wrapper, module, *args[2:], **kwargs)


def class_on_cpu(kind: Any) -> Any:
    """Return a class that makes instances of another one on the CPU, and otherwise stands for it in any annotation."""

    class OnCpu(type(kind)):  # type: ignore[misc]
        def __call__(cls, device: Any = "cpu") -> Any:
            return kind(_cpu(device, numbers=True))

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, kind)

    return OnCpu(kind.__name__, (kind,), {"__module__": kind.__module__, "__doc__": kind.__doc__})


def _answer(module: Any, name: str, answer: Any) -> None:
    """Let a function answer the script so, and torch as before."""

    def told(truth: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(2).f_globals.get("__name__", ""))  # of the function that `wrap` puts there
        return truth(*args, **kwargs) if caller.partition(".")[0] == "torch" else answer

    wrap(module, name, told)
