"""Correctness checks that are callable on any trainer (worker's side; also used in-process by the tests).

Covers the gradient of every step of a short run with changing batch sizes, and bit-equality of the replicas. Not yet
covered: what the project's correctness issue adds (low precisions, BatchNorm, dropout, hangs).

Tolerance, oracle "sgd". A trainer's gradient on k devices and the oracle's on one are two floating-point evaluations of
the same sum over the samples of a minibatch. Evaluating a sum of n terms in any order errs by at most (n - 1) u
sum|term| to first order (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2), u being the
unit roundoff. The terms here are per-sample gradients, each itself made of inner products, so n is the minibatch size
plus the longest inner product in the net, and both evaluations err, so 2 n u. The gradient is read back from the
parameters as (before - after) / lr, and the rounding of that subtraction adds 2 u |p| / lr. `bound` is that sum, and
nothing is tuned. It is first order through a smooth net: float32 nets with ReLU can flip a unit that is within rounding
of zero, which is why float32 cases use smooth nets.

Tolerance, oracle "self". An optimiser we do not know may amplify rounding (Adam divides by the gradient's own size), so
half of the digits are asked for: sqrt(2 u) of the largest parameter change. Wrong data parallelism errs in the first
digit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from reference.models.init import build
from reference.scatter import shard_bounds
from suite import contract
from suite.arm import close_trainer

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Trajectory:
    """What a trainer did: parameters (float64, CPU) before the first and after every step; whether replicas agree."""

    parameters: list[list[Tensor]]
    replicas_equal: bool
    oracle: str
    loss: Loss | None

    def save(self, folder: str) -> None:
        """Keep the parameters as .npy files in `folder`."""
        for step, parameters in enumerate(self.parameters):
            for number, parameter in enumerate(parameters):
                numpy.save(Path(folder) / f"{step}.{number}.npy", parameter.numpy(), allow_pickle=False)

    @classmethod
    def load(cls, folder: str) -> Trajectory:
        """What `save` kept."""
        kept: dict[int, list[Tensor]] = {}
        for path in sorted(Path(folder).glob("*.npy"), key=lambda path: tuple(map(int, path.stem.split(".")))):
            kept.setdefault(int(path.stem.split(".")[0]), []).append(
                torch.from_numpy(numpy.load(path, allow_pickle=False))
            )
        return cls(list(kept.values()), replicas_equal=True, oracle="self", loss=None)


@dataclass(frozen=True)
class Deviation:
    """The parameter of one step that errs most: largest |error| / bound (above 1 is wrong) and that error itself."""

    step: int
    parameter: str
    ratio: float
    error: float


def whole(parameter: Tensor) -> Tensor:
    """A float64 copy of a parameter's full value on the CPU, gathered when it is sharded (every rank must call it)."""
    full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return full.detach().to("cpu", torch.float64, copy=True)


def minibatch(case: dict[str, Any], step: int) -> tuple[Tensor, Tensor]:
    """The whole minibatch of one step, the same on every rank: X in the case's dtype, y int64 classes."""
    generator = torch.Generator().manual_seed(case["seed"] * 1009 + step)
    batch = case["batches"][step]
    X = torch.randn(batch, *case["input_shape"], generator=generator, dtype=getattr(torch, case["dtype"]))
    return X, torch.randint(case["classes"], (batch,), generator=generator)


def longest_inner_product(model: nn.Module, X: Tensor) -> int:
    """An upper bound on the terms of any one sum in a forward and backward pass for one sample."""
    widest = max(parameter.numel() // min(parameter.shape or (1,)) for parameter in model.parameters())
    return widest + X[0].numel()


def bound(model: nn.Module, X: Tensor, y: Tensor, loss: Loss, lr: float) -> list[Tensor]:
    """The largest rounding error allowed, by parameter (float64): 2 n u (mean |per-sample gradient|) + 2 u |p| / lr."""
    u = torch.finfo(X.dtype).eps / 2
    n = len(y) + longest_inner_product(model, X)
    sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in model.parameters()]
    for sample in range(len(y)):
        for total, gradient in zip(
            sums, _gradient(model, X[sample : sample + 1], y[sample : sample + 1], loss), strict=True
        ):
            total += gradient.abs()
    return [
        2 * n * u * total / len(y) + 2 * u * whole(parameter).abs() / lr
        for total, parameter in zip(sums, model.parameters(), strict=True)
    ]


