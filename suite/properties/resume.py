"""The check `resume`: a trainer that is saved, made again and resumed goes on as without the interruption.

Not covered: other world sizes than the one that was saved, one file for all ranks, and where the data goes on.
"""

from __future__ import annotations

import torch

from suite.properties.answers import RIGHT, Judgement
from suite.properties.observe import NOT_LOADED, alike
from suite.properties.seen import Seen

GENERATORS = (
    "generators (torch's, NumPy's, Python's) are not resumed, or all ranks got those of rank 0 (radixark/miles#3187)"
)
UNSAVED = (
    "something that training goes on from is in no part of `state_dict`, such as momentum "
    "(KempnerInstitute/KempnerForge#115), a schedule (lightly-ai/lightly-train#301), a scale, a count, or weights in "
    "more precision (TensorAuto/OpenTau#185)"
)
WITHOUT_WEIGHTS = "the weights are not in what `state_dict` returns, or `load_state_dict` puts them elsewhere"
RELOADED = "the instance that goes on does not hold what it has loaded: {what}"

ROUNDED = (
    "resumed to rounding and not to the bit on more than two ranks, as with DistributedDataParallel, which sums in "
    "another order in the first step of an instance"
)


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
            if alike(right, values):
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
            (WITHOUT_WEIGHTS,) if any(NOT_LOADED in observed["reloaded"] for observed in seen.ranks) else (),
        )
    reloaded = dict.fromkeys(words for observed in seen.ranks for words in observed["reloaded"])
    unsaved = (GENERATORS, UNSAVED) if seen.case.drops or seen.drew else (UNSAVED,)
    return Judgement(
        f"resumed before step {resumed}, {what} is off that of the uninterrupted run by {off:.3g} after step "
        f"{step - 1}",
        (RELOADED.format(what=", ".join(reloaded)),) if reloaded else unsaved,
    )
