"""How the ranks of a script share one model, which is not data parallelism (worker's side).

It recognises tensor parallelism by DTensor, the stages of torch's pipelines, and rows that an all_to_all sends to other
ranks, as to experts. Not covered: a model or a sequence that is split by hand.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

ROUTING = ("all_to_all", "all_to_all_single", "all_to_all_single_autograd")


class Sharing:
    """Sees how a script's ranks share one model."""

    def __init__(self) -> None:
        self._routes = False

    def install(self) -> None:
        """Patch torch."""
        from torch.distributed import _functional_collectives as functional

        for module, name in [(module, name) for module in (dist, functional) for name in ROUTING]:
            if call := getattr(module, name, None):
                setattr(module, name, self._seen(call))

    def by(self, modules: Iterable[nn.Module]) -> str:
        """Return in words how ranks share the modules that train; "" where each rank has them whole."""
        if _has_stages():
            return "the stages of a pipeline"
        if self._routes:
            return "rows that an all_to_all sends to other ranks"
        return "tensor parallelism" if any(map(_has_parts, modules)) else ""

    def _seen(self, call: Any) -> Any:
        @functools.wraps(call)
        def seen(*args: Any, **kwargs: Any) -> Any:
            self._routes = self._routes or torch.is_grad_enabled()
            return call(*args, **kwargs)

        return seen


def _has_stages() -> bool:
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    return stages is not None and any(isinstance(found, stages._PipelineStageBase) for found in gc.get_objects())


def _has_parts(module: nn.Module) -> bool:
    """Return whether something beside FSDP, which shards one dimension of its mesh, made parameters DTensors."""
    fsdp = getattr(dist, "fsdp", None)
    managed = {
        id(parameter)
        for each in module.modules()
        if fsdp is not None and isinstance(each, fsdp.FSDPModule)
        for parameter in each.parameters()
    }
    parts: list[Any] = [parameter for parameter in module.parameters() if hasattr(parameter, "placements")]
    return any(
        id(part) not in managed or (part.device_mesh.ndim > 1 and not part.placements[0].is_replicate())
        for part in parts
    )
