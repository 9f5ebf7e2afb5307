"""How batch and learning rate follow the number of devices. Imports neither torch nor pytest.

Strong scaling keeps the batch and the learning rate, and splits the work. Weak scaling keeps the work of each device:
the batch grows with the devices, which is a different optimisation and needs a different learning rate. Not covered:
decay of the learning rate over epochs, which does not depend on the number of devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable

MODES = ("strong", "weak")


def constant(lr: float, world_size: int) -> float:
    """Return the learning rate unchanged."""
    return lr


def linear(lr: float, world_size: int) -> float:
    """Return the learning rate times the number of devices (Goyal et al. 2017, arXiv:1706.02677, section 2.1)."""
    return lr * world_size


def book(lr: float, world_size: int) -> float:
    """Return the rate times 1.5 per doubling of devices: the lecture notebook's step from (256, .2) to (512, .3)."""
    return lr * math.pow(1.5, math.log2(world_size))


LR_RULES: dict[str, Callable[[float, int], float]] = {"constant": constant, "linear": linear, "book": book}


def scale(mode: str, world_size: int, batch: int, lr: float, lr_rule: str = "linear") -> tuple[int, float]:
    """Return the global batch (samples) and the learning rate to use on ``world_size`` devices.

    Args:
        mode: "strong" keeps both; "weak" multiplies the batch and applies the rule.
        world_size: number of devices, at least 1.
        batch, lr: samples per step and learning rate on one device.
        lr_rule: a name in `LR_RULES`; used in weak mode only.

    Raises:
        ValueError: unknown mode or rule, or a world size or batch below 1.
    """
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}: choose one of {', '.join(MODES)}")
    if lr_rule not in LR_RULES:
        raise ValueError(f"unknown lr_rule {lr_rule!r}: choose one of {', '.join(LR_RULES)}")
    for name, value in (("world_size", world_size), ("batch", batch)):
        if value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")
    if mode == "strong":
        return batch, lr
    return batch * world_size, LR_RULES[lr_rule](lr, world_size)


def warmup(lr: float, step: int, warmup_steps: int, *, start: float = 0.0) -> float:
    """Return the learning rate of a step during a linear increase to ``lr``, and ``lr`` after it.

    With ``start`` at the one-device learning rate this is the gradual warm-up of Goyal et al. 2017, section 2.2. With
    the default the first step uses ``lr / warmup_steps``.

    Args:
        lr: the rate reached at step ``warmup_steps - 1`` and kept afterwards.
        step: number of steps before this one; ValueError where it or ``warmup_steps`` is negative.
        warmup_steps: length of the increase in steps; 0 for none.
        start: the rate that the increase starts from, one step before the first.
    """
    if step < 0 or warmup_steps < 0:
        raise ValueError(f"step is {step} and warmup_steps is {warmup_steps}: neither may be negative")
    if step >= warmup_steps:
        return lr
    return start + (lr - start) * (step + 1) / warmup_steps
