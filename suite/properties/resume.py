"""The check of a trainer that is saved, made again and resumed (worker's side).

Not covered: other world sizes than the one that was saved, one file for all ranks, and where the data goes on.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from suite.properties import contract, nets
from suite.properties.answers import RIGHT, Judgement
from suite.properties.case import Case
from suite.properties.log import Log
from suite.room import accelerator

if TYPE_CHECKING:
    from suite.properties.seen import Seen  # which imports `observe`, which imports this module

OTHER = 1000  # added to a rank's number for the weights and generators that the second instance starts from

GENERATORS = "generators are not resumed, or all ranks got those of rank 0 (radixark/miles#3187)"
STATES = (
    "the optimizer's state is lost, such as momentum (KempnerInstitute/KempnerForge#115)",
    "the schedule starts again (lightly-ai/lightly-train#301)",
)

ROUNDED = (
    "resumed to rounding and not to the bit on more than two ranks, as with DistributedDataParallel, which sums in "
    "another order in the first step of an instance"
)


def in_another_instance(
    trainer: type[Any], made: Any, devices: Sequence[torch.device], case: Case, rank: int
) -> tuple[Any, Log]:
    """Save a trainer, close it, and resume in another instance.

    Args:
        trainer: its class.
        made: the instance that has trained.
        devices: of this process.
        case: the other instance gets its net with other weights; torch's generators get other seeds.
        rank: of this process.

    Returns:
        The other instance, and the log of its net.

    Raises:
        suite.properties.contract.ContractError: what `state_dict` returned cannot be saved and loaded safely.
    """
    state = loaded(made.state_dict())
    contract.close_trainer(made)
    accelerator.seed(devices, case.seed + OTHER + rank)
    model = nets.build(case, OTHER + rank)
    other = trainer(model, list(devices), lr=case.lr)
    contract.check_instance(other, list(devices))
    other.load_state_dict(state)
    return other, model.log


def loaded(state: Any) -> Any:
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
        reason = re.search(r"WeightsUnpickler error: (.*)", str(error))
        said = reason[1] if reason else f"{type(error).__name__}: {error}"
        raise contract.ContractError(
            f"what `state_dict` returned cannot go through torch.save and torch.load(weights_only=True): {said}; "
            "make it of tensors, numbers, texts, and dicts, lists and tuples of them"
        ) from error


def judge(seen: Seen) -> Judgement:
    """Compare the parameters of a resumed run with those of the uninterrupted one, on every rank.

    They must be equal to the bit. On more than two ranks a sum depends on the order of its terms, and
    DistributedDataParallel has another order in the first step of an instance. There half of the digits of the change
    so far must agree, with a note.
    """
    assert seen.case.resumed is not None
    judgement = RIGHT
    for step in range(len(seen.case.batches) + 1):
        for rank, observed in enumerate(seen.ranks):
            whole, resumed = observed["uninterrupted"], observed["parameters"][step]
            begin, right, values = map(_flat, (whole[0], whole[step], resumed))
            if torch.allclose(right, values, rtol=0, atol=0, equal_nan=True):
                continue
            off = float((right - values).abs().max())
            rounding = seen.half_the_digits * float((right - begin).abs().max())
            if not (seen.case.world_size > 2 and step > seen.case.resumed and off <= rounding):
                pairs = zip(seen.names, whole[step], resumed, strict=True)
                name = next(name for name, ours, theirs in pairs if ours != theirs)
                return _wrong(seen, step, f"{name!r} on rank {rank}", off)
            judgement = Judgement(note=ROUNDED)
    return judgement


def _flat(parameters: list[list[float]]) -> torch.Tensor:
    return torch.tensor([value for values in parameters for value in values], dtype=torch.float64)


def _wrong(seen: Seen, step: int, what: str, off: float) -> Judgement:
    """Say what differs before a step: before, at or after the interruption."""
    resumed = seen.case.resumed
    assert resumed is not None
    if step < resumed:
        return Judgement(
            f"two runs of one case differ before the interruption: {what} by {off:.3g} before step {step}",
            ("randomness without a seed, or threads that draw from one generator in any order",),
        )
    if step == resumed:
        return Judgement(
            f"resumed before step {step}, {what} is off the weights that were saved by {off:.3g}",
            ("the weights are not in what `state_dict` returns, or `load_state_dict` puts them elsewhere",),
        )
    return Judgement(
        f"resumed before step {resumed}, {what} is off that of the uninterrupted run by {off:.3g} after step "
        f"{step - 1}",
        (GENERATORS, *STATES) if seen.case.drops else STATES,
    )
