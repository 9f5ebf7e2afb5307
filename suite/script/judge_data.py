"""Whether ranks train on rows of their own, and evaluate on what no other one trains on. Functions of records.

Rows are indices of a data set where all ranks have the same one; none may be on two ranks. Elsewhere a row is known by
its content, and two ranks may have the same by chance, about as often as one rank has a row twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from suite.script.items import RIGHT, Verdict

Record = dict[str, Any]
Loader = dict[str, Any]
CHANCE = 1e-4  # the probability below which equal rows are no chance
ORDERED = 4  # equal rows in one order that are no chance
RANDOM_SPLIT = "a random_split without a seed (Lightning-AI/pytorch-lightning#7728)"
SHARED = 0.01  # of an evaluation's rows, known by content: fewer may be equal by chance


def data(ranks: Sequence[Record]) -> Verdict:
    """Judge the rows of all ranks."""
    training = [[loader for loader in record["loaders"] if loader["trains"]] for record in ranks]
    verdicts, known = list[Verdict](), False
    for loaders in zip(*training, strict=False):
        same = _same_data(loaders)
        verdicts += [_of_indices(loaders) if same else _of_own_data(loaders), Verdict(notes=_habits(loaders[0]))]
        known = known or (same and not verdicts[-2].unchecked)
    given = RIGHT if known else _of_given(ranks)
    verdicts += [_evaluated(ranks), given]
    if ranks[0]["ended"]:
        steps = len(ranks[0]["steps"])
        verdicts.append(Verdict(notes=(f"the script ended after {steps} step(s) of an optimizer",)))
    findings = [verdict for verdict in verdicts if verdict.finding]
    notes = [note for verdict in verdicts for note in (*verdict.notes, verdict.unchecked) if note]
    return Verdict(
        ". ".join(verdict.finding for verdict in findings),
        tuple(dict.fromkeys(bug for verdict in findings for bug in verdict.looks_like)),
        tuple(dict.fromkeys(notes)),
        "" if findings else given.unchecked,
    )


def _of_given(ranks: Sequence[Record]) -> Verdict:
    """Judge the rows that the models were given, by their content."""
    rows = [[row for step in record["steps"] for row in step["rows"]] for record in ranks]
    if not all(rows):
        return Verdict(unchecked="which rows ranks train on is not known")
    if common := _above_chance(rows):
        return Verdict(
            f"{common} row(s) that the model was given on one rank were given to it on another one in "
            f"{len(ranks[0]['steps'])} update(s), which is no chance; give each rank rows of its own, as by a "
            "DistributedSampler or a seed + rank",
            ("one seed for all ranks, without a sampler",),
        )
    return Verdict(notes=(f"known by their content: the {len(rows[0])} rows of rank 0 in the recorded updates alone",))


def _same_data(loaders: Sequence[Loader]) -> bool:
    """Return whether ranks index the same data set, as far as a few of its rows say."""
    first = loaders[0]
    alike = all((each["dataset"], each["length"]) == (first["dataset"], first["length"]) for each in loaders)
    return first["length"] >= 0 and alike and all(each["prints"] == first["prints"] for each in loaders)


def _of_indices(loaders: Sequence[Loader]) -> Verdict:
    """Judge an epoch of rows that are indices of one data set."""
    plans = [loader["rows"] for loader in loaders]
    name, k = loaders[0]["dataset"], len(loaders)
    if not all(plan is not None and len(plan) for plan in plans):
        return Verdict(unchecked=f"an epoch of {name} is not known by indices")
    if any(len(plan.unique()) < len(plan) for plan in plans) and loaders[0]["replicas"] == 1:
        if any(torch.equal(plan, plans[0]) for plan in plans[1:]):
            return Verdict(f"all ranks draw the same {len(plans[0])} rows of {name}; seed the sampler with seed + rank")
        return Verdict(notes=(f"rows of {name} are drawn with replacement, so ranks may share some by chance",))
    counts = Counter[int]()
    for plan in plans:
        counts.update(plan.unique().tolist())
    drawn, distinct = sum(map(len, plans)), len(counts)
    length = max(distinct, *(loader["rows_of_dataset"] for loader in loaders))  # ranks may have subsets of their own
    twice = drawn - distinct
    remedy, forms = _advice(loaders)
    shared = [row for row, count in counts.items() if count > 1]
    whole_batches = k * max(loader["batch"] for loader in loaders)
    same_everywhere = len(shared) == distinct and distinct > 1
    if twice and (same_everywhere or twice not in (-length % k, -length % whole_batches)):
        how = (
            f"{len(shared)} of {distinct} rows of {name} are on more than one rank in an epoch, such as row {shared[0]}"
        )
        if same_everywhere:
            how = f"every rank goes through the same {distinct} rows of {name} in an epoch"
        lost = f", and {length - distinct} are on none" if length > distinct else ""
        return Verdict(f"{how}{lost}; {remedy}", forms)
    missing = length - distinct
    if missing and loaders[0]["replicas"] > 1 and not (loaders[0]["drops_last"] and missing < whole_batches):
        return Verdict(f"{missing} of {length} rows of {name} are on no rank in an epoch; {remedy}", forms)
    notes = [f"{twice} row(s) of {name} are drawn twice in an epoch, as padding"] if twice else []
    notes += [f"{missing} of {length} rows of {name} are on no rank in the epoch that was seen"] if missing else []
    return Verdict(notes=tuple(notes))


def _is_split_apart(loaders: Sequence[Loader]) -> bool:
    """Return whether ranks draw from other subsets of their data set."""
    return len({loader.get("subset", "") for loader in loaders}) > 1


def _advice(loaders: Sequence[Loader]) -> tuple[str, tuple[str, ...]]:
    """Return what to do, and the known bugs that it looks like."""
    replicas, apart = loaders[0]["replicas"], _is_split_apart(loaders)
    if apart and replicas == len(loaders):
        return "split the data alike on all ranks, from one seed", (RANDOM_SPLIT,)
    if replicas == len(loaders):
        return (
            "give the DistributedSampler of all ranks the same seed, data set and epoch",
            ("a DistributedSampler whose seed differs between ranks (NVlabs/LongLive#71)",),
        )
    no_sampler = ("no DistributedSampler (PatrickHua/SimSiam#16)",) if replicas == 1 else ()
    return (
        "give each rank its own part by a DistributedSampler with as many replicas as ranks",
        (RANDOM_SPLIT,) if apart else no_sampler,
    )


def _of_own_data(loaders: Sequence[Loader]) -> Verdict:
    """Judge rows of data sets that differ between ranks."""
    name = loaders[0]["dataset"]
    if loaders[0]["length"] < 0:
        return Verdict()
    if any(loader["replicas"] > 1 for loader in loaders):
        return Verdict(
            f"ranks have other rows in {name}, and a DistributedSampler leaves each rank a part of its own: what the "
            "other ranks' parts have is trained on by none, or by several; make or split the data alike on all ranks, "
            "from one seed",
            ("data that is made or split without a seed",),
        )
    if common := _above_chance([loader["contents"] for loader in loaders]):
        return Verdict(
            f"ranks have {name} of their own, and {common} row(s) of one were found in another; make or split the data "
            "alike on all ranks, and give each its part by a DistributedSampler"
        )
    return Verdict(notes=(f"each rank has a {name} of its own",))


def _habits(loader: Loader) -> tuple[str, ...]:
    """Return what a reader should know of a loader."""
    notes = list[str]()
    if loader["same_order"]:
        notes.append(
            f"set_epoch of the DistributedSampler of {loader['dataset']} was not called, so every epoch has the same "
            "order (pytorch/pytorch#31771)"
        )
    elif loader["sampler"] == "SequentialSampler":
        notes.append(f"{loader['dataset']} has the same order in every epoch")
    if loader["drops_last"]:
        notes.append(f"drop_last: an epoch of {loader['dataset']} leaves out up to a minibatch of each rank")
    return tuple(notes)


def _evaluated(ranks: Sequence[Record]) -> Verdict:
    """Return what is wrong where a rank evaluates on rows that another one trains on, and it does not itself."""
    for rank, record in enumerate(ranks):
        for loader in record["loaders"]:
            if loader["trains"] or loader["length"] < 0:
                continue
            own = max((_common(loader, one) for one in record["loaders"] if one["trains"]), default=0)
            for other, there in enumerate(ranks):
                for one in there["loaders"]:
                    common = _common(loader, one) if one["trains"] and other != rank else 0
                    least = 0 if _same_data([loader, one]) else SHARED * len(loader["contents"])
                    if common > least and not own:
                        return Verdict(
                            f"{common} of the rows of {loader['dataset']} that rank {rank} keeps for an evaluation are "
                            f"trained on by rank {other}; split the data alike on all ranks, from one seed",
                            (RANDOM_SPLIT,),
                        )
    return RIGHT


def _common(one: Loader, other: Loader) -> int:
    """Return how many rows of one loader's data another one trains on, as far as is known."""
    if _same_data([one, other]) and one["everything"] is not None and other["everything"] is not None:
        return int(torch.isin(one["everything"].unique(), other["everything"]).sum())
    there = set(other["contents"])
    return sum(content in there for content in one["contents"])


