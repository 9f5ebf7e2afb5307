"""What k ranks computed, held against one device on the rows that they drew together. Functions of records.

A gradient in float64 agrees in half of its digits, or in half of float32's where a model computes parts in float32
whatever its parameters are, as many normalisations and losses do. Wrong data parallelism errs in the first digit. What
is small because its terms cancel has the rounding of the terms: up to 2**20 of them, each as large as the largest entry
of all gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from suite.script.items import Verdict

Record = dict[str, Any]
TERMS = 2.0**20
ALIKE = 1e-6  # the relative difference up to which a gradient is attributed to a bug
SAME_RATE = 1e-9  # relative
OWN_MEANS = (
    "the mean of what each rank makes of its own rows: each divides by its own count (huggingface/transformers#34242), "
    "or clips before the exchange (mindspore-lab/mindcv#603)"
)
WEIGHED = (
    "a sum of the ranks' own gradients that weighs them otherwise than one device weighs their rows: each divides by "
    "its own count (huggingface/transformers#34242)"
)
BYTES_16 = 4 * torch.finfo(torch.bfloat16).eps  # what a few roundings to 16 bits make of a number


def gradient(ranks: Sequence[Record], replay: Record | None, parts: Sequence[Record], why: str) -> Verdict:
    """Judge the gradients that the optimizers are given, in each update."""
    if replay is None:
        return Verdict(unchecked=why)
    if not any(step["largest"] for step in ranks[0]["steps"]):
        if ranks[0]["update"]:
            return Verdict(
                unchecked=f"no parameter has a gradient when {ranks[0]['update']} begins or ends; name the function "
                "that comes after the backward, and leave gradients in the parameters"
            )
        return Verdict(unchecked="all gradients are 0, as the item 'moves' says")
    notes, compared = list[str](), 0
    for number, (recorded, alone) in enumerate(zip(ranks[0]["steps"], replay["steps"], strict=False)):
        expected, actual = alone["gradients"], recorded["gradients"]
        if recorded["digests"] and not actual:
            notes.append(f"from step {number} on, gradients were not kept: they are too large")
            break
        if not (recorded["finite"] and alone["finite"]):
            notes.append(f"from step {number} on, gradients are infinite or not a number")
            break
        compared += 1
        wrong, loose = _wrong(expected, actual)
        if loose and not wrong:
            notes.append(
                "parts are computed in less precision than float64: gradients agree in half of float32's digits"
            )
        if not wrong:
            continue
        if unknown := _not_comparable(ranks, replay, number):
            return Verdict(unchecked=unknown, notes=tuple(dict.fromkeys(notes)))
        name, error, largest = wrong[0]
        right, made = _flat(expected, expected), _flat(actual, expected)
        compressed = any(record["compressed"] for record in ranks)
        if compressed and float((right - made).abs().max()) <= BYTES_16 * float(right.abs().max()):
            notes.append("a communication hook sends gradients in 16 bits: they agree as far as that allows")
            continue
        differ = ", and they differ between ranks" if differing(ranks, number) else ""
        of_ranks = [_flat(part["steps"][0]["gradients"], expected) for part in parts] if number == 0 else []
        return Verdict(
            f"update {number // ranks[0]['cycle']}: the gradient of {name!r} is off that of one device on all ranks' "
            f"rows by {error:.3g}, where its largest entry is {largest:.3g}, and so are those of {len(wrong)} of "
            f"{len(expected)} parameters{differ}; all ranks must get the gradient of all rows",
            _forms(made, right, ranks[0]["steps"][number]["passes"], len(ranks), of_ranks)
            or _not_exchanged(ranks, number, [each for each, _, _ in wrong]),
        )
    if not compared:
        return Verdict(unchecked="; ".join(notes))
    return Verdict(notes=tuple(dict.fromkeys(notes)))


def schedule(ranks: Sequence[Record], replay: Record | None, why: str) -> Verdict:
    """Judge the rates of each optimizer's groups, which one device has at the same update.

    A schedule is a factor to the rate that it began with. That rate may follow a rule for the number of ranks.
    """
    if ranks[0]["update"]:
        return Verdict(unchecked=f"rates are those of torch's optimizers, and {ranks[0]['update']} makes the updates")
    rates = [[step["rates"] for step in record["steps"]] for record in ranks]
    for rank, own in enumerate(rates):
        for number, (mine, first) in enumerate(zip(own, rates[0], strict=False)):
            if not _same(mine, first):
                return Verdict(
                    f"update {number}: rank {rank} has the rates {_said(mine)}, and rank 0 {_said(first)}; all ranks "
                    "must have the same"
                )
    if replay is None:
        return Verdict(unchecked=why)
    k, pairs = len(ranks), list(zip(ranks[0]["steps"], replay["steps"], strict=False))
    mine, alone = (list(side) for side in zip(*pairs, strict=True))
    here, there = _first_rates(mine), _first_rates(alone)
    rule = tuple(
        f"rates begin at {one / other:.6g} times those of one device, as a rule for {k} ranks may want"
        for one, other in zip(here, there, strict=False)
        if other and not _same([one], [other])
    )[:1]
    factors, others = _factors(mine, here), _factors(alone, there)
    wrong = [at for at, (one, other) in enumerate(zip(factors, others, strict=True)) if not _same(one, other)]
    if not wrong:
        return Verdict(notes=rule)
    every = (
        all(_same(own, others[k * at]) for at, own in enumerate(factors) if k * at < len(others)) and len(others) > k
    )
    if ranks[0]["batches"] != replay["batches"]:
        advances = f"; each rate is the one that one device has after {k} times as many updates" if every else ""
        return Verdict(
            unchecked=f"an epoch has {ranks[0]['batches']} minibatches on a rank and {replay['batches']} on one "
            f"device, and a schedule may depend on them: leave the batch to the command, by {{batch}}{advances}"
        )
    times = [one / other for at in wrong for one, other in zip(factors[at], others[at], strict=False) if other]
    if not any(here) and times and _same(times, times[:1] * len(times)):
        return Verdict(
            unchecked=f"rates are set by hand and begin at 0, and all are {times[0]:.6g} times those of one device: a "
            f"rule for {k} ranks, or a schedule that counts the work of all of them"
        )
    told, right = (_said(side[wrong[0]]["rates"]) for side in (mine, alone))
    return Verdict(
        f"update {wrong[0]}: the groups' rates are {told} on {k} ranks, and {right} on one device; a schedule must "
        "advance once an update, and count what all ranks do",
        (f"the schedule advances {k} times an update, once for each process (huggingface/accelerate#2926)",)
        if every
        else (),
        rule,
    )


def _first_rates(steps: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the rate that the schedule of each group of the first optimizer began with, or else its first rate."""
    first = steps[0]
    return [rate if known is None else known for known, rate in zip(first["first_rates"], first["rates"], strict=True)]


