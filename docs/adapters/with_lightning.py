"""Lightning's Trainer, which owns its loop: the suite feeds it one minibatch at a time."""

import lightning
import torch.distributed as dist
import torch.nn.functional as F
from torch.optim import SGD

from reference.stepped_loop import SteppedLoop


class Module(lightning.LightningModule):
    def __init__(self, net, lr):
        super().__init__()
        self.net, self.lr = net, lr

    def training_step(self, batch):
        X, y, global_batch_size = batch
        return dist.get_world_size() * F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size

    def configure_optimizers(self):
        return SGD(self.parameters(), self.lr)


class LightningTrainer:
    processes = "per-device"

    def __init__(self, model, devices, *, lr):
        self.model = model
        trainer = lightning.Trainer(
            accelerator=devices[0].type,
            devices=dist.get_world_size(),
            strategy="ddp",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        self.loop = SteppedLoop(lambda batches: trainer.fit(Module(model, lr), batches))

    def step(self, X, y, global_batch_size):
        self.loop.step((X, y, global_batch_size))

    @property
    def replicas(self):
        return [self.model]

    def close(self):
        self.loop.close()
