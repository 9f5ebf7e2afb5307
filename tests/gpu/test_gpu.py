"""On real GPUs (`pytest -m gpu`, with the correctness checks): our scatter and wrapper against torch's, and failures.

One GPU is used as several devices, as with `--scaling-devices cuda:0,cuda:0`: both ranks that fail are then on it,
exchange with gloo, and what they print says so. `pytest -m "" -k failure --scaling-devices cpu:2` causes the same on
CPU ranks, and before it `taskset -c 0` on ranks that share a core.
"""

from __future__ import annotations

import copy
import os
import re
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reference.cpu_data_parallel import CPUDataParallel
from reference.scatter import chunk_sizes, scatter
from reference.trainers.weighted import Weighted
from suite.plugin import CONFIG
from suite.properties import nets
from suite.properties.case import Case, Net
from suite.properties.observe import observe
from suite.properties.seen import Seen
from suite.properties.trainer import judge
from suite.rank import counting
from suite.room.devices import parse
from suite.room.gpus import Gpus
from tests.support import failing_on_gpus
from tests.support.project import Project

pytestmark = pytest.mark.gpu


Choose = Callable[[int], list[torch.device]]


@pytest.fixture(scope="module")
def gpus(pytestconfig: pytest.Config) -> Choose:
    """Return a function for this many devices: those of `--scaling-devices`, used in turn."""
    names = pytestconfig.stash[CONFIG].devices.names
    return lambda count: [torch.device(names[index % len(names)]) for index in range(count)]


@given(samples=st.integers(1, 40), count=st.integers(1, 8))
def test_our_chunks_are_torchs_chunks(gpus: Choose, samples: int, count: int) -> None:
    devices = gpus(count)
    X = torch.arange(2 * samples, device=devices[0]).reshape(samples, 2)
    shards = scatter(X, devices)
    theirs = nn.parallel.scatter(X, devices)
    assert [len(shard) for shard in shards] == chunk_sizes(samples, count)
    assert [shard.device for shard in shards] == devices[: len(shards)]
    assert all(torch.equal(a, b) for a, b in zip(shards, theirs, strict=True))


@given(batch=st.integers(1, 13), count=st.integers(2, 4), seed=st.integers(0, 99))
def test_our_wrapper_computes_what_torchs_does(gpus: Choose, batch: int, count: int, seed: int) -> None:
    """Outputs and gradients in float64 differ only by the order of their sums."""
    devices = gpus(count)
    case = Case(count, (batch,), seed, net=Net(hidden=(4,), tied=True, buffer=True))
    ours, theirs = (copy.deepcopy(nets.build(case)).to(devices[0]) for _ in range(2))
    X = nets.minibatch(case, 0)[0].to(devices[0])
    wrapped = CPUDataParallel(ours, devices)
    output, expected = wrapped(X), nn.DataParallel(theirs, devices)(X)
    torch.testing.assert_close(output, expected)
    output.square().sum().backward()
    expected.square().sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    wrapped.close()


def test_a_step_on_a_gpu_is_counted_with_its_launches_its_memory_and_what_the_host_waits_for(
    gpus: Choose,
) -> None:
    [device] = gpus(1)
    X = torch.ones(1000, device=device)

    def waits(step: Callable[[], object]) -> Counter[counting.Key]:
        step()
        counts = [counting.one_step(step, [device]) for _ in range(3)]
        assert counts == counts[:1] * 3
        return counts[0]

    calls = {
        name: waits(step)["host-device synchronisation", "", "calls"]
        for name, step in {
            "none": lambda: X + X,
            "item": lambda: X.sum().item(),
            "cpu": X.cpu,
            "mask": lambda: X[X > 0],
        }.items()
    }
    assert calls == {"none": 0, "item": 1, "cpu": 1, "mask": 1}
    counts = waits(lambda: X + X)
    assert counts["kernel launch", "", "calls"] == 1
    assert counts["peak memory", "", "bytes"] >= X.nbytes


def test_weighted_takes_a_gpu_and_the_cpu_together(gpus: Choose) -> None:
    """Weights are measured in the first steps; gradients are right before and after."""
    case = Case(2, (7, 5, 3, 6, 9), net=Net(hidden=(4,)))
    seen, _ = observe(Weighted, [*gpus(1), torch.device("cpu")], case)
    for check in ("trajectory", "replicas", "loss", "evaluation"):
        assert judge(check, Seen(case, [seen])).finding == ""


@pytest.mark.parametrize(
    ("trainer", "cause"),
    [
        ("TakesAllMemory", "rank 1: (OutOfMemoryError: .* out of memory|RuntimeError: .*can't allocate memory)"),
        ("ReadsPastTheEnd", "rank 1: (AcceleratorError: .* device-side assert|IndexError)"),
        ("RankOneNeverComes", r"rank.* \d.*: no answer to '\w+' within \d+ s"),
    ],
)
def test_a_failure_is_named_and_leaves_nothing(
    project: Project, pytestconfig: pytest.Config, trainer: str, cause: str
) -> None:
    """The other cell is measured."""
    devices = pytestconfig.stash[CONFIG].devices
    two = "cpu:2" if devices.kind == "cpu" else ",".join((devices.names * 2)[:2])
    with Gpus(devices) as cards:
        before = [reading.pids for reading in cards.read()]
        result = project.pytest(
            *("-m", "scaling", "--scaling-workload", "tiny", "--scaling-devices", two),
            *("--scaling-world-sizes", "2", "--scaling-mode", "strong", "--scaling-budget", "1"),
            *("--scaling-trainer", f"{failing_on_gpus.__file__}:{trainer}", "--scaling-trainer", "ddp"),
        )
        after = [reading.pids for reading in cards.read()]
    assert result.ret == 1
    assert project.outcomes() == {f"{trainer}-tiny-strong-2": "ERROR", "ddp-tiny-strong-2": "NO BASELINE"}
    result.stdout.re_match_lines([f".*ERROR{re.escape(parse(two).mark(2))}: {cause}"])
    assert not project.workers()
    assert all(now <= then | {os.getpid()} for now, then in zip(after, before, strict=True))
