"""The trainers of a fault campaign: both train as DDP does, and one of them does what a worker can do wrong.

A fault happens once in a run, on one rank of the group of two, in the trainer's constructor or in a step. Steps take a
little longer than they need, so that every phase of a run lasts long enough to be hit.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist

from reference.trainers.ddp import DDPTrainer
from tests.support import mischief
from tests.support.faults import plugin

STEP_S = 0.002
BUILD_S = 0.2
FAULT, RANK = "FAULTS_FAULT", "FAULTS_RANK"  # what happens, and where
IN_CONSTRUCTOR, AT_STEP = "FAULTS_IN_CONSTRUCTOR", "FAULTS_AT_STEP"  # when; without both, once the campaign says so
HEADROOM_BYTES = 256 << 20


class Healthy(DDPTrainer):
    """Does nothing wrong."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        time.sleep(BUILD_S)
        super().__init__(model, devices, lr=lr)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        time.sleep(STEP_S)
        return super().step(X, y, global_batch_size)


class Faulty(Healthy):
    """Does what the environment says, once."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self._steps = 0
        if IN_CONSTRUCTOR in os.environ:
            self._misbehave()

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self._steps += 1
        if dist.get_world_size() > 1:
            plugin.show(plugin.STEPPED)
            if str(self._steps) == os.environ.get(AT_STEP) or plugin.shown(plugin.ARMED):
                self._misbehave()
        return super().step(X, y, global_batch_size)

    def _misbehave(self) -> None:
        chosen = dist.get_world_size() > 1 and str(dist.get_rank()) == os.environ.get(RANK)
        if chosen and FAULT in os.environ and plugin.show(plugin.FIRED):
            FAULTS[os.environ[FAULT]](self.replicas[0])


def _signal(number: signal.Signals) -> Callable[[nn.Module], None]:
    def send(net: nn.Module) -> None:
        os.kill(os.getpid(), number)
        time.sleep(1)  # the kernel may deliver it a little later

    return send


def _leave(code: int) -> Callable[[nn.Module], None]:
    return lambda net: os._exit(code)


def _raise(net: nn.Module) -> None:
    raise RuntimeError("planted by the campaign")


def _run_out_of_memory(net: nn.Module) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM_BYTES, used + HEADROOM_BYTES))
    kept = []
    while True:
        kept.append(torch.ones(1 << 24))


def _spoil(net: nn.Module) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(torch.nan)


def _controller() -> int:
    """Return the descriptor of this worker's connection to the controller."""
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as opened:
                if opened.family == socket.AF_UNIX:
                    return int(name)
        except OSError:
            continue
    raise LookupError("this worker has no connection to the controller")


def _write_to_controller(content: bytes) -> Callable[[nn.Module], None]:
    return lambda net: _write_all(_controller(), content)


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _hang(net: nn.Module) -> None:
    time.sleep(3600)


def _forge(net: nn.Module) -> None:
    forged = json.dumps({"event": "ended", "group": "helper", "failures": [], "cause": "forged"})
    _write_all(1, bytes(range(256)) * 64 + b"\n" + forged.encode() + b"\n")


FAULTS: dict[str, Callable[[nn.Module], object]] = {
    "SIGKILL": _signal(signal.SIGKILL),
    "SIGSTOP": _signal(signal.SIGSTOP),
    "SIGTERM": _signal(signal.SIGTERM),
    "exit 3": _leave(3),
    "exit 0": _leave(0),
    "an exception": _raise,
    "out of memory": _run_out_of_memory,
    "NaN": _spoil,
    "garbage to the controller": _write_to_controller(b"\xff\x00 garbage\n"),
    "a forged answer": _write_to_controller(b'{"seconds": "forged"}\n'),
    "no answer": _hang,
    "a closed connection": lambda net: mischief.close_local_sockets(),
    "100 MB on stderr": lambda net: mischief.shout(100),
    "text on descriptor 1": _forge,
    "a daemon left behind": lambda net: mischief.leave_a_daemon(),
}
