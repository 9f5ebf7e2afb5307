"""Checks a user's trainer class against the trainer protocol before it is used (in workers only).

The protocol is `reference.trainers.protocol.Trainer`. Every message names the part that breaks it and shows the
expected form, so that the author need not read our source. What a trainer may set for its whole process (torch's grad
mode, default dtype and default device) is kept by `defaults_kept`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from reference import nest
from reference.load import load_object
from reference.nest import Nest
from reference.trainers import TRAINERS
from suite.properties import tolerance
from suite.properties.answers import About
from suite.room import errors

PROCESSES = ("one", "per-device")
ORACLES = ("sgd", "self")
TRAINS = ("samples", "tokens")
MOST_EACH = 256  # samples of which a rank's may have to be a multiple

EXPECTED = {
    "__init__": "def __init__(self, model, devices, *, lr)",
    "step": "def step(self, X, y, global_batch_size)",
    "reference_step": "def reference_step(self, X, y, global_batch_size), the same update written plainly",
    "replicas": "a property returning 1..k nn.Modules",
    "processes": 'processes = "one" or "per-device"',
    "state_dict": "def state_dict(self), a dict of all that training goes on from",
    "load_state_dict": "def load_state_dict(self, state)",
    "shards": 'shards = "equal", or a number of which every rank\'s samples are a multiple',
    "loss": "def loss(self, output, y), a tensor: the mean over samples, or one value for each; of a nest one value",
}


class ContractError(TypeError):
    """A trainer does not follow the trainer protocol."""


class OwnSignature(ContractError):
    """A trainer calls its model with other arguments than X, which the networks of the generated cases do not take.

    Its name is `suite.properties.answers.OWN_SIGNATURE`.
    """


def x_alone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the X that a generated network was called with, and nothing else.

    Raises:
        OwnSignature: it was called otherwise than as model(X).
    """
    if len(args) + len(kwargs) != 1 or (kwargs and "X" not in kwargs):
        kinds = [type(one).__name__ for one in args] + [f"{key}={type(one).__name__}" for key, one in kwargs.items()]
        raise OwnSignature(
            f"`step` calls its model as model({', '.join(kinds)}), and the networks that the checks generate take X "
            "alone, model(X); check it on your own model instead: declare [tool.scaling.workloads.NAME] with model and "
            "dataset in pyproject.toml (docs/your-trainer.md), and run pytest -m correctness --scaling-trainer TRAINER "
            "--scaling-workload NAME -k own_model"
        )
    return args[0] if args else kwargs["X"]


def load_trainer(spec: str) -> type[Any]:
    """Return the class behind a table name, `module:Class` or `path.py:Class`, checked as far as a class can be.

    Raises:
        ContractError: it is not a class, or a part of the protocol is missing; every missing part is named.
        LookupError, ImportError, ...: as `reference.load.load_object`.
    """
    trainer = load_object(TRAINERS.get(spec, spec))
    if not isinstance(trainer, type):
        raise ContractError(f"trainer {spec!r} is a {type(trainer).__name__}, not a class; a trainer is a class")
    if breaches := _breaches(trainer):
        raise ContractError(f"trainer {spec!r} breaks the trainer protocol: " + "; ".join(breaches))
    return trainer


def describe(trainer: type[Any]) -> About:
    """Return what the controller must know to start a trainer."""
    return About(
        processes=trainer.processes,
        oracle=getattr(trainer, "oracle", "sgd"),
        trains=getattr(trainer, "trains", "samples"),
        unsynced=callable(getattr(trainer, "step_unsynced", None)),
        shares_gpus=bool(getattr(trainer, "shares_gpus", True)),
        resumes=None not in _states(trainer).values(),
        has_reference=callable(getattr(trainer, "reference_step", None)),
        shards=_multiple(getattr(trainer, "shards", "any")) or 0,
    )


