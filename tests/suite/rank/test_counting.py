"""What is counted in real steps: real ranks and collectives, threads, compiled code, memory, FLOP.

The allocators of GPUs are scripted; the FLOP of a model are compared with those counted by hand.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._autograd import DeviceType

from docs.evidence import counters as evidence
from reference.models.init import build
from reference.trainers.scratch import Scratch
from suite.checks.bench import Bench
from suite.processes.channel import read
from suite.processes.jobs import Counted, PeakMemory
from suite.properties.contract import load_trainer
from suite.rank import counting
from suite.rank.counting import MAXRSS_UNIT, Peak
from suite.records.counters import EXCHANGES, OTHERS, Counters, changes, merged, not_reproducible, shown
from tests.support import on_ranks, own_signatures
from tests.support.project import REPOSITORY

CPU = torch.device("cpu")
LENET_BYTES = 516_272  # of its gradients in float32
STEPS = 4


def count_steps(trainer: str) -> dict[str, Any]:
    """Return what a rank counts in steps of a trainer of LeNet."""
    made: Any = load_trainer(trainer)(build("lenet", "default", 1), [CPU], lr=0.1)
    X, y, batch = torch.zeros(8, 1, 28, 28), torch.arange(8) % 10, 8 * dist.get_world_size()
    for _ in range(2):
        made.step(X, y, batch)
    return asdict(counting.over_steps(lambda: made.step(X, y, batch), STEPS, [CPU]))


@pytest.fixture(scope="module")
def counted(bench: Bench) -> Any:
    """Count a trainer on two real ranks, each trainer once."""
    known: dict[str, Counters] = {}

    def of(trainer: str) -> Counters:
        if trainer not in known:
            located = trainer if trainer.islower() else evidence.PLANTED + trainer
            answers = on_ranks.run(bench, f"{__name__}:count_steps", [2], trainer=located)[2]
            known[trainer] = merged([read(Counted, answer) for answer in answers])
        return known[trainer]

    return of


def figures(counters: Counters) -> dict[str, str]:
    """Return every counter that is not 0, as a table shows it."""
    every = {what: shown(counters.of(what)) for what in (*EXCHANGES, *OTHERS)}
    return {what: text for what, text in every.items() if text not in ("-", "0")}


class TestExchange:
    """Collectives of real ranks, also those that start in C++."""

    def test_ddp_exchanges_its_gradients_in_one_bucket(self, counted: Any) -> None:
        whole = figures(counted("ddp"))
        assert whole.pop("operator").isdecimal()
        assert whole == {"all_reduce": f"1, float32, {LENET_BYTES / 1e3:.1f} kB", "gradient bucket": "1"}

    def test_fsdp_gathers_and_scatters_whole_messages(self, counted: Any) -> None:
        """The size of a message is the larger one of what a rank brings and of what it gets."""
        whole = figures(counted("fsdp"))
        assert whole["all_gather"].endswith(f"float32, {LENET_BYTES / 1e3:.1f} kB")
        assert whole["reduce_scatter"].endswith(f"float32, {LENET_BYTES / 1e3:.1f} kB")
        assert whole["gradient bucket"] == whole["reduce_scatter"].split(",")[0]

    @pytest.mark.parametrize(("wrong", "right"), [fault[1:] for fault in evidence.FAULTS])
    def test_each_planted_fault_is_said(self, counted: Any, wrong: str, right: str) -> None:
        said = {
            "ExchangesEveryMicroBatch": "1 → 4 all_reduce a step, +1.5 MB: "
            "as when accumulation no longer skips its exchange",
            "SmallBuckets": "1 → 3 all_reduce a step: the same in more pieces, as with smaller buckets",
            "ReadsTheLoss": "0 → 1 host-device synchronisations a step: "
            "as with .item(), or a value that decides what is done next",
            "ExchangesOneTwice": "8 → 9 all_reduce a step, +40 bytes",
            "ddp": "1 all_reduce of float32 instead of bfloat16 a step, +258.1 kB",
        }
        first = changes(counted(wrong), counted(right))[0]
        assert first == (said[wrong], True)

    def test_what_varies_from_step_to_step_is_not_compared(self, counted: Any) -> None:
        assert changes(counted("Alternates"), counted("ddp")) == []
        first, _ = not_reproducible(counted("Alternates"), counted("ddp"))
        assert first == "host-device synchronisations (0 to 1 a step)"

    def test_a_rank_that_does_more_is_told_apart(self, counted: Any) -> None:
        [count] = counted("LogsOnRankZero").of("host-device synchronisation")
        assert (count.least, count.most) == ((1, 0), (1, 0))


@pytest.mark.usefixtures("one_intra_op_thread")
class TestOneProcess:
    """Threads of replicas, and copies between devices, which are no collectives."""

    def test_all_replicas_threads_are_counted(self) -> None:
        operators = []
        for replicas in (1, 2):
            with closing(Scratch(nn.Linear(3, 2), [CPU] * replicas, lr=0.1)) as trainer:
                operators.append(self.one(trainer)["operator", "", "calls"])
        assert operators[1] > 1.5 * operators[0]

    def test_exchange_by_copies_has_its_bytes(self) -> None:
        """Naive all_reduce of 8 parameters: each of two devices sends each gradient once."""
        with closing(Scratch(nn.Linear(3, 2), [CPU, CPU], lr=0.1)) as trainer:
            counts = self.one(trainer)
        assert (counts["device copy", "", "calls"], counts["device copy", "", "bytes"]) == (4, 2 * 8 * 4)

    def one(self, trainer: Scratch) -> Any:
        X, y = torch.zeros(8, 3), torch.arange(8) % 2
        trainer.step(X, y, 8)
        return counting.one_step(lambda: trainer.step(X, y, 8), [CPU])


class Breaks(nn.Module):
    """A graph break between two layers, unless it is taken out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.breaks = nn.Linear(3, 3), nn.Linear(3, 3), True

    def forward(self, X: Tensor) -> Tensor:
        hidden = self.first(X)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.second(hidden)


