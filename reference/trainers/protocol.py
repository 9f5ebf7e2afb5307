"""What the suite requires of a trainer. Nothing inherits from this; a class that has these members is a trainer.

Optional members, looked up by name:

- ``oracle``: "sgd" (the default) when a step is plain SGD on the mean cross-entropy over the global batch, comparable
  with the `single` trainer; "self" for any other optimiser or loss, compared with the same class on one device.
- ``loss(output, y) -> Tensor``: the trainer's own loss, where it is not cross-entropy: the mean over samples, or one
  value for each. Where y is a nest, the loss of a whole minibatch, divided by what counts in it.
- ``trains``: "samples" (the default), or "tokens" when generated cases shall be language models: X and y are the dicts
  that docs/your-trainer.md describes. With oracle "sgd" it needs a ``loss``.
- ``reference_step(X, y, global_batch_size)``: with oracle "self", the same update written plainly, for one device and
  the whole minibatch, such as without accumulation, mixed precision or compilation. k devices are then compared with
  it, and so is ``step`` on one device.
- ``step_unsynced(X, y, global_batch_size)``: the same computation without the exchange, after which replicas differ. It
  is used to measure what the exchange costs.
- ``shards``: "any" (the default), "equal" where every rank of a step has as many samples as the others, as after a
  DistributedSampler, or a number of which every rank's samples are a multiple. Generated minibatches are so.
- ``shares_gpus``: False where two ranks of a per-device trainer cannot share a GPU. It is then checked on as many
  devices as there are GPUs; with one, checks that need several devices are skipped.
- ``state_dict()`` and ``load_state_dict(state)``, both or neither, with torch's names: return all that training goes on
  from (weights, optimizer, schedule, loss scale, the generators' states), and take it up in a new instance. Each rank
  saves and loads its own state, which goes through torch.save and ``torch.load(weights_only=True)``. Methods that a
  trainer inherits from nn.Module do not count.
- ``close()``: end threads and release resources, but not the process group that was there before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from reference.nest import Nest


class Trainer(Protocol):
    """Keep the replicas of one model and update them together.

    The built-in trainers work on copies and do not change the model that they are given.
    """

    processes: ClassVar[Literal["one", "per-device"]]
    """"one": one process drives all devices. "per-device": one process per device, torch.distributed initialised."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        """Take an initialised model on the CPU, the devices of this process, and the learning rate."""

    def step(self, X: Nest, y: Nest, global_batch_size: int) -> Tensor | None:
        """Do one synchronous update.

        Args:
            X: samples (n, ...) on ``devices[0]``: for "one" the whole minibatch, for "per-device" this rank's shard,
                by torch's chunk rule and possibly empty. Of a data set of nests (`reference.nest`) a nest: the same
                dict, tuple or list, each tensor with n samples.
            y: labels (n,), int64, on ``devices[0]``, or a nest like that of the data set.
            global_batch_size: samples in the minibatch over all ranks.

        Returns:
            Optionally this process's summed loss / global_batch_size: a detached tensor (), still on its device,
            because reading it would wait for the device.
        """

    @property
    def replicas(self) -> Sequence[nn.Module]:
        """1 to k modules, the i-th on ``devices[i]``, with readable parameters."""
