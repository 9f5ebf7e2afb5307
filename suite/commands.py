"""What the controller can ask of a worker: one function a command, one table (worker's side).

Every function takes the worker's `State` and the command's arguments, and returns a JSON object.
"""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

import torch
from torch import distributed as dist

from suite import arm as arms
from suite import contract, properties, quiet, training
from suite.timing import LossNotFinite

Answer = dict[str, Any]


# Their message says it all; a traceback through our own frames would only stand in its way.
SELF_EXPLAINING = (contract.ContractError, LossNotFinite, ImportError, FileNotFoundError)


@dataclass
class State:
    """What a worker keeps between commands."""

    rank: int
    timed: dict[str, arms.TimedArm] = field(default_factory=dict)

    def devices(self, arm: dict[str, Any]) -> list[torch.device]:
        """The devices this process drives; binds the process to them, and joins the process group where there is one.

        Pinned here and not before torch is loaded, because loading it is most of a session's start and every core can
        help with it. Nothing is allocated and no thread of a trainer, of gloo or of autograd is started before this.
        """
        one = arm["processes"] == "one"
        devices = [torch.device(name) for name in (arm["devices"] if one else [arm["devices"][self.rank]])]
        if not one:
            # DistributedDataParallel and torch.optim load it at their first use, which takes as long as torch itself.
            importlib.import_module("torch._dynamo")
        if arm["pinned"]:
            quiet.pin(arm["pinned"] if one else [arm["pinned"][self.rank]])
        if devices[0].type == "cuda":
            torch.cuda.set_device(devices[0])
        else:
            torch.set_num_threads(1)
        if not one:
            arms.join(arm["backend"])
        return devices

    def close(self) -> None:
        """Leave the trainer and the process group."""
        for arm in self.timed.values():
            arm.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def describe(state: State, trainer: str) -> Answer:
    """Versions of this interpreter, and what the controller must know of a trainer."""
    return {"about": contract.describe(contract.load_trainer(trainer)), "versions": versions()}


def versions() -> dict[str, str]:
    """Versions that decide how fast a step is; those that are not there are left out."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for package in ("torchvision", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return found


def prepare(state: State, dataset: str, data_root: str, folder: str) -> Answer:
    """Load a dataset once for all workers to come."""
    return arms.prepare_dataset(dataset, data_root, folder)


def setup(state: State, name: str, arm: dict[str, Any]) -> Answer:
    """Make ready to time an arm, under a name."""
    state.timed[name] = arms.TimedArm(state.rank, state.devices(arm), arm)
    return {}


def window(state: State, name: str, steps: int) -> Answer:
    """Time one window of an arm that was set up under that name."""
    return {"duration_ns": state.timed[name].window(steps)}


def train(state: State, arm: dict[str, Any], recipe: dict[str, Any]) -> Answer:
    """Train by a recipe to an accuracy."""
    return training.train(state.rank, state.devices(arm), arm, recipe)


def check(state: State, arm: dict[str, Any], case: dict[str, Any], folder: str) -> Answer:
    """Train the steps of a case and hold them against the oracle (see `suite.properties`).

    With oracle "self" the same case is asked of one device first, which leaves its trajectory in `folder` for the
    others.
    """
    taken = properties.trajectory(state.rank, state.devices(arm), arm, case)
    if state.rank > 0:
        return {}
    if taken.oracle == "sgd":
        deviations = properties.against_sgd(taken, case)
    elif arm["world_size"] == 1:
        taken.save(folder)
        deviations = []
    else:
        deviations = properties.against_self(taken, properties.Trajectory.load(folder), case)
    return {"replicas_equal": taken.replicas_equal, "deviations": [asdict(deviation) for deviation in deviations]}


COMMANDS: dict[str, Callable[..., Answer]] = {
    "describe": describe,
    "prepare": prepare,
    "setup": setup,
    "window": window,
    "train": train,
    "check": check,
}
