"""Ranks that only answer: workers without torch, so that one host can have hundreds of them.

    pytest -p docs.performance.stub_ranks ...

A run with this plugin forks its workers from a template that loads no torch. Launcher, template, processes and
connections are those of any run, so that the controller does all its work. A rank sleeps for as long as its steps take
and answers what a rank of an idle CPU would. Ranks do not connect to one another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest

from suite import template, worker
from suite.processes import launchers
from suite.processes.channel import Answer, Channel, ChannelClosed
from suite.processes.jobs import Counted, Parameters, PeakMemory, Prepared, SetUp, Tally, Timed
from suite.properties.answers import About, Described

STEP_S = 0.01
SAMPLES = 512
GRADIENT_BYTES = 40
COUNTED = ("operator", "all_reduce", "synchronisation", "graph break", "optimizer step")


def pytest_configure(config: pytest.Config) -> None:
    """Start this module in the place of the template, from now on."""
    start = launchers.LauncherProcess

    def start_stub(command: list[str], *arguments: Any, **more: Any) -> launchers.LauncherProcess:
        stub = [__name__ if part == template.__name__ else part for part in command]
        return start(stub, *arguments, **more)

    launchers.LauncherProcess = start_stub  # type: ignore[assignment, misc]


def window(name: str, steps: int, lead_in: int = 0, keeps: bool = False) -> Timed:
    """Sleep for as long as the steps take."""
    time.sleep((lead_in + steps) * STEP_S)
    return Timed(round(1e9 * steps * STEP_S), PeakMemory(resident_bytes=200_000_000), others_ns=0)


def prepare(dataset: str, data_root: str, folder: str) -> Prepared:
    """Load nothing."""
    return Prepared(name=dataset, folder=folder, train_samples=SAMPLES, test_samples=SAMPLES)


def count(name: str, steps: int) -> Counted:
    """Return the same counts always."""
    return Counted("stubs", steps, tuple(Tally(what, "float32", "calls", 2, 2) for what in COUNTED))


def describe(trainer: str, apart: object = None) -> Described:
    """Describe any trainer as one with a process for each device."""
    return Described(about=About(processes="per-device"), versions={"python": "3", "torch": "none"})


COMMANDS: dict[str, Callable[..., object]] = {
    "describe": describe,
    "prepare": prepare,
    "setup": lambda name, arm: SetUp(GRADIENT_BYTES),
    "window": window,
    "parameters": lambda name: Parameters(""),
    "count": count,
    "close": lambda name: {},
}


def serve(channel: Channel, rank: int) -> None:
    """Answer until told to exit or until the controller has gone."""
    with suppress(ChannelClosed):
        while (message := channel.receive())["command"] != "exit":
            command, number = message.pop("command"), message.pop("number")
            channel.send(Answer(number, COMMANDS[command](**message)))  # type: ignore[arg-type]


if __name__ == "__main__":
    with (
        patch.object(worker, "serve", serve),
        patch.object(template, "TORCH", ()),
        patch.object(template, "_store", lambda listener, port: None),
    ):
        template.main()
