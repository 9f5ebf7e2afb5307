"""Before anything is measured on GPUs: does torch, in a worker, show the same ones as NVML, or as the kernel for AMD?

While pytest collects, GPUs are counted without torch. A driver too old for this torch, a card without kernels, or an
order that differs would each end in errors of every cell, or in readings of another card.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from suite.processes.failure import WorkerFailure
from suite.processes.jobs import TorchGpus
from suite.processes.pool import Pool
from suite.room import errors
from suite.room.devices import Survey, survey

# The first process that loads torch reads 4 GB of libraries (`du -shc site-packages/torch site-packages/nvidia`, torch
# 2.15 for CUDA 13.2), which an image that is pulled lazily brings meanwhile: 15 MB/s suffice.
FIRST_LOAD_TIMEOUT_S = 300.0
ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)(a?)f?")


def problem(gpus_needed: int) -> str:
    """Ask a worker; return what it shows that differs from NVML, in words, or "".

    Args:
        gpus_needed: how many GPUs, from the first on, the run uses.
    """
    try:
        opened = Pool(kind="cuda")
    except ValueError as error:
        return str(error)
    with opened as pool:
        pool.start_timeout_s = FIRST_LOAD_TIMEOUT_S
        try:
            [shown] = pool.group("gpus", 1).request(TorchGpus, "gpus")
        except WorkerFailure as failure:
            return f"no worker could say what torch shows of the GPUs: {failure.cause}"
    return mismatch(survey(), shown, gpus_needed)


def mismatch(here: Survey, shown: TorchGpus, gpus_needed: int) -> str:
    """Return how what torch shows differs from what is here; "" if it does not.

    Args:
        here: by NVML, or the kernel.
        shown: by torch in a worker.
        gpus_needed: how many GPUs, from the first on, must be usable.
    """
    torch, gpus = f"torch {shown.torch} in a worker", shown.gpus
    if len(gpus) != len(here.gpus):
        return f"{here.by} shows {len(here.gpus)} GPU(s), {torch} shows {len(gpus)}{_why_others(here, shown)}"
    for index, (known, gpu) in enumerate(zip(here.gpus, gpus, strict=True)):
        if known and not any(_same(uuid, gpu.uuid) for uuid in known):
            return (
                f"cuda:{index} is {known[0]} by NVML and {gpu.uuid} ({gpu.name}) by {torch}: clocks and errors "
                "would be read of another card; name the GPUs in CUDA_VISIBLE_DEVICES by UUID"
            )
    for index, gpu in enumerate(gpus[:gpus_needed]):
        if gpu.architecture and shown.architectures:  # of AMD
            runs, what = gpu.architecture in shown.architectures, f"architecture {gpu.architecture}"
        else:
            runs = has_kernels(gpu.capability, shown.architectures)
            what = f"compute capability {'.'.join(map(str, gpu.capability))}"
        if not runs:
            return (
                f"cuda:{index} ({gpu.name}) has {what}, and {torch} has kernels for {', '.join(shown.architectures)} "
                "alone: install a torch that is built for it"
            )
    return ""


def _why_others(here: Survey, shown: TorchGpus) -> str:
    """Return why torch shows another number of GPUs, as far as that is known, and what to do."""
    remedy = errors.remedy_of(shown.reason)
    old = "" if shown.gpus else errors.too_old(here.driver, shown.cuda)
    if old and remedy in ("", errors.OLD_DRIVER):  # otherwise a newer libcuda is there, and fails for another reason
        return f": {old}"
    why = f": {shown.reason}" if shown.reason else ""
    return f"{why}; {remedy or here.problem or here.remedy}"


def _same(uuid: str, shown: str) -> bool:
    """Return whether NVML's UUID and torch's, which has no prefix, are those of one device."""
    ours, theirs = (text.removeprefix("GPU-").removeprefix("MIG-").lower() for text in (uuid, shown))
    return ours == theirs


def has_kernels(capability: Sequence[int], architectures: Sequence[str]) -> bool:
    """Return whether torch runs on a card, which its list of architectures says.

    "sm_80" (and "sm_100f") runs on cards of the same major and an equal or higher minor version, "sm_90a" on that
    version alone, and "compute_90" is compiled for it and any later card when it is loaded (CUDA C++ programming guide,
    "Compatibility").
    """
    major, minor = capability
    for kind, built_major, built_minor, only in map(_parts, architectures):
        if kind == "compute" and not only and (built_major, built_minor) <= (major, minor):
            return True
        if built_major == major and (built_minor == minor or (built_minor <= minor and not only)):
            return True
    return not architectures


def _parts(architecture: str) -> tuple[str, int, int, str]:
    match = ARCHITECTURE.fullmatch(architecture)
    kind, major, minor, only = match.groups() if match else ("", "-1", "-1", "")
    return kind, int(major), int(minor), only
