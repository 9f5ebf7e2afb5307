"""How fast the machine exchanges: all_reduce over message sizes, world sizes and algorithms (controller's side).

A world size has workers of its own, which nothing else was timed in: a process for each device for the backend's own
all_reduce, and one process for those of `reference.all_reduce`. Every sum is checked before it is timed. The windows of
all algorithms and sizes are interleaved, in an order that is drawn, and each round holds one of each: what the machine
does meanwhile meets all of them alike.

An algorithm that fails is recorded with its reason and the others go on, with fresh workers where it took them along.
Loads no torch; the worker's side is `suite.rank.collectives`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from suite.communication import alpha_beta
from suite.plan.collectives import IN_PROCESS, SIZES_BYTES, CollectiveCell
from suite.processes.failure import WorkerFailure
from suite.processes.group import START_TIMEOUT_S, Group
from suite.processes.pool import Pool
from suite.records.record import CollectivePoint, CollectiveRecord, Record, interval
from suite.room.devices import Devices
from suite.run import blocks
from suite.run.session import PATIENCE, Say

WINDOW_S = 0.008  # long against the tens of microseconds by which ranks leave a barrier one after the other
MAX_CALLS = 1000
MEASURE_S = 4.5  # of a world size; as much again is what starting its processes takes
COST_S = 2 * MEASURE_S
BLOCKS = (3, 5)  # two rounds each: fewer than six give the middle of the rounds no useful interval
CHECK_TIMEOUT_S = 60.0
TIMEOUT_S = 20.0


def find(record: Record, sweep: CollectiveCell) -> CollectiveRecord:
    """What a run found for a sweep.

    Raises:
        LookupError: the run was cut short before it.
    """
    for found in record.collectives:
        if (found.algorithm, found.world_size) == (sweep.algorithm, sweep.world_size):
            return found
    raise LookupError(f"{sweep.id}: the run was cut short before it was measured; run it again")


def measure(
    pool: Pool,
    wanted: Sequence[CollectiveCell],
    devices: Devices,
    say: Say,
    *,
    gradient_bytes: Iterable[int] = (),
    seed: int = 0,
) -> tuple[CollectiveRecord, ...]:
    """Measure these sweeps and no others.

    Args:
        pool: where workers come from.
        wanted: in any order.
        devices: of the run; a world size takes the first of them.
        say: is told what is going on.
        gradient_bytes: message sizes that the run's models exchange, swept as well.
        seed: draws the order of windows.

    Returns:
        One record a sweep, in the order of `wanted`.
    """
    sizes = sorted({*SIZES_BYTES, *(size - size % 4 for size in gradient_bytes if size >= 4)})
    rng = random.Random(seed)
    found: dict[CollectiveCell, CollectiveRecord] = {}
    for world_size in sorted({sweep.world_size for sweep in wanted}):
        of_this = [sweep for sweep in wanted if sweep.world_size == world_size]
        with _Workers(pool, devices, world_size) as workers:
            world = _World(workers, of_this, sizes, rng, say)
            world.measure()
            workers.dismiss()
        found |= {sweep: world.record(sweep) for sweep in of_this}
    return tuple(found[sweep] for sweep in wanted)


class _World:
    """The sweeps of one world size."""

    def __init__(
        self, workers: _Workers, wanted: Sequence[CollectiveCell], sizes: Sequence[int], rng: random.Random, say: Say
    ) -> None:
        self._workers, self._wanted, self._sizes = workers, wanted, sizes
        self._rng, self._say = rng, say
        self._errors: dict[CollectiveCell, str] = {}
        self._call_s: dict[tuple[CollectiveCell, int], float] = {}
        self._samples_s: dict[tuple[CollectiveCell, int], list[float]] = {}

    def measure(self) -> None:
        """Check every sum, see how long a call takes, then time block after block."""
        for sweep in self._wanted:
            try:
                self._workers.start(sweep)
            except WorkerFailure as failure:
                self._errors[sweep] = failure.cause
        name = f"all_reduce on {self._workers.world_size} devices"
        self._say(f"{name}: checking sums")
        points = [(sweep, size) for sweep in self._wanted for size in self._sizes]
        for sweep, size in points:
            call_s = self._window(sweep, size, 1, CHECK_TIMEOUT_S, check=True)
            if call_s is not None and call_s < WINDOW_S / 4:  # a single call is mostly the barrier
                call_s = self._window(sweep, size, 16)
            if call_s is not None:
                self._call_s[sweep, size] = call_s
        planned = self._blocks()
        for number in range(planned):
            self._say(f"{name}: block {number + 1} of {planned}")
            for sweep, size in blocks.block([[point] for point in points], self._rng):
                self._time(sweep, size)

    def record(self, sweep: CollectiveCell) -> CollectiveRecord:
        """What became of a sweep."""
        found: dict[str, Any] = {"error": self._errors.get(sweep, ""), "points": ()}
        if sweep not in self._errors:
            samples_s = [self._samples_s[sweep, size] for size in self._sizes]
            line = alpha_beta.fit(self._sizes, samples_s)
            found["alpha_s"], found["beta_s_per_byte"] = interval(line.alpha_s), interval(line.beta_s_per_byte)
            found["points"] = tuple(map(partial(_point, sweep), self._sizes, samples_s))
        return CollectiveRecord(
            collective="all_reduce",
            algorithm=sweep.algorithm,
            world_size=sweep.world_size,
            devices=self._workers.names,
            **found,
        )

    def _time(self, sweep: CollectiveCell, size: int) -> None:
        if sweep in self._errors:
            return
        call_s = self._call_s[sweep, size]
        calls = min(MAX_CALLS, math.ceil(WINDOW_S / call_s))
        taken_s = self._window(sweep, size, calls, max(TIMEOUT_S, PATIENCE * calls * call_s))
        if taken_s is not None:
            self._samples_s.setdefault((sweep, size), []).append(taken_s)

    def _window(
        self, sweep: CollectiveCell, size: int, calls: int, timeout_s: float = TIMEOUT_S, *, check: bool = False
    ) -> float | None:
        """Seconds a call; None where the sweep is lost, or is lost over it."""
        if sweep in self._errors:
            return None
        try:
            return self._workers.call_s(sweep, size, calls, timeout_s, check=check)
        except WorkerFailure as failure:
            self._errors[sweep] = failure.cause
            return None

    def _blocks(self) -> int:
        """So many fit into the time meant for it, as the first calls of what is still there tell."""
        alive = [call_s for (sweep, _), call_s in self._call_s.items() if sweep not in self._errors]
        block_s = 2 * sum(max(WINDOW_S, call_s) + call_s for call_s in alive)
        if not block_s:
            return 0
        fewest, most = BLOCKS
        return min(most, max(fewest, round(MEASURE_S / block_s)))


class _Workers:
    """The processes of one world size; those that a command ended are replaced when they are needed again."""

    def __init__(self, pool: Pool, devices: Devices, world_size: int) -> None:
        self.world_size = world_size
        self.names = devices.names[:world_size]
        self._pool, self._devices = pool, devices
        self._groups: dict[str, Group] = {}
        self._answered: set[Group] = set()
        self._launched = 0

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups.values():
            if group.alive:
                group.kill()

    def start(self, sweep: CollectiveCell) -> None:
        """Launch what a sweep needs, without waiting: all of them load torch at the same time.

        Raises:
            WorkerFailure: nothing can be launched any more.
        """
        processes = _processes(sweep)
        if processes in self._groups and self._groups[processes].alive:
            return
        self._launched += 1
        name = f"all_reduce-{self.world_size}-{processes}-{self._launched}"
        size = 1 if processes == "one" else self.world_size
        self._groups[processes] = self._pool.launch(name, size)

    def call_s(self, sweep: CollectiveCell, size_bytes: int, calls: int, timeout_s: float, *, check: bool) -> float:
        """Seconds a call, of the slowest process.

        Raises:
            WorkerFailure: a process died, raised or was silent; the others of its group are gone with it.
        """
        self.start(sweep)
        group = self._groups[_processes(sweep)]
        if group not in self._answered:
            group.wait_connected()
            timeout_s = max(timeout_s, START_TIMEOUT_S)  # it has yet to load torch
        order = {
            "algorithm": sweep.algorithm,
            "processes": _processes(sweep),
            "devices": list(self.names),
            "backend": self._devices.backend(self.names),
            "pinned": list(self._devices.cores[: self.world_size]),
        }
        answers = group.request("all_reduce", timeout_s, order=order, size_bytes=size_bytes, calls=calls, check=check)
        self._answered.add(group)
        return max(int(answer["duration_ns"]) for answer in answers) / calls / 1e9

    def dismiss(self) -> None:
        """Let all of them go, at the same time."""
        alive = [group for group in self._groups.values() if group.alive]
        for group in alive:
            group.post("exit")
        for group in alive:
            group.close()


def _processes(sweep: CollectiveCell) -> str:
    return "one" if sweep.algorithm in IN_PROCESS else "per-device"


def _point(sweep: CollectiveCell, size: int, samples_s: Sequence[float]) -> CollectivePoint:
    time_s = alpha_beta.time_over_rounds(samples_s)
    return CollectivePoint(
        size_bytes=size,
        samples_s=tuple(samples_s),
        time_s=interval(time_s),
        algbw_gb_per_s=alpha_beta.algbw_gb_per_s(size, time_s.estimate),
        busbw_gb_per_s=alpha_beta.busbw_gb_per_s(size, time_s.estimate, sweep.world_size),
    )
