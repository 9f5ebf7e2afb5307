"""The Trainer of transformers, which owns its loop: the suite feeds it one minibatch at a time."""

import tempfile

import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from transformers import Trainer, TrainingArguments

from reference.stepped_loop import SteppedLoop


class Named(nn.Module):
    """A model that takes its input by name."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, X):
        return self.net(X)


class Fed(Trainer):
    def get_train_dataloader(self):
        return self.train_dataset


def loss(output, labels, num_items_in_batch):
    return F.cross_entropy(output, labels, reduction="sum") / num_items_in_batch


class TransformersTrainer:
    processes = "per-device"

    def __init__(self, model, devices, *, lr):
        self.model, self.folder = model, tempfile.TemporaryDirectory()
        arguments = TrainingArguments(
            self.folder.name,
            use_cpu=devices[0].type == "cpu",
            seed=42 + dist.get_rank(),  # Trainer seeds every rank alike: all would draw the same dropout masks
            data_seed=42,
            optim="sgd",
            learning_rate=lr,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            max_steps=10**9,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        self.loop = SteppedLoop(
            lambda batches: Fed(Named(model), arguments, train_dataset=batches, compute_loss_func=loss).train()
        )

    def step(self, X, y, global_batch_size):
        self.loop.step({"X": X, "labels": y})

    @property
    def replicas(self):
        return [self.model]

    def close(self):
        self.loop.close()
        self.folder.cleanup()
