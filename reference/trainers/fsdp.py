"""torch's FSDP2 (`fully_shard`): every rank keeps a slice of each parameter, and a layer is whole only while it runs.

This is the way to a larger model. Replicas (`ddp`) need memory for all parameters and gradients on every device; here a
rank keeps 1/k of both, and the rest of only one unit (`units`) at a time: all_gather before the unit's forward and
again before its backward, reduce_scatter of its gradients as soon as they are computed (Rajbhandari et al. 2020,
arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277). Not covered: a model too large for one host at the start (it
would be made on the meta device), a precision other than the model's, HSDP.
"""

from __future__ import annotations

import copy
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from reference import generators
from reference.trainers.ddp import TokenLoss, require_process_group


def units(net: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return, with their names, the parts of a net that are gathered one at a time; the rest is gathered with the net.

    They are the net's children and the members of its lists and sequences of modules at any depth, inner ones first. A
    part that shares a parameter with a module outside of it (tied weights) is no unit: a parameter belongs to one unit,
    the smallest that has all its places.
    """
    chosen, taken, places = [], set[nn.Parameter](), _places(net)
    for name, module in reversed(list(net.named_modules())):
        parent = net.get_submodule(name.rpartition(".")[0])
        without_forward = isinstance(module, nn.ModuleList | nn.ModuleDict)
        member = parent is net or isinstance(parent, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        if name and member and not without_forward:
            inside = _places(module)
            own = inside.keys() - taken
            if own and all(places[parameter] == inside[parameter] for parameter in own):
                chosen.append((name, module))
                taken |= own
    return chosen


def _places(module: nn.Module) -> Counter[nn.Parameter]:
    """Return for each parameter of a module the number of places that hold it."""
    return Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))


def shard_(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard those of a module's parameters that are not sharded yet; their gradients will be sums over the ranks."""
    unit = fully_shard(module, mesh=mesh)
    # By default torch takes the mean over ranks, which is the mean over samples only when shards are equal.
    unit.set_gradient_divide_factor(1.0)
    unit.set_force_sum_reduction_for_comms(True)
    # Newer torch only: the gradient of a parameter that this rank did not use counts as zeros instead of raising.
    if hasattr(unit, "set_reduce_scatter_unused_params"):
        unit.set_reduce_scatter_unused_params(True, recurse=False)


def require_backends(config: str) -> None:
    """Refuse a process group on GPUs that lacks NCCL for their tensors, or gloo for the comparison of layers.

    Gloo alone cannot gather slices that are on GPUs (pytorch/pytorch#152645). The configuration is that which
    ``torch.distributed.get_backend_config`` returns.
    """
    if not {"cpu:gloo", "cuda:nccl"} <= set(config.split(",")):
        raise RuntimeError(
            f"the process group's backends are {config!r}: FSDP on GPUs needs "
            "init_process_group('cpu:gloo,cuda:nccl') and a GPU for each rank"
        )


class FSDPTrainer:
    """SGD on the mean cross-entropy over the global batch, parameters and gradients sharded over the default group.

    Rank 0's parameters and buffers are broadcast at the start. Normalisation is by shard, and every rank keeps its own
    running statistics. Frozen and tied parameters are supported; a parameter that no rank uses stays as it is.

    All ranks must run the same units in the same order, because gathering a unit is a collective. Otherwise the
    collectives of different layers would be paired: the run would hang, gloo would end the process, or, where sizes
    happen to agree, layers would be mixed silently. So before a unit's forward, and before the backward, the ranks
    compare what comes next by one all_reduce of two integers on the CPU, which waits for no GPU. Children of an
    nn.Sequential, which runs them in its own order, need no comparison. On GPUs the default group needs both backends,
    ``init_process_group("cpu:gloo,cuda:nccl")``, and every rank a GPU of its own. Inside a unit that all ranks run, a
    parameter that some ranks do not use gets the sum in newer torch, and ends the run in older versions (2.9).

    There is no ``step_unsynced``, because without the exchange no rank has a whole parameter to compute with.

    Raises:
        RuntimeError: torch.distributed is not initialised, or on GPUs with other backends; in `step`, the ranks come to
            different layers.
        ValueError: from torch, for a parameter without axes; give it one (shape ``(1,)``).
    """

    processes: ClassVar[Literal["one", "per-device"]] = "per-device"
    shares_gpus: ClassVar[bool] = False

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        require_process_group()
        device = devices[0]
        if device.type != "cpu":
            require_backends(dist.get_backend_config())
            torch.accelerator.set_device_index(device)  # a mesh has no index: FSDP uses the current device
        # FSDP accepts no other memory format, so a channels-last model is computed with contiguous weights.
        net = copy.deepcopy(model).to(device).to(memory_format=torch.contiguous_format)
        for tensor in (*net.parameters(), *net.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        in_own_order = set(net.children()) if type(net).forward is nn.Sequential.forward else set()
        self.compares = False
        for name, module in units(net):
            shard_(module, mesh)
            if module not in in_own_order:
                self.compares = True
                # Before FSDP's own hook, which gathers the unit.
                module.register_forward_pre_hook(partial(self._agree, name), prepend=True)
        shard_(net, mesh)
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Take part in one update with this rank's shard, even an empty one; see `Trainer.step`."""
        loss = self.part_of_loss(X, y, global_batch_size)
        if self.compares:
            self._agree("backward")
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.detach()

    def part_of_loss(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Return this rank's part of the minibatch's loss, (); the parts of all ranks add up to it."""
        return F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's slices of the net's and the optimizer's state, as DTensors, and its generators."""
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": generators.states(self.net),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned on this rank; there must be as many ranks as then."""
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        generators.restore(self.net, state["generators"])

    @property
    def replicas(self) -> list[nn.Module]:
        """The module of this process; its parameters are DTensors, whole through ``full_tensor()`` on all ranks."""
        # After a forward without a backward, as in evaluation, torch keeps the outermost unit's parameters gathered.
        cast(FSDPModule, self.net).reshard()
        return [self.net]

    def _agree(self, what: str, *_: object) -> None:
        """Raise RuntimeError unless all ranks call this with the same ``what``."""
        digest = zlib.crc32(what.encode())
        extremes = torch.tensor([digest, -digest])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
        if int(extremes.sum()):  # the largest digest less the smallest
            raise RuntimeError(
                f"rank {dist.get_rank()} comes to {what!r}, and another rank to another layer: every rank must run the "
                "same layers in the same order, if only to multiply a result by 0"
            )


class FSDPTokensTrainer(TokenLoss, FSDPTrainer):
    """SGD on a weighted mean over tokens plus a z-loss, parameters sharded over the default process group.

    `DDPTokensTrainer` describes a minibatch, `FSDPTrainer` what is sharded and what is refused.
    """
