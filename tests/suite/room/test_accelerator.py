"""What a worker asks of its GPUs, with a scripted `torch.accelerator` whose devices are generators on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import distributed as dist

from reference.per_device import synchronize
from reference.trainers.single import Single
from suite.properties.case import Case
from suite.properties.observe import observe
from suite.rank import arm, timing
from suite.room.accelerator import autocast, is_fatal, make_exact, seed, set_precision
from suite.room.quiet import available_cores
from tests.support.nvml import Scene

CPU = torch.device("cpu")
GPUS = [torch.device("cuda", index) for index in range(3)]


class Scripted:
    """Three GPUs: which is current, the generator of each, which have been waited for, and when memory was released."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.current, self.waited, self.released = 0, list[torch.device](), list[int]()
        self.generators = [torch.Generator() for _ in GPUS]
        patch.setattr(torch.accelerator, "device_index", self.device_index)
        patch.setattr(torch.accelerator, "synchronize", self.waited.append)
        patch.setattr(torch.accelerator, "empty_cache", lambda: self.released.append(len(self.waited)))
        patch.setattr(torch.cuda, "manual_seed", lambda number: self.generators[self.current].manual_seed(number))

    def device_index(self, index: int) -> Scripted:
        self.index = index
        return self

    def __enter__(self) -> None:
        self.before, self.current = self.current, self.index

    def __exit__(self, *_: object) -> None:
        self.current = self.before

    def masks(self) -> list[list[int]]:
        return [torch.randint(2, (64,), generator=generator).tolist() for generator in self.generators]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    return Scripted(monkeypatch)


@pytest.fixture
def switches() -> Iterator[None]:
    precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    yield
    torch.set_float32_matmul_precision(precision)
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before
    torch.use_deterministic_algorithms(False)


def test_the_gpus_of_one_process_draw_different_masks(scripted: Scripted) -> None:
    seed(GPUS, 7)
    one_process = scripted.masks()
    assert len(set(map(tuple, one_process))) == len(GPUS)
    for rank, device in enumerate(GPUS):  # rank r is seeded seed + r, with one GPU of its own
        seed([device], 7 + rank)
    assert scripted.masks() == one_process
    assert scripted.current == 0


def test_a_seed_decides_what_the_cpu_draws(scripted: Scripted) -> None:
    seed([CPU, CPU], 7)
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), drawn)
    assert scripted.current == 0


def test_every_gpu_is_waited_for_and_no_cpu(scripted: Scripted) -> None:
    synchronize([CPU, GPUS[2], GPUS[0]])
    assert scripted.waited == [GPUS[2], GPUS[0]]


def test_a_window_on_a_gpu_is_timed_from_when_its_lead_in_is_over(scripted: Scripted) -> None:
    steps: list[int] = []  # how often the GPU had been waited for before each step
    timing.window(lambda: steps.append(len(scripted.waited)), 2, [GPUS[1]], lead_in=3)
    assert steps == [0, 0, 0, 1, 1]
    assert len(scripted.waited) == 2


def test_unused_memory_of_a_gpu_is_given_back_when_a_window_is_over(scripted: Scripted) -> None:
    """Every group of a session has a process on the first GPU, and all are alive at once."""
    timing.window(lambda: None, 2, [CPU, GPUS[1]])
    assert scripted.released == [2], "after the last device has finished, which ends the clock"
    timing.window(lambda: None, 2, [CPU])
    assert scripted.released == [2]
    timing.window(lambda: None, 2, [GPUS[1]], keeps=True)
    assert scripted.released == [2], "where the card can hold what all keep, that takes no calls of its driver"


class Noting(Single):
    """Notes what a step computes with."""

    def step(self, X: torch.Tensor, y: torch.Tensor, global_batch_size: int) -> torch.Tensor:
        type(self).seen = (torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision())
        return super().step(X, y, global_batch_size)


