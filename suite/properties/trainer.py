"""The checks on a trainer: functions from what its ranks did to a judgement, and their table.

Not covered: speed, and communication that changes no parameter, loss or buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from reference import nest
from reference.evaluate import count_correct, count_labels
from reference.scatter import chunk_sizes, shard_bounds
from suite.properties import batch_norm as normalisation
from suite.properties import nets, one_device, state, suspects, tolerance
from suite.properties.answers import RIGHT, SHARED_DRAWS, SKIPPED_ALONE, Judgement
from suite.properties.case import MAY_REFUSE
from suite.properties.contract import torchs_own_defaults
from suite.properties.observe import Observation, evaluation_set
from suite.properties.seen import Seen, equal, flat, has_moved

Check = Callable[[Seen], Judgement]

SCALES_APART = "the loss scale is lowered on one rank alone (pytorch/pytorch#136009)"
CONDITIONED = (
    "not compared where rounding alone moves one device as far: a line search, a sign or a division by little "
    "amplifies it there"
)

DRAWS_NOTHING = (
    "random numbers in the step, of which mean cross-entropy has none: give the trainer its own `loss(output, y)`, or "
    'oracle = "self"'
)
NOT_FOR_SAMPLES = (
    "random numbers that the suite cannot also give to one device: drawn for samples by NumPy or Python's random, for "
    "micro-batches, in threads, or to permute samples; let torch draw for all samples of the step at once, or pass the "
    "numbers in with X or y"
)

OWN_SHARE = "every rank must return its summed loss divided by the global batch size"
OWN_PART = "every rank must return its part of the loss of all texts, so that the ranks' parts add up to it"
AFTER_A_WRONG_STEP = "the weights are wrong since an earlier step, and so is the loss: see the check `trajectory`"


def start(seen: Seen) -> Judgement:
    """Before the first step every replica has rank 0's weights, to the bit."""
    given = [parameter.detach().to(torch.float64) for parameter in nets.build(seen.case).parameters()]
    for rank in range(len(seen.ranks)):
        for name, theirs, right in zip(seen.names, seen.parameters(0, rank), given, strict=True):
            if not torch.equal(theirs, right):
                return Judgement(
                    f"before the first step, {name!r} on rank {rank} is off the weights that rank 0 was given by "
                    f"{tolerance.size(theirs - right):.3g}",
                    ("no broadcast at the start: every rank trains from weights of its own",),
                )
    return _replicas_at(seen, 0)


def gradient(seen: Seen) -> Judgement:
    """The gradient of one step is that of one device on the whole minibatch."""
    wrong = _first_wrong(seen, _gradient_at)
    unread = wrong == RIGHT and seen.oracle == "self" and one_device.is_unread(seen)
    return Judgement(note=one_device.UNREAD) if unread else wrong


def trajectory(seen: Seen) -> Judgement:
    """The gradient of each of several steps, with new data and other batch sizes, is that of one device.

    Under oracle "self" those steps must also change something on one device, to which nothing else compares it.
    """
    unchanged = _unchanged(seen)
    return unchanged if unchanged != RIGHT else _first_wrong(seen, _gradient_at)


def identity(seen: Seen) -> Judgement:
    """On one device the trainer is plain SGD, or what its `reference_step` does.

    Under oracle "self" without a `reference_step`, the same case gives the same bits again.
    """
    if seen.oracle == "sgd" or seen.has_reference:
        return _first_wrong(seen, _gradient_at)
    assert seen.alone is not None
    if all(map(equal, seen.alone["parameters"], seen.ranks[0]["parameters"])):
        return RIGHT
    return Judgement(
        "two runs of one case on one device end in different weights, so k devices have nothing to be equal to",
        ("randomness without a seed, or a dependence on the clock",),
    )


def replicas(seen: Seen) -> Judgement:
    """After every step the replicas' parameters are bit-equal to each other, in one process and over all ranks."""
    return _first_wrong(seen, lambda seen, step: _replicas_at(seen, step + 1))


def loss(seen: Seen) -> Judgement:
    """The losses that the ranks return add up to the mean loss over the minibatch; a step may return None.

    Under oracle "self" they add up to what one device returns, by its `reference_step` where that returns a loss.
    """
    wrong = _first_wrong(seen, _loss_at)
    if wrong != RIGHT or not any(_loss_uncompared(seen, step) for step in seen.steps):
        return wrong
    return Judgement(note="on one device the step returns no loss, so that of k devices was not compared")


