"""Puts functions of the suite around functions of torch, for as long as the process lives (worker's side)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Let `around(call, *args, **kwargs)` answer in the place of a function, whose name and signature stay.

    A function of a module is replaced wherever a module of torch.distributed has it by name. One that this version of
    torch lacks is left out.

    Args:
        owner: a class or a module.
        name: of its function.
        around: gets the function that it stands for as its first argument.
    """
    call = getattr(owner, name, None)
    if call is None:
        return

    @functools.wraps(call)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(call, *args, **kwargs)

    setattr(owner, name, wrapped)
    for each, module in list(sys.modules.items()) if isinstance(owner, ModuleType) else ():
        if each.startswith("torch.distributed"):
            for key, value in list(vars(module).items()):
                if value is call:
                    setattr(module, key, wrapped)
