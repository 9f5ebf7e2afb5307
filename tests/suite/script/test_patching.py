"""What stands around a function of torch."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import distributed as dist

from suite.script.patching import wrap


def test_a_function_is_wrapped_wherever_it_has_a_name_and_keeps_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    def reduce(tensor: Any, async_op: bool = False) -> None:
        """Stand for a function of torch.distributed."""

    one, other = (ModuleType(f"torch.distributed.{name}") for name in ("one", "other"))
    for module in (one, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(module, "reduce", reduce, raising=False)
    seen = list[Any]()
    wrap(one, "reduce", lambda call, *args, **kwargs: seen.append((call, args, kwargs)))
    other.reduce(1, async_op=True)
    assert seen == [(reduce, (1,), {"async_op": True})]
    assert inspect.signature(one.reduce) == inspect.signature(reduce)


def test_a_method_is_wrapped_and_what_torch_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Module, "half", torch.nn.Module.half)
    wrap(torch.nn.Module, "half", lambda call, module: module.double())
    assert torch.nn.Linear(1, 1).half().weight.dtype == torch.float64
    wrap(dist, "no_such_function", lambda call: None)
    assert not hasattr(dist, "no_such_function")