def inputs(seen: Seen) -> Judgement:
    """A step changes no minibatch, and its loss and parameters are finite."""
    return _first_wrong(seen, _inputs_at)


def batch_norm(seen: Seen) -> Judgement:
    """Batches are normalised by shard or over the whole minibatch, and rank 0 keeps those running statistics."""
    if seen.oracle == "self":
        return Judgement(note='oracle "self" cannot tell statistics by shard from wrong ones: not checked')
    return normalisation.judge(seen)


def dropout(seen: Seen) -> Judgement:
    """All samples meet dropout; no two shards or steps have the same mask, and no two ranks the same noise."""
    return _first_wrong(seen, _masks_at)


def refusals(seen: Seen) -> Judgement:
    """With unused parameters, or a batch normalisation of one sample, the trainer is right or raises."""
    if seen.case.net.norm == "batch":
        return batch_norm(seen)
    wrong = _first_wrong(seen, _gradient_at)
    return replicas(seen) if wrong == RIGHT else wrong


def not_a_number(seen: Seen) -> Judgement:
    """A sample that is not a number changes all replicas alike, and as on one device; or the trainer raises."""
    spoiled = seen.case.spoiled
    assert spoiled is not None
    wrong = _first_wrong(seen, _spoiled_at)
    if wrong == RIGHT or wrong.step < spoiled:
        return wrong
    scales = {tuple(observed["scales"][wrong.step]) for observed in seen.ranks}
    stepped = {not equal(*observed["parameters"][spoiled : spoiled + 2]) for observed in seen.ranks}
    known = [SCALES_APART] if len(scales) > 1 else [SKIPPED_ALONE] if len(stepped) > 1 else []
    # A step after the spoiled one may be wrong in a way of its own.
    other = () if known else tuple(line for line in wrong.suspects if line != suspects.NOT_FINITE)
    return replace(wrong, suspects=(*known, *other))


def evaluation(seen: Seen) -> Judgement:
    """Every replica predicts what rank 0's parameters do, and all devices together count what one counts."""
    X, y = evaluation_set(seen.case)
    expected = count_correct([seen.net(len(seen.steps))], [torch.device("cpu")], X, y)
    together = sum(observed["correct"]["shared"] for observed in seen.ranks)
    alone = [count for observed in seen.ranks for count in observed["correct"]["alone"]]
    if together == expected and set(alone) == {expected}:
        return RIGHT
    return Judgement(
        f"of {count_labels(y)} test labels rank 0's parameters get {expected} right, all devices together {together}, "
        f"each replica alone {alone}",
        (
            "replicas whose forward depends on more than their parameters, such as buffers that differ"
            if replicas(seen) == RIGHT
            else "replicas that have drifted apart",
        ),
    )


def low_precision(seen: Seen) -> Judgement:
    """In bfloat16 the replicas are bit-equal, and k devices stay within the rounding noise of one.

    They are compared up to the first step that torch's GradScaler skips: its scale may be too large on k devices alone.
    """
    until, apart = seen.first_skipped, replicas(seen)
    if apart != RIGHT:
        return apart
    if seen.case.shares_draws and seen.drew:
        return Judgement(note="not compared in low precision: the step draws random numbers")
    wrong = next((w for step in seen.steps[:until] if (w := one_device.judge_noise(seen, step)) != RIGHT), RIGHT)
    if wrong != RIGHT or until is None:
        return wrong
    return Judgement(
        note="not compared in low precision from a step on that torch's GradScaler skipped: its scale was too large; "
        "lower init_scale to have all steps compared"
    )


CHECKS: dict[str, Check] = {
    "start": start,
    "gradient": gradient,
    "trajectory": trajectory,
    "identity": identity,
    "replicas": replicas,
    "loss": loss,
    "inputs": inputs,
    "low_precision": low_precision,
    "batch_norm": batch_norm,
    "dropout": dropout,
    "evaluation": evaluation,
    "not_a_number": not_a_number,
    "state": state.judge,
    "resume": state.judge_resumed,
    "refusals": refusals,
}

# Those that say nothing of a trainer that does nothing.
OF_STEPS = ("gradient", "trajectory", "identity", "replicas", "loss", "low_precision", "state", "resume")
NOTHING_MOVED = "nothing was compared in a case whose steps changed no parameter"


