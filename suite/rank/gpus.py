"""What torch shows of the GPUs in this process (worker's side)."""

from __future__ import annotations

import warnings
from typing import Any

import torch


def describe() -> dict[str, Any]:
    """Return what torch can use here, without raising.

    Returns:
        "torch", its version; "architectures" that it has kernels for, such as "sm_90"; "reason", why there is no CUDA;
        "gpus", each with "name", "uuid" and "capability" [major, minor].
    """
    answer: dict[str, Any] = {
        "torch": str(torch.__version__),
        "architectures": torch.cuda.get_arch_list(),
        "reason": "",
        "gpus": [],
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old driver warns and then raises, in the same words
            torch.cuda.init()  # type: ignore[no-untyped-call]
            properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    except (RuntimeError, AssertionError) as error:  # without CUDA in the build it is an AssertionError
        return answer | {"reason": " ".join(str(error).split())}
    gpus = [{"name": p.name, "uuid": str(p.uuid), "capability": [p.major, p.minor]} for p in properties]
    return answer | {"gpus": gpus}
