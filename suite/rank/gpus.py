"""What torch shows of the GPUs in this process (worker's side)."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch

from suite.processes.answers import TorchGpu, TorchGpus


def describe() -> TorchGpus:
    """Return what torch can use here; it does not raise."""
    architectures = tuple(torch.cuda.get_arch_list())
    shows = partial(TorchGpus, torch=str(torch.__version__), cuda=torch.version.cuda or "", architectures=architectures)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old driver warns and then raises, in the same words
            torch.cuda.init()  # type: ignore[no-untyped-call]
            shown = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    except (RuntimeError, AssertionError) as error:  # without CUDA in the build it is an AssertionError
        return shows(reason=" ".join(str(error).split()))
    return shows(gpus=tuple(map(_shown, shown)))


def _shown(gpu: Any) -> TorchGpu:
    """Return a GPU as torch's properties have it; on ROCm its architecture is followed by features: "gfx942:xnack-"."""
    architecture = gpu.gcnArchName.partition(":")[0] if torch.version.hip else ""
    return TorchGpu(name=gpu.name, uuid=str(gpu.uuid), capability=(gpu.major, gpu.minor), architecture=architecture)
