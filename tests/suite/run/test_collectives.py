"""The sweep of all_reduce: what workers are asked and in which order, what failures cost, and two real ranks."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from reference.all_reduce import ALL_REDUCE
from suite.base.sides import SidePool
from suite.benchmarks.test_all_reduce import properties
from suite.checks.bench import Bench
from suite.plan.cells import IN_PROCESS, SIZES_BYTES, CollectiveCell, names_collectives, sweeps
from suite.plan.config import Config
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Exchange, Timed
from suite.rank import collectives
from suite.room import devices
from suite.room.quiet import available_cores
from suite.run import collectives as all_reduce
from suite.run.collectives import CHECK_TIMEOUT_S, WINDOW_S, measure
from suite.run.execute import RunResult
from suite.run.plan import Plan
from suite.verdict.alpha_beta import Line
from tests.support import records
from tests.support.measurements import run_of, settings

TWO = devices.Devices("cpu", ("cpu", "cpu"), (0, 1))
FOUR = devices.Devices("cpu", ("cpu",) * 4, (0, 1, 2, 3))
GLOO, RING, TREE = CollectiveCell("gloo", 2), CollectiveCell("ring", 2), CollectiveCell("tree", 2)
LINE = Line(1e-4, 1e-9)


class StubGroup:
    """Workers whose clock shows what the stub's line says; the last rank is the slowest."""

    def __init__(self, pool: StubPool, name: str, size: int) -> None:
        self.pool, self.name, self.size, self.alive = pool, name, size, True
        self.start_timeout_s = 0.0

    def request(self, kind: type[Timed], command: str, timeout_s: float, **arguments: Any) -> list[Timed]:
        asked = {"group": self.name, "command": command, "timeout_s": timeout_s, **arguments}
        self.pool.asked.append(asked)
        if self.pool.fails(asked):
            self.alive = False
            raise WorkerFailure(self.name, "rank 0: it was planted", timed_out=self.pool.hangs)
        seconds = self.pool.line.time_s(arguments["size_bytes"]) * arguments["calls"]
        return [kind(duration_ns=round(seconds * 1e9 * (1 + rank) / self.size)) for rank in range(self.size)]

    def leave(self) -> None: ...

    def close(self) -> None:
        self.alive = False


class StubPool:
    """Hands out stub groups, and keeps what they were asked."""

    def __init__(
        self, line: Line = LINE, fails: Callable[[dict[str, Any]], bool] = lambda asked: False, *, hangs: bool = False
    ) -> None:
        self.line, self.fails, self.hangs = line, fails, hangs
        self.asked: list[dict[str, Any]] = []
        self.groups: dict[str, StubGroup] = {}  # the last one of each name
        self.started: list[int] = []  # sizes, in order
        self.pool = self  # of the side that it is, too

    def group(self, name: str, size: int) -> StubGroup:
        if name not in self.groups or not self.groups[name].alive:
            self.started.append(size)
            self.groups[name] = StubGroup(self, name, size)
        return self.groups[name]

    def timed(self) -> list[tuple[str, int]]:
        """Algorithm and size of every window of the blocks, in their order."""
        timed = [asked for asked in self.asked if asked["timeout_s"] != CHECK_TIMEOUT_S]
        return [(asked["exchange"].algorithm, asked["size_bytes"]) for asked in timed]


def planned(wanted: Sequence[CollectiveCell], config: Config, seed: int = 0) -> Plan:
    return run_of(config=config, sweeps=tuple(wanted), seed=seed, clock=lambda: 0.0, begun_s=0.0).plan


def swept(pool: StubPool, *wanted: CollectiveCell, seed: int = 0, **options: Any) -> tuple[Any, ...]:
    sizes, config = options.pop("gradient_bytes", ()), settings(devices=options.pop("on", TWO), **options)
    return measure(pool, planned(wanted, config, seed=seed), sizes, lambda line: None)  # type: ignore[arg-type]


def test_a_record_holds_every_size_with_both_bandwidths_and_the_line() -> None:
    [found] = swept(StubPool(), GLOO, gradient_bytes=[records.GRADIENT_BYTES])
    assert (found.algorithm, found.world_size, found.devices) == ("gloo", 2, ("cpu", "cpu"))
    assert [point.size_bytes for point in found.points] == sorted([*SIZES_BYTES, records.GRADIENT_BYTES])
    assert found.alpha_s.estimate == pytest.approx(1e-4, rel=1e-4)
    assert found.beta_s_per_byte.estimate == pytest.approx(1e-9, rel=1e-4)
    assert found.alpha_s.low is not None
    largest = found.points[-1]
    assert largest.time_s.estimate == pytest.approx(LINE.time_s(largest.size_bytes), rel=1e-6), "the slowest rank's"
    assert largest.algbw_gb_per_s == pytest.approx(largest.size_bytes / largest.time_s.estimate / 1e9)
    assert largest.busbw_gb_per_s == pytest.approx(largest.algbw_gb_per_s)
    assert not found.error


