"""Trains a user's own model on a few minibatches of a workload, and notes what every module did (worker's side).

`train` records, for every forward of the model, the outputs of all its modules, and for every step the gradients.
`suite.properties.compared` holds the records of k devices against that of one. The model computes in float64, and
`comparable` keeps in eval mode what mixes samples or draws, so both compute the same but for rounding. Not covered:
dropout, batch statistics and low precision, which the generated cases check (`suite.properties.trainer`), modules that
are called outside of the model's own forward, and torch.compile.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reference import calling, nest
from reference.data import feed
from reference.data import load as load_dataset
from reference.models.init import build
from reference.nest import Nest
from reference.scatter import shard_bounds
from suite.processes.jobs import ModelJob
from suite.properties import contract
from suite.properties.compared import Record, learned_anything
from suite.properties.hooks import DrawsOfOneDevice, gradients_at_optimizers, optimizers_seen, whole
from suite.room import accelerator, errors

Key = tuple[bytes, ...]
COPIES = 6  # of the parameters in a process: the model, the trainer's, gradients, before and after a step, recorded
SPARE = 20  # more steps on one device, while none has taught it anything: a warm-up, or a loss scale that is too large
REMEDY = "name a smaller model: [tool.scaling.workloads.NAME.correctness] model = 'module:factory', or a smaller batch"
MOST = 64  # ways to find the given tensors in a minibatch that are tried
KEPT_IN_EVAL: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,  # batch and instance normalisation, on several devices too
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    # These two drop out what is between their layers.
    nn.RNNBase,
    nn.MultiheadAttention,
)


class TooLarge(MemoryError):
    """A model does not fit as often as the check needs it."""


def train(trainer: type[Any], devices: Sequence[torch.device], job: ModelJob, rank: int) -> Record:
    """Train the workload's model in float64, one minibatch a step.

    On one device more minibatches are trained until something was learned; they leave nothing but that.

    Args:
        trainer: a class that `suite.properties.contract.load_trainer` returned.
        devices: of this process.
        job: what is trained; every step draws for its samples what one device would, where it `shares_draws`.
        rank: of this process, which starts from weights of its own.

    Returns:
        Plain values and tensors on the CPU:

        - "modules": {name: its class's name};
        - "parameters": the trained parameters' names, and "frozen": how many others there are;
        - "steps": for each, "terms": the values in the largest tensor of X; "gradients" {parameter: float64 tensor};
          and "passes": for each forward of a replica, "rows": which samples of the whole minibatch it got, None where
          that cannot be told; "training": whether a module was in training mode; and "outputs": [module, which of its
          calls, tensors], in the order in which calls end;
        - "learned": for each step, those too that leave nothing else, what `optimizers_seen` yields, and names of
          parameters: "moved", "given" a gradient by torch's optimizers, and of these "nonzero".

    Raises:
        TooLarge: there is not enough memory.
        suite.properties.contract.ContractError: the trainer breaks the protocol.
        Exception: what the trainer or the model raises.
    """
    accelerator.make_exact(devices)
    model = build(job.model, job.init, job.seed + rank)
    _require_memory(model, job)
    dataset = load_dataset(job.dataset, Path(job.data_root))
    batch = min(job.batch, nest.samples(dataset.train_y))
    batches = itertools.islice(
        feed(dataset, "resident", batch, seed=job.seed), job.steps + SPARE * (job.world_size == 1)
    )
    minibatches = [nest.move(pair, "cpu", torch.float64) for pair in batches]
    accelerator.seed(devices, job.generator_seed + rank)
    try:
        with comparable(model.double(), everything=job.stays_in_eval):
            return _observe(trainer, list(devices), model, minibatches, job, rank)
    except (MemoryError, RuntimeError) as error:
        said = errors.text_of(error)
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in said:
            raise TooLarge(f"{said.partition(chr(10))[0] or type(error).__name__}; {REMEDY}") from error
        raise


def _require_memory(model: nn.Module, job: ModelJob) -> None:
    """Refuse a model that the processes of this machine cannot hold as often as they need it; CPUs only."""
    import psutil  # only here: a base's interpreter may lack it, and workers of a base load this module

    if job.devices[0] != "cpu":
        return
    values = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    needed, free = values * 8 * COPIES * job.world_size, psutil.virtual_memory().available
    if needed > free:
        raise TooLarge(
            f"{job.model!r} has {values / 1e6:,.0f} million values: {job.world_size} of it in float64, {COPIES} times "
            f"over, take {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; {REMEDY}"
        )


def _observe(
    trainer: type[Any],
    devices: list[torch.device],
    model: nn.Module,
    minibatches: Sequence[tuple[Nest, Nest]],
    job: ModelJob,
    rank: int,
) -> Record:
    """Train the minibatches, whole ones on the CPU, of which a rank of several takes its shard."""
    made = trainer(model, devices, lr=job.lr)
    contract.check_instance(made, devices)
    first = calling.unwrapped(made.replicas[0])
    parameters = dict(first.named_parameters())
    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    record: Record = {
        "modules": {name: type(module).__name__ for name, module in first.named_modules()},
        "parameters": list(trained),
        "frozen": len(parameters) - len(trained),
        "steps": [],
        "learned": [],
    }
    plain = getattr(trainer, "oracle", "sgd") == "sgd"
    hooked = _Passes(made.replicas)
    after = _values(made, trained)
    for number, (X, y) in enumerate(minibatches):
        if number >= job.steps and any(map(learned_anything, record["learned"])):
            break
        hooked.begin(X, y)
        n = nest.samples(X)
        mine = shard_bounds(n, job.world_size, rank) if job.processes == "per-device" else slice(0, n)
        before = after
        given = [nest.move(nest.take(part, mine), devices[0]) for part in (X, y)]
        if job.shares_draws:
            accelerator.seed(devices, job.generator_seed)
        draws = DrawsOfOneDevice(n, mine) if job.shares_draws else nullcontext()
        with gradients_at_optimizers(trained) as taken, optimizers_seen(trained) as optimizers, draws:
            made.step(*given, n)
        gradients = {name: value.to_dense() for name, value in taken.items()}  # those of an embedding may be sparse
        after = _values(made, trained)
        moved = [name for name, value in after.items() if not torch.equal(before[name], value)]
        nonzero = [name for name, value in gradients.items() if bool((value != 0).any())]
        record["learned"].append(optimizers | {"moved": moved, "given": list(gradients), "nonzero": nonzero})
        if number >= job.steps:
            continue
        for name in trained:
            if plain or name not in gradients:
                gradients[name] = (before[name] - after[name]) / job.lr
        terms = max(leaf.numel() for leaf in nest.leaves(X))
        record["steps"].append({"passes": hooked.passes, "gradients": gradients, "terms": terms})
    contract.close_trainer(made)
    return record


def _values(made: Any, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the trained parameters' values; a step may have put other tensors in their places."""
    now = dict(calling.unwrapped(made.replicas[0]).named_parameters())
    return dict(zip(trained, whole([now.get(name, was) for name, was in trained.items()]), strict=True))


class _Passes:
    """Forward hooks on replicas and all their modules; threads may run replicas, or copies, at the same time."""

    def __init__(self, replicas: Sequence[nn.Module]) -> None:
        self.passes: list[dict[str, Any]] = []
        self._running = threading.local()
        self._minibatch: tuple[list[Tensor], list[Tensor]] = [], []
        for replica in map(calling.unwrapped, replicas):
            replica.register_forward_pre_hook(self._begin_pass, with_kwargs=True)
            for name, module in replica.named_modules():
                module.register_forward_hook(partial(self._note, name))

    def begin(self, X: Nest, y: Nest) -> None:
        """Begin a step with this whole minibatch."""
        self.passes, self._minibatch = [], (nest.leaves(X), nest.leaves(y))

    def _begin_pass(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        given, training = calling.tensors((args, kwargs)), any(part.training for part in module.modules())
        if any(map(torch._C._functorch.is_functorch_wrapped_tensor, given)):  # under torch.func none has values
            self.passes.append({"rows": None, "training": training, "outputs": []})
            self._running.now = None
            return
        self._running.now = {"rows": rows_of(*self._minibatch, given), "training": training, "outputs": []}

    def _note(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        now = getattr(self._running, "now", None)
        if now is None:  # outside of the model's own forward, such as a recomputation in the backward
            return
        call = sum(other == name for other, _, _ in now["outputs"])
        tensors = [tensor.detach() for tensor in calling.tensors(output)]
        # Copies, because a later module may change an output in place.
        now["outputs"].append((name, call, [tensor.to("cpu", copy=True) for tensor in tensors]))
        if name == "":
            self.passes.append(now)
            self._running.now = None


def rows_of(X: Sequence[Tensor], y: Sequence[Tensor], given: Sequence[Tensor]) -> list[int] | None:
    """Return the samples that a forward was given; None where that cannot be told.

    A tensor of X must be among what it was given, and others help. Of equal samples the first one is named, unless the
    forward was also given something else, which may tell them apart.

    X and y are the tensors of the whole minibatch, each (n, ...), and the forward was `given` some in any order.
    """
    found = [(leaf, origins) for leaf in given if leaf.ndim and (origins := _origins(leaf, (*X, *y)))]
    only_these = len(found) == sum(leaf.ndim > 0 for leaf in given)
    parts = [leaf for leaf, _ in found]
    if len({len(leaf) for leaf in parts}) != 1:
        return None
    chosen = itertools.islice(itertools.product(*[origins for _, origins in found]), MOST)
    # Twice the same tensor comes last.
    for wholes in sorted(chosen, key=lambda wholes: len(wholes) - len(set(map(id, wholes)))):
        if any(one is part for one in wholes for part in X):
            keys = _keys(wholes)
            numbers = {key: number for number, key in reversed(list(enumerate(keys)))}
            rows = [numbers[key] for key in _keys(parts) if key in numbers]
            if len(rows) == len(parts[0]) and (only_these or len(numbers) == len(keys)):
                return rows
    return None


def _origins(leaf: Tensor, minibatch: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors of a minibatch that have all rows of a given one."""
    alike = [part for part in minibatch if (part.dtype, part.shape[1:]) == (leaf.dtype, leaf.shape[1:])]
    rows = set(_keys([leaf])) if alike else set()
    return [part for part in alike if rows <= set(_keys([part]))]


def _keys(tensors: Sequence[Tensor]) -> list[Key]:
    """Return the bytes of each sample's row of all tensors."""
    on_cpu = [tensor.detach().cpu() for tensor in tensors]
    return [tuple(row.contiguous().numpy().tobytes() for row in rows) for rows in zip(*on_cpu, strict=True)]


@contextmanager
def comparable(model: nn.Module, *, everything: bool = False) -> Iterator[None]:
    """Keep a model comparable whatever its step does to training and eval mode.

    What depends on the mode and mixes the samples of a rank, or draws, is rightly another on k devices than on one:
    batch normalisation and dropout. Torch's own layers of these kinds (`KEPT_IN_EVAL`) stay in eval mode, or every
    module, although `train()` is called. All other modules follow the step, because a model may return other things
    while it trains. What is compiled runs as it is written, because hooks see no modules in compiled code.

    A batch normalisation without running statistics gets mean 0 and variance 1, because it has no eval mode otherwise.
    """
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            _give_statistics(module)
    set_mode = nn.Module.train

    def stay(module: nn.Module, mode: bool = True) -> nn.Module:
        return set_mode(module, False)

    with ExitStack() as stack:
        for kind in (nn.Module,) if everything else KEPT_IN_EVAL:
            stack.callback(_restore, kind, vars(kind).get("train"))
            kind.train = stay  # type: ignore[method-assign,assignment]
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def _restore(kind: type[nn.Module], its_own: object) -> None:
    if its_own is None:
        del kind.train
    else:
        kind.train = its_own  # type: ignore[assignment,method-assign]


def _give_statistics(module: nn.modules.batchnorm._BatchNorm) -> None:
    like = next(module.parameters(), torch.empty(0))
    module.track_running_stats = True
    module.running_mean = torch.zeros(module.num_features, dtype=like.dtype, device=like.device)
    module.running_var = torch.ones_like(module.running_mean)
