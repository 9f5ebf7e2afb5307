"""Trainers as users write them: right ones, wrong ones, and ones that raise, hang or break the protocol."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from reference.trainers.ddp import DDPTrainer
from reference.trainers.scratch import Scratch
from reference.trainers.single import Single
from suite.rank import recorder


class Same(DDPTrainer):
    """torch's DDP, unchanged."""


class MeanOfMeans(DDPTrainer):
    """Wrong on uneven shards: averages the ranks' means."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return super().step(X, y, max(1, len(y)) * dist.get_world_size())


class NoExchange(DDPTrainer):
    """Wrong: every rank trains on its own."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        with self.net.no_sync():
            return super().step(X, y, global_batch_size)


class ByHand:
    """Right, with nothing but torch.distributed: gradients are summed over ranks in one flat tensor."""

    processes = "per-device"

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None:
        self.model, self.lr = model.to(devices[0]), lr
        for tensor in self.model.state_dict().values():
            dist.broadcast(tensor, src=0)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        loss = self.part_of_loss(X, y, global_batch_size)
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        flat = nn.utils.parameters_to_vector(
            [torch.zeros_like(p) if g is None else g for p, g in zip(trained, gradients, strict=True)]
        )
        dist.all_reduce(flat)
        with torch.no_grad():
            offset = 0
            for parameter in trained:
                parameter -= self.lr * flat[offset : offset + parameter.numel()].view_as(parameter)
                offset += parameter.numel()
        return loss.detach()

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return F.cross_entropy(self.model(X), y, reduction="sum") / global_batch_size

    @property
    def replicas(self) -> list[nn.Module]:
        return [self.model]


class LossOfABatch(Single):
    """Has a `loss` with other arguments, as Lightning's modules do."""

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(*batch)


class LossOfOtherLabels(Single):
    """Has a `loss` with the right arguments that raises."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(output, y[:, 7])


class RaisesUnreadably(Single):
    """Raises an error whose text is not UTF-8."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        raise RuntimeError(os.fsdecode(b"caf\xe9"))


class Untold(Exception):
    """An error that has no text."""

    def __str__(self) -> str:
        raise KeyError("what happened")

    __repr__ = __str__


class RaisesUntold(Single):
    """Raises an error whose text cannot be made."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        raise Untold


class Adam(DDPTrainer):
    """Right, under oracle "self": another optimiser and a loss of its own."""

    oracle = "self"

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr)  # type: ignore[assignment]

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, label_smoothing=0.1, reduction="none")

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(self.net(X), y).sum() / global_batch_size
        (loss * dist.get_world_size()).backward()
        self.optimizer.step()
        return loss.detach()


class AdamWithoutExchange(Adam):
    """Wrong under oracle "self": the gradient of one shard alone."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        with self.net.no_sync():
            return super().step(X, y, global_batch_size)


class AdamByTheClock(Adam):
    """Wrong under oracle "self": its steps depend on the clock."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.optimizer.param_groups[0]["lr"] = time.perf_counter_ns() % 1000 / 1e4
        return super().step(X, y, global_batch_size)


class Raises(Single):
    """Raises in its third step."""

    steps = 0

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("the third step is too much")
        return super().step(X, y, global_batch_size)


class AssertsOnTheDevice(Single):
    """Raises what torch raises after an assertion in a kernel, from where on every call of the process fails."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")


class AssertsWhenClosed(Single):
    """The same, when the first call that waits for the kernel is the last one."""

    def close(self) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")


class RankOneAsserts(DDPTrainer):
    """As after an assertion in a kernel of one rank, where the others wait for it."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        return super().step(X, y, global_batch_size)


class RankOneHasNoMemoryLeft(DDPTrainer):
    """As when one rank's GPU is full."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return super().step(X, y, global_batch_size)


class KillsRankOne(DDPTrainer):
    """One rank is killed from outside, as the kernel's out-of-memory killer would."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(X, y, global_batch_size)


class RaisesBeforeRankOneIsGone(DDPTrainer):
    """One rank dies, and on a busy machine the other notices long before all connections of the first are closed."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 0:
            raise RuntimeError("Connection closed by peer")
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
        return super().step(X, y, global_batch_size)


class Hangs(DDPTrainer):
    """One rank never joins the exchange."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            time.sleep(3600)
        return super().step(X, y, global_batch_size)


class Warned(Single):
    """Fails as where NCCL does: with little in the exception, and the cause in NCCL's log."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        recorder.log_nccl()
        Path(os.environ[recorder.FILE]).write_text("node7:4021:4078 [0] init.cc:9 NCCL WARN no NVLS here\n")
        raise RuntimeError("ncclUnhandledCudaError")


class HangsDeaf(Hangs):
    """Uses signals itself, as libraries do under SLURM, and one rank never joins the exchange."""

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        os.kill(os.getpid(), signal.SIGCHLD)


