"""What a worker times: one trainer on one workload at one world size, with its data feed (worker's side)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # public, and documented
from torch.profiler import ProfilerActivity, profile, record_function

from reference import nest
from reference.data import Dataset, feed
from reference.data import load as load_dataset
from reference.loss import why_unfit
from reference.models.init import build
from reference.nest import Nest
from suite.processes import hosts
from suite.processes.folder import FOLDER
from suite.processes.jobs import LOADERS, READ_AHEAD, Counted, Job, ModelSpec, Place, Prepared, Traced
from suite.properties import contract
from suite.rank import counting, kept, recorder
from suite.rank.timing import first_bad_sample, require_finite, window
from suite.room import accelerator, limits, quiet
from suite.room.devices import survey
from suite.script.timed import TimedScript

ROWS = 10  # of the table of a trace
PARTS = ("train_X", "train_y", "test_X", "test_y")
VERSIONS = 8  # of a compiled function for each device: as many as torch by default keeps for all devices of a process


def bind(rank: int, place: Place) -> list[torch.device]:
    """Bind this process to its devices and cores, join its process group if it has one, and return its devices.

    The process is pinned after torch is loaded, because loading it is most of a session's start and uses every core.
    Nothing is allocated, and no thread of a trainer, of gloo or of autograd is started, before this call.
    """
    devices = settle(rank, place)
    if place.processes != "one":
        join(place.backend, devices[0])
    return devices


def settle(rank: int, place: Place) -> list[torch.device]:
    """Bind this process as `bind` does, and leave its process group to whom it belongs."""
    one = place.processes == "one"
    devices = [torch.device(name) for name in (place.devices if one else [place.devices[rank]])]
    if place.pinned:
        quiet.pin(itertools.chain(*place.pinned) if one else place.pinned[rank] or _own_cores(devices[0]))
    if devices[0].type == "cpu":
        if place.pinned:
            quiet.take_turns()
        torch.set_num_threads(1)
    else:
        share_quota(len(devices))
        torch.accelerator.set_device_index(devices[0])
        recorder.log_nccl()
    return devices


def share_quota(devices: int) -> None:
    """Let this rank compute on the host with its share of a container's CPU quota, unless the user has set a number.

    Every other rank on this host has as many `devices`.
    """
    ranks = devices * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if "OMP_NUM_THREADS" not in os.environ and (threads := limits.threads(ranks)) is not None:
        torch.set_num_threads(threads)


def _own_cores(device: torch.device) -> Sequence[int]:
    """Return the cores of a rank to which the controller, on another host, could give none; empty leaves it free."""
    if device.type != "cpu":
        return dict(enumerate(survey().near)).get(device.index, ())
    cores = quiet.available_cores()
    return [cores[int(os.environ["LOCAL_RANK"]) % len(cores)]]


def prepare_dataset(name: str, data_root: str, folder: str) -> Prepared:
    """Load a dataset and write its four parts to `folder` (`suite.rank.kept`).

    The workers of every session map these files (`open_dataset`), so a run loads the dataset once on each host, and all
    arms read the same bytes.
    """
    dataset = load_dataset(name, Path(data_root))
    has_labels = any(leaf.dtype == torch.int64 for leaf in nest.leaves(dataset.train_y))
    _here(folder).mkdir(parents=True, exist_ok=True)  # another worker may have been ended while it wrote
    for part in PARTS:
        kept.write(getattr(dataset, part), _here(folder) / part)
    return Prepared(
        name=dataset.name,
        folder=folder,
        train_samples=nest.samples(dataset.train_y),
        test_samples=nest.samples(dataset.test_y),
        tokens=nest.tokens(dataset.train_X),
        idx_root=str(dataset.idx_root) if dataset.idx_root is not None else None,
        unfit=why_unfit(dataset.train_y),
        no_labels="" if has_labels else nest.described(dataset.train_y),
        not_finite=first_bad_sample("train_X", dataset.train_X) or first_bad_sample("train_y", dataset.train_y),
    )


def _here(folder: str) -> Path:
    """Return a folder that may be given relative to the run's own folder, which has another name on every host."""
    return Path(os.environ.get(FOLDER, "")) / folder


@functools.cache
def open_dataset(prepared: Prepared, device: torch.device, dtype: torch.dtype) -> Dataset:
    """Return the dataset that `prepare_dataset` wrote, on `device`, with samples of `dtype`.

    On a CPU the files are mapped. All arms and trainings of a process share one copy: on a GPU it takes memory.
    """
    parts = {part: nest.move(kept.read(_here(prepared.folder) / part), device, dtype) for part in PARTS}
    return Dataset(prepared.name, **parts, idx_root=None if prepared.idx_root is None else Path(prepared.idx_root))


