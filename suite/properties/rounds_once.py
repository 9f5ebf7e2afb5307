"""Computes logarithms of softmaxes in low precision as GPUs do: in float32, rounded once (worker's side).

On CPUs torch rounds the logarithm of the sum before it subtracts it. Where a sample is nearly right, p - y is smaller
than that error, and in every variant of the case it is the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

FUNCTIONS = (torch.ops.aten._log_softmax.default, torch.ops.aten.logsumexp.default)
NARROW = (torch.bfloat16, torch.float16)


class RoundsOnce(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes `FUNCTIONS` of what has fewer digits than float32 in float32."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell torch not to load its compiler, which takes seconds; nothing here is compiled."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operator."""
        if func not in FUNCTIONS or args[0].dtype not in NARROW:
            return func(*args, **(kwargs or {}))
        rounded: Tensor = func(args[0].float(), *args[1:], **(kwargs or {})).to(args[0].dtype)
        return rounded