class HangsMute(Hangs):
    """Takes every signal that it can, and one rank never joins the exchange."""

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)


class Freezes(Single):
    """Its thread waits for a mutex while it holds the interpreter's lock, so no Python runs."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        thread = threading.Thread(target=_freeze)
        thread.start()
        thread.join()
        return super().step(X, y, global_batch_size)


def _freeze() -> None:
    mutex, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


class CannotClose(Single):
    """Raises when it is closed."""

    def close(self) -> None:
        raise RuntimeError("its feed is gone")


class LeavesTheGroup(DDPTrainer):
    """Cleans up more than it made."""

    def close(self) -> None:
        dist.destroy_process_group()


class LeavesAChildBehind(DDPTrainer):
    """The process of one rank ends, and a child of it keeps its connections open."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(0)
        return super().step(X, y, global_batch_size)


class ReturnsAPair(Single):
    """Returns its loss and something else."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Any:
        return super().step(X, y, global_batch_size), y


class Diverges(Single):
    """Returns a loss that is not a number."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return super().step(X, y, global_batch_size) * float("nan")


class NormalisesInPlace(Single):
    """Changes the caller's minibatch."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        X -= 0.5
        return super().step(X, y, global_batch_size)


class LeavesNaN(Scratch):
    """Its parameters are not numbers after a step."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        loss = super().step(X, y, global_batch_size)
        with torch.no_grad():
            for net in self.nets:
                next(net.parameters()).mul_(float("nan"))
        return loss


class WrongOnce(Single):
    """Its fifth instance does not train."""

    made = 0

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None:
        WrongOnce.made += 1
        super().__init__(model, devices, lr=0.0 if WrongOnce.made == 5 else lr)


class ForeignReplicas(Single):
    """Its replicas are not the model's modules."""

    @property
    def replicas(self) -> list[nn.Module]:
        return [nn.Linear(2, 2), nn.Linear(2, 2)][:1]


class NoProcesses:
    """Lacks `processes`."""

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None: ...

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None: ...

    replicas: list[nn.Module] = []  # noqa: RUF012


class NoStep:
    """Lacks `step`, and has an unknown value in `processes`."""

    processes = "many"

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None: ...


class WrongInit:
    """Takes no learning rate."""

    processes = "one"

    def __init__(self, model: nn.Module, devices: list[torch.device]) -> None: ...

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None: ...


class NoReplicas:
    """Has no replicas, which only an instance shows."""

    processes = "one"

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None: ...

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None: ...


class OtherOracle(NoReplicas):
    """Names an oracle that there is not."""

    oracle = "mse"


class TrainsWords(NoReplicas):
    """Says that it trains something unknown."""

    trains = "words"


class TokensWithoutLoss(NoReplicas):
    """Says that it trains tokens, and not by which loss."""

    trains = "tokens"


class HalfShards(NoReplicas):
    """Says something of its shards that there is not."""

    shards = 0.5


class SavesOnly(NoReplicas):
    """Saves what it cannot load."""

    def state_dict(self) -> dict[str, Any]:
        return {}


class Resumable(SavesOnly):
    """Has both methods."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ResumableModule(Resumable, nn.Module):
    """Has both methods, and is a module."""


class PlainModule(NoReplicas, nn.Module):
    """Is a module, and has the methods of one."""


class LoadsNothing(SavesOnly):
    """Loads from nowhere."""

    def load_state_dict(self) -> None: ...


class MethodReplicas(NoReplicas):
    """Has a method where the protocol has a property."""

    def replicas(self) -> list[nn.Module]:
        return []


not_a_class: Any = len


def raise_anything() -> None:
    """Raise an error whose text no record and no terminal can take."""
    raise RuntimeError(os.fsdecode(b"caf\xe9") + " \x1b[31m red " + "x" * 1_000_000)


def wait(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


class Sharpened(ByHand):
    """Right, with a temperature, which makes a loss steeper than cross-entropy, and its model sent as an object."""

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None:
        sent = [model]
        dist.broadcast_object_list(sent, src=0)
        super().__init__(sent[0], devices, lr=lr)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output / 0.01, y)

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return F.cross_entropy(self.model(X) / 0.01, y, reduction="sum") / global_batch_size


class WeighsClasses(ByHand):
    """Right: a mean over samples with weights, whose sum is that of all ranks."""

    weights = torch.arange(1.0, 5.0, dtype=torch.float64)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, weight=self.weights[: output.shape[1]].to(output.dtype))

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        output = self.model(X)
        weights = self.weights[: output.shape[1]].to(output.dtype)
        total = weights[y].sum()
        dist.all_reduce(total)
        return F.cross_entropy(output, y, weight=weights, reduction="sum") / total