def _factors(steps: Sequence[Mapping[str, Any]], first: Sequence[float]) -> list[list[float]]:
    """Return the factors of the schedule at each step; the rates where it began at 0, or has other groups."""
    factors = []
    for step in steps:
        known = [own for own in step["first_rates"] if own is not None] or list(first)
        same = len(known) == len(step["rates"]) and all(known) and step["optimizer"] == steps[0]["optimizer"]
        factors.append([rate / own for rate, own in zip(step["rates"], known, strict=True)] if same else step["rates"])
    return factors


def _wrong(expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> tuple[list[tuple[str, float, float]], bool]:
    """Return name, error and largest entry of what is off, and whether others agree in less than float64's digits."""
    double, single = torch.finfo(torch.float64).eps, torch.finfo(torch.float32).eps
    everything = max((float(g.abs().max()) for g in expected.values() if g.numel()), default=0.0)
    wrong, loose = [], False
    for name in {**expected, **actual}:
        a, b = _whole(expected, name, actual), _whole(actual, name, expected)
        if not a.numel():
            continue
        if a.shape != b.shape:
            wrong.append((name, float("inf"), float(a.abs().max())))
            continue
        exact = a.dtype == torch.float64
        largest, error = float(a.abs().max()), float((a.double() - b.double()).abs().nan_to_num(nan=float("inf")).max())
        if exact and error <= double**0.5 * largest + TERMS * double * everything:
            continue
        loose = True
        if not error <= single**0.5 * largest + (16 * single if exact else single**0.5) * everything:
            wrong.append((name, error, largest))
    return wrong, loose


def _whole(side: Mapping[str, Tensor], name: str, other: Mapping[str, Tensor]) -> Tensor:
    """Return a gradient; one that was not computed is 0."""
    return side[name] if name in side else torch.zeros_like(other[name])


def _flat(side: Mapping[str, Tensor], names: Mapping[str, Tensor]) -> Tensor:
    """Return the gradients of these names as one vector."""
    return torch.cat([_whole(side, name, names).flatten() for name in names])


def _not_comparable(ranks: Sequence[Record], replay: Record, number: int) -> str:
    """Return why a difference says nothing; "" where it does."""
    first = ranks[0]
    if first["not_kept"]:
        return f"a minibatch has a {first['not_kept']}, which cannot be replayed"
    if replay["misfits"]:
        return f"on one device {replay['misfits'][0]!r} is not what it is on {len(ranks)} ranks, and cannot be loaded"
    if replay["padded"]:
        return "ranks' rows have several lengths: they were padded to one, and the script may count the padding"
    if replay["unfed"]:
        return "on one device the script draws minibatches that no rank drew"
    rows = Counter(row for record in ranks for row in record["steps"][number]["rows"])
    if rows != Counter(replay["steps"][number]["rows"]):
        return (
            f"step {number}: the model is given other rows on one device, though the same were drawn: they are changed "
            "at random outside of the DataLoader, or the script draws otherwise on one device"
        )
    if any(step["drew"] for record in ranks for step in record["steps"]):
        return "the model draws random numbers that are no dropout of torch's"
    if 2 * first["steps"][number]["in_step"] >= first["steps"][number]["size"] and differing(ranks, number):
        return "gradients are exchanged in the step itself, and they were read before it"
    if not first["by_loader"] and not (first["has_targets"] or first["returns_loss"]):
        return "the script has no DataLoader, and its loss is none of torch's, so targets are not known"
    return ""


def differing(ranks: Sequence[Record], number: int) -> set[str]:
    """Return the names of the gradients that ranks do not have alike."""
    digests = [record["steps"][number]["digests"] for record in ranks]
    return {name for of_rank in digests for name in of_rank if of_rank[name] != digests[0].get(name)}


def _not_exchanged(ranks: Sequence[Record], number: int, wrong: Sequence[str]) -> tuple[str, ...]:
    """Return a form where the wrong gradients are those that ranks do not have alike."""
    alike = ranks[0]["steps"][number]["digests"].keys() - set(wrong)
    if not alike or differing(ranks, number) != set(wrong):
        return ()
    return ("these parameters are not exchanged: they were frozen when the model was wrapped, or are not a part of it",)


def _forms(actual: Tensor, right: Tensor, passes: int, k: int, parts: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the known bugs that make such a gradient of the right one, or of the ranks' own."""
    if not bool(actual.isfinite().all()):
        return ("a mean over no rows on one rank",)
    candidates: dict[str, Tensor] = {
        "summed over the ranks instead of averaged": right * k,
        "divided by the number of ranks, or of accumulated passes, twice": right / k,
        "nothing was exchanged or accumulated": torch.zeros_like(right),
    }
    if passes > 1:
        candidates |= {
            f"accumulated over {passes} passes and not divided by them": right * passes,
            f"accumulated over {passes} passes and divided by them twice": right / passes,
        }
    if len(parts) == k:
        candidates[OWN_MEANS] = torch.stack(list(parts)).sum(0) / k
        candidates["the gradient of rank 0's rows alone: no exchange"] = parts[0]
    lines = [line for line, made in candidates.items() if _alike(actual, made) and not _alike(made, right)]
    if not lines and len(parts) == k and _is_mixed(actual, torch.stack(list(parts), 1)):
        lines = [WEIGHED]
    square = float(right @ right)
    factor = float(actual @ right) / square if square else 0.0
    if not lines and _alike(actual, factor * right):
        lines = [f"{factor:.6g} times the right gradient"]
    return tuple(lines)


def _is_mixed(actual: Tensor, parts: Tensor) -> bool:
    """Return whether a gradient is a sum of the ranks' own, each times a positive number of its own.

    Args:
        actual: of n entries.
        parts: of shape (n, k).
    """
    n, k = parts.shape
    if n <= 2 * k or not bool(parts.isfinite().all()):
        return False
    weights = torch.linalg.lstsq(parts, actual.unsqueeze(1)).solution.squeeze(1)
    return bool((weights > ALIKE).all()) and _alike(actual, parts @ weights)


def _alike(a: Tensor, b: Tensor) -> bool:
    return float((a - b).norm()) <= ALIKE * float(max(a.norm(), b.norm()))


def _same(a: Sequence[float], b: Sequence[float]) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= SAME_RATE * max(abs(x), abs(y)) for x, y in zip(a, b, strict=True))


def _said(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:.6g}" for rate in rates)
