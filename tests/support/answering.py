"""Sessions of one group of workers that only answers, by a clock of its own."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from suite.plan.cells import Arm
from suite.processes.jobs import PeakMemory, Timed
from suite.room.conditions import Conditions
from suite.room.devices import Devices
from suite.run.groups import Groups
from suite.run.observations import Observations, Session
from suite.run.session import Sessions
from tests.support.measurements import QUIET, arm

OWN, BASE, ONE = arm(2), arm(2, side="base"), arm(1)


class Answering:
    """A group whose steps take as long as it is told, by a clock of its own; an arm's first step takes `cold_s` more.

    Untimed steps come first, and what they take is in no answer.
    """

    def __init__(self, step_s: dict[str, float], gradient_bytes: int = 8, cold_s: float = 0.0) -> None:
        self.step_s, self.gradient_bytes, self.cold_s = step_s, gradient_bytes, cold_s
        self.asked: list[tuple[str, int, int]] = []
        self.resident = iter(range(1, 1000))  # bytes at the peak of each window
        self.start_timeout_s = 0.0
        self.deadlines: list[float] = []
        self.now = 0.0

    def close(self) -> None: ...

    kill = close

    def post(self, command: str, **told: Any) -> None:
        self.told = told

    def collect(self, kind: type[Any], command: str, timeout_s: float) -> list[Any]:
        if command == "window":
            return self.request(kind, command, timeout_s, **self.told)
        self.deadlines.append(timeout_s)
        return [kind(gradient_bytes=self.gradient_bytes, sample_flop=10 * self.gradient_bytes)]

    def request(
        self, kind: type[Timed], command: str, timeout_s: float, *, name: str, steps: int, lead_in: int = 0
    ) -> list[Timed]:
        self.asked.append((name, steps, lead_in))
        self.deadlines.append(timeout_s)
        lost_s = self.cold_s if [name] == [asked[0] for asked in self.asked if asked[0] == name] else 0.0
        held = PeakMemory(resident_bytes=next(self.resident))
        self.now += self.step_s[name] * (lead_in + steps) + lost_s
        clocked_s = self.step_s[name] * steps + (0.0 if lead_in else lost_s)
        return [kind(duration_ns=round(clocked_s * 1e9), memory=held)]


class Still:
    """A meter of a machine on which nothing disturbs a block."""

    def __init__(self, devices: Devices | None = None) -> None: ...

    def __enter__(self) -> Still:
        return self

    def __exit__(self, *_: object) -> None: ...

    def watch(self) -> None: ...

    def worked(self, names: object) -> None: ...

    def read(self) -> None: ...

    def since(self, before: None) -> Conditions:
        return QUIET


class Pool:
    """Launches one answering group for everything."""

    def __init__(self, group: Answering) -> None:
        self.group, self.pool = group, self
        self.groups: dict[str, Answering] = {}
        self.names: list[str] = []
        self.launchers, self.forks = SimpleNamespace(loading_s=2.5), True

    def wait_for_templates(self, timeout_s: float) -> None:
        """Wait for a moment."""
        self.group.now += 0.01

    def launch(self, name: str, size: int) -> Answering:
        self.names.append(name)
        return self.group


def sessions(run: Observations, group: Answering) -> Sessions:
    """Return sessions of one group, by its clock unless the run has another."""
    if run.plan.clock is time.monotonic:
        run.plan = replace(run.plan, clock=lambda: group.now, begun_s=0.0)
    pools = {"candidate": Pool(group), "base": Pool(group)}
    return Sessions(run, pools, random.Random(1), None, lambda: 100.0, lambda line: None)  # type: ignore[arg-type]


def warm_up(run: Observations, group: Answering, *arms: Arm) -> tuple[Sessions, Groups]:
    """Warm these arms up in one group, by default the candidate alone."""
    several, groups = sessions(run, group), Groups(Session(0), dict.fromkeys(arms or (OWN,), group))  # type: ignore[arg-type]
    several._warm_up(groups, list(groups.by_arm))
    return several, groups


def time_blocks(count: int, several: Sessions, groups: Groups, *, more_s: float = 0.0) -> None:
    """Time this many blocks of the candidate, and as many more as take `more_s`."""
    several._blocks, several._meter = count, Still()  # type: ignore[assignment]
    several._time(groups, [(OWN,)], several._clock() + more_s)
