"""Notes the noise that a step draws for its samples, from whatever generator of torch's (worker's side).

Not seen: what NumPy and Python draw, whole numbers, masks of few bits, noise drawn for one sample or with another first
axis than the samples, what other threads than the one that called `step` draw in the forward, and noise of cases whose
steps have as many samples on a rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

BITS = 64  # values of a mask from which on two equal masks are no coincidence


class Noise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps a digest of every random tensor with one row for each sample; equal digests are equal noise.

    Args:
        samples: in this process's part of the minibatch. Fewer than two are not told from a number for all of them.
        sizes: of axes of parameters. A random tensor with as many rows need not be noise for samples: PowerSGD draws
            one for each parameter, rightly the same on all ranks.
    """

    def __init__(self, samples: int, sizes: Collection[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.samples = 0 if samples < 2 or samples in sizes else samples
        self.digests: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operator; note what it returns if it draws random numbers."""
        returned = func(*args, **(kwargs or {}))
        if self.samples and torch.Tag.nondeterministic_seeded in func.tags:
            drawn = returned[0] if isinstance(returned, tuple) else returned
            if type(drawn) is Tensor and self._is_noise(drawn):
                values = drawn.detach().cpu().to(torch.float64).contiguous().numpy().tobytes()
                self.digests.append(hashlib.sha256(values).hexdigest())
        return returned

    def _is_noise(self, drawn: Tensor) -> bool:
        if not drawn.is_floating_point() or drawn.ndim == 0 or len(drawn) != self.samples:
            return False
        return drawn.numel() >= BITS or len(set(drawn.flatten().tolist())) > 2
