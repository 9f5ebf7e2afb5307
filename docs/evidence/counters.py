"""Are the counters of a step the same in every process, and what do they find?

    python -m docs.evidence.counters                 what is left of 30 fresh groups of processes, 30 steps in each
    python -m docs.evidence.counters --table         what they counted
    python -m docs.evidence.counters --faults        faults planted one at a time, each beside the right trainer

Counts do not depend on time, so other processes may use the machine. `counters.jsonl` grows by a line a group; a
stopped script goes on where the log ends. LeNet on two CPU devices, as the gate counts it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from docs.evidence import planted_counts
from docs.evidence.log import ROOT, Line, append, check_same_code, code_state, read_log
from suite.plan import cells
from suite.plan.cells import Cell
from suite.plan.workloads import BUILT_IN, Workload
from suite.processes.answers import Counted, SetUp, Timed
from suite.processes.group import Group
from suite.processes.jobs import Job, Place, Prepared
from suite.processes.pool import Pool
from suite.records import counters
from suite.records.counters import EXCHANGES, OTHERS, Counters
from suite.run.preparing import job_of

LOG = Path(__file__).with_name("counters.jsonl")
COMPILED = "ddp, compiled"
TRAINERS = ("ddp", "scratch", COMPILED)
PLANTED = f"{planted_counts.__file__}:"
FAULTS = (  # what is wrong, the trainer that does it, the right one
    ("an exchange in every micro-batch (lost `no_sync`)", "ExchangesEveryMicroBatch", "Accumulates"),
    ("another bucket size", "SmallBuckets", "ddp"),
    ("a stray `.item()`", "ReadsTheLoss", "ddp"),
    ("a parameter exchanged twice", "ExchangesOneTwice", "ByHand"),
    ("float32 where bfloat16 was", "ddp", "ExchangesBfloat16"),
)
WARM_UP = 2
TIMEOUT_S = 300.0


@contextmanager
def workers(workload: Workload = BUILT_IN["lenet"]) -> Iterator[tuple[Pool, Workload, Prepared]]:
    """Yield a pool of workers that are not forked, the workload, and its dataset, loaded."""
    with Pool(kind="cpu", forks=False, import_paths=[ROOT]) as pool:
        helper = pool.launch("helper", 1)
        kept = str(pool.folder / "dataset")
        [prepared] = helper.request(Prepared, "prepare", dataset=workload.dataset, data_root="data", folder=kept)
        helper.close()
        yield pool, workload, prepared


def job(trainer: str, workload: Workload, dataset: Prepared) -> Job:
    """Return what the workers of a trainer on two CPU devices are told."""
    located = trainer if trainer.islower() else PLANTED + trainer
    place = Place(processes="one" if trainer == "scratch" else "per-device", devices=("cpu", "cpu"), backend="gloo")
    arm = cells.arm("candidate", located, Cell(located, workload.name, "strong", 2))
    return job_of(arm, workload, place, trainer=located, seed=1, dataset=dataset)


def start(pool: Pool, name: str, told: Job) -> Group:
    """Start a fresh group of processes and wait until they are connected."""
    group = pool.launch(name, told.size)
    group.wait_connected()
    return group


def count(group: Group, told: Job, steps: int) -> Counters:
    """Return what the steps of one group do, and end it."""
    group.request(SetUp, "setup", TIMEOUT_S, name="counted", arm=told)
    group.request(Timed, "window", TIMEOUT_S, name="counted", steps=WARM_UP)
    answers = group.request(Counted, "count", TIMEOUT_S, name="counted", steps=steps)
    group.close()
    return counters.merged(answers)


def repeat(processes: int, steps: int, log: Path, state: Line) -> None:
    """Count in fresh groups until the log has this many of each trainer."""
    with workers() as (pool, workload, dataset):
        for number in range(processes):
            for trainer in TRAINERS:
                done = sum(1 for line in read_log(log) if line["trainer"] == trainer)
                if done > number:
                    continue
                compiled = trainer == COMPILED
                told = job("ddp" if compiled else trainer, workload.model_copy(update={"compile": compiled}), dataset)
                counted = count(start(pool, f"{TRAINERS.index(trainer)}-{number}", told), told, steps)
                append(log, {"trainer": trainer, **state, "counters": counted.model_dump(mode="json")})
                print(f"{trainer}: {number + 1} of {processes}", flush=True)


def table(lines: Iterable[Line]) -> Iterator[str]:
    """Yield the lines of a table: per trainer and counter, what the groups counted, and how many differ."""
    by_trainer: dict[str, list[Counters]] = {}
    for line in lines:
        by_trainer.setdefault(line["trainer"], []).append(Counters.model_validate(line["counters"]))
    yield "| trainer | fresh groups | steps in each | counter | a step | groups that differ from the first |"
    yield "|---|---|---|---|---|---|"
    for trainer, groups in by_trainer.items():
        first, steps = groups[0], min(group.steps for group in groups)
        for what in (*EXCHANGES, *OTHERS):
            if first.of(what):
                unlike = sum(group.of(what) != first.of(what) for group in groups)
                yield f"| {trainer} | {len(groups)} | {steps} | {what} | {counters.shown(first.of(what))} | {unlike} |"


def faults() -> Iterator[str]:
    """Yield the lines of a table: what each planted fault changes in a step."""
    yield "| planted | what the counters say |"
    yield "|---|---|"
    with workers() as (pool, workload, dataset):
        made: dict[str, Counters] = {}
        for what, wrong, right in FAULTS:
            for trainer in (wrong, right):
                if trainer not in made:
                    told = job(trainer, workload, dataset)
                    made[trainer] = count(start(pool, trainer, told), told, 3)
            said = "; ".join(change.said for change in counters.changes(made[wrong], made[right]))
            yield f"| {what} | {said} |"


def main() -> None:
    """Read the command line, and count or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=30)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--faults", action="store_true")
    asked = parser.parse_args()
    if asked.faults:
        for line in faults():
            print(line, flush=True)
        return
    if not asked.table:
        state = code_state()
        check_same_code(read_log(asked.log), state)
        repeat(asked.processes, asked.steps, asked.log, state)
    print("\n".join(table(read_log(asked.log))))


if __name__ == "__main__":
    main()