def test_a_record_says_whether_ranks_shared_a_device() -> None:
    shared = devices.Devices("cpu", ("cpu",) * 4, (0, 1, 0, 1))
    found = swept(StubPool(), GLOO, CollectiveCell("gloo", 4), on=shared)
    assert [each.oversubscribed for each in found] == [False, True]


def test_only_the_wanted_sweeps_are_measured_and_returned_in_their_order() -> None:
    pool = StubPool()
    found = swept(pool, CollectiveCell("gloo", 4), RING, GLOO, on=FOUR)
    assert [(each.algorithm, each.world_size) for each in found] == [("gloo", 4), ("ring", 2), ("gloo", 2)]
    assert pool.started == [1, 2, 4], "one process for ring, and as many as devices for gloo"
    assert not any(group.alive for group in pool.groups.values())
    assert found[0].points[0].busbw_gb_per_s == pytest.approx(1.5 * found[0].points[0].algbw_gb_per_s)
    assert swept(StubPool()) == ()


def test_every_sum_is_checked_once_and_before_anything_is_timed() -> None:
    pool = StubPool()
    swept(pool, GLOO, RING, on=FOUR)
    checked = [(asked["exchange"].algorithm, asked["size_bytes"]) for asked in pool.asked if asked["check"]]
    assert sorted(checked) == sorted((name, size) for name in ("gloo", "ring") for size in SIZES_BYTES)
    assert set(pool.timed()) == set(checked)
    told = Exchange(
        algorithm="gloo", processes="per-device", devices=("cpu", "cpu"), backend="gloo", pinned=((0,), (1,))
    )
    assert pool.asked[0]["exchange"] == told


def test_algorithms_and_sizes_take_turns_in_an_order_that_is_drawn() -> None:
    """Every block visits all of them forwards and backwards; another seed, another order."""
    pools = [StubPool() for _ in range(3)]
    for pool, seed in zip(pools, (1, 1, 2), strict=True):
        swept(pool, GLOO, RING, seed=seed)
    a, same, other = (pool.timed() for pool in pools)
    assert a == same != other
    each = 2 * len(SIZES_BYTES)
    blocks = [a[start : start + 2 * each] for start in range(0, len(a), 2 * each)]
    assert len(blocks) >= 3
    assert all(block == block[::-1] and len(set(block[:each])) == each for block in blocks)
    assert blocks[0] != blocks[1]
    neighbours = {(block[place][0], block[place + 1][0]) for block in blocks for place in range(each - 1)}
    assert ("gloo", "ring") in neighbours, "not one algorithm after the other"


def test_windows_are_long_against_the_clock_and_have_time_to_end() -> None:
    pool = StubPool()
    [quick] = swept(pool, GLOO)
    for asked in pool.asked[-len(SIZES_BYTES) :]:
        expected_s = asked["calls"] * LINE.time_s(asked["size_bytes"])
        assert expected_s >= 0.99 * WINDOW_S
        assert asked["calls"] == 1 or expected_s < 2 * WINDOW_S
        assert asked["timeout_s"] >= max(20, 19 * expected_s)
    [slow] = swept(StubPool(Line(1e-3, 1e-7)), GLOO)
    rounds = [len(found.points[0].samples_s) for found in (quick, slow)]
    assert rounds == [10, 6], "fewer rounds, but never too few for an interval"


@pytest.mark.parametrize(
    ("backend", "on"), [("gloo", TWO), ("nccl", devices.Devices("cuda", ("cuda:0", "cuda:1"), ()))]
)
def test_windows_on_gpus_follow_untimed_calls(backend: str, on: devices.Devices) -> None:
    """50 ms of them, as before steps; none on CPU workers."""
    pool = StubPool()
    [found] = swept(pool, CollectiveCell(backend, 2), on=on)
    for asked in pool.asked[-len(found.points) :]:
        calls = math.ceil(0.05 / LINE.time_s(asked["size_bytes"]))
        assert asked["lead_in"] == (calls if on.kind == "cuda" else 0)


def test_a_failure_keeps_its_reason_and_the_others_go_on_with_fresh_workers() -> None:
    """One algorithm ends the process of all in-process ones; another fails in the middle of the blocks."""
    seen = Counter[str]()

    def fails(asked: dict[str, Any]) -> bool:
        algorithm = asked["exchange"].algorithm
        seen[algorithm] += 1
        return algorithm == "naive" or (algorithm == "tree" and seen[algorithm] == 30)

    pool = StubPool(fails=fails)
    naive, ring, tree, gloo = swept(pool, CollectiveCell("naive", 2), RING, TREE, GLOO)
    assert naive.error == tree.error == "rank 0: it was planted"
    assert (naive.points, naive.alpha_s) == ((), None)
    assert not ring.error
    assert not gloo.error
    assert len({len(point.samples_s) for point in ring.points}) == 1
    assert pool.started == [1, 2, 1, 1], "gloo kept its own"
    assert not any(group.alive for group in pool.groups.values())


