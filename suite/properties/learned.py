"""Whether the steps on one device taught a user's model anything, and what kept them from it (worker's side).

Two devices that do nothing agree with one that does nothing, so a comparison alone would call it right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from suite.properties.answers import RIGHT, Judgement

Record = dict[str, Any]

STEPS = "[tool.scaling.workloads.NAME.correctness] steps"
SHOWN = 4  # parameters that a note names


@contextmanager
def optimizers_seen(trained: Mapping[str, Tensor]) -> Iterator[Record]:
    """Collect what torch's optimizers did in a step.

    Yields:
        - "calls": how often one stepped;
        - "held": the trained parameters that they hold;
        - "rate": the largest learning rate of a group that holds any, 0 without one.
    """
    seen: Record = {"calls": 0, "held": [], "rate": 0.0}
    names = {id(parameter): name for name, parameter in trained.items()}

    def note(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        seen["calls"] += 1
        for group in optimizer.param_groups:
            if held := [names[id(one)] for one in group["params"] if id(one) in names]:
                seen["held"] = list(dict.fromkeys([*seen["held"], *held]))
                seen["rate"] = max(seen["rate"], abs(float(group.get("lr", 1.0))))

    hook = register_optimizer_step_post_hook(note)
    try:
        yield seen
    finally:
        hook.remove()


def evidence(
    optimizers: Record, gradients: Mapping[str, Tensor], before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> Record:
    """Return what a step did to the trained parameters.

    Args:
        optimizers: what `optimizers_seen` collected.
        gradients: what torch's optimizers were given, by parameter; others may have been updated without one.
        before, after: the parameters' values.

    Returns:
        `optimizers`, and names of parameters: "moved", "given" a gradient, and of these "nonzero".
    """
    return optimizers | {
        "moved": [name for name, value in after.items() if not torch.equal(before[name], value)],
        "given": list(gradients),
        "nonzero": [name for name, value in gradients.items() if bool((value != 0).any())],
    }


def anything(step: Record) -> bool:
    """Return whether a step moved a parameter, other than by weight decay alone."""
    return any(name in step["nonzero"] or name not in step["given"] for name in step["moved"])


def judge(alone: Record) -> Judgement:
    """Judge the record of one device: wrong where nothing was learned; a note on parameters that never moved.

    Args:
        alone: as `suite.properties.modules.observe` returns it; the last of its "learned" may be of steps that only one
            device trained, because none before had taught it anything.
    """
    steps, names, trains = alone["learned"], alone["parameters"], len(alone["steps"])
    if not names:
        how_many = f"all {alone['frozen']} are frozen" if alone["frozen"] else "it has none"
        return Judgement(
            f"no parameter of the model is trained: {how_many}, so there is no gradient to compare; "
            "let requires_grad be True where the model is to learn"
        )
    first = next((number for number, step in enumerate(steps) if anything(step)), None)
    if first is None:
        moved = any(step["moved"] for step in steps)
        what = f"moved none of the {len(names)} trained parameters"
        if moved:
            what = f"moved the {len(names)} trained parameters by weight decay alone: every gradient is exactly 0"
        return Judgement(f"nothing was learned: {len(steps)} steps on one device {what}", _suspects(alone))
    if first >= trains:
        return Judgement(
            note=f"nothing was learned in the {trains} steps that were compared, so their updates were not: on one "
            f"device the first is that of step {first}; set {STEPS} = {first + 2}"
        )
    return _unmoved(names, steps)


def _suspects(alone: Record) -> tuple[str, ...]:
    """Return what may have kept all steps from teaching anything, the most likely cause first."""
    steps, names = alone["learned"], alone["parameters"]
    held, given, nonzero = (any(step[what] for step in steps) for what in ("held", "given", "nonzero"))
    if not any(step["calls"] for step in steps):
        return (
            "no optimizer of torch's was stepped: `step` must be one whole update, also where it accumulates, and a "
            "torch.amp.GradScaler leaves out steps in which its scale is too large",
        )
    if not held:
        return ("the optimizer holds other parameters than `replicas` (huggingface/accelerate#3256)",)
    if not given:
        return (
            "no gradient reaches the parameters: the loss is detached from the model (no_grad, detach, item, numpy), "
            "`backward` is missing, or gradients are cleared before the optimizer's step",
        )
    if not nonzero:
        return (*_one_output(alone), "the loss does not depend on what the model returns, or is multiplied by 0")
    if not any(step["rate"] for step in steps):
        return (f"the learning rate is 0 in all of {len(steps)} steps: a schedule that never starts",)
    return (
        f"{len(names)} gradients are there and the updates are lost: smaller than the rounding of the parameters, or "
        "undone after the step",
    )


def _one_output(alone: Record) -> tuple[str, ...]:
    """Return a line where the model returns one number for each sample, on which cross-entropy is always 0."""
    outputs = [output for a_pass in alone["steps"][0]["passes"] for output in a_pass["outputs"]]
    returned = [tuple(tensor.shape) for name, _, tensors in outputs if name == "" for tensor in tensors]
    one = next((shape for shape in returned if len(shape) > 1 and shape[-1] == 1), None)
    if one is None:
        return ()
    return (
        f"cross-entropy on one output: the model returns {one}, and the softmax of one number is 1 whatever it is; use "
        "F.binary_cross_entropy_with_logits, a regression loss, or an output for each class",
    )


def _unmoved(names: Sequence[str], steps: Sequence[Record]) -> Judgement:
    """Return a note on trained parameters that no step has moved, each with the reason where one is known."""
    moved, held, given, nonzero = (
        {name for step in steps for name in step[what]} for what in ("moved", "held", "given", "nonzero")
    )
    reasons: dict[str, str] = {}
    for name in names:
        if name not in moved:
            if name in nonzero:
                reasons[name] = "in spite of a gradient"
            elif name in given:
                reasons[name] = "its gradient is 0"
            elif held:
                reasons[name] = "without a gradient" if name in held else "in no optimizer of torch's"
            else:
                reasons[name] = "the trainer updates by itself"
    if not reasons:
        return RIGHT
    shown = [f"{name!r} ({why})" for name, why in list(reasons.items())[:SHOWN]]
    left_out = Counter(list(reasons.values())[SHOWN:])
    more = [f"{count} more ({why})" for why, count in left_out.items()]
    return Judgement(
        note=f"{len(reasons)} of {len(names)} trained parameters did not move in {len(steps)} steps on one device: "
        + ", ".join([*shown, *more])
    )
