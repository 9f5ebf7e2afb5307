"""Are the counters of a step the same in every process, and what do they find? LeNet on two CPU devices.

    python -m docs.evidence.counters                 # 30 steps in each of 30 fresh groups of processes
    python -m docs.evidence.counters --table         # what the groups counted
    python -m docs.evidence.counters --faults        # faults planted one at a time, each beside the right trainer

Counts do not depend on time, so other processes may use the machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from docs.evidence.log import ROOT, Line, command_line, fill, interruptible, markdown, read_log
from suite.plan import cells
from suite.plan.cells import Cell
from suite.plan.workloads import BUILT_IN, Workload
from suite.processes.group import Group
from suite.processes.jobs import Counted, Job, Place, Prepared, SetUp, Timed
from suite.processes.pool import Pool
from suite.records import counters
from suite.records.counters import EXCHANGES, OTHERS, Counters
from suite.run.preparing import job_of
from tests.support import planted_causes

COMPILED = "ddp, compiled"
TRAINERS = ("ddp", "scratch", COMPILED)
PLANTED = f"{planted_causes.__file__}:"
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
    with Pool(kind="cpu", templates="none", import_paths=[ROOT]) as pool:
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


def table(lines: Iterable[Line]) -> str:
    """Return the log as Markdown: of each trainer and counter, what its groups counted, and how many differ."""
    by_trainer: dict[str, list[Counters]] = {}
    for line in lines:
        by_trainer.setdefault(line["kind"], []).append(Counters.model_validate(line["counters"]))
    rows = [
        (trainer, len(groups), min(group.steps for group in groups), what, counters.shown(first), unlike)
        for trainer, groups in by_trainer.items()
        for what in (*EXCHANGES, *OTHERS)
        if (first := groups[0].of(what))
        for unlike in [sum(group.of(what) != first for group in groups)]
    ]
    head = ["trainer", "fresh groups", "steps in each", "counter", "a step", "groups that differ from the first"]
    return markdown(head, rows)


def faults() -> str:
    """Return as Markdown what each planted fault changes in a step."""
    rows: list[tuple[str, str]] = []
    with workers() as (pool, workload, dataset):
        made: dict[str, Counters] = {}
        for what, wrong, right in FAULTS:
            for trainer in {wrong, right} - made.keys():
                told = job(trainer, workload, dataset)
                made[trainer] = count(start(pool, trainer, told), told, 3)
            rows.append((what, "; ".join(change.said for change in counters.changes(made[wrong], made[right]))))
    return markdown(["planted", "what the counters say"], rows)


def main() -> None:
    """Count, or print the table of the log or of the faults."""
    parser = command_line(__doc__, "counters")
    parser.add_argument("--processes", type=int, default=30, help="groups of each trainer (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=30, help="counted in each group (default: %(default)s)")
    parser.add_argument("--faults", action="store_true", help="print what each planted fault changes")
    asked = parser.parse_args()
    with interruptible(parser):
        if asked.faults:
            print(faults())
            return
        if not asked.table:
            with workers() as (pool, workload, dataset):

                def one_group(trainer: str, _: Path) -> Line:
                    begun, compiled = time.monotonic(), trainer == COMPILED
                    told = job(
                        "ddp" if compiled else trainer, workload.model_copy(update={"compile": compiled}), dataset
                    )
                    counted = count(start(pool, f"counted-{time.monotonic_ns()}", told), told, asked.steps)
                    about = {"kind": trainer, "wall_s": round(time.monotonic() - begun, 1)}
                    return {**about, "counters": counted.model_dump(mode="json")}

                fill(asked, dict.fromkeys(TRAINERS, asked.processes), one_group)
        print(table(read_log(asked.log)))


if __name__ == "__main__":
    main()
