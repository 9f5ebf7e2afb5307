"""What a worker asks of its devices: the calls of torch that differ from a CPU, and what differs between vendors.

A GPU of NVIDIA (CUDA) or of AMD (ROCm) is a device of type "cuda" to torch. Everything goes through
`torch.accelerator` where torch 2.9, the oldest version that we support, has the call. It has none for random numbers
and precision. Not covered: other kinds of accelerators (`suite.room.devices` refuses them). Loads torch, so the plugin
must not import it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import distributed as dist

from suite.room import errors

# How torch words the errors after which a process cannot use its GPU, or its group, where it raises a RuntimeError. Its
# group for NCCL does so from 2.15 on (docs/evidence/nccl.md at 85bc9f57); with ROCm the words are the same.
FATAL = (
    "CUDA error",
    "HIP error",
    "NCCL Last Error",  # of every call of NCCL that returned an error
    "NCCL operation timed out",
    "NCCL communicator was aborted",
    "Failed to initialize NCCL communicator",
    "Failed to get NCCL unique ID",
    "ProcessGroupNCCL not initialized",
    "NCCL Error ",  # of the collectives of one process
)


def seed(devices: Sequence[torch.device], number: int) -> None:
    """Seed Python, NumPy and torch with `number`, and each accelerator with `number` plus its position in `devices`.

    `torch.manual_seed` alone seeds all GPUs alike, and then equal shapes get equal dropout masks on all of them.
    """
    random.seed(number)
    if numpy := sys.modules.get("numpy"):  # torch works without it
        numpy.random.seed(number % 2**32)
    torch.manual_seed(number)
    for position, device in enumerate(devices):
        if device.type != "cpu":
            with torch.accelerator.device_index(device.index):
                torch.get_device_module(device).manual_seed(number + position)


def host_generators() -> tuple[object, ...]:
    """Return the states of Python's, NumPy's and torch's generators on the host; equal while nothing is drawn."""
    states = [random.getstate(), torch.get_rng_state().tolist()]
    if numpy := sys.modules.get("numpy"):
        name, key, *rest = numpy.random.get_state()
        states.append((name, key.tolist(), *rest))
    return tuple(states)


def set_precision(precision: str) -> torch.dtype:
    """Set the precision of float32 matrix products and convolutions, and return the parameters' dtype.

    Args:
        precision: as `suite.plan.workloads.Workload` has it. "bfloat16" leaves parameters in float32 (`autocast`).
    """
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return torch.float64 if precision == "float64" else torch.float32


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a training step: autocast for "bfloat16", and nothing for the other precisions.

    Casts are not kept, because a step changes its weights and may compute with them afterwards.
    """
    if precision != "bfloat16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


def release(devices: Sequence[torch.device]) -> None:
    """Give back the memory of accelerators that torch keeps and no tensor uses, so that other processes can have it.

    All groups of a session are alive at once, and each has a process on the first GPU.
    """
    if any(device.type != "cpu" for device in devices):
        torch.accelerator.empty_cache()


def free_bytes(device: torch.device) -> int:
    """Return what an accelerator has free for all processes, as its driver says; 0 where that is not known."""
    try:
        free, _ = torch.get_device_module(device).mem_get_info(device)
    except (AttributeError, RuntimeError):  # a kind of device without this question, or a driver that refuses it
        return 0
    return int(free)


def make_exact(devices: Sequence[torch.device]) -> None:
    """Compute without TF32, and on an accelerator with deterministic algorithms where torch has them.

    By default torch lets cuDNN use TF32, whose error of 1e-3 is far above the bounds of the checks, and kernels that
    add in any order. `suite.room.quiet.EXACT` is the part that must be in the environment.
    """
    set_precision("float32")
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    if any(device.type != "cpu" for device in devices):
        torch.use_deterministic_algorithms(True, warn_only=True)


def is_fatal(error: BaseException) -> bool:
    """Return whether later calls of this process may fail because of this error, or of one that it hides.

    An assertion in a kernel leaves a GPU that this process cannot use, and NCCL's errors leave a group without it.
    """
    chain = [error]
    for each in chain:
        hidden = (each.__cause__, each.__context__)
        chain += [other for other in hidden if other is not None and all(other is not known for known in chain)]
    return any(map(_is_fatal, chain))


def _is_fatal(error: BaseException) -> bool:
    fatal = isinstance(error, torch.AcceleratorError | dist.DistBackendError)
    return fatal or any(words in errors.text_of(error) for words in FATAL)


def versions() -> dict[str, str]:
    """Return the versions of the libraries under torch: CUDA's or ROCm's, and where a GPU shows, NCCL's and cuDNN's.

    On ROCm RCCL and MIOpen answer torch's questions to these two, and have their own names here.
    """
    kinds = {"cuda": torch.version.cuda, "rocm": torch.version.hip}
    installed = {name: version for name, version in kinds.items() if version}
    if installed and torch.accelerator.is_available():
        exchange, layers = ("rccl", "miopen") if torch.version.hip else ("nccl", "cudnn")
        installed[exchange] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        installed[layers] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return installed
