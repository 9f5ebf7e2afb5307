"""Updates of a loop without an optimizer of torch's: the calls of a function that the user names.

The function is known once the script computes a gradient for the first time. It is wrapped then wherever a module has
it under a name of its own, so its first call is not counted. References elsewhere, such as in a list, are not found.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from suite.script.updates import LEAST_CALLS


class NoSuchUpdate(LookupError):
    """The script has no function of the name that its table has as `update`."""


class NamedUpdates:
    """Calls a function after every call of the script's `module:function` or `module:Class.method`.

    Attributes:
        optimizers: none are known.
        steps: calls so far.
        made: the same, from the first on that is told.
    """

    def __init__(self, updated: Callable[[], None], name: str, script: str) -> None:
        """Wait for the script's first gradient.

        Args:
            updated: called after each update but the first ones, which are a warm-up.
            name: `module:function` or `module:Class.method`.
            script: the name of the module that runs as `__main__`.
        """
        self.optimizers: list[Optimizer] = []
        self.steps = self.made = 0
        self._updated = updated
        module, _, self._path = name.partition(":")
        self._module = "__main__" if module == script else module
        self._name = name
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def first(*args: Any, **kwargs: Any) -> None:
            torch.autograd.backward = backward
            self._wrap()
            backward(*args, **kwargs)

        torch.autograd.backward = first

    def close(self) -> None:
        """Call nothing any more."""
        self._updated = lambda: None

    def _wrap(self) -> None:
        *classes, name = self._path.split(".")
        try:
            owner: Any = functools.reduce(getattr, classes, sys.modules[self._module])
            function = getattr(owner, name)
        except (KeyError, AttributeError):
            raise NoSuchUpdate(
                f"update = {self._name!r}: when the script computes its first gradient, it has no such function; the "
                "script itself goes by its own name without .py"
            ) from None

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self._called()
            return result

        setattr(owner, name, counted)
        for module in list(sys.modules.values()) if not classes else ():
            for key, value in list(getattr(module, "__dict__", {}).items()):
                if value is function:
                    module.__dict__[key] = counted

    def _called(self) -> None:
        self.steps += 1
        if self.steps >= LEAST_CALLS:
            self.made += 1
            self._updated()
