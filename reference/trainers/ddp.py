"""torch's DistributedDataParallel: one process per device, gradients averaged while the backward still runs.

Also with batch normalisation over all ranks, and for language models, whose loss is normalised by what counts over all
ranks, however unequal their shares. Ranks with equally many sequences have different numbers of tokens that count, and
a rank may have none. So the sums of the loss are divided by counts over all ranks, which are exchanged before the
backward. A mean over each rank's own tokens, averaged by DDP, would give the tokens of a short shard more weight
(pytorch/torchtitan#2206).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from reference import generators
from reference.loss import term_counts, term_sums, token_loss
from reference.nest import Nest
from reference.sync_batch_norm import convert


def require_process_group() -> None:
    """Raise RuntimeError if torch.distributed is not initialised."""
    if not dist.is_initialized():
        raise RuntimeError("there is no process group: call torch.distributed.init_process_group on every rank first")


class DDPTrainer:
    """SGD on the mean cross-entropy over the global batch, in the default process group.

    Rank 0's parameters are broadcast at the start and its buffers before every forward. So each rank normalises by its
    shard, and the running statistics are rank 0's. After a step in which a parameter got no gradient, torch raises at
    the next one.

    Raises:
        RuntimeError: torch.distributed is not initialised.
    """

    processes: ClassVar[Literal["one", "per-device"]] = "per-device"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        require_process_group()
        device = devices[0]
        module = copy.deepcopy(model).to(device)
        self.net = DistributedDataParallel(module, device_ids=None if device.type == "cpu" else [device])
        self.optimizer = torch.optim.SGD(module.parameters(), lr)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Take part in one update with this rank's shard, even an empty one; see `Trainer.step`."""
        loss = self.part_of_loss(X, y, global_batch_size)
        self.optimizer.zero_grad()
        # DDP divides the sum over ranks by their number, which is the mean over samples only when shards are equal.
        torch.autograd.backward(loss * dist.get_world_size())
        self.optimizer.step()
        return loss.detach()

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Return this rank's part of the minibatch's loss, (); the parts of all ranks add up to it."""
        return F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size

    def step_unsynced(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update this rank with its own shard's gradient only, after which the ranks differ."""
        with self.net.no_sync():
            return self.step(X, y, global_batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the module, the optimizer and this rank's generators; each rank keeps its own."""
        return {
            "module": self.net.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": generators.states(self.net),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned on this rank."""
        self.net.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        generators.restore(self.net, state["generators"])

    @property
    def replicas(self) -> list[nn.Module]:
        """The module of this process, unwrapped."""
        module: nn.Module = self.net.module
        return [module]


class TokenLoss:
    """Gives a trainer of samples the loss of a language model, and the divisor of its ranks' parts."""

    trains: ClassVar[Literal["samples", "tokens"]] = "tokens"
    net: Any

    def loss(self, output: Tensor, y: Nest) -> Tensor:
        """Return the loss of a whole minibatch, ()."""
        return token_loss(output, y)

    def part_of_loss(self, X: Nest, y: Nest, global_batch_size: int) -> Tensor:
        """Return this rank's part of the loss, (), even if none of its labels counts; the parts add up to it."""
        sums = term_sums(self.net(X), y)  # first: where DDP refuses a step, no rank may be in another collective
        counts = term_counts(y)
        dist.all_reduce(counts)
        return (sums / counts).sum()


class DDPTokensTrainer(TokenLoss, DDPTrainer):
    """SGD on a weighted mean over tokens plus a z-loss, in the default process group.

    A minibatch is X, which the model takes, and a dict y, described in `reference.loss.term_sums`. At least one
    label of a minibatch must count. `DDPTrainer` says what is broadcast.
    """


class DDPSyncBNTrainer(DDPTrainer):
    """`DDPTrainer` whose BatchNorm layers use the whole minibatch's mean and variance, however it is split.

    On every rank the running statistics are those of one device. Each such layer costs one exchange in the forward and
    one in the backward, which do not overlap with computation. As torch does, a minibatch with one value per channel
    raises.
    """

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(convert(model), devices, lr=lr)
