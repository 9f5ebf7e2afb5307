"""Calls a function of a user's test on several ranks: what the fixture `on_ranks` is (controller's side).

The ranks are worker processes with a process group, as trainers have. A function travels as its name and its arguments
as JSON, so nothing is pickled. Ranks live as long as a test: what one leaves behind changes no other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite.processes.failure import WorkerFailure
from suite.processes.group import Group
from suite.processes.jobs import Place
from suite.processes.pool import Pool
from suite.room.devices import Devices

CALL_S = 60.0


@dataclass
class OnRanks:
    """Calls functions on ranks, which it starts when they are needed."""

    pool: Pool
    devices: Devices  # CPU workers stand for any number of them; GPUs are used in turn, repeatedly if necessary
    _started: set[Group] = field(default_factory=set, repr=False)

    def __call__(
        self, function: Callable[..., Any] | str, world_size: int, /, *, timeout_s: float = CALL_S, **arguments: Any
    ) -> list[Any]:
        """Call a function with the same arguments on every rank.

        Args:
            function: one that a module defines at its top level or in a class, or its name: `module:name` or
                `path.py:name`. A rank imports its module, and calls it with the default process group initialised.
            world_size: the number of ranks. Calls of one test with the same number share the ranks.
            timeout_s: seconds until the call counts as hung; importing the function is not part of it.
            arguments: of the function, by name; JSON.

        Returns:
            What each rank returned, by rank, as JSON keeps it: a tuple becomes a list.

        Raises:
            TypeError: the function has no name that a rank could import, or an argument is not JSON.
            ValueError: there is no device, or the world size is below 1.
            WorkerFailure: a rank raised, died, was silent, or returned something other than JSON. The message has the
                rank's traceback, its exit code or signal with the end of its stderr, or every live rank's stack.
        """
        __tracebackhide__ = True
        name, folder = named(function)
        try:
            json.dumps(arguments)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"the arguments of {name} cannot be sent to a rank: {error}; pass lists, not tensors"
            ) from None
        try:
            group, place = self._group(world_size)
            group.request(dict, "load", place=place, function=name, folder=folder)
            answers = group.request(dict, "call", timeout_s, function=name, arguments=arguments)
        except WorkerFailure as failure:
            failure.group = f"{name.rpartition(':')[2]} on {world_size} rank(s)"
            raise failure.with_traceback(None) from None  # our own frames explain nothing to the author of a test
        return [answer["returned"] for answer in answers]

    def close(self) -> None:
        """End the ranks."""
        for group in self._started:
            if group.alive:
                group.close()

    def _group(self, world_size: int) -> tuple[Group, Place]:
        """Return the ranks of a world, started unless they are alive, and their devices."""
        if world_size < 1 or not self.devices.names:
            raise ValueError(f"{world_size} rank(s) on {self.devices}: expected 1 or more ranks, and a device")
        names, backend = self.devices.spread(world_size)
        group = self.pool.group(f"on-ranks-{world_size}", world_size, spread=True)
        self._started.add(group)
        return group, Place(processes="per-device", devices=names, backend=backend)


def named(function: Callable[..., Any] | str) -> tuple[str, str]:
    """Return the name by which a rank finds a function, and the folder that it imports the module from.

    A module of a package is named as Python does, any other by its file; the folder is "" where no one is needed.

    Raises:
        TypeError: it is no function of a module.
    """
    if isinstance(function, str):
        return function, ""
    __tracebackhide__ = True
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<unnamed>")
    file = getattr(sys.modules.get(str(module)), "__file__", None)
    if file is None or "<" in name:  # "<locals>" and "<lambda>"
        raise TypeError(
            f"{function!r} has no name that a rank could import; define it at the top level of a module with 'def'"
        )
    path, depth = Path(file), str(module).count(".")
    if depth == 0 and path.name != "__init__.py":
        return f"{path}:{name}", ""
    return f"{module}:{name}", str(path.parents[depth + (path.name == "__init__.py")])