def check_instance(trainer: Any, devices: list[torch.device]) -> None:
    """Check what only an instance has: its replicas, and a loss of its own.

    Raises:
        ContractError: `replicas` is missing, empty, too long, or holds something that is not a module; `loss` is there
            and does not take (output, y).
    """
    broken = f"trainer {type(trainer).__name__} breaks the trainer protocol"
    if not hasattr(trainer, "replicas"):
        raise ContractError(f"{broken}: `replicas` is missing: {EXPECTED['replicas']}")
    replicas = list(trainer.replicas)
    if not 1 <= len(replicas) <= len(devices) or not all(isinstance(replica, nn.Module) for replica in replicas):
        kinds = [type(replica).__name__ for replica in replicas]
        raise ContractError(
            f"{broken}: `replicas` is {kinds} on {len(devices)} device(s): expected {EXPECTED['replicas']}"
        )
    loss = getattr(trainer, "loss", None)
    if loss is not None and not (callable(loss) and _accepts(loss, object(), object())):
        wrong = f"takes {inspect.signature(loss)}" if callable(loss) else f"is a {type(loss).__name__}"
        raise ContractError(f"{broken}: `loss` {wrong}: expected {EXPECTED['loss']}; rename it if it is something else")


def apply_loss(loss: Callable[[Tensor, Nest], Tensor], output: Tensor, y: Nest) -> Tensor:
    """Return a trainer's own loss of a net's output.

    Args:
        loss: one that `check_instance` accepts.
        output: (n, classes), or of a language model (n, positions, vocabulary).
        y: labels (n,), or a nest.

    Returns:
        (), or for labels (n, ...).

    Raises:
        ContractError: it is no function; it raised, returned something else, or returned the sum over samples.
    """
    if not callable(loss):
        raise ContractError(
            f"`loss` became a {type(loss).__name__} in the steps: expected {EXPECTED['loss']}; "
            "rename it if it is something else"
        )
    shapes = tuple(y.shape) if isinstance(y, Tensor) else [tuple(leaf.shape) for leaf in nest.leaves(y)]
    called = f"`loss` called with output {tuple(output.shape)} and y {shapes}"
    try:
        value = loss(output, y)
    except Exception as error:
        raise ContractError(f"{called} raised {errors.described(error)}: expected {EXPECTED['loss']}") from error
    if not isinstance(value, Tensor) or not (value.ndim == 0 or (isinstance(y, Tensor) and len(value) == len(y))):
        what = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ContractError(f"{called} returned {what}: expected {EXPECTED['loss']}")
    if value.ndim == 0 and isinstance(y, Tensor) and _adds_up(loss, value.detach(), output.detach(), y):
        raise ContractError(f"{called} returned the sum over the samples: expected {EXPECTED['loss']}")
    return value


def _adds_up(loss: Callable[[Tensor, Nest], Tensor], value: Tensor, output: Tensor, y: Tensor) -> bool:
    """Return whether a loss is two and three times as large where every sample comes two and three times.

    That of a sum is, and that of a mean is not. Values of low precision cannot tell, and are no sum.
    """
    if value.dtype not in (torch.float32, torch.float64) or not bool(value):
        return False
    allowed = tolerance.half_the_digits(value.dtype) * abs(float(value))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            made = [float(loss(torch.cat([output] * times), torch.cat([y] * times))) for times in (2, 3)]
    except Exception:  # it takes no other number of samples, so that this cannot be told
        return False
    return abs(made[0] - 2 * float(value)) <= allowed and abs(made[1] - 3 * float(value)) <= allowed


