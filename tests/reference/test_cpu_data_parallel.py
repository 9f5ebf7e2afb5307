"""The stand-in for nn.DataParallel on CPU devices, and the rule by which a module is wrapped."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reference.cpu_data_parallel import CPUDataParallel
from reference.trainers.data_parallel import _DataParallel, data_parallel, in_callers_dtype
from tests.support.strategies import CPU, Nested, conv_net, smooth_net

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")


@pytest.mark.parametrize(("n", "k", "shards"), [(10, 3, 3), (10, 8, 5), (1, 4, 1), (5, 1, 1)])
def test_nested_inputs_are_split_and_nested_outputs_gathered(n: int, k: int, shards: int) -> None:
    """A number goes to every replica; scalars become a vector with one entry a shard."""
    net = Nested()
    X = torch.arange(float(n))
    out = CPUDataParallel(net, [CPU] * k)((X, 2.0), rows={"a": torch.arange(n)})
    assert torch.equal(out["scaled"], 6 * X)
    assert torch.equal(out["rows"][0], torch.arange(n) + 1)
    assert out["total"].shape == ((shards,) if k > 1 else ())
    assert out["total"].sum() == X.sum()
    assert net.calls == 1, "only the first replica's buffer updates survive"


def test_gradients_reach_inputs_and_are_summed_into_the_original() -> None:
    """Integer outputs have no gradient."""
    net, X = Nested(), torch.arange(5.0, requires_grad=True)
    out = CPUDataParallel(net, [CPU] * 3)((X, 2.0), rows={"a": torch.arange(5)})
    assert not out["rows"][0].requires_grad
    (out["scaled"].sum() + out["total"] @ torch.tensor([1.0, 10.0, 100.0])).backward()
    assert X.grad is not None
    assert X.grad.tolist() == [7.0, 7.0, 16.0, 16.0, 106.0]
    assert net.weight.grad is not None
    assert net.weight.grad.item() == 20.0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_builds_no_graph(mode: Any) -> None:
    net = conv_net().eval()
    with mode():
        X = torch.randn(5, 1, 6, 6)
        output = CPUDataParallel(net, [CPU] * 3)(X)
        assert not output.requires_grad
        torch.testing.assert_close(output, net(X))


def test_an_empty_batch_keeps_its_shape() -> None:
    assert CPUDataParallel(smooth_net(), [CPU] * 3)(torch.zeros(0, 6)).shape == (0, 4)


def test_tied_parameters_and_recurrent_weights_are_replicated_once() -> None:
    """An LSTM keeps a second list of its weights."""
    torch.manual_seed(0)
    lstm, tied = nn.LSTM(6, 6, batch_first=True).double(), nn.Linear(6, 6).double()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.first, self.second = copy.deepcopy(lstm), copy.deepcopy(tied), nn.Linear(6, 6).double()
            self.second.weight = self.first.weight

        def forward(self, X: Tensor) -> Tensor:
            return self.second(self.first(self.lstm(X)[0]))

    net, X = Net(), torch.randn(5, 3, 6, dtype=torch.float64)
    params = list(net.parameters())
    alone = torch.autograd.grad(net(X).square().sum(), params)
    together = torch.autograd.grad(CPUDataParallel(net, [CPU] * 3)(X).square().sum(), params)
    torch.testing.assert_close(together, alone)


def test_a_thread_of_torchs_wrapper_computes_in_the_callers_autocast_dtype() -> None:
    """A thread begins with the default of its device: bfloat16 on CPUs, float16 on GPUs."""
    net, X, dtypes = nn.Linear(3, 2), torch.rand(4, 3), list[torch.dtype]()

    def as_in_parallel_apply(call: Any) -> None:
        with torch.amp.autocast("cpu", enabled=True):
            dtypes.append(call(X).dtype)
        dtypes.append(torch.get_autocast_dtype("cpu"))

    with torch.autocast("cpu", dtype=torch.float16):
        calls = [net, in_callers_dtype(net, "cpu")]
    for call in calls:
        thread = threading.Thread(target=as_in_parallel_apply, args=(call,))
        thread.start()
        thread.join()
    assert dtypes == [torch.bfloat16, torch.bfloat16, torch.float16, torch.bfloat16]


def test_only_several_devices_are_wrapped() -> None:
    net = smooth_net()
    assert data_parallel(net, [CPU]) is net
    assert isinstance(data_parallel(net, [CPU] * 2), CPUDataParallel)


class Talker(nn.Module):
    """Returns text."""

    def forward(self, X: Tensor) -> str:
        return "done"


def test_what_the_wrapper_cannot_do_is_refused() -> None:
    """Torch's wrapper silently drops samples of the longer input, and trains nothing of a compiled module."""
    with pytest.raises(ValueError, match=r"inputs of shapes \(3, 1\), \(2, 1\) cannot be split alike"):
        CPUDataParallel(nn.Bilinear(1, 1, 1), [CPU] * 2)(torch.zeros(3, 1), torch.zeros(2, 1))
    with pytest.raises(TypeError, match="the module returned a str: only tensors can be gathered"):
        CPUDataParallel(Talker(), [CPU] * 2)(torch.zeros(2))
    with pytest.raises(ValueError, match=r"devices are of 2 kinds, .*data parallelism needs exactly one kind"):
        data_parallel(smooth_net(), [CPU, torch.device("cuda:0")])
    compiled = nn.Linear(3, 2)
    compiled.compile(backend="eager")
    with pytest.raises(RuntimeError, match=r"compiled in place .* leave compile off"):
        CPUDataParallel(compiled, [CPU] * 2)(torch.ones(4, 3))
    with pytest.raises(RuntimeError, match=r"compiled in place .* leave compile off"):
        _DataParallel(compiled).replicate(compiled, [0, 1])  # as on two GPUs
