"""DDP with AdamW, accumulation, clipping, bfloat16 autocast and label smoothing, and what is often wrong in each.

pytest -m correctness --scaling-trainer docs/examples/real_world_trainer.py:RealWorldTrainer
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class RealWorldTrainer:
    processes = "per-device"
    oracle = "self"  # k ranks are compared with this class on one, and with `reference_step`
    micro_batches = 3  # a step, the same number on every rank: a rank with one more pass would wait forever
    max_norm = 1.0

    def __init__(self, model, devices, *, lr):
        self.device = devices[0]
        ids = [self.device] if self.device.type == "cuda" else None
        self.net = DistributedDataParallel(model.to(self.device), device_ids=ids)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=lr, weight_decay=0.1)

    def summed_loss(self, output, y):
        return F.cross_entropy(output, y, label_smoothing=0.1, reduction="sum")

    def step(self, X, y, global_batch_size):
        # tensor_split gives empty pieces; split and chunk would give fewer pieces.
        pieces = list(zip(X.tensor_split(self.micro_batches), y.tensor_split(self.micro_batches), strict=True))
        self.optimizer.zero_grad()
        # All passes but the last, with their forwards, where DDP decides. Around the last one too, ranks would train
        # on their own; without it, every pass would pay for an exchange.
        with self.net.no_sync():
            total = sum(self.accumulate(*piece, global_batch_size) for piece in pieces[:-1])
        total += self.accumulate(*pieces[-1], global_batch_size)  # this pass sums over the ranks what all have gathered
        # After the last backward, when gradients are sums over all ranks: before it, each rank has its own norm.
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.max_norm)
        self.optimizer.step()
        return total

    def reference_step(self, X, y, global_batch_size):
        self.optimizer.zero_grad()
        (self.summed_loss(self.net(X), y) / global_batch_size).backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.max_norm)
        self.optimizer.step()

    def accumulate(self, X, y, global_batch_size):
        # float64 is not autocast. A cast that is written out must leave float64 alone, too.
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            output = self.net(X)
        # Samples have equal weights: the sum over a micro-batch, divided by the samples (for texts, the tokens that
        # count) of all ranks and passes. Means of micro-batches would not (huggingface/transformers#34191).
        loss = self.summed_loss(output.to(torch.promote_types(output.dtype, torch.float32)), y) / global_batch_size
        (loss * dist.get_world_size()).backward()  # DDP takes the mean over ranks
        return loss.detach()

    def state_dict(self):  # optional, with `load_state_dict`: of this rank
        # Each rank's own generators: with rank 0's, all would draw the same dropout (radixark/miles#3187).
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        generators = {"cpu": torch.get_rng_state(), "cuda": cuda}
        return {"model": self.net.module.state_dict(), "optimizer": self.optimizer.state_dict(), **generators}

    def load_state_dict(self, state):
        self.net.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["cpu"])
        if state["cuda"] is not None:
            torch.cuda.set_rng_state(state["cuda"], self.device)

    @property
    def replicas(self):
        return [self.net.module]  # without the wrapper, so that messages name `head.weight`
