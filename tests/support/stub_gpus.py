"""Runs on GPUs that are not there: campaigns and sessions as they are, over workers that only answer, by another clock.

What everything costs there is reasoned or drawn (`Costs`), and the suite can learn it from the clock alone. Not
covered: failures other than a GPU whose memory the first steps of several groups use up.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from suite.plan.cells import PLAIN, Arm, Cell, Side
from suite.plan.config import Base, Config
from suite.processes.channel import Value
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Job, PeakMemory, Prepared, TrainingRecipe
from suite.properties.answers import About
from suite.room.devices import Devices
from suite.room.hardware import Card
from suite.run import campaign
from suite.run.observations import Facts, Observations
from tests.support.answering import Still
from tests.support.measurements import LENET, MACHINE, VERSIONS, cell, job, run_of, settings

TRAINERS = ("scratch", "data_parallel", "ddp")  # what a run on GPUs times by default
PER_DEVICE = ("ddp", PLAIN)
LEAST, MOST = 0.3, 3.0  # times the reasoned costs
GIB = 2**30
PLAN = re.compile(r"plan: .*?, about (\d+) session\(s\) of (\d+) s, ([\d.]+) min in all(?:, and at most ([\d.]+) min)?")


@dataclass(frozen=True)
class Costs:
    """Seconds on a machine with GPUs, as reasoned before any GPU ran the suite.

    Attributes:
        start_s: from a process's launch until torch is loaded; half of it is work of a core.
        context_s: of each process on each of its GPUs, which makes one at a time.
        communicator_s: NCCL's, of a group of several.
        libraries_s: of the first step of a process; it loads cuDNN and cuBLAS.
        links_s: of the same, for each device that it exchanges with.
        shapes_s: of the first step with a batch that its process had not had.
        variant_s: of the first step of a variant.
        step_s: of a step on 256 samples.
        window_s: of each window, beside its steps: messages, a barrier, and memory that is given back.
        net_s: of training a net.
        count_s: of counting what a step does.
        end_s: of a session's processes.
    """

    start_s: float = 8.0
    context_s: float = 0.3
    communicator_s: float = 2.0
    libraries_s: float = 1.8
    links_s: float = 0.45
    shapes_s: float = 0.5
    variant_s: float = 0.1
    step_s: float = 0.03
    window_s: float = 0.05
    net_s: float = 15.0
    count_s: float = 0.3
    end_s: float = 2.0

    @classmethod
    def drawn(cls, seed: int) -> Costs:
        """Return costs between `LEAST` and `MOST` times the reasoned ones, each with a factor of its own."""
        rng = random.Random(seed)
        low, high = math.log(LEAST), math.log(MOST)
        return cls(*(getattr(cls(), each.name) * math.exp(rng.uniform(low, high)) for each in fields(cls)))


class Plan(NamedTuple):
    """A plan as it was shown: when, its sessions, seconds of each, and of the run without and with all its training."""

    at_s: float
    sessions: int
    session_s: float
    least_s: float
    total_s: float


@dataclass
class Machine:
    """GPUs with their clock.

    Attributes:
        gpus, cores: how many there are for the run.
        costs: that the run does not know.
        memory_bytes: of each GPU.
        step_bytes: that every arm needs of a GPU during a step.
        spread: SD by which processes differ in the logarithm of a step.
        noise: SD by which windows differ in it, by trainer, mode and number of devices.
        kind: of the devices, which may be cores as well.
        said: what the run said, and when.
        first_steps: of each session, when one was begun or ended and how many groups were then at it.
        windows_s: when the last window of each session ended.
    """

    gpus: int
    cores: int
    costs: Costs = field(default_factory=Costs)
    memory_bytes: int = 80 * GIB
    step_bytes: int = 4 * GIB
    spread: float = 0.03
    noise: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    kind: str = "cuda"
    now: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    loaded_s: float = 0.0  # when the cores have loaded torch for all processes that were launched
    free_s: dict[str, float] = field(default_factory=dict)  # when a GPU makes no context any more
    busy: list[Workers] = field(default_factory=list)  # that were asked and have not answered
    pools: list[Sides] = field(default_factory=list)
    said: list[tuple[float, str]] = field(default_factory=list)
    first_steps: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    windows_s: dict[int, float] = field(default_factory=dict)

    def measure(self, *cells: Cell, **changes: Any) -> Observations:
        """Run a campaign over these cells, by default over those of a default run here."""
        planned = {name: changes.pop(name) for name in ("baseline", "comparison") if name in changes}
        collaborators = campaign.Collaborators(
            neighbours=lambda devices: (), meter=Still, sides=lambda *_: Sides(self), prepare=self.prepare
        )
        digits = Prepared(name="digits", folder="", train_samples=1437, test_samples=360)
        run = run_of(
            *(cells or self.cells()),
            config=self.settings(**changes),
            machine=MACHINE.model_copy(update={"cards": self.cards}),
            planned=0,
            clock=lambda: self.now,
            begun_s=0.0,
            datasets=Facts(
                {LENET.dataset: job(Arm("candidate", "ddp", "lenet", "strong", 1)).dataset, "digits": digits}
            ),
            **planned,
        )
        with patch.object(os, "sched_getaffinity", lambda _: set(range(self.cores)), create=True):
            campaign.measure(run, lambda line: self.said.append((self.now, line)), collaborators)
        return run

    def cells(self) -> list[Cell]:
        return [cell(k, trainer, mode) for trainer in TRAINERS for mode in ("strong", "weak") for k in self.world_sizes]

    @property
    def world_sizes(self) -> tuple[int, ...]:
        return tuple(2**power for power in range(self.gpus.bit_length()))

    @property
    def cards(self) -> tuple[Card, ...]:
        return tuple(
            Card(index=index, name="GPU", id=str(index), memory_bytes=self.memory_bytes) for index in range(self.gpus)
        )

    def settings(self, **changes: Any) -> Config:
        names = tuple("cpu" if self.kind == "cpu" else f"cuda:{index}" for index in range(self.gpus))
        devices = Devices(self.kind, names, tuple(range(self.gpus)) if self.kind == "cpu" else ())
        return settings(
            **{
                "devices": devices,
                "world_sizes": self.world_sizes,
                "trainers": TRAINERS,
                "budget_s": 180.0,
                **changes,
            }
        )

    def prepare(self, run: Observations, sides: Sides, arms: Sequence[Arm], say: Callable[[str], None]) -> None:
        """Ask a worker about trainers and datasets, and make the jobs."""
        self.now += self.costs.start_s
        sides.start_s = sides.start_s or self.costs.start_s
        run.versions.setdefault("candidate", VERSIONS)
        for each in arms:
            processes = "per-device" if each.trainer in PER_DEVICE else "one"
            names = run.plan.config.devices.names[: each.world_size]
            backend = "gloo" if each.trainer == PLAIN else run.plan.config.devices.backend(names)
            run.jobs.setdefault(each, replace(job(each), processes=processes, devices=names, backend=backend))
            run.trainers.setdefault((each.side, each.trainer), About(processes=processes, unsynced=True))

    def ended_s(self, session: int) -> float:
        """Return when a session was over, and the run went on or ended."""
        return next((at_s for at_s, line in self.said if line.startswith(f"session {session + 2}: ")), self.now)

    @property
    def plans(self) -> list[Plan]:
        found = [(at_s, PLAN.match(line)) for at_s, line in self.said]
        return [
            Plan(at_s, int(seen[1]), float(seen[2]), 60 * float(seen[3]), 60 * (float(seen[3]) + float(seen[4] or 0.0)))
            for at_s, seen in found
            if seen
        ]


SCENES: dict[str, Callable[[Costs], Machine]] = {
    "A": lambda costs: Machine(1, 16, costs),  # one H100
    "B": lambda costs: Machine(8, 64, costs),  # eight A100 with NVLink
    "C": lambda costs: Machine(2, 8, costs),  # a pod with two GPUs of a host and eight of its cores
}


class Sides:
    """Replaces `suite.base.sides.Sides`, and the one pool of its workers."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.forks, self.start_s = machine, False, 0.0
        self.loading_s = self.next_load_s = 0.0
        self.groups: dict[str, Workers] = {}
        self.launchers, self.pool = SimpleNamespace(loading_s=0.0), self
        self.pools: dict[Side, Sides] = {"candidate": self}
        machine.pools = [self]

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *_: object) -> None: ...

    def add(self, side: Side, base: Base) -> tuple[str, ...]:
        self.pools[side] = self
        return ()

    def launch(self, name: str, size: int) -> Workers:
        self.groups[name] = Workers(self.machine, int(name.partition("-")[0]), size, partial(self.groups.pop, name))
        return self.groups[name]

    def wait_for_templates(self, timeout_s: float = 0.0) -> None: ...

    dismiss = renew = wait_for_templates