def _above_chance(rows: Sequence[Sequence[str]]) -> int:
    """Return how many rows of one rank another one has, where that is no chance; 0 where it is.

    If ranks drew from the same rows by chance, two rows of two ranks would be equal as often as two of one rank. Given
    how many pairs are equal in all, those across ranks are then binomial.
    """
    for at, mine in enumerate(rows):
        for theirs in rows[:at]:
            if len(set(mine)) == len(mine) >= ORDERED and list(mine) == list(theirs):
                return len(mine)
            one, other = Counter(mine), Counter(theirs)
            across = sum(count * other[row] for row, count in one.items())
            within = sum(math.comb(count, 2) for counts in (one, other) for count in counts.values())
            pairs = len(mine) * len(theirs), math.comb(len(mine), 2) + math.comb(len(theirs), 2)
            if across and _at_least(across, across + within, pairs[0] / max(1, sum(pairs))) < CHANCE:
                return sum(row in other for row in one)
    return 0


def _at_least(hits: int, tries: int, share: float) -> float:
    """Return the probability of so many hits or more, each with a probability of `share`; an upper bound for many."""
    if hits <= share * tries or share >= 1:
        return 1.0
    rate = hits / tries  # Chernoff's bound
    rest = (1 - rate) * math.log((1 - rate) / (1 - share)) if rate < 1 else 0.0
    return math.exp(-tries * (rate * math.log(rate / share) + rest))
