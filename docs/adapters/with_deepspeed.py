"""DeepSpeed: its engine wraps model and optimizer; ZeRO's first stage shards the optimizer's state over the ranks."""

import deepspeed
import torch.distributed as dist
import torch.nn.functional as F
from torch.optim import SGD

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,  # required; what `step` is given counts
    "gradient_clipping": 0.0,  # the default of 0.19 clips to a norm of 1
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}


class DeepSpeedTrainer:
    processes = "per-device"

    def __init__(self, model, devices, *, lr):
        model = model.to(devices[0])
        for buffer in model.buffers():  # the engine broadcasts parameters alone
            dist.broadcast(buffer, src=0)
        self.engine, *_ = deepspeed.initialize(model=model, optimizer=SGD(model.parameters(), lr), config=CONFIG)

    def step(self, X, y, global_batch_size):
        loss = F.cross_entropy(self.engine(X), y, reduction="sum") / global_batch_size
        self.engine.backward(loss * dist.get_world_size())
        self.engine.step()
        return loss.detach()

    @property
    def replicas(self):
        return [self.engine.module]