@pytest.mark.usefixtures("switches")
def test_a_case_is_computed_without_tf32_whatever_ran_before() -> None:
    """By default torch lets cuDNN use it: an error of 1e-3 where the bound is 1e-6."""
    set_precision("tf32")
    observe(Noting, [CPU], Case(1, (3,), dtype="float32"))
    assert Noting.seen == (False, "highest")


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize(("device", "deterministic"), [(CPU, False), (GPUS[0], True)], ids=str)
def test_cases_on_a_gpu_use_deterministic_algorithms(device: torch.device, deterministic: bool) -> None:
    make_exact([device])
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize(
    ("error", "fatal"),
    [
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"), True),
        (dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error"), True),
        (dist.DistBackendError("NCCL communicator was aborted on rank 1."), True),
        (dist.DistBackendError("Watchdog caught collective operation timeout: NCCL operation timed out"), True),
        (RuntimeError("NCCL Barrier failed: unhandled system error \nNCCL Last Error: "), True),
        (RuntimeError("NCCL operation timed out"), True),
        (RuntimeError("NCCL communicator was aborted after a previous error"), True),
        (RuntimeError("Failed to get NCCL unique ID: internal error"), True),
        (RuntimeError("Failed to initialize NCCL communicator: invalid usage"), True),
        (RuntimeError("ProcessGroupNCCL not initialized"), True),
        (RuntimeError("NCCL Error 1: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"), True),
        (RuntimeError("Unsupported tensor data type for NCCL"), False),
        (ValueError("Cannot use ReduceOp.BAND with NCCL"), False),
        (RuntimeError("Expected tensor on cuda:1 but found tensor on cpu"), False),
        (RuntimeError("HIP error: an illegal memory access was encountered"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), False),
        (ValueError("the third step is too much"), False),
    ],
)
def test_errors_that_end_a_process_for_its_gpu_are_told_from_others(error: Exception, fatal: bool) -> None:
    assert is_fatal(error) == fatal


def test_an_error_that_hides_one_of_the_gpu_is_as_fatal() -> None:
    """Also where the other one is not what it was raised from: the process can no more use its GPU."""
    fatal, cause, shown = RuntimeError("NCCL operation timed out"), ValueError("no backend"), ValueError("no exchange")
    shown.__cause__, shown.__context__ = cause, fatal
    assert is_fatal(shown)
    shown.__context__ = None
    cause.__context__ = shown
    assert not is_fatal(shown)
    cause.__cause__ = fatal
    assert is_fatal(shown)


def test_bfloat16_computes_products_in_it_and_keeps_parameters() -> None:
    assert set_precision("bfloat16") == torch.float32
    net, X = torch.nn.Linear(3, 2), torch.rand(4, 3)
    with autocast("bfloat16", CPU):
        assert net(X).dtype == torch.bfloat16
    with autocast("float32", CPU):
        assert net(X).dtype == torch.float32
    assert net.weight.dtype == torch.float32


def test_a_weight_that_a_step_changes_is_cast_again() -> None:
    net, X = torch.nn.Linear(3, 2), torch.rand(4, 3)
    with autocast("bfloat16", CPU):
        before = net(X)
        with torch.no_grad():
            net.weight += 1
        assert not torch.equal(net(X), before)


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        ("nccl", {"backend": "cpu:gloo,cuda:nccl", "device_id": GPUS[1]}),
        ("gloo", {"backend": "gloo"}),  # two ranks on one GPU, or CPU workers
    ],
)
def test_a_group_with_nccl_knows_its_device_and_has_gloo_for_the_cpu(backend: str, told: dict[str, object]) -> None:
    assert arm.group_of(backend, GPUS[1]) == told


def test_ranks_on_other_hosts_are_pinned_near_their_gpus(gpus: Callable[..., Scene]) -> None:
    """By themselves: the controller knows the cores of its own host alone."""
    last = available_cores()[-1]
    scene = gpus().say(1, cores=hex(1 << last))
    assert arm._own_cores(GPUS[1]) == (last,)
    scene.say(1, cores="!3")
    assert not arm._own_cores(GPUS[1]), "where they are not known, all are free"
