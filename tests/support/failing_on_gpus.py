"""Trainers that fail on a GPU: really, on a CPU in its own way, and by what torch raises when NCCL fails."""

from __future__ import annotations

import os
import sys
import time

import torch
from torch import Tensor
from torch import distributed as dist

from reference.trainers.ddp import DDPTrainer
from reference.trainers.single import Single


class LosesItsCommunicator(Single):
    """Raises what torch 2.15 raises when NCCL cannot go on: its group has an exception of its own."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        raise RuntimeError(
            "NCCL AllReduce failed: unhandled cuda error (run with NCCL_DEBUG=INFO for details) \n"
            "NCCL Last Error: Cuda failure 719 'unspecified launch failure'"
        )


class WrapsAnErrorOfNccl(LosesItsCommunicator):
    """Raises an error of its own for NCCL's."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        try:
            return super().step(X, y, global_batch_size)
        except RuntimeError as error:
            raise ValueError("the exchange failed") from error


class EndedByNcclsWatchdog(Single):
    """Ends as torch's watchdog by default ends a process: it says why, and aborts."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        said = "[TC][rank=0][name=0] Aborting process on rank 0 due to timeout - timeout watchdog detected operation"
        print(said, file=sys.stderr, flush=True)
        os.abort()


MORE_BYTES = 1 << 50  # than any device has


class TakesAllMemory(DDPTrainer):
    """Asks for more memory than there is, on one rank."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            torch.empty(MORE_BYTES, dtype=torch.uint8, device=X.device)
        return super().step(X, y, global_batch_size)


class ReadsPastTheEnd(DDPTrainer):
    """Indexes past the end of a tensor, on one rank: an assertion in a kernel of a GPU."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            X[torch.tensor([len(X)], device=X.device)].sum().item()
        return super().step(X, y, global_batch_size)


class RankOneNeverComes(DDPTrainer):
    """One rank waits for something else, and the other in an exchange for it."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            time.sleep(3600)
        dist.all_reduce(torch.ones(1, device=X.device))
        return super().step(X, y, global_batch_size)
