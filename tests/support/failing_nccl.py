"""Trainers in which NCCL fails, in the words of torch before and since its version 2.15."""

from __future__ import annotations

import os
import sys

from torch import Tensor
from torch import distributed as dist

from reference.trainers.single import Single


class LosesItsCommunicator(Single):
    """Raises what torch raises when NCCL cannot go on."""

    error: Exception = dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error")

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        raise self.error


class CallOfNcclFails(LosesItsCommunicator):
    """The same in torch 2.15, whose group has an exception of its own, which Python gets as a RuntimeError."""

    error = RuntimeError(
        "NCCL AllReduce failed: unhandled cuda error (run with NCCL_DEBUG=INFO for details) \n"
        "NCCL Last Error: Cuda failure 719 'unspecified launch failure'"
    )


class FailureOfNcclIsSeenLater(LosesItsCommunicator):
    """Another rank has gone, which the next collective tells."""

    error = RuntimeError(
        "NCCL Async Error: remote process exited or there was a network error \n"
        "NCCL Last Error: socketPollConnect: connect returned Connection refused, exceeded error retry count"
    )


class NcclTimesOut(LosesItsCommunicator):
    """A collective begins after the watchdog has given up an earlier one."""

    error = RuntimeError("NCCL operation timed out")


class NcclWasAborted(LosesItsCommunicator):
    """A collective begins after the watchdog has cleaned up."""

    error = RuntimeError("NCCL communicator was aborted after a previous error")


class NcclCannotBegin(LosesItsCommunicator):
    """NCCL sets up no communicator for a group of the trainer's own."""

    error = RuntimeError("Failed to initialize NCCL communicator: unhandled system error")


class WrapsAnErrorOfNccl(CallOfNcclFails):
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
