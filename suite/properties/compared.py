"""What the modules of a user's model did on k devices, held against one device (worker's side).

Two devices that do nothing agree with one that does nothing, so the steps on one device must have taught it something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from suite.properties.answers import RIGHT, Judgement
from suite.properties.suspects import factor
from suite.properties.tolerance import half_the_digits, roundoff

Record = dict[str, Any]  # what `suite.rank.own_model.train` returns of a rank
# A model may compute parts in float32 whatever its parameters are, as many normalisations and losses do.
PRECISION = torch.float32
STEPS = "[tool.scaling.workloads.NAME.correctness] steps"
SHOWN = 4  # parameters that a note names


def judge(alone: Record, ranks: Sequence[Record]) -> Judgement:
    """Compare the records of k devices with that of one, which must have learned something.

    Outputs are compared sample by sample. Only where the model's output or a gradient differs is anything wrong. It
    begins at the first module whose output differs, or where none does, at the first whose gradient differs.
    """
    for rank, record in enumerate(ranks):
        if other := set(alone["parameters"]) ^ set(record["parameters"]):
            return Judgement(
                f"the trained parameters of rank {rank} are not those of one device: {sorted(other)[0]!r} is on one "
                "side only; return the same module in `replicas` on any number of devices"
            )
    taught = _learned(alone)
    if taught.finding:
        return taught
    for number, right in enumerate(alone["steps"]):
        if broken := [name for name, gradient in right["gradients"].items() if not bool(gradient.isfinite().all())]:
            return Judgement(
                f"step {number}: on one device alone the gradient of {broken[0]!r} is infinite or not a number, so "
                "nothing can be compared with it: check the loss on these samples, or choose more of them"
            )
        order = _order(right, alone)
        wrong_gradients = _wrong_gradients(alone, ranks, number, order)
        wrong_outputs = _wrong_outputs(ranks, number, right)
        if not wrong_gradients and "" not in wrong_outputs:
            if idle := _idle(alone, ranks, number):
                return idle
            continue
        step = f"step {number}"
        for place, name in enumerate(order, 1):
            if name in wrong_outputs:
                error, allowed, rank = wrong_outputs[name]
                return Judgement(
                    f"{step}: the output of {_called(name, alone)} on rank {rank} is off that on one device by "
                    f"{error:.3g}, where half of float32's digits are {allowed:.3g}; it is module {place} of "
                    f"{len(order)} in the order of the forward, and the outputs before it agree"
                )
        name, error, allowed, rank = wrong_gradients[0]
        return Judgement(
            f"{step}: the gradient of {name!r}, in {_called(_owner(name, order), alone)}, on rank {rank} is off that "
            f"on one device by {error:.3g}, where half of float32's digits are {allowed:.3g}; it is the first in the "
            f"order of the forward, no output that was compared differs, and {len({w[0] for w in wrong_gradients})} of "
            f"{len(alone['parameters'])} parameters' gradients differ",
            _factor(right["gradients"], ranks[rank]["steps"][number]["gradients"]),
        )
    if any(a_pass["rows"] is None for one in (alone, *ranks) for step in one["steps"] for a_pass in step["passes"]):
        not_told = "gradients agree; outputs were not compared: the model was given other tensors than X"
        return Judgement(note="; ".join(filter(None, [taught.note, not_told])))
    return taught


def _idle(alone: Record, ranks: Sequence[Record], number: int) -> Judgement | None:
    """Return what is wrong where one device's step has changed parameters, and that of a rank none."""
    moved = alone["learned"][number]["moved"]
    for rank, record in enumerate(ranks):
        if moved and not record["learned"][number]["moved"]:
            return Judgement(
                f"step {number}: one device changes {len(moved)} of {len(alone['parameters'])} trained parameters, and "
                f"on rank {rank} none changes, although outputs and gradients agree",
                ("the optimizer holds other parameters than `replicas` (huggingface/accelerate#3256)",),
            )
    return None


def _order(right: dict[str, Any], alone: Record) -> list[str]:
    """Return the names of the modules that were called, each once, in the order in which their calls ended."""
    called = dict.fromkeys(name for a_pass in right["passes"] for name, _, _ in a_pass["outputs"])
    return list(called) or list(alone["modules"])


def _called(name: str, alone: Record) -> str:
    kind = alone["modules"].get(name, "Module")
    return f"{name!r} ({kind})" if name else f"the model ({kind})"


def _owner(parameter: str, order: list[str]) -> str:
    """Return the innermost module with a forward of its own that holds a parameter."""
    name = parameter
    while name:
        name = name.rpartition(".")[0]
        if name in order:
            return name
    return ""


def _wrong_gradients(
    alone: Record, ranks: Sequence[Record], number: int, order: list[str]
) -> list[tuple[str, float, float, int]]:
    """Return name, error, bound and rank of all wrong gradients, in the order of the forward.

    Half of the digits of its own largest entry must be right. A gradient that is small because its terms cancel has the
    rounding of the terms, which are about as large as the model's largest gradient.
    """
    right = alone["steps"][number]
    tolerance = half_the_digits(PRECISION)
    largest = max((float(gradient.abs().max()) for gradient in right["gradients"].values()), default=0.0)
    cancelling = min(right["terms"] * roundoff(PRECISION), tolerance) * largest
    wrong = []
    places = {name: place for place, name in enumerate(order)}
    names = sorted(alone["parameters"], key=lambda name: places.get(_owner(name, order), len(order)))
    for name in names:
        expected = right["gradients"][name]
        allowed = tolerance * float(expected.abs().max()) + cancelling
        for rank, record in enumerate(ranks):
            error = _error(expected, record["steps"][number]["gradients"][name])
            if not error <= allowed:
                wrong.append((name, error, allowed, rank))
    return wrong


