"""The Trainer of transformers on texts: AdamW and clipping as it sets them, and two micro-batches for each update."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from transformers import Trainer, TrainingArguments

from reference import nest
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


def loss(scores, labels, num_items_in_batch):  # the labels that count, of all ranks and micro-batches
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum") / num_items_in_batch


class TransformersTokensTrainer:
    processes = "per-device"
    oracle = "self"
    trains = "tokens"
    micro_batches = 2

    def __init__(self, model, devices, *, lr):
        self.model, self.folder = model, tempfile.TemporaryDirectory()
        arguments = TrainingArguments(
            self.folder.name,
            use_cpu=devices[0].type == "cpu",
            seed=42 + dist.get_rank(),  # Trainer seeds every rank alike: all would draw the same dropout masks
            data_seed=42,
            learning_rate=lr,
            lr_scheduler_type="constant",
            weight_decay=0.1,
            gradient_accumulation_steps=self.micro_batches,
            max_steps=10**8,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        self.loop = SteppedLoop(
            lambda batches: Fed(Named(model), arguments, train_dataset=batches, compute_loss_func=loss).train()
        )

    def step(self, X, y, global_batch_size):
        labels = y["labels"]
        for rows in torch.arange(len(labels), device=labels.device).tensor_split(self.micro_batches):
            piece, targets = nest.take((X, labels), rows)
            self.loop.step({"X": piece, "labels": targets})

    @property
    def replicas(self):
        return [self.model]

    def close(self):
        self.loop.close()
        self.folder.cleanup()