def trajectory(rank: int, devices: list[torch.device], arm: dict[str, Any], case: dict[str, Any]) -> Trajectory:
    """Train the steps of `case` and keep what they did.

    Args:
        rank: of this process; rank r starts from weights of its own (seed + r), and rank 0's are the ones that count.
        devices: those that this process drives.
        arm: {"trainer", "processes", "world_size"}.
        case: {"model", "init", "seed", "dtype", "input_shape", "classes", "batches": minibatch size of each step,
            "lr"}.
    """
    trainer_class = contract.load_trainer(arm["trainer"])
    model = build(case["model"], case["init"], case["seed"] + rank).to(getattr(torch, case["dtype"]))
    torch.manual_seed(case["seed"] + rank)
    trainer = trainer_class(model, devices, lr=case["lr"])
    contract.check_instance(trainer, devices)
    per_device = arm["processes"] == "per-device"
    parameters = [_parameters(trainer)]
    for number in range(len(case["batches"])):
        X, y = minibatch(case, number)
        mine = shard_bounds(len(y), arm["world_size"], rank) if per_device else slice(None)
        trainer.step(X[mine].to(devices[0]), y[mine].to(devices[0]), len(y))
        parameters.append(_parameters(trainer))
    equal = _replicas_equal(trainer, per_device)
    loss = getattr(trainer, "loss", None)
    close_trainer(trainer)
    return Trajectory(parameters, equal, getattr(trainer_class, "oracle", "sgd"), loss)


def against_sgd(taken: Trajectory, case: dict[str, Any]) -> list[Deviation]:
    """Each step's gradient, read back as (before - after) / lr, against that of the mean loss on one device."""
    model = build(case["model"], case["init"], case["seed"]).to(getattr(torch, case["dtype"]))
    names = [name for name, _ in model.named_parameters()]
    loss = taken.loss or F.cross_entropy
    deviations = []
    for number in range(len(case["batches"])):
        before, after = taken.parameters[number : number + 2]
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), before, strict=True):
                parameter.copy_(value)
        X, y = minibatch(case, number)
        expected = [gradient.to(torch.float64) for gradient in _gradient(model, X, y, loss)]
        found = [(b - a) / case["lr"] for b, a in zip(before, after, strict=True)]
        deviations.append(_worst(number, names, expected, found, bound(model, X, y, loss, case["lr"])))
    return deviations


def against_self(taken: Trajectory, alone: Trajectory, case: dict[str, Any]) -> list[Deviation]:
    """Each step's parameters against those of the same class on one device."""
    model = build(case["model"], case["init"], case["seed"])
    names = [name for name, _ in model.named_parameters()]
    half_the_digits = torch.finfo(getattr(torch, case["dtype"])).eps ** 0.5
    deviations = []
    for number in range(len(case["batches"])):
        start, expected, found = alone.parameters[0], alone.parameters[number + 1], taken.parameters[number + 1]
        change = max(float((e - s).abs().max()) for e, s in zip(expected, start, strict=True))
        allowed = [torch.full_like(value, half_the_digits * change) for value in expected]
        deviations.append(_worst(number, names, expected, found, allowed))
    return deviations


def _worst(
    step: int, names: list[str], expected: list[Tensor], found: list[Tensor], allowed: list[Tensor]
) -> Deviation:
    worst = Deviation(step, names[0], 0.0, 0.0)
    for name, e, f, a in zip(names, expected, found, allowed, strict=True):
        error = (e - f).abs()
        # An entry that may not err at all (0 / 0) and does not, is right; NaN anywhere is wrong.
        ratio = torch.where(error == 0, torch.zeros_like(error), error / a).nan_to_num(nan=float("inf"))
        if ratio.numel() and float(ratio.max()) > worst.ratio:
            worst = Deviation(step, name, float(ratio.max()), float(error.flatten()[ratio.argmax()]))
    return worst


def _gradient(model: nn.Module, X: Tensor, y: Tensor, loss: Loss) -> list[Tensor]:
    """Gradient of the mean loss; zeros for parameters that took no part."""
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss(model(X), y).mean(), parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def _parameters(trainer: Any) -> list[Tensor]:
    return [whole(parameter) for parameter in trainer.replicas[0].parameters()]


def _replicas_equal(trainer: Any, per_device: bool) -> bool:
    """Whether all replicas' parameters are bit-equal, over the processes too."""
    replicas = [[whole(parameter) for parameter in replica.parameters()] for replica in trainer.replicas]
    equal = all(torch.equal(a, b) for other in replicas[1:] for a, b in zip(replicas[0], other, strict=True))
    if per_device:
        for parameter in replicas[0]:
            theirs = parameter.clone()
            device = next(trainer.replicas[0].parameters()).device
            on_device = theirs.to(device)
            dist.broadcast(on_device, src=0)
            equal = equal and torch.equal(on_device.cpu(), parameter)
        votes = torch.tensor(int(equal), device=device)
        dist.all_reduce(votes, op=dist.ReduceOp.MIN)
        equal = bool(votes)
    return equal