@torchs_own_defaults()
def judge(check: str, seen: Seen) -> Judgement:
    """Apply a check of `CHECKS`.

    A trainer that raised fails, unless the check is in `MAY_REFUSE`; so does one without the model's parameters.
    """
    ranks = [(f"rank {rank}", observed) for rank, observed in enumerate(seen.ranks)]
    everyone = [("on one device", seen.alone), *ranks]
    for who, observed in everyone:
        if observed is None:
            continue
        for values in observed["parameters"]:
            if (sizes := list(map(len, values))) != seen.sizes:
                return Judgement(
                    f"{who}, replicas[0] has parameters of {sizes} values, the model's have {seen.sizes}",
                    ("`replicas` must be the trained modules themselves",),
                )
        if observed["raised"]:
            where, error = f"{who}, {observed['raised']['where']}", observed["raised"]["error"]
            trace = observed["raised"]["traceback"]
            if check in MAY_REFUSE:
                return Judgement(note=f"refused: {where}: {error}", details=trace, refused=True)
            return Judgement(f"the trainer raised: {where}: {error}", details=trace, crashed=True)
    judgement = CHECKS[check](seen)
    if judgement == RIGHT and check in OF_STEPS and not any(map(has_moved, seen.ranks)):
        return Judgement(note=NOTHING_MOVED)
    if judgement.step >= 0 and any(_off_itself(check, seen, moved) for moved in seen.moved):
        return Judgement(note=CONDITIONED)
    if not (seen.case.shares_draws and seen.drew):
        return judgement
    if judgement.finding:
        plain = seen.oracle == "sgd" and seen.loss is None
        more = (DRAWS_NOTHING, *judgement.suspects) if plain else (*judgement.suspects, NOT_FOR_SAMPLES)
        return replace(judgement, suspects=more)
    return replace(judgement, note=judgement.note or SHARED_DRAWS)


def _off_itself(check: str, seen: Seen, moved: Observation) -> bool:
    """Return whether one device fails a check against itself where it begins at numbers that differ by rounding."""
    return not moved["raised"] and bool(CHECKS[check](replace(seen, ranks=[moved], moved=(), parts=())).finding)


def _first_wrong(seen: Seen, judge_step: Callable[[Seen, int], Judgement]) -> Judgement:
    judgements = ((step, judge_step(seen, step)) for step in seen.steps)
    return next((replace(judgement, step=step) for step, judgement in judgements if judgement != RIGHT), RIGHT)


def _unchanged(seen: Seen) -> Judgement:
    """Judge under oracle "self" whether a step has changed anything on one device; two may return to the start."""
    if seen.alone is None or has_moved(seen.alone):
        return RIGHT
    looks_like = (
        "accumulation over several calls of `step`: each call must be one whole update, so accumulate inside of it"
    )
    if seen.alone["left_out"] or any(seen.alone["others"]):  # an optimizer has stepped
        looks_like = "the optimizer holds other parameters than `replicas` (huggingface/accelerate#3256)"
    return Judgement(f"{len(seen.steps)} steps on one device have changed no parameter", (looks_like,))


def _gradient_at(seen: Seen, step: int) -> Judgement:
    if seen.oracle == "self":
        return one_device.judge_step(seen, step)
    expected, actual = seen.right_gradient(step), seen.gradient(step)
    if not bool(flat(expected).isfinite().all()):
        return RIGHT  # one device has diverged, so that nothing can be compared any more
    explains = "rounding explains"
    if seen.case.text is None:
        allowed = tolerance.gradient_bound(
            seen.net(step), nets.minibatch(seen.case, step)[0], seen.case.lr, seen.slope(step), seen.case.world_size
        )
    else:
        explains = "half of the digits are"
        allowed = tolerance.half_of_the_largest(expected, seen.parameters(step), seen.case.lr, seen.half_the_digits)
    worst = tolerance.worst(seen.names, expected, actual, allowed)
    if worst is None:
        return RIGHT
    name, error, bound = worst
    return Judgement(
        f"step {step}: the gradient of {name!r} is off by {error:.3g}, where {explains} {bound:.3g}",
        _suspects(seen, step, 0),
    )


