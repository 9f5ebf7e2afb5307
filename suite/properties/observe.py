"""Runs a trainer through a case and records what the checks need (worker's side).

`suite.properties.trainer` judges the records of all ranks afterwards, so nothing here communicates, and the record of a
trainer that raises ends there.
"""

from __future__ import annotations

import io
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from reference import nest
from reference.evaluate import count_correct
from reference.nest import Nest
from reference.scatter import shard_bounds
from suite.properties import contract, nets
from suite.properties.case import Case
from suite.properties.hooks import DrawsOfOneDevice, Noise, gradients_at_optimizers, whole
from suite.properties.nets import Log, TextNet
from suite.properties.state import NOT_LOADED, alike, changed, flattened
from suite.room import accelerator, errors

EVALUATED = 101  # test samples: uneven over 2, 3, 4, ... devices; enough to count otherwise with other buffers
MOST_WORDS = 3  # parts of a state that a message names
OTHER = 1000  # added to a rank's number for the weights and generators that a resumed instance starts from

# The parts of an observation that are lists, most of them of one entry for each step.
LISTS = (
    *("parameters", "differing", "losses", "gradients", "others", "changed", "skipped", "scales", "log", "noise"),
    *("uninterrupted", "reloaded", "saved", "of_generators"),
)

Observation = dict[str, Any]
Loss = Callable[[Tensor, Nest], Tensor]


@contract.defaults_kept()
def observe(
    trainer: type[Any],
    devices: Sequence[torch.device],
    case: Case,
    rank: int = 0,
    *,
    check: str = "",
    plain: bool = False,
) -> tuple[Observation, Loss | None]:
    """Train the steps of a case.

    Args:
        trainer: a class that `suite.properties.contract.load_trainer` returned.
        devices: of this process.
        case: a trainer of one process gets whole minibatches, others this rank's shard.
        rank: of this process; every rank starts from different weights, and rank 0's count.
        check: which one will judge: some of what is recorded, only one of them needs. By default all but `state`.
        plain: whether to train by the trainer's `reference_step`, where it has one.

    Returns:
        The record, plain values and float64 tensors on the CPU, and the trainer's own loss where it has one:

        - "plain": whether `reference_step` trained;
        - "raised": None, or {"where", "error", "traceback"} of the exception that ended the trainer;
        - "parameters": of the first replica, before the first and after every step: a flat tensor for each;
        - "differing": after every step, [replica, parameter, error] of other replicas here that are not bit-equal;
        - "buffers": of the first replica at the end, flat, by name;
        - "losses": what every step returned, None where nothing;
        - "gradients": for every step, what torch's optimisers were given for each parameter of the first replica: a
          flat tensor, or None; SGD is left out, whose parameters show it;
        - "others": for every step and optimizer, [its class's name, what it was given for other tensors]: a flat
          tensor, or None, for each;
        - "left_out": whether SGD has stepped;
        - "changed": whether a step changed its minibatch, or one before;
        - "skipped": whether one of torch's GradScalers found its scale too large in a step, which it then skips;
        - "scales": of torch's GradScalers, after every step;
        - "log": for every step, what the net's forwards saw (`suite.properties.nets.Log`);
        - "drew": whether a step drew random numbers; on a GPU known where the case `shares_draws`;
        - "noise": for every step of a net with dropout, digests of the noise that was drawn for its samples;
        - "synchronised": whether a layer of the first replica is a SyncBatchNorm, by its class's name;
        - "correct": of `EVALUATED` test samples, {"shared": how many its replicas together got right of this process's
          share, "alone": how many each of its replicas got right of all}; None where it was not evaluated;
        - "uninterrupted": "parameters" of the same case without the interruption, where it is `resumed`;
        - "reloaded": how the state of the instance that goes on differs from what it has loaded, in words;
        - "saved": for the check `state`, what `state_dict` returned before the first and after the last step, as
          `suite.properties.state.flattened` has it; and "of_generators": the paths of generators' states in it.

    Raises:
        suite.properties.contract.ContractError: the trainer breaks the protocol.
        Exception: after the trainer's error this process cannot use its GPU any more.
    """
    uninterrupted: list[list[Tensor]] = []
    if case.resumed is not None:
        other, loss = observe(trainer, devices, replace(case, resumed=None), rank, check=check)
        if other["raised"]:
            return other, loss
        uninterrupted = other["parameters"]
    accelerator.make_exact(devices)
    accelerator.seed(devices, case.seed + rank)
    training = _Training(trainer, devices, case, rank, plain=plain)
    record = training.record
    record["uninterrupted"] = uninterrupted
    model = nets.build(case, rank)
    try:
        training.begin(model, saves=check == "state")
        for step in range(len(case.batches)):
            if step == case.resumed:
                training.resume(step)
            training.step(step)
        training.end(evaluates=check in ("", "evaluation"), saves=check == "state")
    except contract.ContractError:
        raise
    except Exception as error:  # a user's trainer may raise anything, and that is recorded
        if accelerator.is_fatal(error):
            raise  # this process can serve no other case
        record["raised"] = _raised(training.where, error)
    try:
        contract.close_trainer(training.made)
    except contract.ContractError:
        raise  # this process has left its group and can serve no other case
    except Exception as error:
        if accelerator.is_fatal(error):
            raise
        record["raised"] = record["raised"] or _raised("close()", error)
    return record, getattr(training.made, "loss", None)


