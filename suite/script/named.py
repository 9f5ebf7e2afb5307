"""Updates of a loop without an optimizer of torch's: the calls of a function that the user names.

The function is looked for when the script iterates over a DataLoader, and when it computes a gradient. It is wrapped
then wherever a module has it under a name of its own; a call that is under way is not counted. References elsewhere,
such as in a list, are not found.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from suite.script.updates import LEAST_CALLS


class NoSuchUpdate(LookupError):
    """The script has no function of the name that its table has as `update`."""


class NamedUpdates:
    """Calls a function after every call of the script's `module:function` or `module:Class.method`.

    Attributes:
        optimizers: none are known.
        steps: calls so far.
        made: the same, from the first on that is told.
        late: whether the function was under way when it was found.
    """

    def __init__(
        self,
        updated: Callable[[], None],
        name: str,
        script: str,
        *,
        begins: Callable[[], None] = lambda: None,
        least: int = LEAST_CALLS,
    ) -> None:
        """Wait for the function.

        Args:
            updated: called after each update but the first ones, which are a warm-up.
            name: `module:function` or `module:Class.method`.
            script: the name of the file that runs as `__main__`, without .py.
            begins: called before each update.
            least: the first update that is told.
        """
        self.optimizers: list[Optimizer] = []
        self.steps = self.made = 0
        self.late = False
        self._updated, self._begins, self._least = updated, begins, least
        self._name, self._script = name, script
        loader: Any = DataLoader
        self._patched = [
            (owner, each, getattr(owner, each))
            for owner, each in ((torch.autograd, "backward"), (torch.autograd, "grad"), (loader, "__iter__"))
        ]
        for owner, each, call in self._patched:
            setattr(owner, each, self._looks(call, must=owner is torch.autograd))

    def close(self) -> None:
        """Call nothing any more."""
        self._updated = lambda: None

    def _looks(self, call: Callable[..., Any], *, must: bool) -> Callable[..., Any]:
        @functools.wraps(call)
        def looks(*args: Any, **kwargs: Any) -> Any:
            try:
                self._wrap()
            except (KeyError, AttributeError):
                if must:
                    raise NoSuchUpdate(
                        f"update = {self._name!r}: when the script computes its first gradient, it has no such "
                        "function; the script itself goes by its own name without .py"
                    ) from None
            else:
                for owner, each, before in self._patched:
                    setattr(owner, each, before)
            return call(*args, **kwargs)

        return looks

    def _wrap(self) -> None:
        module, _, path = self._name.partition(":")
        *classes, name = path.split(".")
        of_module = getattr(sys.modules["__main__"].__spec__, "name", "")  # where the command begins with -m
        main = module in (self._script, of_module)
        owner: Any = functools.reduce(getattr, classes, sys.modules["__main__" if main else module])
        function = getattr(owner, name)
        frame = sys._getframe()
        while frame.f_back is not None and not self.late:
            frame = frame.f_back
            self.late = frame.f_code is getattr(function, "__code__", None)

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._begins()
            result = function(*args, **kwargs)
            self.steps += 1
            if self.steps >= self._least:
                self.made += 1
                self._updated()
            return result

        setattr(owner, name, counted)
        for each in list(sys.modules.values()) if not classes else ():
            for key, value in list(getattr(each, "__dict__", {}).items()):
                if value is function:
                    each.__dict__[key] = counted