def _spoiled_at(seen: Seen, step: int) -> Judgement:
    """Judge a step of a case in which a sample is not a number."""
    apart = _replicas_at(seen, step + 1)
    if apart != RIGHT:
        return apart
    ours = seen.parameters(step + 1)
    finite = [bool(values.isfinite().all()) for values in ours]
    if seen.oracle == "self":
        for name, here, there in zip(seen.names, finite, seen.parameters(step + 1, None), strict=True):
            if here != bool(there.isfinite().all()):
                where = "on one device and not on k" if here else "on k devices and not on one"
                return Judgement(f"after step {step}, {name!r} is not a number {where}")
    if not all(finite) or (seen.oracle == "sgd" and step == seen.case.spoiled):
        return RIGHT  # what plain SGD should make of the sample is the trainer's affair
    return _gradient_at(seen, step)


def _replicas_at(seen: Seen, step: int) -> Judgement:
    """Judge whether the replicas are bit-equal before a step."""
    when = "at the start" if step == 0 else f"after step {step - 1}"
    for observed in seen.ranks:
        for replica, position, error in observed["differing"][step]:
            return Judgement(
                f"{when}, {seen.names[position]!r} of replica {replica} differs from replica 0's by {error:.3g}",
                ("the sum is not written back to every device's own gradient (d2l-ai/d2l-zh#955)",) if step else (),
            )
    for rank in range(1, len(seen.ranks)):
        for name, ours, theirs in zip(seen.names, seen.parameters(step), seen.parameters(step, rank), strict=True):
            if not state.alike(ours, theirs):
                return Judgement(
                    f"{when}, {name!r} of rank {rank} differs from rank 0's by {tolerance.size(ours - theirs):.3g}",
                    _suspects(seen, step - 1, rank) if step and seen.oracle == "sgd" else (),
                )
    return RIGHT


def _loss_at(seen: Seen, step: int) -> Judgement:
    returned = [observed["losses"][step] for observed in seen.ranks]
    if all(value is None for value in returned):
        return RIGHT
    n = seen.case.batches[step]
    total = sum(value or 0.0 for value in returned)  # a rank without samples may have nothing to return
    if seen.oracle == "self":
        assert seen.alone is not None
        expected = seen.alone["losses"][step]
        if expected is None:
            return RIGHT
    else:
        X, y = nets.minibatch(seen.case, step)
        expected = float(seen.loss_of(seen.net(step)(X), y).detach())
    error, allowed = abs(total - expected), seen.half_the_digits * (1 + abs(expected))
    if error <= allowed:
        return RIGHT
    k = max(1, len(seen.ranks))
    # Every process has returned the mean over all samples, or nobody has divided.
    whole = any(abs(value - expected) <= allowed * n for value, n in ((total / k, k), (total / n, n)))
    right = f"that of {one_device.described(seen)}" if seen.oracle == "self" else "the mean loss of the minibatch"
    earlier = seen.oracle == "self" and step > 0 and one_device.judge_step(seen, step - 1) != RIGHT
    apart = step > 0 and (earlier or replicas(seen) != RIGHT)
    own = OWN_SHARE if seen.case.text is None else OWN_PART
    means = _own_means(seen, step)
    whole |= bool(means) and all(abs(value - mean) <= allowed for value, mean in means)
    return Judgement(
        f"step {step}: the ranks' losses {returned} add up to {total:.6g}, which is off {right} by {error:.3g}, where "
        f"half of the digits are {allowed:.3g}",
        (AFTER_A_WRONG_STEP,) if apart else (own,) if whole else (),
    )


def _own_means(seen: Seen, step: int) -> list[tuple[float, float]]:
    """Return what each rank with samples has returned, and its mean over its own; nothing under oracle "self"."""
    if seen.oracle == "self" or seen.case.text is not None or len(seen.ranks) < 2:
        return []
    n, net = seen.case.batches[step], seen.net(step)
    made = []
    for rank in range(len(chunk_sizes(n, seen.case.world_size))):
        mine = shard_bounds(n, seen.case.world_size, rank)
        X, y = nest.take(nets.minibatch(seen.case, step), mine)
        made.append((seen.ranks[rank]["losses"][step] or 0.0, float(seen.loss_of(net(X), y, mine, n).detach())))
    return made


def _loss_uncompared(seen: Seen, step: int) -> bool:
    """Return whether ranks returned a loss where one device returned none."""
    returned = [observed["losses"][step] for observed in seen.ranks]
    return seen.alone is not None and seen.alone["losses"][step] is None and any(one is not None for one in returned)


