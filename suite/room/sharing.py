"""Whether several processes can be on a GPU at once, which every run needs: its compute mode, and CUDA's MPS.

MPS (Multi-Process Service) is one process on the card that works for all others, so that they can share a card in
exclusive mode, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from suite.room.nvml import ask

MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
BY_MPS = "exclusive process, by MPS"
PIPES = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's own default of CUDA_MPS_PIPE_DIRECTORY


def mode(card: Any, environment: Mapping[str, str] = os.environ) -> str:
    """Return the compute mode of a card, by NVML's handle; "" where the driver does not say."""
    named = MODES.get(ask("nvmlDeviceGetComputeMode", card), "")
    pipes = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or PIPES)
    return BY_MPS if named == MODES[3] and (pipes / "control").exists() else named


def refusal(index: int, mode: str) -> str:
    """Return why a GPU in this compute mode takes no second process, and what to do; "" where it takes several."""
    if mode in ("", MODES[0], BY_MPS):
        return ""
    or_mps = ", or start MPS (nvidia-cuda-mps-control -d)" if mode == MODES[3] else ""
    return (
        f"GPU {index} is in compute mode {mode}, and a run has several processes on each GPU; allow them (as root, "
        f"nvidia-smi -c DEFAULT){or_mps}"
    )