def make_trainer(
    trainer: type[Any], model: nn.Module, devices: list[torch.device], lr: float, workload: ModelSpec
) -> Any:
    """Make a trainer of a model in the workload's precision and memory format, and check its contract."""
    model = model.to(accelerator.set_precision(workload.precision))
    if workload.memory_format == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    made = trainer(model, devices, lr=lr)
    contract.check_instance(made, devices)
    if workload.compile:
        # Each device, shape and mode needs a version of its own, and beyond the limit torch runs the rest uncompiled.
        limits = torch._dynamo.config
        limits.recompile_limit = max(limits.recompile_limit, VERSIONS * len(devices))
        for replica in made.replicas:  # not the model, because a copy of it would not be compiled
            replica.compile()
    return made


class TimedArm:
    """One arm, ready to run windows.

    Every rank draws the same minibatches and keeps its shard. Rank 0's weights count; other ranks start from different
    ones, so that a missing broadcast shows.
    """

    unclean = ""  # a window has nothing but steps

    def __init__(self, rank: int, devices: list[torch.device], job: Job) -> None:
        """Build model, trainer and feed for this process's devices."""
        workload = job.workload
        self.rank, self.devices = rank, devices
        # Cores that nobody else has work for. Between hosts an exchange is work of the kernel, and not of others.
        self.has_cores = bool(job.pinned) and devices[0].type == "cpu" and hosts.STORE not in os.environ
        self.global_batch = job.global_batch
        self._precision = workload.precision
        accelerator.seed(devices, job.seed + rank)
        model = build(workload.model, workload.init, job.seed + rank)
        self.trainer = make_trainer(contract.load_trainer(job.trainer), model, devices, job.lr, workload)
        dataset = open_dataset(job.dataset, devices[0], accelerator.set_precision(workload.precision))
        samples = nest.samples(dataset.train_y)
        if samples < self.global_batch:
            raise ValueError(
                f"global batch {self.global_batch} is above the {samples} training samples of {dataset.name!r}; "
                "use a smaller batch, fewer devices, or a larger dataset"
            )
        counted = rank == 0 and devices[0].type != "cpu"  # a rate of a GPU says how much of it a model uses
        self.sample_flop = counting.of_a_sample(model, dataset.train_X, dataset.train_y) if counted else 0
        self._batches = self._endless(dataset, job, job.shard(rank))
        self._remedy = job.dataset.remedy
        self._read_ahead = READ_AHEAD * LOADERS[workload.loader]
        self._minibatch: tuple[Nest, Nest] | None = None

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of a replica's gradients, of all ranks' slices together where they are sharded."""
        trained = [p for p in self.trainer.replicas[0].parameters() if p.requires_grad]
        return sum(p.numel() * p.element_size() for p in trained)

    def window(self, steps: int, lead_in: int = 0, *, keeps: bool = False) -> int:
        """Return the nanoseconds of `steps` training steps with their feed, as `suite.rank.timing.window` does."""
        self._use_up()
        duration_ns, loss = window(self._step, steps, self.devices, lead_in=lead_in, keeps=keeps)
        require_finite(loss, steps, self._remedy)
        return duration_ns

    def probe(
        self, steps: int, *, resident: bool, share: int, exchange: bool, alone: bool, lead_in: int = 0
    ) -> int | None:
        """Time a variant of the step, and restore the replicas.

        Args:
            steps, lead_in: as in `window`.
            resident: whether to train on one minibatch that stays in memory, without the feed.
            share: train on the first 1/share of that minibatch, rounded up, as if the batch had that size.
            exchange: whether gradients are exchanged; if not, the trainer needs `step_unsynced`.
            alone: whether only rank 0 trains, while the others sleep.

        Returns:
            Nanoseconds; None on a rank that does not train.
        """
        if alone and self.rank > 0:
            return None
        if not resident:
            self._use_up()
        step = self._resident_step(share, exchange) if resident else self._step
        with _kept(self.trainer.replicas):
            duration_ns, loss = window(step, steps, self.devices, together=not alone, lead_in=lead_in)
            require_finite(loss, steps, self._remedy)
        return duration_ns

    def count(self, steps: int) -> Counted:
        """Count what training steps without their feed do (`suite.rank.counting`), and restore the replicas.

        All train on one minibatch that stays in memory. A step that is not counted comes first.
        """
        step = self._resident_step(1, exchange=True)
        with _kept(self.trainer.replicas):
            step()
            counted = counting.over_steps(step, steps, self.devices)
        accelerator.release(self.devices)
        return counted

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Return those of the first replica."""
        parameters: Iterable[tuple[str, Tensor]] = self.trainer.replicas[0].named_parameters()
        return parameters

    def close(self) -> None:
        """Close the trainer, which ends its threads."""
        contract.close_trainer(self.trainer)

    def _resident_step(self, share: int, exchange: bool) -> Callable[[], Any]:
        if self._minibatch is None:
            self._minibatch = next(self._batches)
        X, y = self._minibatch
        samples = -(-nest.samples(X) // share)
        batch = self.global_batch if share == 1 else samples
        train = self.trainer.step if exchange else self.trainer.step_unsynced
        return partial(self._train, train, nest.take(X, slice(samples)), nest.take(y, slice(samples)), batch)

    def _use_up(self) -> None:
        """Use the minibatches that the loader prepared before the window.

        It has its lasting pace when each of its processes has delivered one more (docs/adr/0003).
        """
        for _ in range(self._read_ahead):
            next(self._batches)

    def _step(self) -> Any:
        X, y = next(self._batches)
        return self._train(self.trainer.step, X, y, self.global_batch)

    def _train(self, train: Callable[[Nest, Nest, int], Any], X: Nest, y: Nest, batch: int) -> Any:
        with accelerator.autocast(self._precision, self.devices[0]):
            return train(X, y, batch)

    def _endless(self, dataset: Dataset, job: Job, shard: dict[str, int]) -> Iterator[tuple[Nest, Nest]]:
        for epoch in itertools.count():
            yield from feed(
                dataset,
                job.workload.loader,
                self.global_batch,
                **shard,
                device=self.devices[0],
                seed=job.seed,
                epoch=epoch,
                num_workers=LOADERS[job.workload.loader],
                drop_last=True,  # so that all windows do equal work; an epoch's time counts samples
                cpus=set(job.free_cores),
            )


@contextlib.contextmanager
def _kept(replicas: Sequence[nn.Module]) -> Iterator[None]:
    """Restore parameters and buffers: without an exchange replicas drift apart, and one minibatch overfits."""
    tensors = [tensor for replica in replicas for tensor in (*replica.parameters(), *replica.buffers())]
    before = [tensor.detach().clone() for tensor in tensors]
    yield
    with torch.no_grad():
        for tensor, was in zip(tensors, before, strict=True):
            tensor.copy_(was)


def join(backend: str, device: torch.device) -> None:
    """Join the process group that the launcher's environment describes, unless that is done.

    Collectives have torch's own timeout; the controller's deadline for a command ends them earlier.
    """
    if not dist.is_initialized():
        dist.init_process_group(**group_of(backend, device), **meeting())


def meeting(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what `torch.distributed.init_process_group` is told in a run on several hosts; nothing on one.

    All groups of the run meet in one store, each under its own prefix.
    """
    if hosts.STORE not in environment:
        return {}
    host, _, port = environment[hosts.STORE].rpartition(":")
    store = TCPStore(host, int(port), is_master=False)
    prefix = environment["TORCHELASTIC_RUN_ID"]  # the group's name
    rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    return {"store": PrefixStore(prefix, store), "rank": rank, "world_size": world_size}


def group_of(backend: str, device: torch.device) -> dict[str, Any]:
    """Return what `torch.distributed.init_process_group` is told of a rank on `device`.

    An NCCL group also has gloo, for tensors on the CPU, and the device. Without the device a first barrier would take
    the GPU number `rank % device_count` and open a context there. With it the communicator is set up in this call, and
    not within the deadline of a step.
    """
    if backend == "nccl":
        return {"backend": "cpu:gloo,cuda:nccl", "device_id": device}
    return {"backend": backend}


class TracedArm(TimedArm):
    """An arm that annotates the parts of each step: `feed` draws the minibatch, and `step` is the trainer's."""

    def _step(self) -> Any:
        with record_function("feed"):
            X, y = next(self._batches)
        with record_function("step"):
            return self._train(self.trainer.step, X, y, self.global_batch)


def trace(arm: TracedArm | TimedScript, steps: int, path: Path) -> Traced:
    """Trace one window of steps of a warmed-up arm, and write it as a Chrome trace to `path`, which ends in .json.gz.

    The trace has CPU activities of every thread, because a trainer of several CPU devices in one process has a thread
    for each, and CUDA activities on CUDA devices. Not covered: Python frames, tensor shapes and memory, whose recording
    would slow small steps most.

    Raises:
        OSError: the file cannot be written; no part of it remains.
    """
    on_gpus = any(device.type != "cpu" for device in arm.devices)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpus else [])]
    with profile(activities=activities, experimental_config=counting.EVERY_THREAD) as profiler:
        duration_ns = arm.window(steps)
    part = path.with_name(f".{path.name}")  # ends in .gz too, which makes torch compress it
    try:
        profiler.export_chrome_trace(str(part))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    by = "self_device_time_total" if on_gpus else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=by, row_limit=ROWS, max_name_column_width=40)
    return Traced(duration_ns / steps / 1e6, table)