class _Training:
    """A trainer while it trains on a case: its instance, its record as `observe` returns it, and what it does now."""

    _train: Callable[..., Any]
    _log: Log
    _by_position: dict[int, nn.Parameter]
    _sizes: set[int]  # of the net's parameters

    def __init__(
        self, trainer: type[Any], devices: Sequence[torch.device], case: Case, rank: int, *, plain: bool
    ) -> None:
        """Train nothing yet; the arguments are those of `observe`."""
        self._class, self._devices, self._case, self._rank = trainer, list(devices), case, rank
        self._per_device = trainer.processes == "per-device"
        # A wrong gradient shows in what SGD makes of it, and under oracle "sgd" nothing else is expected.
        self._seen_in_parameters = torch.optim.SGD if getattr(trainer, "oracle", "sgd") == "self" else Optimizer
        self._scalers: list[torch.amp.GradScaler] = []
        self._fed: list[tuple[Tensor, Tensor]] = []
        self.made: Any = None
        self.where = "__init__"
        self.record: Observation = {name: [] for name in LISTS} | {
            "plain": plain and hasattr(trainer, "reference_step"),
            "raised": None,
            "buffers": {},
            "left_out": False,
            "drew": False,
            "synchronised": False,
            "correct": None,
        }

    def begin(self, model: nets.CaseNet | TextNet, *, saves: bool) -> None:
        """Make the trainer of this net, and save it before the first step where that `saves`."""
        with _collected(self._scalers):
            self.made = self._class(model, self._devices, lr=self._case.lr)
        contract.check_instance(self.made, self._devices)
        self._watch(self.made.reference_step if self.record["plain"] else self.made.step, model)
        kinds = {kind.__name__ for layer in self.made.replicas[0].modules() for kind in type(layer).__mro__}
        self.record["synchronised"] = any(name.endswith("SyncBatchNorm") for name in kinds)
        self._note_parameters()
        if saves and contract.describe(self._class).resumes:
            self.where = "state_dict() before the first step"
            begun = flattened(self.made.state_dict())
            # What changes with the seeds is the state of a generator.
            accelerator.seed(self._devices, self._case.seed + OTHER + self._rank)
            reseeded = flattened(self.made.state_dict())
            accelerator.seed(self._devices, self._case.seed + self._rank)
            self.record["saved"] = [begun]
            self.record["of_generators"] = [path for path in begun if repr(begun[path]) != repr(reseeded.get(path))]

    def resume(self, step: int) -> None:
        """Go on before this step with another instance, which gets the state of this one."""
        self.where = f"resuming before step {step}"
        self.made, model, self.record["reloaded"] = _in_another_instance(
            self._class, self.made, self._devices, self._case, self._rank
        )
        self._watch(self.made.step, model)
        self.record["parameters"][-1] = _values(self.made)

    def step(self, step: int) -> None:
        """Train one step, and record what it did."""
        self.where = f"step {step}"
        record, case = self.record, self._case
        minibatch = nets.minibatch(case, step)
        n = nest.samples(minibatch)
        mine = shard_bounds(n, case.world_size, self._rank) if self._per_device else slice(0, n)
        X, y = nest.move(nest.take(minibatch, mine), self._devices[0])
        self._fed += [(leaf, leaf.clone()) for leaf in nest.leaves((X, y))]
        del self._log[:]
        noise = Noise(len(nest.leaves(X)[0]), self._sizes) if case.drops else None
        draws = DrawsOfOneDevice(n, mine) if case.shares_draws else None
        if case.shares_draws:
            accelerator.seed(self._devices, case.seed)
        generators = accelerator.host_generators()
        scales = [scaler.get_scale() for scaler in self._scalers]
        collecting = gradients_at_optimizers(self._by_position, leave_out=self._seen_in_parameters)
        with collecting as gradients, noise or nullcontext(), draws or nullcontext():
            loss = self._train(X, y, n)
        lowered = [scaler.get_scale() < scale for scaler, scale in zip(self._scalers, scales, strict=True)]
        record["skipped"].append(any(lowered))
        record["scales"].append([scaler.get_scale() for scaler in self._scalers])
        record["gradients"].append(_flat(gradients.get(position) for position in self._by_position))
        record["others"].append([[name, _flat(values)] for name, values in gradients.others.values()])
        record["left_out"] |= gradients.left_out
        record["losses"].append(contract.loss_of(loss))
        record["changed"].append(not all(torch.equal(now, given) for now, given in self._fed))
        record["log"].append(list(self._log))
        record["drew"] |= accelerator.host_generators() != generators or (draws is not None and draws.drew)
        record["noise"].append(noise.digests if noise else [])
        self._note_parameters()

    def end(self, *, evaluates: bool, saves: bool) -> None:
        """Record what is seen when all steps are over, what it `evaluates` and what it `saves` among it."""
        self.where = "evaluating the replicas"
        if evaluates:
            rank = self._rank if self._per_device else None
            self.record["correct"] = _evaluate(self.made, self._devices, self._case, rank)
        self.record["buffers"] = {
            name: buffer.detach().to("cpu", torch.float64, copy=True).flatten()
            for name, buffer in self.made.replicas[0].named_buffers()
        }
        if saves and self.record["saved"]:
            self.where = "state_dict() after the last step"
            self.record["saved"].append(flattened(self.made.state_dict()))

    def _watch(self, train: Callable[..., Any], model: nets.CaseNet | TextNet) -> None:
        """Train by `train` from now on; `model` is the net that the trainer was given."""
        self._train, self._log = train, _log(self.made, model)
        self._by_position = dict(enumerate(self.made.replicas[0].parameters()))
        self._sizes = {size for values in model.parameters() for size in values.shape}

    def _note_parameters(self) -> None:
        self.record["parameters"].append(_values(self.made))
        self.record["differing"].append(_differing(self.made))


