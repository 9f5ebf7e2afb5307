"""How fast the machine exchanges: collectives over message sizes, world sizes and algorithms (controller's side).

Each world size has workers of its own, in which nothing else is timed: a process for each device for the backend's own
collectives, and one process for `reference.all_reduce`. Every result is checked before it is timed. The windows of
all algorithms and sizes take turns in an order that is drawn. An algorithm that fails keeps its reason and the others
go on, with fresh workers where it ended theirs. Loads no torch; the worker's side is `suite.rank.collectives`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any

from suite.base.sides import SidePool
from suite.plan.cells import IN_PROCESS, LARGE_BYTES, SIZES_BYTES, CollectiveCell
from suite.processes.failure import WorkerFailure, repeated
from suite.processes.group import START_TIMEOUT_S, Group, dismiss
from suite.processes.jobs import Exchange, Timed
from suite.records.record import CollectivePoint, CollectiveRecord, Timing
from suite.run import blocks
from suite.run.plan import Plan
from suite.run.session import Say
from suite.run.timer import LEAD_IN_S, Subject, Timer, lead_in, timing
from suite.verdict import alpha_beta

WINDOW_S = 0.008  # long against the tens of microseconds by which ranks leave a barrier one after the other
MAX_CALLS = 1000
MEASURE_S = 4.5  # of a world size; as much again is what starting its processes takes
LEAD_INS = 6 * 3 * 11  # of a world size on GPUs: before the fewest windows of three collectives with eleven sizes
BLOCKS = (3, 5)  # two rounds each: fewer than six give the middle of the rounds no useful interval
CHECK_TIMEOUT_S = 60.0


def cost_s(plan: Plan) -> float:
    """Return about how many seconds the sweeps of a run take, with the start of their processes."""
    each_s = 2 * MEASURE_S + (0.0 if plan.config.devices.kind == "cpu" else LEAD_INS * LEAD_IN_S)
    return len({sweep.world_size for sweep in plan.sweeps}) * each_s


def measure(pool: SidePool, plan: Plan, gradient_bytes: Iterable[int], say: Say) -> tuple[CollectiveRecord, ...]:
    """Measure the sweeps of a plan.

    Args:
        pool: where workers come from.
        plan: has the sweeps; a world size uses the first of its devices.
        gradient_bytes: message sizes that the run's models exchange, swept as well.
        say: is told what is going on.

    Returns:
        One record a sweep, in the plan's order.
    """
    sizes = {*SIZES_BYTES, *(size - size % 4 for size in gradient_bytes if size >= 4)}
    rng = random.Random(plan.seed)
    records: dict[CollectiveCell, CollectiveRecord] = {}
    for world_size in sorted({sweep.world_size for sweep in plan.sweeps}):
        of_this = [sweep for sweep in plan.sweeps if sweep.world_size == world_size]
        world = _WorldSize(pool, plan, of_this, sizes)
        repeated(partial(world.measure, rng, say))
        records |= {sweep: world.record(sweep) for sweep in of_this}
    return tuple(records[sweep] for sweep in plan.sweeps)


class _WorldSize:
    """The sweeps of one world size."""

    def __init__(self, pool: SidePool, plan: Plan, wanted: Sequence[CollectiveCell], sizes_bytes: Set[int]) -> None:
        self._pool, self._plan, self._devices, self._wanted = pool, plan, plan.config.devices, wanted
        self._sizes = {
            sweep: sorted(sizes_bytes | set(LARGE_BYTES if sweep.algorithm == "nccl" else ())) for sweep in wanted
        }
        self._world_size = wanted[0].world_size
        self._names = self._devices.names[: self._world_size]
        self._errors: dict[CollectiveCell, str] = {}
        self._samples_s: dict[tuple[CollectiveCell, int], list[float]] = {}
        self._checked = set[tuple[CollectiveCell, int]]()

    def measure(self, rng: random.Random, say: Say) -> None:
        """Check every sum, see how long a call takes, time block after block, and let the processes go.

        What an earlier call has measured is dropped.
        """
        self._errors, self._samples_s = {}, {}
        self._checked.clear()
        for sweep in self._wanted:  # all of them load torch at the same time
            try:
                self._group(sweep)
            except WorkerFailure as failure:
                self._errors[sweep] = failure.cause
        name = f"collectives on {self._world_size} devices"
        say(f"{name}: checking results")
        points = [(sweep, size) for sweep in self._wanted for size in self._sizes[sweep]]
        subjects = {point: Subject(partial(self._window, *point), CHECK_TIMEOUT_S) for point in points}
        calls_s: dict[tuple[CollectiveCell, int], float] = {}
        timer = Timer(self._devices.kind)
        for point in points:
            if (warm := timer.warm(subjects[point], window_s=WINDOW_S)) is not None:
                calls_s[point] = warm.step_s
        planned = self._blocks(calls_s)
        for number in range(planned):
            say(f"{name}: block {number + 1} of {planned}")
            for sweep, size in blocks.block([[point] for point in points], rng):
                if sweep in self._errors:
                    continue
                call_s = calls_s[sweep, size]
                calls = min(MAX_CALLS, math.ceil(WINDOW_S / call_s))
                if tries := timer.windows(subjects[sweep, size], calls, call_s):
                    taken_s = max(tries[-1].duration_ns) / calls / 1e9
                    self._samples_s.setdefault((sweep, size), []).append(taken_s)
        dismiss([self._pool.pool])

    def record(self, sweep: CollectiveCell) -> CollectiveRecord:
        """Return the result of a sweep."""
        result: dict[str, Any] = {"error": self._errors.get(sweep, ""), "points": ()}
        if sweep not in self._errors:
            samples_s = [self._samples_s[sweep, size] for size in self._sizes[sweep]]
            line = alpha_beta.fit(self._sizes[sweep], samples_s)
            result["alpha_s"], result["beta_s_per_byte"] = line.alpha_s, line.beta_s_per_byte
            result["points"] = tuple(map(partial(_point, sweep), self._sizes[sweep], samples_s))
        about = {"collective": sweep.collective, "algorithm": sweep.algorithm, "world_size": sweep.world_size}
        where = {"devices": self._names, "oversubscribed": self._devices.oversubscribed(sweep.world_size)}
        return CollectiveRecord.model_validate({**about, **where, **result})

    def _blocks(self, calls_s: Mapping[tuple[CollectiveCell, int], float]) -> int:
        """Return how many blocks fit into the time meant for them, going by the first calls of what has not failed."""
        alive = [call_s for (sweep, _), call_s in calls_s.items() if sweep not in self._errors]
        block_s = 2 * sum(
            max(WINDOW_S, call_s) + (1 + lead_in(self._devices.kind, call_s)) * call_s for call_s in alive
        )
        fewest, most = BLOCKS
        return min(most, max(fewest, round(MEASURE_S / block_s))) if block_s else 0

    def _window(
        self, sweep: CollectiveCell, size_bytes: int, calls: int, before: int, timeout_s: float
    ) -> Timing | None:
        """Return what the processes tell; None where the sweep has failed, now or before. The first call is checked."""
        if sweep in self._errors:
            return None
        try:
            group = self._group(sweep)
            exchange = Exchange(
                algorithm=sweep.algorithm,
                collective=sweep.collective,
                processes="one" if sweep.algorithm in IN_PROCESS else "per-device",
                devices=self._names,
                backend=self._devices.backend(self._devices.here(self._world_size)),
                pinned=self._devices.pinned(self._world_size),
            )
            told = {"exchange": exchange, "size_bytes": size_bytes, "calls": calls, "lead_in": before}
            first = (sweep, size_bytes) not in self._checked
            answers = group.request(Timed, "collective", timeout_s, check=first, **told)
            self._checked.add((sweep, size_bytes))
        except WorkerFailure as failure:  # the others of its group are gone with it
            self._errors[sweep] = failure.cause
            if failure.timed_out:  # each of the others would take as long to show the same
                others = f"not measured after {sweep.id}: {failure.cause}"
                self._errors = dict.fromkeys(self._wanted, others) | self._errors
            return None
        return timing(answers)

    def _group(self, sweep: CollectiveCell) -> Group:
        size = 1 if sweep.algorithm in IN_PROCESS else self._world_size
        group = self._pool.group(f"collectives-{self._world_size}-{size}", size)
        group.start_timeout_s = self._plan.deadline_s(START_TIMEOUT_S)
        return group


def _point(sweep: CollectiveCell, size: int, samples_s: Sequence[float]) -> CollectivePoint:
    time_s = alpha_beta.time_over_rounds(samples_s)
    return CollectivePoint(
        size_bytes=size,
        samples_s=tuple(samples_s),
        time_s=time_s,
        algbw_gb_per_s=alpha_beta.algbw_gb_per_s(size, time_s.estimate),
        busbw_gb_per_s=alpha_beta.busbw_gb_per_s(size, time_s.estimate, sweep.world_size, sweep.collective),
    )
