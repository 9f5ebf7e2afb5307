"""torch's FSDP2 (`fully_shard`): every rank keeps a slice of each parameter, and a layer is whole only while it runs.

The way to a larger model. Replicating (`ddp`) needs room for all parameters and gradients on every device; here a rank
keeps 1/k of both, and of the rest one unit (`units`) at a time: all_gather before its forward and again before its
backward, reduce_scatter of its gradients as soon as they are there (Rajbhandari et al. 2020, arXiv:1910.02054; Zhao et
al. 2023, arXiv:2304.11277). Not covered: a model too large for one host at the start (it would be made on the meta
device), a precision other than the model's, HSDP.
"""

from __future__ import annotations

import copy
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard


def units(net: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return, by name, the parts of a net that are gathered one at a time; what is left is gathered with the net.

    They are its children and the members of its lists and sequences of modules at any depth, inner ones first. None of
    them is a part that lends a parameter to another one (tied weights): a parameter belongs to one unit, the smallest
    that holds all its places.
    """
    found, taken, places = [], set[nn.Parameter](), _places(net)
    for name, module in reversed(list(net.named_modules())):
        parent = net.get_submodule(name.rpartition(".")[0])
        without_forward = isinstance(module, nn.ModuleList | nn.ModuleDict)
        member = parent is net or isinstance(parent, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        if name and member and not without_forward:
            inside = _places(module)
            own = inside.keys() - taken
            if own and all(places[parameter] == inside[parameter] for parameter in own):
                found.append((name, module))
                taken |= own
    return found


def _places(module: nn.Module) -> Counter[nn.Parameter]:
    """Count the places in a module that hold each parameter."""
    return Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))


def shard_(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard what is not sharded yet of a module's parameters over the mesh; gradients will be sums over the ranks."""
    unit = fully_shard(module, mesh=mesh)
    # torch would take the mean over ranks, which is the mean over samples only when shards are equal.
    unit.set_gradient_divide_factor(1.0)
    unit.set_force_sum_reduction_for_comms(True)
    # Newer torch only: a parameter that this rank did not use counts as zeros instead of upsetting the exchange.
    if hasattr(unit, "set_reduce_scatter_unused_params"):
        unit.set_reduce_scatter_unused_params(True, recurse=False)


class FSDPTrainer:
    """SGD on the mean cross-entropy over the global batch, parameters and gradients sharded over the default group.

    Rank 0's parameters and buffers are broadcast at the start. Normalisation is by shard, and every rank keeps its own
    running statistics. Frozen and tied parameters are right; one that no rank uses stays as it is.

    All ranks must run the same units in the same order, because each one's gathering is a collective: otherwise the
    collectives of different layers meet, and the run hangs, gloo ends the process, or, where sizes happen to agree,
    layers are mixed without a word. So the ranks agree on what comes next before every unit's forward, by one
    all_reduce of two integers between the hosts, which waits for no GPU. Inside a unit that all of them run, a
    parameter that some ranks do not use gets the sum in newer torch, and ends the run in older (2.9).

    There is no ``step_unsynced``: no rank has a whole parameter to compute with unless it is exchanged.

    Raises:
        RuntimeError: torch.distributed is not initialised; in `step`, the ranks come to different layers.
        ValueError: from torch, on a parameter without axes; give it one (shape ``(1,)``).
    """

    processes: ClassVar[Literal["one", "per-device"]] = "per-device"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        if not dist.is_initialized():
            raise RuntimeError(
                "there is no process group: call torch.distributed.init_process_group on every rank first"
            )
        device = devices[0]
        if device.type == "cuda":
            torch.cuda.set_device(device)  # a mesh names kinds of devices only: FSDP takes the current one
        # FSDP takes no other memory format, so a channels-last model is computed with contiguous weights.
        net = copy.deepcopy(model).to(device).to(memory_format=torch.contiguous_format)
        for tensor in (*net.parameters(), *net.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        # NCCL would have every one of these wait for the GPU.
        cuda = device.type == "cuda"
        self.hosts = cast(dist.ProcessGroup, dist.new_group(backend="gloo")) if cuda else None
        for name, module in [*units(net), ("the net", net)]:
            shard_(module, mesh)
            # In front of FSDP's own hook, which gathers the unit.
            module.register_forward_pre_hook(partial(self._agree, name), prepend=True)
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Take part in one update with this rank's shard, even an empty one; see `Trainer.step`."""
        loss = F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size
        self._agree("backward")
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.detach()

    @property
    def replicas(self) -> list[nn.Module]:
        """The module of this process; its parameters are DTensors, whole through ``full_tensor()`` on all ranks."""
        # After a forward without a backward, as in evaluation, torch leaves the outermost unit's parameters whole.
        cast(FSDPModule, self.net).reshard()
        return [self.net]

    def _agree(self, what: str, *_: object) -> None:
        digest = zlib.crc32(what.encode())
        extremes = torch.tensor([digest, -digest])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self.hosts)
        if int(extremes.sum()):  # the largest digest less the smallest
            raise RuntimeError(
                f"rank {dist.get_rank()} comes to {what!r}, and another rank to another layer: every rank must run the "
                "same layers in the same order, if only to multiply a result by 0"
            )