def _breaches(trainer: type[Any]) -> list[str]:
    """Return a line on every part of the protocol that a class breaks."""
    breaches = []
    processes = getattr(trainer, "processes", None)
    if processes is None:
        breaches.append(f"`processes` is missing: {EXPECTED['processes']}")
    elif processes not in PROCESSES:
        breaches.append(f"`processes` is {processes!r}: expected {EXPECTED['processes']}")
    oracle = getattr(trainer, "oracle", "sgd")
    if oracle not in ORACLES:
        breaches.append(f"`oracle` is {oracle!r}: expected one of {', '.join(map(repr, ORACLES))}")
    trains = getattr(trainer, "trains", "samples")
    if trains not in TRAINS:
        breaches.append(f"`trains` is {trains!r}: expected one of {', '.join(map(repr, TRAINS))}")
    elif trains == "tokens" and oracle == "sgd" and not hasattr(trainer, "loss"):
        breaches.append(f"`trains` is 'tokens' and `loss` is missing: expected {EXPECTED['loss']}")
    shards = getattr(trainer, "shards", "any")
    if _multiple(shards) is None:
        breaches.append(f"`shards` is {shards!r}: expected {EXPECTED['shards']}")
    if not _accepts(trainer, object(), object(), lr=0.1):
        breaches.append(f"`__init__` does not take (model, devices, *, lr): {EXPECTED['__init__']}")
    if not callable(getattr(trainer, "step", None)):
        breaches.append(f"`step` is missing: {EXPECTED['step']}")
    for name in ("step", "reference_step"):
        if callable(step := getattr(trainer, name, None)) and not _accepts(step, *[object()] * 4):
            breaches.append(f"`{name}` does not take (X, y, global_batch_size): {EXPECTED[name]}")
    states = _states(trainer)
    for name, arguments in (("state_dict", ""), ("load_state_dict", "state")):
        if states[name] is not None and not _accepts(states[name], *[object()] * (2 if arguments else 1)):
            breaches.append(f"`{name}` does not take ({arguments}): {EXPECTED[name]}")
        if states[name] is None and any(states.values()) and not issubclass(trainer, nn.Module):
            breaches.append(f"`{name}` is missing, and its counterpart is there: expected {EXPECTED[name]}")
    # An attribute set in __init__ is as good as a property, so `check_instance` checks a class that has none.
    if "replicas" in vars(trainer) and callable(vars(trainer)["replicas"]):
        breaches.append(f"`replicas` is a method: expected {EXPECTED['replicas']}")
    return breaches


def _multiple(shards: Any) -> int | None:
    """Return of what number a rank's samples are a multiple; 0 where they may be any, and None for no valid value."""
    if shards in ("any", "equal"):
        return int(shards == "equal")
    return shards if type(shards) is int and 1 <= shards <= MOST_EACH else None


def _states(trainer: type[Any]) -> dict[str, Any]:
    """Return what a class saves and resumes its training with; nn.Module's own save weights alone, and are None."""
    names = ("state_dict", "load_state_dict")
    there = {name: getattr(trainer, name, None) for name in names}
    return {name: None if there[name] is getattr(nn.Module, name) else there[name] for name in names}


def _accepts(function: Any, *arguments: object, **keywords: object) -> bool:
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except TypeError:
        return False
    except ValueError:  # a C function without a signature: only a call can tell
        return True
    return True


def loss_of(returned: Any) -> float | None:
    """Return what a step has returned as a number, which waits for its device; None where it returned nothing.

    Raises:
        ContractError: it is something else.
    """
    if returned is None:
        return None
    try:
        return float(returned)
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"a tensor of shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else type(returned).__name__
        raise ContractError(
            f"`step` returned {what}: expected this process's summed loss / global_batch_size as one number, or None"
        ) from error


def close_trainer(trainer: Any) -> None:
    """Call the `close()` of a trainer that has one.

    Raises:
        ContractError: it has destroyed the process group that it found, which other trainers of the process need.
    """
    if callable(close := getattr(trainer, "close", None)):
        joined = dist.is_initialized()
        close()
        if joined and not dist.is_initialized():
            raise ContractError(
                "`close` destroyed the process group, which it did not make; destroy only groups of the trainer's own"
            )


@contextmanager
def defaults_kept() -> Iterator[None]:
    """Set again afterwards what was set before."""
    grad, dtype, device = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device()
    try:
        yield
    finally:
        _set(grad, dtype, device)


@contextmanager
def torchs_own_defaults() -> Iterator[None]:
    """Have torch's own defaults inside, whatever a trainer's module has set: gradients, float32, the CPU."""
    with defaults_kept():
        _set(True, torch.float32, torch.device("cpu"))
        yield


def _set(grad: bool, dtype: torch.dtype, device: torch.device) -> None:
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    if torch.get_default_device() != device:
        torch.set_default_device(None if device.type == "cpu" else device)
