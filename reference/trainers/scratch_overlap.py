"""The book's data parallelism with its suggestion carried out: exchange gradients while others are still computed.

Backward produces gradients from the last layer to the first. They are gathered into buckets in that order, and as soon
as a bucket is complete on every device, a thread of its own sums it there, while the devices go on with the layers
before it (the buckets of Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020,
section 3.2.3, in one process). Sums are the same, in the same order, as without overlap.

A bucket is one flat buffer a device, so that it is exchanged in one call whatever the number of its parameters. Every
replica normalises and drops out on its own shard, and keeps its own buffers. Not covered: devices of several kinds (see
`weighted`), and sparse gradients, at which torch raises.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from reference.all_reduce import ALL_REDUCE, AllReduce
from reference.all_reduce.bucketed import assign_buckets
from reference.loss import summed_loss
from reference.per_device import PerDevice, helper_thread
from reference.scatter import gather, split_batch
from reference.sgd import sgd_

BUCKET_BYTES = 256 * 1024
"""So LeNet's 516 kB make three buckets, and its one large matrix is exchanged while the convolutions before it, most of
the backward, are computed: with 1 MiB they would make a single one, and nothing would overlap. In a large net most
weights are above the limit and have a bucket to themselves, so there are never more buckets than parameters."""


class ScratchOverlap:
    """SGD on the mean cross-entropy, the exchange overlapped with backward; one replica on each device.

    A parameter that no shard uses stays as it is. One that only some use has its bucket exchanged at the end of
    backward. Freezing and unfreezing parameters between steps is allowed, on all replicas alike. An error in forward,
    backward or exchange leaves all parameters as they were, and the next step starts clean.

    Args:
        model: as in `Trainer`.
        devices: all CPU or all CUDA.
        lr: learning rate.
        bucket_bytes: most bytes in a bucket of several parameters.
        all_reduce_: sums a bucket in place, called as ``all_reduce_(flat)`` in a thread of its own.

    Raises:
        ValueError: the devices are of different kinds, or there are several and ``bucket_bytes`` is below 1.
    """

    processes: ClassVar[Literal["one", "per-device"]] = "one"

    def __init__(
        self,
        model: nn.Module,
        devices: Sequence[torch.device],
        *,
        lr: float,
        bucket_bytes: int = BUCKET_BYTES,
        all_reduce_: AllReduce = ALL_REDUCE["naive"],
    ) -> None:
        kinds = sorted({device.type for device in devices})
        if len(kinds) > 1:
            raise ValueError(
                f"devices are of {len(kinds)} kinds, {kinds}: the exchange needs exactly one kind; "
                "the trainer `weighted` takes several"
            )
        self.per_device = PerDevice(devices)
        self.nets = [copy.deepcopy(model).to(device) for device in devices]
        self.device_params = [list(net.parameters()) for net in self.nets]
        self.lr = lr
        self._new_exchange = partial(Exchange, self.nets, bucket_bytes, all_reduce_)
        self._exchange = self._new_exchange() if len(self.nets) > 1 else None

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update every replica with the gradient of the whole batch; see `Trainer.step`.

        Raises:
            RuntimeError: a parameter's gradient came twice in one backward, or the trainer is closed.
        """
        if self._exchange is not None and self._exchange.trainable != set(_trainable(self.nets[0])):
            self._exchange.close()
            self._exchange = self._new_exchange()
        return self._step(X, y, global_batch_size, self._exchange)

    def step_unsynced(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update every replica with its own shard's gradient only: the replicas drift apart."""
        return self._step(X, y, global_batch_size, None)

    @property
    def replicas(self) -> list[nn.Module]:
        """One module a device."""
        return self.nets

    def close(self) -> None:
        """End the threads of the replicas and of the exchange."""
        self.per_device.close()
        if self._exchange is not None:
            self._exchange.close()

    def _step(self, X: Tensor, y: Tensor, global_batch_size: int, exchange: Exchange | None) -> Tensor:
        for net in self.nets:
            net.zero_grad()  # what a step that was broken off has left
        X_shards, y_shards = split_batch(X, y, self.per_device.devices)
        losses = self.per_device.map(summed_loss, self.nets[: len(X_shards)], X_shards, y_shards)
        with nullcontext() if exchange is None else exchange.during_backward(len(losses)):
            if losses[0].is_cuda:
                # One call for all: autograd has a thread for each GPU, so that all buckets fill at the same pace.
                torch.autograd.backward(losses)
            else:
                self.per_device.map(torch.autograd.backward, losses)
        self.per_device.map(partial(sgd_, lr=self.lr, batch_size=global_batch_size), self.device_params)
        return gather([loss.detach() for loss in losses], self.per_device.devices[0]).sum() / global_batch_size


@dataclass
class Bucket:
    """Gradients that are exchanged together. A slot is a parameter's place in it, a rank a device's number."""

    names: list[str]
    """The parameters' names, by slot."""
    copies: list[tuple[nn.Parameter, ...]]
    """The parameters, by slot and rank."""
    flats: list[Tensor] = field(default_factory=list)
    """One buffer (n,) a rank, for all slots."""
    views: list[tuple[Tensor, ...]] = field(default_factory=list)
    """Parts of ``flats`` in the parameters' shapes, by slot and rank."""
    waiting: set[tuple[int, int]] = field(default_factory=set)
    """Slot and rank of the gradients that have not come yet in this step."""
    used: set[int] = field(default_factory=set)
    """Slots for which any rank has a gradient in this step."""
    written: list[tuple[torch.device, torch.cuda.Event]] = field(default_factory=list)
    """On CUDA: what the exchange must wait for, and on which device."""

    @property
    def complete(self) -> bool:
        """Whether every device's part has come."""
        return not self.waiting

    def note_written(self, rank: int) -> None:
        """Remember what the calling thread's current stream has written for a rank so far."""
        if self.flats[rank].is_cuda:
            device = self.flats[rank].device
            self.written.append((device, torch.cuda.current_stream(device).record_event()))


def make_buckets(nets: Sequence[nn.Module], bucket_bytes: int) -> list[Bucket]:
    """Group the trainable parameters of equal nets by `assign_buckets`, last parameter first.

    Raises:
        ValueError: ``bucket_bytes`` is below 1.
    """
    slots = list(zip(*(_trainable(net).items() for net in nets), strict=True))[::-1]
    names = [copies[0][0] for copies in slots]
    params = [tuple(param for _, param in copies) for copies in slots]
    buckets = [
        Bucket([names[number] for number in numbers], [params[number] for number in numbers])
        for numbers in assign_buckets([first for first, *_ in params], bucket_bytes)
    ]
    for bucket in buckets:
        sizes = [copies[0].numel() for copies in bucket.copies]
        bucket.flats = [param.new_zeros(sum(sizes)) for param in bucket.copies[0]]
        parts = zip(*(torch.split(flat, sizes) for flat in bucket.flats), strict=True)
        bucket.views = [
            tuple(part.view_as(param) for part, param in zip(row, copies, strict=True))
            for row, copies in zip(parts, bucket.copies, strict=True)
        ]
    return buckets


class Exchange:
    """Sums the gradients of equal nets over their devices, bucket by bucket, while they are computed.

    Hooks on the parameters move each gradient into its bucket. The hook that completes one hands it to the exchange's
    thread. On CUDA that thread works on side streams, one a device: they wait for the events that the hooks recorded,
    and at the end the caller's current streams wait for them. No host ever waits for a device.

    Args:
        nets: equal modules, one a device.
        bucket_bytes: as in `make_buckets`.
        all_reduce_: called with each bucket's buffers.
    """

    def __init__(self, nets: Sequence[nn.Module], bucket_bytes: int, all_reduce_: AllReduce) -> None:
        self.trainable = set(_trainable(nets[0]))
        self.buckets = make_buckets(nets, bucket_bytes)
        self._all_reduce_ = all_reduce_
        self._thread = helper_thread("exchange")
        devices = {flat.device for bucket in self.buckets for flat in bucket.flats}
        self._streams = {device: torch.cuda.Stream(device) for device in devices if device.type == "cuda"}  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self._open = False
        self._running: list[Future[None]] = []
        self._context = copy_context()  # the caller's, so that `count_traffic` around a step counts in the thread
        # A parameter keeps its hooks for life, unseen by the garbage collector: they must not keep the nets alive.
        this = weakref.ref(self)
        for number, bucket in enumerate(self.buckets):
            for slot, copies in enumerate(bucket.copies):
                for rank, param in enumerate(copies):
                    param.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        partial(_arrived, this, number, slot, rank)
                    )

    @contextmanager
    def during_backward(self, active: int) -> Iterator[None]:
        """Exchange what a backward inside this context computes; at its end ``.grad`` holds the sum on every device.

        Args:
            active: the first so many devices have a shard; the others contribute zeros.

        Raises:
            RuntimeError: a parameter's gradient came twice in one backward.
            Exception: what ``all_reduce_`` raised.
        """
        for bucket in self.buckets:
            bucket.waiting = {(slot, rank) for slot in range(len(bucket.copies)) for rank in range(active)}
            bucket.used, bucket.written = set(), []
            for rank, flat in enumerate(bucket.flats[active:], active):
                flat.zero_()
                bucket.note_written(rank)
        self._running, self._context, self._open = [], copy_context(), True
        try:
            yield
            self._complete_the_rest()
        finally:
            with self._lock:  # an autograd thread may still be at work after another one's error
                self._open = False
            wait(self._running)
            for device, stream in self._streams.items():
                torch.cuda.current_stream(device).wait_stream(stream)
        for future in self._running:
            future.result()
        for bucket in self.buckets:
            for slot in bucket.used:
                for param, view in zip(bucket.copies[slot], bucket.views[slot], strict=True):
                    param.grad = view

    def close(self) -> None:
        """End the thread and hear no hook any more."""
        self._open = False
        self._thread.shutdown()

    def arrive(self, number: int, slot: int, rank: int, grad: Tensor) -> bool:
        """Take over one gradient, from the thread that computed it; say whether it was wanted."""
        bucket = self.buckets[number]
        if not self._open:
            return False
        if (slot, rank) not in bucket.waiting:
            raise RuntimeError(
                f"parameter {bucket.names[slot]!r} got a gradient on device {rank} twice in one backward, and the "
                "first may be exchanged already: use checkpoint(..., use_reentrant=False), or the trainer `scratch`"
            )
        bucket.views[slot][rank].copy_(grad)
        with self._lock:
            bucket.note_written(rank)
            bucket.waiting.discard((slot, rank))
            bucket.used.add(slot)
            if bucket.complete and self._open:
                self._running.append(self._thread.submit(self._context.run, self._sum, bucket))
        return True

    def _complete_the_rest(self) -> None:
        """After backward, what has not come will not come: it counts as zeros where any device has a gradient."""
        for bucket in self.buckets:
            if bucket.waiting and bucket.used:
                for slot, rank in bucket.waiting:
                    bucket.views[slot][rank].zero_()
                    bucket.note_written(rank)
                self._running.append(self._thread.submit(self._context.run, self._sum, bucket))

    @torch.no_grad()
    def _sum(self, bucket: Bucket) -> None:
        with ExitStack() as side_streams:
            for stream in self._streams.values():
                side_streams.enter_context(torch.cuda.stream(stream))
            for device, event in bucket.written:
                self._streams[device].wait_event(event)
            self._all_reduce_(bucket.flats)


def _arrived(exchange: weakref.ref[Exchange], number: int, slot: int, rank: int, param: Tensor) -> None:
    living = exchange()
    if living is not None and param.grad is not None and living.arrive(number, slot, rank, param.grad):
        param.grad = None


def _trainable(net: nn.Module) -> dict[str, nn.Parameter]:
    return {name: param for name, param in net.named_parameters() if param.requires_grad}