def test_a_sweep_that_hangs_costs_the_others_of_its_world_size_no_more_deadlines() -> None:
    def fails(asked: dict[str, Any]) -> bool:
        return asked["exchange"].processes == "per-device" and len(asked["exchange"].devices) == 2

    pool, half = StubPool(fails=fails, hangs=True), CollectiveCell("gloo", 2, "all_gather")
    gloo, gathered, ring, four = swept(pool, GLOO, half, RING, CollectiveCell("gloo", 4), on=FOUR)
    assert gloo.error == "rank 0: it was planted"
    assert gathered.error == ring.error == "not measured after all_reduce-gloo-2: rank 0: it was planted"
    assert (ring.points, four.error) == ((), "")
    assert sum(fails(asked) for asked in pool.asked) == 1


def test_processes_get_what_is_left_of_the_budget_to_start() -> None:
    pool = StubPool()
    swept(pool, GLOO, RING, budget_s=60.0)
    assert [group.start_timeout_s for group in pool.groups.values()] == [60.0, 60.0]


def test_a_world_size_that_cannot_start_does_not_cost_another() -> None:
    class Short(StubPool):
        def group(self, name: str, size: int) -> StubGroup:
            if size == 4:
                raise WorkerFailure(name, "the launcher has ended")
            return super().group(name, size)

    two, four = swept(Short(), GLOO, CollectiveCell("gloo", 4), on=FOUR)
    assert (two.error, four.error) == ("", "the launcher has ended")


@pytest.mark.parametrize(
    ("on", "backend"),
    [
        (TWO, "gloo"),
        (devices.Devices("cuda", ("cuda:0", "cuda:1"), ()), "nccl"),
        (devices.Devices("cuda", ("cuda:0", "cuda:0"), ()), "gloo"),
    ],
    ids=["CPUs", "GPUs", "one GPU twice"],
)
def test_there_is_one_item_for_each_algorithm_and_several_devices(on: devices.Devices, backend: str) -> None:
    ids = [f"all_reduce-{name}-2" for name in (backend, *IN_PROCESS)]
    halves = [f"{name}-{backend}-2" for name in ("reduce_scatter", "all_gather")]
    assert [sweep.id for sweep in sweeps(on, (1, 2))] == ids + halves * (len(set(on.names)) == 2 or on is TWO)
    assert [sweep.id for sweep in sweeps(on, (1, 2), every=False)] == ids[:1] + halves * (backend == "nccl")


def test_on_gpus_the_backends_messages_are_as_large_as_fill_a_link() -> None:
    gpus = devices.Devices("cuda", ("cuda:0", "cuda:1"), ())
    nccl, ring = swept(StubPool(), CollectiveCell("nccl", 2), RING, on=gpus)
    assert [found.points[-1].size_bytes for found in (nccl, ring)] == [1 << 30, SIZES_BYTES[-1]]


@pytest.mark.parametrize(
    ("collective", "factor"), [("reduce_scatter", 0.75), ("all_gather", 0.75), ("all_reduce", 1.5)]
)
def test_the_bus_bandwidth_of_a_half_is_half_of_an_all_reduces(collective: str, factor: float) -> None:
    [found] = swept(StubPool(), CollectiveCell("gloo", 4, collective), on=FOUR)
    assert found.collective == collective
    assert found.points[0].busbw_gb_per_s == pytest.approx(factor * found.points[0].algbw_gb_per_s)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-m", "scaling"], False),
        (["-m", "scaling", "--pyargs", "suite.benchmarks", "--scaling-trainer=string.py:Ring"], False),
        (["-m", "scaling", "--config-file=engineering/tree.ini", "--override-ini=testpaths=all_reduce"], False),
        (["-m", "scaling", "-k", "all_reduce"], True),
        (["-m", "scaling", "-k", "ring or tree"], True),
        (["-m", "scaling", "suite/benchmarks/test_all_reduce.py"], True),
        (["-m", "gpu", "suite/benchmarks/test_all_reduce.py::test_all_reduce[all_reduce-ring-2]"], True),
    ],
)
def test_the_references_algorithms_are_timed_where_they_are_named(arguments: list[str], named: bool) -> None:
    assert names_collectives(arguments) == named


