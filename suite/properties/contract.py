"""A stranger's trainer class, held against the trainer protocol before it is used (runs in workers only).

The protocol is `reference.trainers.protocol.Trainer`. Every finding names the missing part and shows what it should
look like, so that the author need not read our source.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from reference.load import load_object
from reference.trainers import TRAINERS

PROCESSES = ("one", "per-device")
ORACLES = ("sgd", "self")

EXPECTED = {
    "__init__": "def __init__(self, model, devices, *, lr)",
    "step": "def step(self, X, y, global_batch_size)",
    "replicas": "a property returning 1..k nn.Modules",
    "processes": 'processes = "one" or "per-device"',
    "loss": "def loss(self, output, y), a tensor: the mean over samples, or one value for each",
}


class ContractError(TypeError):
    """A trainer does not follow the trainer protocol."""


def load_trainer(spec: str) -> type[Any]:
    """The class behind a table name, `module:Class` or `path.py:Class`, checked as far as a class can be.

    Raises:
        ContractError: it is not a class, or a part of the protocol is missing; every missing part is named.
        LookupError, ImportError, ...: as `reference.load.load_object`.
    """
    found = load_object(TRAINERS.get(spec, spec))
    if not isinstance(found, type):
        raise ContractError(f"trainer {spec!r} is a {type(found).__name__}, not a class; a trainer is a class")
    findings = list(_findings(found))
    if findings:
        raise ContractError(f"trainer {spec!r} breaks the trainer protocol: " + "; ".join(findings))
    return found


def describe(trainer: type[Any]) -> dict[str, Any]:
    """What the controller must know of a trainer to start it."""
    return {
        "processes": trainer.processes,
        "oracle": getattr(trainer, "oracle", "sgd"),
        "unsynced": callable(getattr(trainer, "step_unsynced", None)),
    }


def check_instance(trainer: Any, devices: list[torch.device]) -> None:
    """What only an instance shows: its replicas, and how its own loss is called.

    Raises:
        ContractError: `replicas` is missing, empty, too long, or holds something that is not a module; `loss` is there
            and does not take (output, y).
    """
    name = type(trainer).__name__
    if not hasattr(trainer, "replicas"):
        raise ContractError(
            f"trainer {name} breaks the trainer protocol: `replicas` is missing: {EXPECTED['replicas']}"
        )
    replicas = list(trainer.replicas)
    if not 1 <= len(replicas) <= len(devices) or not all(isinstance(replica, nn.Module) for replica in replicas):
        kinds = [type(replica).__name__ for replica in replicas]
        raise ContractError(
            f"trainer {name} breaks the trainer protocol: `replicas` is {kinds} on {len(devices)} device(s): "
            f"expected {EXPECTED['replicas']}"
        )
    loss = getattr(trainer, "loss", None)
    if loss is not None and not (callable(loss) and _accepts(loss, object(), object())):
        found = f"takes {inspect.signature(loss)}" if callable(loss) else f"is a {type(loss).__name__}"
        raise ContractError(
            f"trainer {name} breaks the trainer protocol: `loss` {found}: expected {EXPECTED['loss']}; "
            "rename it if it is something else"
        )


def apply_loss(loss: Callable[[Tensor, Tensor], Tensor], output: Tensor, y: Tensor) -> Tensor:
    """A trainer's own loss of what a net put out.

    Args:
        loss: `check_instance` let it pass.
        output: (n, classes).
        y: labels (n,).

    Returns:
        (), or (n, ...).

    Raises:
        ContractError: it raised, or returned something else.
    """
    called = f"`loss` called with output {tuple(output.shape)} and y {tuple(y.shape)}"
    try:
        value = loss(output, y)
    except Exception as error:
        raise ContractError(f"{called} raised {type(error).__name__}: {error}: expected {EXPECTED['loss']}") from error
    if not isinstance(value, Tensor) or not (value.ndim == 0 or len(value) == len(y)):
        what = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ContractError(f"{called} returned {what}: expected {EXPECTED['loss']}")
    return value


def _findings(trainer: type[Any]) -> list[str]:
    findings = []
    processes = getattr(trainer, "processes", None)
    if processes is None:
        findings.append(f"`processes` is missing: {EXPECTED['processes']}")
    elif processes not in PROCESSES:
        findings.append(f"`processes` is {processes!r}: expected {EXPECTED['processes']}")
    oracle = getattr(trainer, "oracle", "sgd")
    if oracle not in ORACLES:
        findings.append(f"`oracle` is {oracle!r}: expected one of {', '.join(map(repr, ORACLES))}")
    if not _accepts(trainer, object(), object(), lr=0.1):
        findings.append(f"`__init__` does not take (model, devices, *, lr): {EXPECTED['__init__']}")
    step = getattr(trainer, "step", None)
    if not callable(step):
        findings.append(f"`step` is missing: {EXPECTED['step']}")
    elif not _accepts(step, *[object()] * 4):
        findings.append(f"`step` does not take (X, y, global_batch_size): {EXPECTED['step']}")
    # An attribute set in __init__ is as good as a property, so a class without one is looked at again as an instance.
    if "replicas" in vars(trainer) and callable(vars(trainer)["replicas"]):
        findings.append(f"`replicas` is a method: expected {EXPECTED['replicas']}")
    return findings


def _accepts(function: Any, *arguments: object, **keywords: object) -> bool:
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except TypeError:
        return False
    except ValueError:  # no signature to be had (a C function): only calling it can tell
        return True
    return True


def close_trainer(trainer: Any) -> None:
    """Call the optional `close()` of a trainer."""
    if callable(close := getattr(trainer, "close", None)):
        close()
