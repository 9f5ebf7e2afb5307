"""What the records of a script say, item by item. Functions of records, which need no processes.

`judge` leaves `data` to `suite.script.judge_data`, and `gradient` and `schedule` to `suite.script.judge_replay`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from suite.script import judge_data, judge_replay
from suite.script.items import ITEMS, RIGHT, Verdict

Record = dict[str, Any]
DIVERGES = "a batch is normalised here by running statistics, and with those of a new net it may diverge"
SHARED = "ranks share one model by {}, and only replicas of a whole model can be compared"
SEVERAL = "each of the {passes} passes of update {number} exchanges gradients: use no_sync on all but the last"


def judge(
    ranks: Sequence[Record], replay: Record | None, parts: Sequence[Record] = (), why: str = ""
) -> dict[str, Verdict]:
    """Return a verdict for each item.

    Args:
        ranks: the records of all ranks, in order.
        replay: that of one device on what they drew together; None where there is none.
        parts: those of one device on what each rank drew alone; they explain a wrong gradient.
        why: there is no replay.
    """
    verdicts = {"world": world(ranks), "moves": moves(ranks)}
    if verdicts["world"].finding:
        apart = Verdict(unchecked="the ranks are not in one process group, as the item 'world' says")
        return dict.fromkeys(ITEMS, apart) | verdicts
    verdicts |= {
        "start": start(ranks),
        "data": judge_data.data(ranks),
        "random": random(ranks),
        "exchange": exchange(ranks),
        "replicas": replicas(ranks),
        "gradient": judge_replay.gradient(ranks, replay, parts, why),
        "schedule": judge_replay.schedule(ranks, replay, why),
    }
    if shared_by := next((record["shared_by"] for record in ranks if record["shared_by"]), ""):
        unknown = Verdict(unchecked=SHARED.format(shared_by))
        verdicts |= {item: unknown for item, found in verdicts.items() if found.finding and item != "moves"}
    return verdicts


def world(ranks: Sequence[Record]) -> Verdict:
    """Judge whether there is one process group of all ranks that were started."""
    for rank, record in enumerate(ranks):
        if not record["world"]:
            return Verdict(
                f"rank {rank} trains without a process group, and {len(ranks)} ranks were started; call "
                "torch.distributed.init_process_group() before the model is wrapped, or tell its framework to use the "
                "ranks that torchrun started"
            )
        if record["world"] != len(ranks):
            return Verdict(
                f"the process group of rank {rank} has {record['world']} rank(s), and {len(ranks)} were started; "
                "leave its size to torchrun's WORLD_SIZE"
            )
    return RIGHT


def start(ranks: Sequence[Record]) -> Verdict:
    """Judge whether all ranks begin with the same weights."""
    if not ranks[0]["begun"]:
        return Verdict(unchecked="no module was called in training mode with gradients")
    for rank, record in enumerate(ranks):
        if unwritten := record.get("unwritten"):
            return Verdict(
                f"rank {rank} begins with {len(unwritten)} parameter(s) or buffer(s) that are not numbers, such as "
                f"{unwritten[0]!r}; write all of them before training, also those of modules inside of others",
                ("to_empty leaves memory as it is, and reset_parameters was not called for every module",),
            )
    if other := _first_other([record["begun"] for record in ranks]):
        rank, name = other
        return Verdict(
            f"rank {rank} begins with another {name!r} than rank 0; seed all ranks alike before the model is made, or "
            "send rank 0's weights to the others, as DistributedDataParallel does",
            ("weights that are not broadcast at the start",),
        )
    sharded = any(record["sharded"] for record in ranks)
    return Verdict(notes=("parameters are sharded: their shards were gathered",)) if sharded else RIGHT


def random(ranks: Sequence[Record]) -> Verdict:
    """Judge whether ranks draw other random numbers in their forwards, where these draw any."""
    draws = any(record["dropout"] or any(step["drew"] for step in record["steps"]) for record in ranks)
    if not draws:
        return Verdict(
            unchecked="the model draws no random numbers: no dropout, and generators stand still in a forward"
        )
    seen: dict[str, int] = {}
    for rank, record in enumerate(ranks):
        other = seen.setdefault(record["generators"], rank)
        if other != rank:
            return Verdict(
                f"ranks {other} and {rank} have the same random numbers at the first forward, and so the same noise "
                "and dropout; seed rank r with seed + r once the model is made",
                ("one seed for all ranks (huggingface/transformers#31412)",),
            )
    return RIGHT


def moves(ranks: Sequence[Record]) -> Verdict:
    """Judge whether all gradients together are finite and not 0, and parameters change."""
    notes: tuple[str, ...] = ()
    for rank, record in enumerate(ranks):
        updates = updates_of(record)
        for number, update in enumerate(updates):
            if not all(step["finite"] for step in update):
                said = f"update {number}: a gradient on rank {rank} is infinite or not a number"
                if record.get("unwritten"):
                    return Verdict(f"{said}, as are weights that it begins with: see the item 'start'")
                return (
                    Verdict(notes=(f"{said}: {DIVERGES}",))
                    if record["batch_norm"]
                    else Verdict(f"{said}; check the loss")
                )
        sizes = [max(step["largest"] for step in update) for update in updates]
        after = [digests for update in updates if (digests := _after(update))]
        unknown = record["update"] and not any(sizes)
        if unknown and len(after) < 2:
            return Verdict(unchecked="neither gradients nor parameters are known")
        if not any(sizes) and not unknown:
            return Verdict(
                f"all gradients are 0 in {len(sizes)} update(s) on rank {rank}, and nothing is learned; check the loss",
                ("cross_entropy over one output (pytorch/examples, ddp-tutorial-series)",),
            )
        rates = [rate for step in record["steps"] for rate in step["rates"]]
        if len(after) > 1 and all(digests == after[0] for digests in after) and (any(rates) or record["update"]):
            although = "" if unknown else ", although gradients are not 0"
            return Verdict(
                f"no parameter changes in {len(after)} updates on rank {rank}{although}; check that what is updated "
                "are the parameters of the module that trains"
            )
        if unknown:
            notes = ("gradients are not known, only that parameters change",)
        elif 0.0 in sizes:
            return Verdict(notes=(f"all gradients are 0 in update {sizes.index(0.0)} on rank {rank}",))
    return Verdict(notes=notes)


def exchange(ranks: Sequence[Record]) -> Verdict:
    """Judge whether every update exchanges gradients, and how often."""
    unseen, notes = "", dict[str, None]()
    for rank, record in enumerate(ranks):
        for number, update in enumerate(updates_of(record)):
            passes, backwards = (sum(step["exchanged"][name] for step in update) for name in ("passes", "backwards"))
            values = sum(step["exchanged"]["values"] + step["in_step"] for step in update)
            if not (passes and backwards) and (not values or 2 * values < sum(step["size"] for step in update)):
                unseen = unseen or f"update {number} exchanges no gradients on rank {rank}"
            several = max(min(step["exchanged"]["passes"], step["exchanged"]["backwards"]) for step in update)
            if several > 1:
                notes[SEVERAL.format(passes=several, number=number)] = None
    if not unseen:
        return Verdict(notes=tuple(notes)[:1])
    rows = [[row for step in record["steps"] for row in step["rows"]] for record in ranks]
    same_gradients = not any(judge_replay.differing(ranks, number) for number in range(len(ranks[0]["steps"])))
    if all(rows) and rows[0] != rows[1] and not replicas(ranks).finding and same_gradients:
        return Verdict(
            notes=(f"{unseen} by DistributedDataParallel or by calls of torch.distributed, yet ranks agree",)
        )
    bypassed = "the model is called without its wrapper, as by model.module(...), or is not wrapped"
    return Verdict(
        f"{unseen}: each rank trains by itself; wrap the model in DistributedDataParallel and call the wrapper, or "
        "all_reduce the gradients",
        (bypassed, "no_sync around every pass"),
    )


def replicas(ranks: Sequence[Record]) -> Verdict:
    """Judge whether the ranks' parameters are equal, bit by bit, after every update."""
    if any(step["sharded"] for record in ranks for step in record["steps"]):
        return Verdict(unchecked="parameters are sharded: each rank has a part of its own")
    if not any(step["after"] for step in ranks[0]["steps"]):
        return Verdict(unchecked="parameters are not known: no module was called in training mode with gradients")
    for number, updates in enumerate(zip(*map(updates_of, ranks), strict=False)):
        if other := _first_other([_after(update) for update in updates]):
            rank, name = other
            return Verdict(
                f"after update {number}, {name!r} on rank {rank} is not that of rank 0: replicas drift apart; every "
                "parameter that is trained must get the ranks' mean gradient"
            )
    return RIGHT


def updates_of(record: Record) -> list[list[dict[str, Any]]]:
    """Return a record's steps by update: as many steps of optimizers as make a cycle."""
    steps, cycle = record["steps"], record["cycle"]
    return [steps[begin : begin + cycle] for begin in range(0, len(steps), cycle)]


def _after(update: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {name: digest for step in update for name, digest in step.get("after", {}).items()}


def _first_other(of_ranks: Sequence[Mapping[str, str]]) -> tuple[int, str] | None:
    """Return the first rank that has something else than rank 0, and its name; None where all have the same."""
    first = of_ranks[0]
    others = (
        (rank, name)
        for rank, own in enumerate(of_ranks)
        for name in {**first, **own}
        if first.get(name) != own.get(name)
    )
    return next(others, None)