def _inputs_at(seen: Seen, step: int) -> Judgement:
    for rank, observed in enumerate(seen.ranks):
        if observed["changed"][step]:
            return Judgement(
                f"step {step} changed its minibatch in place, or an earlier one, on rank {rank}",
                ("an in-place operation on X or y, or a buffer that aliases them: work on a copy",),
            )
        finite = all(bool(values.isfinite().all()) for values in observed["parameters"][step + 1])
        if not (finite and math.isfinite(observed["losses"][step] or 0.0)):
            return Judgement(f"step {step}: the loss or the parameters on rank {rank} are infinite or not a number")
    return RIGHT


def _masks_at(seen: Seen, step: int) -> Judgement:
    shard_of: dict[str, tuple[int, ...]] = {}
    for at in range(step + 1):
        entries = normalisation.entries(seen, at)
        for entry in entries:
            if entry.get("redrawn") or (entry["recomputed"] and not _met_before(entry, entries)):
                return Judgement(
                    f"step {at}: what is recomputed in the backward met another dropout mask than before",
                    ("recomputed without the generator's state of the forward (allenai/OLMo-core#828)",),
                )
            # Samples that are recomputed in the backward rightly meet their masks again.
            shard = (at, *map(int, entry["samples"]))
            for mask in map(str, entry["masks"]):
                first = shard_of.setdefault(mask, shard)
                if first != shard:
                    whose = "different shards" if first[0] == at else f"steps {first[0]} and {at}"
                    return Judgement(
                        f"step {step}: samples of {whose} met the same dropout mask",
                        ("the same seed on every rank (huggingface/transformers#31412), or again in every step",),
                    )
    rank_of: dict[str, int] = {}
    for rank, observed in enumerate(seen.ranks):
        for digest in observed["noise"][step]:
            if rank_of.setdefault(digest, rank) != rank and _is_for_samples(seen, rank, step):
                return Judgement(
                    f"step {step}: ranks {rank_of[digest]} and {rank} drew the same noise for their samples",
                    ("a generator that has the same seed on every rank (Robbyant/lingbot-vla-v2#41)",),
                )
    n, trained = seen.case.batches[step], sum(len(entry["masks"]) for entry in normalisation.entries(seen, step))
    if trained >= n:
        return RIGHT
    return Judgement(
        f"step {step}: of {n} samples {trained} went through a net in training mode",
        (normalisation.LEFT_OUT,),
    )


def _is_for_samples(seen: Seen, rank: int, step: int) -> bool:
    """Return whether noise with a row for each sample is drawn for these, and not as many numbers by chance.

    It is where a step with other samples on this rank draws as often.
    """
    drawn = seen.ranks[rank]["noise"]
    samples = [chunk_sizes(n, seen.case.world_size)[rank] for n in seen.case.batches]
    return any(
        len(digests) == len(drawn[step])
        for digests, count in zip(drawn, samples, strict=False)
        if count != samples[step]
    )


def _met_before(again: dict[str, Any], entries: Sequence[dict[str, Any]]) -> bool:
    """Return whether a forward of the same samples met the masks that one in the backward did, as far as that went."""
    forwards = [entry for entry in entries if not entry["recomputed"] and entry["samples"] == again["samples"]]
    return any(
        all(first.startswith(mask) for first, mask in zip(entry["masks"], again["masks"], strict=False))
        for entry in forwards
    )


def _suspects(seen: Seen, step: int, rank: int) -> tuple[str, ...]:
    n, k = seen.case.batches[step], seen.case.world_size
    bounds = [shard_bounds(n, k, part) for part in range(len(chunk_sizes(n, k)))]
    actual, shards = flat(seen.gradient(step, rank)), [flat(seen.right_gradient(step, part)) for part in bounds]
    if seen.case.text is not None:
        right = flat(seen.right_gradient(step))
        return suspects.fitting_tokens(actual, right, [shard.nan_to_num() for shard in shards], k)
    sums = [shard * (part.stop - part.start) for shard, part in zip(shards, bounds, strict=True)]
    earlier = [flat(seen.right_gradient(before)) for before in range(step)]
    return suspects.fitting(one_device.evidence(seen, step, rank, actual, sums, earlier))
