"""When a script has made an update: after the last step of the shortest cycle that repeats.

A step is a call of a torch optimizer's `step`, or of the function that the user names. A GAN steps two optimizers in
turn, and some loops step one optimizer for each parameter. Which cycle repeats is decided once, from the first calls. A
step that a GradScaler skips is none, because torch calls no hook for it unless the optimizer is fused.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from suite.processes.jobs import ScriptRun
from suite.script.patching import wrap

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


def place_of(optimizer: Optimizer | None, known: list[Optimizer | None]) -> int:
    """Return the place of an optimizer among those that are known, to which it is added where it is new."""
    for place, each in enumerate(known):
        if each is optimizer:
            return place
    known.append(optimizer)
    return len(known) - 1


class Updates:
    """Calls a function after every update of this process.

    Attributes:
        optimizers: those that have made a step, in the order of their first; None for the function that the user names.
        steps: steps so far.
        made: updates since the cycle is known.
    """

    def __init__(self, updated: Callable[[], None], script: ScriptRun | None = None) -> None:
        """Wait for the first step.

        Args:
            updated: called after each update, in the thread that made it.
            script: may name a function that makes its updates.
        """
        self.optimizers: list[Optimizer | None] = []
        self.steps = self.made = 0
        self._updated = updated
        self._period = 0
        self._calls: list[int] = []
        if script is not None and script.update:
            NamedUpdate(script, before=lambda: None, after=lambda: self._stepped(None))
        else:
            self._hook = register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self._stepped(optimizer))

    def close(self) -> None:
        """Call nothing any more after steps of torch's optimizers."""
        self._hook.remove()

    def _stepped(self, optimizer: Optimizer | None) -> None:
        self.steps += 1
        if not self._period:
            self._learn(optimizer)
            return
        if self._period == 1 or self.steps % self._period == 0:
            self.made += 1
            self._updated()

    def _learn(self, optimizer: Optimizer | None) -> None:
        self._calls.append(place_of(optimizer, self.optimizers))
        found = period(self._calls) if len(self._calls) >= LEAST_CALLS else 0
        if found and len(self._calls) % found == 0:
            self._period = found
            self.made = 1
            self._updated()


class NoSuchUpdate(LookupError):
    """The script has no function of the name that its table has as `update`."""


class NamedUpdate:
    """Calls functions around every call of the script's `module:function` or `module:Class.method`.

    The function is looked for when the script iterates over a DataLoader, and when it computes a gradient. It is
    wrapped then wherever a module has it under a name of its own; a call that is under way is not counted. References
    elsewhere, such as in a list, are not found.

    Attributes:
        late: whether the function was under way when it was found.
    """

    def __init__(self, script: ScriptRun, *, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Wait for the function."""
        self.late = False
        self._script, self._before, self._after = script, before, after
        self._found = False
        for owner, name in ((torch.autograd, "backward"), (torch.autograd, "grad"), (DataLoader, "__iter__")):
            wrap(owner, name, functools.partial(self._look, must=owner is torch.autograd))

    def _look(self, call: Callable[..., Any], *args: Any, must: bool, **kwargs: Any) -> Any:
        if not self._found:
            try:
                self._wrap()
            except (KeyError, AttributeError):
                if must:
                    raise NoSuchUpdate(
                        f"update = {self._script.update!r}: when the script computes its first gradient, it has no "
                        "such function; the script itself goes by its own name without .py"
                    ) from None
        return call(*args, **kwargs)

    def _wrap(self) -> None:
        module, _, path = self._script.update.partition(":")
        *classes, name = path.split(".")
        of_module = getattr(sys.modules["__main__"].__spec__, "name", "")  # where the command begins with -m
        main = module in (Path(self._script.words[0]).stem, of_module)
        owner: Any = functools.reduce(getattr, classes, sys.modules["__main__" if main else module])
        function = getattr(owner, name)
        self._found = True
        frame = sys._getframe()
        while frame.f_back is not None and not self.late:
            frame = frame.f_back
            self.late = frame.f_code is getattr(function, "__code__", None)

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._before()
            result = function(*args, **kwargs)
            self._after()
            return result

        setattr(owner, name, counted)
        for each in list(sys.modules.values()) if not classes else ():
            for key, value in list(getattr(each, "__dict__", {}).items()):
                if value is function:
                    each.__dict__[key] = counted
