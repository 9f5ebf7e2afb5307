"""What one process does with several accelerators, on PyTorch's simulated one.

`torch_openreg` computes on the host and keeps what a GPU has: devices with memory of their own, guards, streams,
events, a generator each, and autograd's thread for each device. With fewer devices than replicas, replicas share one.
"""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from reference.all_reduce import ALL_REDUCE
from reference.load import load_object
from reference.per_device import PerDevice, get_params, synchronize
from reference.scatter import gather, scatter
from reference.trainers import TRAINERS
from suite.properties.case import Case, Net
from suite.properties.observe import observe
from suite.properties.seen import Seen
from suite.properties.trainer import CHECKS, judge
from suite.rank import counting
from suite.room import accelerator
from tests.openreg import needs_openreg
from tests.support.freezing import ONE_PROCESS

pytestmark = needs_openreg

# Nets have no convolutions, which it does not know, and no tied weights, which `Module.to` unties on it (docs/log.md).
# The kernels draw on the host, so dropout's masks show nothing of the devices.
LEFT_OUT = ("dropout", "low_precision", "not_a_number", "resume")  # the last three need cases of their own kind
CASES = {c: ((7, 5, 3, 8), Net(hidden=(4,), norm="layer", buffer=True)) for c in CHECKS if c not in LEFT_OUT}
CASES |= {"batch_norm": ((8, 12), Net(hidden=(3,), norm="batch"))}


def devices(count: int) -> list[torch.device]:
    return [torch.device("openreg", index % torch.accelerator.device_count()) for index in range(count)]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trainer", ["single", *ONE_PROCESS])
def test_a_trainer_passes_the_checks(trainer: str, count: int) -> None:
    """As on the CPU: gradients, replicas, loss, inputs, batch normalisation, evaluation."""
    for check, (batches, net) in CASES.items():
        case = Case(count, batches, net=net)
        seen, _ = observe(load_object(TRAINERS[trainer]), devices(count), case)
        assert (check, judge(check, Seen(case, [seen])).finding) == (check, "")


def test_generators_of_devices_are_seeded_apart_and_as_ranks_are() -> None:
    """Their states; what is drawn comes from the host's generator, because the host computes."""
    two = devices(2)
    state = torch.get_device_module("openreg").get_rng_state
    accelerator.seed(two, 7)
    states = [state(device) for device in two]
    assert not torch.equal(*states)
    for rank, device in enumerate(two):
        accelerator.seed([device], 7 + rank)
        assert torch.equal(state(device), states[rank])


def test_a_mapped_function_has_its_device_current_and_the_caller_keeps_his() -> None:
    current = torch.accelerator.current_device_index
    torch.accelerator.set_device_index(1)
    try:
        seen = PerDevice(devices(2)).map(lambda _: (current(), torch.empty(1, device="openreg").device.index), [0, 0])
        assert seen == [(0, 0), (1, 1)]
        assert current() == 1
    finally:
        torch.accelerator.set_device_index(0)


def test_a_list_of_accelerators_and_a_cpu_keeps_its_devices_current() -> None:
    mixed = [torch.device("openreg", 1), torch.device("cpu")]
    seen = PerDevice(mixed).map(lambda _: torch.accelerator.current_device_index(), [0, 0])
    assert seen[0] == 1


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("algorithm", ALL_REDUCE)
def test_sums_arrive_on_every_device_in_the_callers_tensors(algorithm: str, count: int) -> None:
    tensors = [torch.full((5,), float(rank + 1), device=device) for rank, device in enumerate(devices(count))]
    before = [(tensor.data_ptr(), tensor.device) for tensor in tensors]
    ALL_REDUCE[algorithm](tensors)
    assert [(tensor.data_ptr(), tensor.device) for tensor in tensors] == before
    expected = torch.full((5,), count * (count + 1) / 2)
    assert all(torch.equal(tensor.cpu(), expected) for tensor in tensors)


def test_shards_are_on_their_devices_and_come_back_in_order() -> None:
    X = torch.arange(22.0).reshape(11, 2).to("openreg:0").requires_grad_()
    four = devices(4)
    shards = scatter(X, four)
    assert [shard.device for shard in shards] == four
    assert [len(shard) for shard in shards] == [3, 3, 3, 2]
    whole = gather(shards, four[-1])
    assert whole.device == four[-1]
    assert torch.equal(whole.cpu(), X.detach().cpu())
    whole.sum().backward()
    assert X.grad is not None
    assert X.grad.cpu().eq(1).all()


def test_parameters_are_copied_to_a_device() -> None:
    [param] = get_params([torch.ones(3, requires_grad=True)], devices(2)[1])
    assert (param.device.index, param.is_leaf, param.requires_grad, param.grad) == (1, True, True, None)


def test_the_memory_that_a_step_takes_is_counted_on_every_device() -> None:
    tensors = [torch.ones(1000, device=device) for device in devices(2)]
    held = sum(tensor.nbytes for tensor in tensors)
    counts = counting.one_step(lambda: [tensor + tensor for tensor in tensors], devices(2))
    assert held <= counts["peak memory", "", "bytes"] < 2 * held


def test_tensors_of_two_devices_are_refused() -> None:
    """What makes the tests here able to fail: a forgotten copy raises."""
    first, second = (torch.ones(2, device=device) for device in devices(2))
    with pytest.raises(RuntimeError, match="two devices"):
        first.add(second)


class Noted:
    """An all_reduce that notes on which thread and streams it was called."""

    def __init__(self) -> None:
        self.threads = set[str]()
        self.streams = set[tuple[int, int]]()

    def __call__(self, tensors: list[Tensor]) -> None:
        self.threads.add(threading.current_thread().name)
        for tensor in tensors:
            stream = torch.accelerator.current_stream(tensor.device)
            self.streams.add((tensor.device.index, stream.stream_id))
        ALL_REDUCE["naive"](tensors)


def test_the_exchange_overlaps_on_side_streams_of_every_device() -> None:
    """In its own thread, so that the devices go on, and with the streams of the caller as they were."""
    noted, two = Noted(), devices(2)
    usual = {device: torch.accelerator.current_stream(device) for device in two}
    overlap = load_object(TRAINERS["scratch_overlap"])
    trainer = overlap(torch.nn.Linear(3, 2), two, lr=0.1, bucket_bytes=4, all_reduce_=noted)
    trainer.step(torch.ones(4, 3, device=two[0]), torch.tensor([0, 1, 0, 1]).to(two[0]), 4)
    trainer.close()
    synchronize(two)
    assert all(name.startswith("exchange") for name in noted.threads)
    assert {device for device, _ in noted.streams} == {0, 1}
    assert not noted.streams & {(device.index, stream.stream_id) for device, stream in usual.items()}
    assert {device: torch.accelerator.current_stream(device) for device in two} == usual
