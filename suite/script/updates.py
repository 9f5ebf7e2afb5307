"""When a script has made an update: after the last `step` of a torch optimizer in the shortest cycle that repeats.

A GAN steps two optimizers in turn, and some loops step one optimizer for each parameter. Which cycle repeats is decided
once, from the first calls. A step that a GradScaler skips is none, because torch calls no hook for it unless the
optimizer is fused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

LEAST_CALLS = 4  # before a cycle is believed


def period(calls: list[int]) -> int:
    """Return the length of the shortest cycle that calls have repeated at least once; 0 where none has.

    Args:
        calls: which optimizer made each of them, in order.
    """
    for length in range(1, len(calls) // 2 + 1):
        if all(call == calls[index - length] for index, call in enumerate(calls) if index >= length):
            return length
    return 0


class Updates:
    """Calls a function after every update of this process.

    Attributes:
        optimizers: those that have made a step, in the order of their first.
        steps: calls of any optimizer's `step`.
        made: updates since the cycle is known.
    """

    def __init__(self, updated: Callable[[], None]) -> None:
        """Register the hook; `updated` is called after each update, in the thread that made it."""
        self.optimizers: list[Optimizer] = []
        self.steps = self.made = 0
        self._updated = updated
        self._period = 0
        self._calls: list[int] = []
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def close(self) -> None:
        """Call nothing any more."""
        self._hook.remove()

    def _stepped(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.steps += 1
        if not self._period:
            self._learn(optimizer)
            return
        if self._period == 1 or self.steps % self._period == 0:
            self.made += 1
            self._updated()

    def _learn(self, optimizer: Optimizer) -> None:
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)
        self._calls.append(next(number for number, known in enumerate(self.optimizers) if known is optimizer))
        found = period(self._calls) if len(self._calls) >= LEAST_CALLS else 0
        if found and len(self._calls) % found == 0:
            self._period = found
            self.made = 1
            self._updated()