def test_compiled_regions_and_compilations_are_counted() -> None:
    """A graph break makes two regions of one; another shape compiles again."""
    regions = []
    for breaks in (False, True):
        torch._dynamo.reset()
        net = Breaks()
        net.breaks = breaks
        net.compile(backend="eager")
        net(torch.zeros(4, 3))
        counts = counting.one_step(lambda net=net: net(torch.zeros(4, 3)), [CPU])
        assert counts["recompilation", "", "calls"] == 0
        regions.append(counts["compiled region", "", "calls"])
        again = counting.one_step(lambda net=net: net(torch.zeros(4, 3, dtype=torch.float32)[:3]), [CPU])
        assert again["recompilation", "", "calls"] > 0
    torch._dynamo.reset()
    assert regions == [1, 2]


@pytest.mark.parametrize(
    ("wait", "times"),
    [
        (lambda X: X.sum().item(), 1),
        (lambda X: float(X[0]), 1),
        (lambda X: X.nonzero(), 1),
        (lambda X: X[X > 0], 1),
        (lambda X: bool((X > 0).all()), 1),
        (lambda X: X + X.sum(), 0),
    ],
)
def test_what_the_host_waits_for_is_counted_once(wait: Any, times: int) -> None:
    counts = counting.one_step(lambda: wait(torch.ones(3)), [CPU])
    assert counts["host-device synchronisation", "", "calls"] == times


@dataclass(frozen=True)
class Recorded:
    """An event of torch's profiler."""

    called: str
    device: DeviceType = DeviceType.CPU
    annotates: bool = False

    def name(self) -> str:
        return self.called

    def device_type(self) -> DeviceType:
        return self.device

    def is_user_annotation(self) -> bool:
        return self.annotates


KERNEL = Recorded("void at::native::vectorized_elementwise_kernel", DeviceType.CUDA)


@pytest.mark.parametrize(
    ("events", "launches"),
    [
        ([Recorded("cudaLaunchKernel"), KERNEL], 1),
        ([Recorded("__cudaLaunchKernel"), KERNEL], 1),
        ([Recorded("cudaLaunchKernelExC"), Recorded("hipExtModuleLaunchKernel"), KERNEL], 2),
        ([Recorded("cuLaunchKernelEx"), Recorded("INVALID"), KERNEL, KERNEL], 2),
        ([Recorded("cudaGraphLaunch"), KERNEL, KERNEL, KERNEL], 3),
        ([Recorded("cudaMemcpyAsync"), Recorded("Memcpy HtoD", DeviceType.CUDA)], 0),
        ([Recorded("nccl:all_reduce", DeviceType.CUDA, annotates=True)], 0),
        ([Recorded("aten::add")], 0),
    ],
    ids=lambda value: None if isinstance(value, int) else value[0].called,
)
def test_a_launch_is_counted_whatever_the_runtime_and_the_profiler_call_it(
    events: list[Recorded], launches: int
) -> None:
    """CUDA 13 has other names for its calls than CUDA 12, and older profilers do not know them."""
    assert counting._launches(events) == launches


