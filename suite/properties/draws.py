"""Gives every sample the random numbers that one device would draw for it, and notes what a step draws (worker's side).

A step may draw for its samples: noise, masks, the times of a diffusion. Every rank draws from generators of its own, so
what k devices compute is rightly not what one computes. Under `DrawsOfOneDevice` they can be compared: all ranks have
their generators in one state, make each draw for the whole minibatch, and keep the rows of their own samples.

Not covered, and so different from one device: draws for a part of a rank's samples, as in micro-batches; permutations
of them; and what other threads than the one that calls `step` draw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")
BITS = 64  # values of a mask from which on two equal masks are no coincidence


class DrawsOfOneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws for the whole minibatch where a step draws for its samples; from torch's default generator in any case.

    A random tensor is one for the samples if the length of its first axis is a multiple of their number, and not that
    of the whole minibatch. All are drawn on the CPU, so that all kinds of devices draw alike.

    Args:
        n: samples in the whole minibatch.
        mine: those of this process, a range of them.

    Attributes:
        drew: whether anything was drawn.
    """

    def __init__(self, n: int, mine: slice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n, self.mine, self.rows = n, mine, mine.stop - mine.start
        self.drew = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an operator; if it draws for the samples, draw for all and return the part that is theirs."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        self.drew = True
        names = [argument.name for argument in func._schema.arguments]
        told = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        if "generator" in told:
            told["generator"] = None
        like = next((told[name] for name in ("self", "input") if type(told.get(name)) is Tensor), None)
        if "out" in told or (like is None and not told.get("size")):
            return func(**told)
        if like is None:
            device, length = torch.device(told.get("device") or CPU), told["size"][0]
        else:
            device, length = like.device, len(like) if like.ndim else 0
        share = length // self.rows if self.rows and length != self.n and length % self.rows == 0 else 0
        drawn = func(**{name: self._for_all(name, value, share) for name, value in told.items()})
        if func._schema.is_mutable and like is not None:
            return like.copy_(self._own(drawn, share))
        if isinstance(drawn, tuple):
            return tuple(self._own(one, share).to(device) for one in drawn)
        return self._own(drawn, share).to(device)

    def _for_all(self, name: str, value: Any, share: int) -> Any:
        """Return an argument for the whole minibatch; the rows of other processes' samples have any valid values."""
        if name == "device":
            return CPU
        if name == "size" and share:
            return [share * self.n, *value[1:]]
        if type(value) is not Tensor:
            return value
        if not share or not value.ndim or len(value) != share * self.rows:
            return value.to(CPU, copy=True)
        whole = value[:1].to(CPU).repeat(share * self.n, *[1] * (value.ndim - 1))
        self._own(whole, share).copy_(value)
        return whole

    def _own(self, drawn: Tensor, share: int) -> Tensor:
        """Return the rows of this process's samples, `share` for each; everything where the draw is not for samples."""
        return drawn[share * self.mine.start : share * self.mine.stop] if share else drawn


class Noise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps a digest of every random tensor with one row for each sample; equal digests are equal noise.

    Not seen: what NumPy and Python draw, whole numbers, masks of few bits, noise drawn for one sample or with another
    first axis than the samples, what other threads than the one that called `step` draw in the forward, and noise of
    cases whose steps have as many samples on a rank.

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