@contextmanager
def _collected(scalers: list[torch.amp.GradScaler]) -> Iterator[None]:
    """Add the scalers that are made to a list; a trainer may keep its own anywhere."""
    make = torch.amp.GradScaler.__init__

    def noting(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> None:
        make(scaler, *args, **kwargs)
        scalers.append(scaler)

    torch.amp.GradScaler.__init__ = noting  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.amp.GradScaler.__init__ = make  # type: ignore[method-assign]


def _flat(gradients: Iterable[Tensor | None]) -> list[Tensor | None]:
    return [None if values is None else values.flatten() for values in gradients]


def _raised(where: str, error: Exception) -> dict[str, str]:
    """Return what is recorded of the exception that is being handled."""
    return {"where": where, "error": errors.described(error), "traceback": traceback.format_exc()}


def _in_another_instance(
    trainer: type[Any], made: Any, devices: Sequence[torch.device], case: Case, rank: int
) -> tuple[Any, nets.CaseNet | TextNet, list[str]]:
    """Save a trainer, close it, and resume in another instance, with another net and other seeds of torch's generators.

    Returns:
        The other instance, the net that it was given, and how its state differs from what it has loaded.

    Raises:
        suite.properties.contract.ContractError: what `state_dict` returned cannot be saved and loaded safely.
    """
    state = _loaded(made.state_dict())
    before = flattened(state)
    contract.close_trainer(made)
    accelerator.seed(devices, case.seed + OTHER + rank)
    model = nets.build(case, OTHER + rank)
    other = trainer(model, list(devices), lr=case.lr)
    contract.check_instance(other, list(devices))
    fresh = [parameter.detach().clone() for parameter in other.replicas[0].parameters()]
    other.load_state_dict(state)
    stays = all(map(torch.equal, _local(fresh), _local(other.replicas[0].parameters())))
    differs = changed(before, flattened(other.state_dict()))
    return other, model, [*([NOT_LOADED] if stays else []), *differs][:MOST_WORDS]


def _local(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return what this rank holds of parameters, which may be sharded."""
    return [part.to_local() if hasattr(part, "to_local") else part for part in parameters]


def _log(made: Any, model: nets.CaseNet | TextNet) -> Log:
    """Return the log of the net that a trainer trains, which was pickled if it came from another rank."""
    nets_of = (part for part in made.replicas[0].modules() if isinstance(part, nets.CaseNet | TextNet))
    return next(nets_of, model).log


def _loaded(state: Any) -> Any:
    """Return a trainer's state as a file gives it back.

    Raises:
        suite.properties.contract.ContractError: torch.save cannot write it, or torch.load cannot read it safely.
    """
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        return torch.load(file, weights_only=True)
    except Exception as error:  # pickle raises whatever the object's own methods do
        # torch's refusal is a page long, and has the reason in this line.
        reason = re.search(r"WeightsUnpickler error: (.*)", errors.text_of(error))
        said = reason[1] if reason else errors.described(error)
        raise contract.ContractError(
            f"what `state_dict` returned cannot go through torch.save and torch.load(weights_only=True): {said}; "
            "make it of tensors, numbers, texts, and dicts, lists and tuples of them"
        ) from error


def _values(trainer: Any) -> list[Tensor]:
    return [value.flatten() for value in whole(list(trainer.replicas[0].parameters()))]


def _differing(trainer: Any) -> list[tuple[int, int, float]]:
    if len(trainer.replicas) == 1:
        return []
    first, *others = [whole(list(replica.parameters())) for replica in trainer.replicas]
    differing = []
    for number, other in enumerate(others, start=1):
        for position, (a, b) in enumerate(zip(first, other, strict=True)):
            if not alike(a, b):
                differing.append((number, position, float((a - b).abs().max())))
    return differing


def _evaluate(trainer: Any, devices: Sequence[torch.device], case: Case, rank: int | None) -> dict[str, Any]:
    X, y = evaluation_set(case)
    replicas: list[nn.Module] = list(trainer.replicas)
    mine = slice(None) if rank is None else shard_bounds(EVALUATED, case.world_size, rank)
    return {
        "shared": count_correct(replicas, devices, nest.take(X, mine), nest.take(y, mine)),
        "alone": [count_correct([replica], [device], X, y) for replica, device in zip(replicas, devices, strict=False)],
    }


def evaluation_set(case: Case) -> tuple[Nest, Nest]:
    """Return the test samples of a case, X and y."""
    return nets.minibatch(Case(1, (EVALUATED,), case.seed + 1, case.dtype, net=case.net, text=case.text), 0)