class Workers:
    """Replaces `suite.processes.group.Group`: what it is asked takes its time on the machine's clock."""

    def __init__(self, machine: Machine, session: int, size: int, gone: Callable[[], object]) -> None:
        self.machine, self.costs, self.session, self.size, self._gone = machine, machine.costs, session, size, gone
        machine.loaded_s = max(machine.loaded_s, machine.now) + size * self.costs.start_s / 2 / machine.cores
        self.start_timeout_s, self.free_at_s = 0.0, machine.now + self.costs.start_s
        self.jobs: dict[str, Job] = {}
        self.pace = math.exp(machine.rng.gauss(0.0, machine.spread))
        self.had: set[object] = set()  # what is not done for the first time any more
        self.answers: list[dict[str, Any]] = []
        self.failure = ""

    def leave(self) -> None: ...

    def close(self) -> None:
        """End; all of a session's groups end at the same time."""
        self._gone()
        if self.machine.pools and not any(pool.groups for pool in self.machine.pools):
            self.machine.now += self.costs.end_s

    kill = close

    def request(self, kind: type[Value], command: str, timeout_s: float = 0.0, **told: Any) -> list[Value]:
        self.post(command, **told)
        return self.collect(kind, command, timeout_s)

    def post(self, command: str, **told: Any) -> None:
        """Begin with what is asked, beside the groups that were asked before and have not answered."""
        machine, begun_s = self.machine, max(self.free_at_s, self.machine.now)
        machine.busy = [*(other for other in machine.busy if other is not self), self]
        took_s, answer = getattr(self, f"_{command}")(begun_s, **told)
        self.answers = answer if isinstance(answer, list) else [answer] * self.size
        self.free_at_s = begun_s + took_s * max(1.0, sum(other.size for other in machine.busy) / machine.cores)

    def collect(self, kind: type[Value], command: str, timeout_s: float = 0.0) -> list[Value]:
        self.machine.now = max(self.machine.now, self.free_at_s)
        if command == "window":
            self.machine.windows_s[self.session] = self.machine.now
        self.machine.busy.remove(self)
        if self.failure:
            self._gone()
            raise WorkerFailure("group", self.failure)
        return [kind(**answer) for answer in self.answers]

    def _setup(self, begun_s: float, name: str, arm: Job) -> tuple[float, object]:
        machine, first, done_s = self.machine, not self.jobs, begun_s
        self.jobs[name] = arm
        for device in arm.devices if first else ():
            made_s = max(machine.free_s.get(device, 0.0), machine.loaded_s, begun_s) + self.costs.context_s
            machine.free_s[device] = made_s
            done_s = max(done_s, made_s)
        several = first and arm.backend == "nccl" and len(arm.devices) > 1
        return done_s - begun_s + several * self.costs.communicator_s, {"gradient_bytes": 44_000_000}

    def _window(self, begun_s: float, name: str, steps: int, lead_in: int = 0) -> tuple[float, object]:
        """A first step before the clock of a window is read is in no answer."""
        asked = [device for group in self.machine.busy for device in next(iter(group.jobs.values())).devices]
        if max(Counter(asked).values()) * self.machine.step_bytes > self.machine.memory_bytes:
            self.failure = "rank 0: out of memory"
        taken_s, clocked_s = self._steps_s(name, steps, lead_in, self._cold_s(name), self._step_s(name))
        if not lead_in:  # those before a session's warm-up alone have none
            seen = self.machine.first_steps.setdefault(self.session, [])
            seen += [(begun_s, len(self.machine.busy)), (begun_s + taken_s, len(self.machine.busy))]
        reserved = (self.machine.step_bytes,) * (1 if self.size > 1 else len(self.jobs[name].devices))
        clocked_s *= self._noise(name)
        return taken_s, {"duration_ns": round(clocked_s * 1e9), "memory": PeakMemory(reserved_bytes=reserved)}

    def _probe(self, begun_s: float, name: str, steps: int, variant: dict[str, Any]) -> tuple[float, object]:
        lead_in, step_s = variant.pop("lead_in"), self._step_s(name, variant["share"])
        cold_s = self._cold_s(name) + self._first((name, *sorted(variant.items())), self.costs.variant_s)
        taken_s, clocked_s = self._steps_s(name, steps, lead_in, cold_s, step_s)
        idle = self.size - 1 if variant["alone"] else 0
        timed = {"duration_ns": round(clocked_s * 1e9)}
        return taken_s, [timed] * (self.size - idle) + [{"duration_ns": None}] * idle

    def _steps_s(self, name: str, steps: int, lead_in: int, cold_s: float, step_s: float) -> tuple[float, float]:
        """Return what steps take, and what of that the clock of their window shows."""
        own_s = steps * step_s
        return cold_s + lead_in * step_s + own_s + self.costs.window_s, own_s + (0.0 if lead_in else cold_s)

    def _parameters(self, begun_s: float, name: str) -> tuple[float, object]:
        return 0.0, {"not_finite": ""}

    def _connections(self, begun_s: float) -> tuple[float, object]:
        return 0.0, {"transports": ("P2P/CUMEM",)}

    def _close(self, begun_s: float, name: str) -> tuple[float, object]:
        return 0.0, {}

    def _count(self, begun_s: float, name: str, steps: int) -> tuple[float, object]:
        return self.costs.count_s, {"made_with": "torch 2.15.0", "steps": steps, "counts": ()}

    def _train(self, begun_s: float, arm: Job, recipe: TrainingRecipe, epoch: int) -> tuple[float, object]:
        train_s = self.costs.net_s / recipe.epochs
        return train_s, {"accuracy": 0.9, "train_s": train_s, "train_samples": 1437, "test_samples": 360}

    def _noise(self, name: str) -> float:
        trainer, _, mode, world_size = name.partition(":")[2].rsplit(":", 3)
        sd = self.machine.noise.get((trainer, mode, int(world_size)), 0.0)
        return math.exp(self.machine.rng.gauss(0.0, sd)) if sd else 1.0

    def _first(self, what: object, costs_s: float) -> float:
        if what in self.had:
            return 0.0
        self.had.add(what)
        return costs_s

    def _cold_s(self, name: str) -> float:
        libraries_s = self.costs.libraries_s + self.costs.links_s * len(self.jobs[name].devices)
        return self._first("libraries", libraries_s) + self._first(name, self.costs.shapes_s)

    def _step_s(self, name: str, share: int = 1) -> float:
        on_each = self.jobs[name].global_batch / len(self.jobs[name].devices) / share
        return self.pace * self.costs.step_s * (0.1 + 0.9 * on_each / LENET.batch)
