"""The book's data parallelism with the improvement it suggests: exchange gradients while others are still computed.

Backward produces gradients from the last layer to the first. They are collected in buckets in that order. As soon as a
bucket is complete on every device, a separate thread sums it, while the devices compute the layers before it (the
buckets of Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 2020, section 3.2.3, in
one process). The sums are the same as without overlap, in the same order.

A bucket is one flat buffer per device, so that one call exchanges it, however many parameters it has. Every replica
uses its own shard's batch statistics and its own dropout masks, and keeps its own buffers. Not covered: devices of
several kinds (see `weighted`), and sparse gradients, for which torch raises.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from reference.all_reduce import ALL_REDUCE, AllReduce
from reference.all_reduce.bucketed import assign_buckets
from reference.loss import summed_loss
from reference.per_device import helper_thread
from reference.scatter import gather, split_batch
from reference.sgd import sgd_
from reference.trainers.scratch import Scratch

BUCKET_BYTES = 256 * 1024
"""With it LeNet's 516 kB make three buckets, and its one large matrix is exchanged during the backward of the
convolutions before it, which is most of the backward. With 1 MiB there would be a single bucket and no overlap. There
are never more buckets than parameters: in a large net most weights are above the limit and get a bucket each."""


class ScratchOverlap(Scratch):
    """SGD on the mean cross-entropy, the exchange overlapped with backward; one replica on each device.

    A parameter that no shard uses stays as it is. Where only some shards use a parameter, its bucket is exchanged at
    the end of backward. Parameters may be frozen and unfrozen between steps, on all replicas in the same way. An error
    in forward, backward or exchange leaves all parameters as they were and does not affect the next step.

    Args:
        model, devices, lr: as in `Trainer`; devices all CPU or all CUDA.
        bucket_bytes: maximum number of bytes in a bucket of several parameters.
        all_reduce_: sums a bucket's buffers in place; called in a separate thread.

    Raises:
        ValueError: the devices are of different kinds, or there are several and ``bucket_bytes`` is below 1.
    """

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
        super().__init__(model, devices, lr=lr)
        self._new_exchange = partial(Exchange, self.nets, bucket_bytes, all_reduce_)
        self._exchange = self._new_exchange() if len(self.nets) > 1 else None

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update every replica with the gradient of the whole batch; see `Trainer.step`.

        Raises:
            RuntimeError: a parameter got its gradient twice in one backward, or the trainer is closed.
        """
        if self._exchange is not None and self._exchange.trainable != set(_trainable(self.nets[0])):
            self._exchange.close()
            self._exchange = self._new_exchange()
        return self._overlapped(X, y, global_batch_size, self._exchange)

    def step_unsynced(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update every replica with its own shard's gradient only, after which the replicas differ."""
        return self._overlapped(X, y, global_batch_size, None)

    def close(self) -> None:
        """End the threads of the replicas and of the exchange."""
        super().close()
        if self._exchange is not None:
            self._exchange.close()

    def _overlapped(self, X: Tensor, y: Tensor, global_batch_size: int, exchange: Exchange | None) -> Tensor:
        for net in self.nets:
            net.zero_grad()  # an interrupted step may have left gradients
        X_shards, y_shards = split_batch(X, y, self.per_device.devices)
        losses = self.per_device.map(summed_loss, self.nets[: len(X_shards)], X_shards, y_shards)
        with nullcontext() if exchange is None else exchange.during_backward(len(losses)):
            if losses[0].device.type != "cpu":
                # One call for all losses: autograd has a thread per GPU, so the buckets of all GPUs fill together.
                torch.autograd.backward(losses)
            else:
                self.per_device.map(torch.autograd.backward, losses)
        self.per_device.map(partial(sgd_, lr=self.lr, batch_size=global_batch_size), self.device_params)
        return gather([loss.detach() for loss in losses], self.per_device.devices[0]).sum() / global_batch_size


@dataclass
class Bucket:
    """Gradients that are exchanged together. A slot is a parameter's index in the bucket, a rank a device's index."""

    names: list[str]
    """The parameters' names, by slot."""
    copies: list[tuple[nn.Parameter, ...]]
    """The parameters, by slot and rank."""
    flats: list[Tensor] = field(default_factory=list)
    """One buffer (n,) per rank, for all slots."""
    views: list[tuple[Tensor, ...]] = field(default_factory=list)
    """Views of ``flats`` in the parameters' shapes, by slot and rank."""
    waiting: set[tuple[int, int]] = field(default_factory=set)
    """Slot and rank of the gradients that have not been computed yet in this step."""
    used: set[int] = field(default_factory=set)
    """Slots for which any rank has a gradient in this step."""
    written: list[tuple[torch.device, torch.Event]] = field(default_factory=list)
    """On CUDA: the events that the exchange must wait for, each with its device."""

    def note_written(self, rank: int) -> None:
        """Record an event after what the calling thread's current stream has written for a rank so far."""
        if self.flats[rank].device.type != "cpu":
            device = self.flats[rank].device
            self.written.append((device, torch.accelerator.current_stream(device).record_event()))


def make_buckets(nets: Sequence[nn.Module], bucket_bytes: int) -> list[Bucket]:
    """Group the trainable parameters of equal nets into buckets by `assign_buckets`, last parameter first."""
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
    """Sum the gradients of equal nets over their devices, bucket by bucket, while they are computed.

    Hooks on the parameters move each gradient into its bucket, and the hook that completes a bucket submits it to the
    exchange's thread. On CUDA that thread works on side streams, one per device: they wait for the events that the
    hooks recorded, and at the end the caller's current streams wait for them. The host never waits for a device.
    """

    def __init__(self, nets: Sequence[nn.Module], bucket_bytes: int, all_reduce_: AllReduce) -> None:
        self.trainable = set(_trainable(nets[0]))
        self.buckets = make_buckets(nets, bucket_bytes)
        self._all_reduce_ = all_reduce_
        self._thread = helper_thread("exchange")
        devices = {flat.device for bucket in self.buckets for flat in bucket.flats}
        self._streams = {device: torch.Stream(device) for device in devices if device.type != "cpu"}
        self._lock = threading.Lock()
        self._open = False
        self._running: list[Future[None]] = []
        self._context = copy_context()  # the caller's, so that `count_traffic` around a step counts in the thread
        # Weak, because the garbage collector does not see a parameter's hooks, which would keep the nets alive.
        this = weakref.ref(self)
        for number, bucket in enumerate(self.buckets):
            for slot, copies in enumerate(bucket.copies):
                for rank, param in enumerate(copies):
                    param.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        partial(_arrived, this, number, slot, rank)
                    )

    @contextmanager
    def during_backward(self, active: int) -> Iterator[None]:
        """Exchange the gradients of a backward inside this context; at its end ``.grad`` is the sum on every device.

        Only so many devices, from the first, have a shard; the others contribute zeros. Raises RuntimeError where a
        parameter got its gradient twice in one backward, and what ``all_reduce_`` raised.
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
            self._exchange_incomplete()
        finally:
            with self._lock:  # an autograd thread may still be running after an error in another one
                self._open = False
            wait(self._running)
            for device, stream in self._streams.items():
                torch.accelerator.current_stream(device).wait_stream(stream)
        for future in self._running:
            future.result()
        for bucket in self.buckets:
            for slot in bucket.used:
                for param, view in zip(bucket.copies[slot], bucket.views[slot], strict=True):
                    param.grad = view

    def close(self) -> None:
        """End the thread and ignore the hooks from now on."""
        self._open = False
        self._thread.shutdown()

    def arrive(self, number: int, slot: int, rank: int, grad: Tensor) -> bool:
        """Copy one gradient into its bucket, in the thread that computed it; return False outside `during_backward`."""
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
            if not bucket.waiting and self._open:
                self._running.append(self._thread.submit(self._context.run, self._sum, bucket))
        return True

    def _exchange_incomplete(self) -> None:
        """After backward, exchange the incomplete buckets that have any gradient; missing ones count as zeros."""
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
                side_streams.enter_context(stream)
            for device, event in bucket.written:
                self._streams[device].wait_event(event)
            self._all_reduce_(bucket.flats)


def _arrived(weak: weakref.ref[Exchange], number: int, slot: int, rank: int, param: Tensor) -> None:
    """Hand a parameter's new gradient to the exchange if it still exists; the bucket then holds it, not ``.grad``."""
    exchange = weak()
    if exchange is not None and param.grad is not None and exchange.arrive(number, slot, rank, param.grad):
        param.grad = None


def _trainable(net: nn.Module) -> dict[str, nn.Parameter]:
    return {name: param for name, param in net.named_parameters() if param.requires_grad}