def _wrong_outputs(ranks: Sequence[Record], number: int, right: dict[str, Any]) -> dict[str, tuple[float, float, int]]:
    """Return error, bound and rank of each module whose output differs for a sample that both have seen."""
    expected = _Expected(right)
    wrong: dict[str, tuple[float, float, int]] = {}
    for rank, record in enumerate(ranks):
        for a_pass in record["steps"][number]["passes"]:
            for name, call, tensors in a_pass["outputs"]:
                for position, actual in enumerate(tensors):
                    if name in wrong or not a_pass["rows"]:
                        continue
                    other = expected.like(name, call, position, actual, a_pass["rows"])
                    if other is not None:
                        allowed = _allowed(other)
                        if not (error := _error(other, actual)) <= allowed:
                            wrong[name] = (error, allowed, rank)
    return wrong


class _Expected:
    """What one device computed for each sample of a minibatch, in one forward or in several."""

    def __init__(self, right: dict[str, Any]) -> None:
        self._calls: dict[tuple[str, int], list[tuple[list[int], list[Tensor]]]] = {}
        for a_pass in right["passes"]:
            for name, call, tensors in a_pass["outputs"]:
                self._calls.setdefault((name, call), []).append((a_pass["rows"], tensors))

    def like(self, name: str, call: int, position: int, actual: Tensor, rows: list[int]) -> Tensor | None:
        """Return the tensor that a module should have returned for some samples; None where it cannot be told.

        The samples are the first axis or the second one, or the first axis has as many entries for each sample. What
        belongs to no sample, such as a table of positions, has the same values everywhere.
        """
        by_row: dict[int, Tensor] = {}
        samples_axis = None
        for seen, tensors in self._calls.get((name, call), ()):
            if position >= len(tensors) or not seen:
                continue
            other = tensors[position]
            if other.shape == actual.shape and _error(other, actual) <= _allowed(other):
                return actual
            axis = _samples_axis(other, len(seen), actual, len(rows))
            if axis is None:
                return None
            samples_axis = axis
            for row, part in zip(seen, other.movedim(axis, 0).reshape(len(seen), -1), strict=True):
                by_row.setdefault(row, part)
        if samples_axis is None or not all(row in by_row for row in rows):
            return None
        moved = actual.movedim(samples_axis, 0).shape
        return torch.stack([by_row[row] for row in rows]).reshape(moved).movedim(0, samples_axis)


def _samples_axis(one: Tensor, n: int, other: Tensor, m: int) -> int | None:
    """Return the axis with n samples, or a multiple of n, in one tensor and m in the other; None if none has."""
    for axis in range(min(2, one.ndim)):
        a, b = one.shape[axis], other.shape[axis] if other.ndim == one.ndim else -1
        rest = [size for at, size in enumerate(one.shape) if at != axis]
        same = rest == [size for at, size in enumerate(other.shape) if at != axis]
        if same and a % n == 0 and b == a // n * m and (axis == 0 or a == n):
            return axis
    return None


def _allowed(expected: Tensor) -> float:
    """Return half of the digits of a tensor's largest finite entry."""
    finite = expected.to(torch.float64).nan_to_num(0.0, 0.0, 0.0).abs()
    return half_the_digits(PRECISION) * float(finite.max()) if finite.numel() else 0.0


def _error(expected: Tensor, actual: Tensor) -> float:
    """Return the largest difference; infinite where only one of two entries is a number."""
    a, b = expected.to(torch.float64), actual.to(torch.float64)
    equal = (a == b) | (a.isnan() & b.isnan())
    errors = torch.where(equal, torch.zeros_like(a), (a - b).abs()).nan_to_num(nan=float("inf"))
    return float(errors.max()) if errors.numel() else 0.0


def _factor(right: dict[str, Tensor], actual: dict[str, Tensor]) -> tuple[str, ...]:
    """Return a line where all gradients are off by one factor."""
    a, b = (torch.cat([side[name].flatten() for name in right]) for side in (right, actual))
    share = factor(b, a)
    if share and float((b - share * a).norm()) <= half_the_digits(PRECISION) * float(b.norm()):
        return (f"{share:.6g} times the right gradient: the loss is divided by something other than on one device",)
    return ()


def _learned(alone: Record) -> Judgement:
    """Judge the record of one device: wrong where nothing was learned; a note on parameters that never moved.

    The last of its steps may be some that only one device trained, because none before had taught it anything.
    """
    steps, names, trains = alone["learned"], alone["parameters"], len(alone["steps"])
    if not names:
        how_many = f"all {alone['frozen']} are frozen" if alone["frozen"] else "it has none"
        return Judgement(
            f"no parameter of the model is trained: {how_many}, so there is no gradient to compare; "
            "let requires_grad be True where the model is to learn"
        )
    first = next((number for number, step in enumerate(steps) if learned_anything(step)), None)
    if first is None:
        moved = any(step["moved"] for step in steps)
        what = f"moved none of the {len(names)} trained parameters"
        if moved:
            what = f"moved the {len(names)} trained parameters by weight decay alone: every gradient is exactly 0"
        return Judgement(f"nothing was learned: {len(steps)} steps on one device {what}", _kept_from_learning(alone))
    if first >= trains:
        return Judgement(
            note=f"nothing was learned in the {trains} steps that were compared, so their updates were not: on one "
            f"device the first is that of step {first}; set {STEPS} = {first + 2}"
        )
    return _unmoved(names, steps)


def learned_anything(step: Record) -> bool:
    """Return whether a step moved a parameter, other than by weight decay alone."""
    return any(name in step["nonzero"] or name not in step["given"] for name in step["moved"])


def _kept_from_learning(alone: Record) -> tuple[str, ...]:
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