def test_counting_loads_no_compiler_and_writes_nothing() -> None:
    """torch.profiler's own class takes seconds to load it, and Kineto writes to stderr, where a crash is explained."""
    program = (
        "import sys, torch; from suite.rank import counting; "
        "counting.over_steps(lambda: torch.ones(3) + 1, 2, [torch.device('cpu')]); "
        "print([name for name in ('torch._inductor', 'torch._dynamo') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=90, check=True)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


GPUS = [torch.device("cuda", index) for index in range(2)]
LARGE = 100 << 20  # bytes; glibc gives an allocation of this size back to the kernel when it is freed


class Allocators:
    """What torch's allocators of two GPUs say: bytes now, their peak, and the peak of what they keep."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.peak = dict.fromkeys(GPUS, 1000), dict.fromkeys(GPUS, 9000)
        patch.setattr(torch.accelerator, "memory_allocated", self.now.__getitem__)
        patch.setattr(torch.accelerator, "max_memory_allocated", self.peak.__getitem__)
        patch.setattr(torch.accelerator, "max_memory_reserved", lambda gpu: 2 * self.peak[gpu])
        patch.setattr(torch.accelerator, "memory_reserved", lambda gpu: 1200)
        patch.setattr(torch.cuda, "mem_get_info", lambda gpu: (10**6 + gpu.index, 10**7))
        patch.setattr(torch.accelerator, "reset_peak_memory_stats", lambda gpu: self.hold(gpu, 0))
        patch.setattr(torch.accelerator, "synchronize", lambda gpu: None)

    def hold(self, gpu: torch.device, more: int) -> None:
        """Let a GPU hold this many bytes more for a moment."""
        self.peak[gpu] = self.now[gpu] + more


@pytest.fixture
def allocators(monkeypatch: pytest.MonkeyPatch) -> Allocators:
    return Allocators(monkeypatch)


def test_the_peak_of_a_process_is_what_it_held_since_the_last_reset() -> None:
    before = Peak([CPU])
    torch.ones(LARGE, dtype=torch.uint8)
    held, after = before.read(), Peak([CPU]).read()
    assert held.resident_bytes is not None
    assert after.resident_bytes is not None
    assert held.resident_bytes - after.resident_bytes > 0.9 * LARGE
    assert not held.since_start


@pytest.mark.parametrize("folder", ["absent", "."])
def test_a_kernel_that_resets_or_shows_no_peak_leaves_that_since_the_process_began(tmp_path: Path, folder: str) -> None:
    """Where /proc is not mounted, and where it lacks the line (gVisor)."""
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t  13404 kB\n")
    held = Peak([CPU], tmp_path / folder).read()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT
    assert held.since_start
    assert held.resident_bytes == pytest.approx(own, rel=0.01)


def test_a_process_with_several_gpus_tells_the_peak_of_each(allocators: Allocators) -> None:
    peak = Peak([*GPUS, GPUS[0]])
    allocators.hold(GPUS[1], 500)
    assert peak.read() == PeakMemory(
        allocated_bytes=(1000, 1500),
        reserved_bytes=(2000, 3000),
        returned_bytes=(800, 1800),
        free_bytes=(1_000_000, 1_000_001),
    )


@pytest.mark.parametrize("error", [AttributeError("module 'torch.openreg' has none"), RuntimeError("not supported")])
def test_what_a_card_has_free_is_unknown_where_it_is_not_told(
    allocators: Allocators, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuses(gpu: torch.device) -> None:
        raise error

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuses)
    assert Peak(GPUS).read().free_bytes == (0, 0)


def test_the_counter_of_memory_is_what_the_peak_of_a_step_is_above_what_was_there(allocators: Allocators) -> None:
    def step() -> None:
        for gpu in GPUS:
            allocators.hold(gpu, 500)

    with pytest.warns(UserWarning, match="CUDA"):  # which the profiler misses here
        counts = counting.one_step(step, GPUS)
    assert counts["peak memory", "", "bytes"] == 1000


LABELS = torch.zeros(7, dtype=torch.int64)


class Looks(nn.Module):
    """A layer that looks into its input, which has no values while FLOP are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, 4) to (n, 3)."""
        return self.layer(X) if float(X.sum()) > 0 else X


def test_a_gpts_flop_are_those_of_its_matrices_and_its_attention() -> None:
    """Two for a multiply-add, three times the forward's; tokens have no gradient, and embedding is no product."""
    net, tokens = build("gpt-tiny"), torch.zeros(5, 64, dtype=torch.int64)
    before = [parameter.clone() for parameter in net.parameters()]
    width, positions, blocks, vocabulary = 64, 64, 2, 32
    matrices = blocks * 12 * width**2 + width * vocabulary
    attention = blocks * 2 * positions * width  # scores and values, for each token
    assert counting.of_a_sample(net, tokens, tokens) == 3 * 2 * positions * (matrices + attention)
    assert all(torch.equal(*pair) for pair in zip(before, net.parameters(), strict=True))
    assert all(parameter.grad is None and parameter.device.type == "cpu" for parameter in net.parameters())


def test_images_and_nests_are_counted_too() -> None:
    """A linear layer of 5 x 2 without a gradient of its input: forward, and that of the weight."""
    assert counting.of_a_sample(build("toy"), torch.zeros(7, 5), LABELS) == 2 * 2 * 5 * 2
    by_name = nn.ModuleDict({"toy": build("toy")})
    by_name.forward = lambda X: by_name["toy"](X["image"])  # type: ignore[method-assign]
    assert counting.of_a_sample(by_name, {"image": torch.zeros(7, 5)}, LABELS) == 2 * 2 * 5 * 2


def test_a_model_that_takes_labels_is_counted_with_them() -> None:
    """Two layers and a head, of all samples, which this model computes with labels only."""
    width, backward = own_signatures.WIDTH, 3
    expected = 2 * (backward * (width * width + 2 * width) + 2 * 5 * width)
    assert counting.of_a_sample(own_signatures.NeedsLabels(), torch.zeros(7, 5), LABELS) == expected


def test_a_model_that_needs_values_has_none() -> None:
    assert counting.of_a_sample(Looks(), torch.ones(2, 4), LABELS[:2]) == 0