def test_the_controller_knows_the_references_algorithms_without_loading_torch() -> None:
    assert tuple(ALL_REDUCE) == IN_PROCESS


def test_a_sweep_is_found_in_the_record_or_said_to_be_missing() -> None:
    record = records.make(collectives=[records.collective(), records.collective("ring")])
    result = RunResult(record, Path(), run_of())
    assert result.collective(RING).algorithm == "ring"
    with pytest.raises(LookupError, match="all_reduce-tree-2: the run was cut short before it was measured; run it"):
        result.collective(TREE)


@pytest.mark.parametrize("all_reduce_", ALL_REDUCE.values(), ids=ALL_REDUCE.keys())
def test_right_sums_are_not_refused(all_reduce_: Any) -> None:
    """Whatever of the size is left over, and in the shape in which workers call it."""
    for count in (1, 1024, 1025, 10_000):
        collectives.require_sums(all_reduce_, "it", [torch.device("cpu")] * 3, range(3), 3, 4 * count)


WRONG = ("accumulates_in_bfloat16", "average_instead_of_sum", "book_all_reduce", "first_counted_twice")
WRONG += ("recursive_doubling_power_of_two", "reduce_instead_of_all_reduce", "ring_drops_the_tail")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_sums_are_not_timed(name: str) -> None:
    mutant = importlib.import_module(f"tests.mutants.{name}").mutant
    message = r"it, 4096 bytes on 3 devices: rank \d has [\d.]+ at place \d+ and should have [\d.]+: wrong result"
    with pytest.raises(collectives.WrongSum, match=message):
        collectives.require_sums(mutant, "it", [torch.device("cpu")] * 3, range(3), 3, 4096)


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
def test_wrong_pieces_are_not_timed(collective: str) -> None:
    """A rank that keeps its own piece, as if the others had nothing to do with it."""

    def alone(whole: torch.Tensor, piece: torch.Tensor) -> None:
        whole[4:8] = piece
        piece.copy_(whole[4:8])

    message = rf"{collective}, 48 bytes on 3 devices: rank 1 has [\d.]+ at place 0 and should have [\d.]+: wrong result"
    with pytest.raises(collectives.WrongSum, match=message):
        collectives.require_pieces(alone, collective, 1, 3, torch.zeros(12), torch.zeros(4))


def test_an_item_tells_junit_its_line_and_its_best_bandwidth() -> None:
    found = records.make(collectives=[records.collective()]).collectives[0]
    assert dict(properties(found)) == {
        "alpha_s": "0.0001",
        "beta_s_per_byte": "1e-09",
        "best_busbw_gb_per_s": f"{found.points[-1].busbw_gb_per_s:.6g}",
    }


@pytest.mark.usefixtures("one_intra_op_thread")
def test_one_process_times_its_devices_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the worker does it, sums checked first."""
    made, ring = list[int](), ALL_REDUCE["ring"]

    def noted(tensors: list[torch.Tensor]) -> None:
        made.append(tensors[0].nbytes)
        ring(tensors)

    monkeypatch.setitem(ALL_REDUCE, "ring", noted)
    exchange = Exchange(algorithm="ring", processes="one", devices=("cpu", "cpu"), backend="gloo")
    assert collectives.time_calls(0, exchange, 1 << 16, 3, check=True, lead_in=2) > 0
    assert len(made) == 1 + 1 + 2 + 3, "the check, a first call, the lead-in, the window"


@pytest.mark.skipif(len(available_cores()) < 2, reason="two CPU workers need two cores")
def test_two_real_ranks_are_swept_and_what_a_worker_refuses_costs_them_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_reduce, "SIZES_BYTES", (4096, 1 << 20))
    monkeypatch.setattr(all_reduce, "IN_PROCESS", ("magic",))
    monkeypatch.setattr(all_reduce, "BLOCKS", (1, 1))
    said: list[str] = []
    two = devices.parse("cpu:2")
    halves = [CollectiveCell("gloo", 2, collective) for collective in ("reduce_scatter", "all_gather")]
    wanted = [GLOO, CollectiveCell("magic", 2), *halves]
    plan = planned(wanted, settings(devices=two))
    gloo, magic, *found = measure(SidePool(bench.pool), plan, [516272], said.append)
    assert [(each.collective, each.error, len(each.points)) for each in found] == [
        (half.collective, "", 3) for half in halves
    ]
    assert "rank 0: ValueError: unknown algorithm 'magic'" in magic.error
    assert not gloo.error
    assert [point.size_bytes for point in gloo.points] == [4096, 516272, 1 << 20]
    assert all(len(point.samples_s) == 2 and min(point.samples_s) > 0 for point in gloo.points)
    assert gloo.alpha_s is not None
    assert said == ["collectives on 2 devices: checking results", "collectives on 2 devices: block 1 of 1"]
