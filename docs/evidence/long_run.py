"""Show whether a pool that is used for half an hour grows: `python -m docs.evidence.long_run --minutes 30`.

One pool, as a run has it. In every round the same group of two ranks times windows, a new group starts, trains and
ends, and every tenth group is killed in its work. The table shows what the controller, the processes of the pool and
its folder hold after the round: memory (resident, all processes), open descriptors, processes, files. The last lines
compare the first quarter of the rounds with the last one. A count that grows is status 1; memory is shown only, because
allocators keep what they once had.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import psutil

from suite.processes.answers import SetUp, Timed
from suite.processes.failure import WorkerFailure
from suite.processes.group import Group
from suite.processes.jobs import Job, ModelSpec, Prepared
from suite.processes.pool import Pool

KILL_EVERY = 10  # rounds
STEPS = 20
RANKS = 2


@dataclass(frozen=True)
class Held:
    """What is held after a round.

    Attributes:
        minutes: since the start.
        rounds: so far.
        controller_mb: resident memory of this process.
        pool_mb: resident memory of the pool's processes together; pages that they share count for each.
        descriptors: open in this process and in the pool's.
        processes: of the pool.
        files: in the pool's folder.
    """

    minutes: float
    rounds: int
    controller_mb: float
    pool_mb: float
    descriptors: int
    processes: int
    files: int


COUNTS = ("descriptors", "processes", "files")


def held(pool: Pool, begun: float, rounds: int) -> Held:
    """Look at what is held now."""
    own = psutil.Process()
    family = [process for process in own.children(recursive=True) if process.status() != psutil.STATUS_ZOMBIE]
    resident, descriptors = [], own.num_fds()
    for process in family:
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            resident.append(process.memory_info().rss)
            descriptors += process.num_fds()
    return Held(
        minutes=(time.monotonic() - begun) / 60,
        rounds=rounds,
        controller_mb=own.memory_info().rss / 1e6,
        pool_mb=sum(resident) / 1e6,
        descriptors=descriptors,
        processes=len(resident),
        files=sum(1 for _ in pool.folder.rglob("*")),
    )


def job(dataset: Prepared) -> Job:
    """Return what every group trains."""
    model = ModelSpec(model="lenet", loader="resident", precision="float32", memory_format="contiguous", compile=False)
    return Job(
        trainer="ddp",
        world_size=RANKS,
        processes="per-device",
        backend="gloo",
        devices=("cpu",) * RANKS,
        seed=1,
        workload=model,
        dataset=dataset,
        global_batch=64,
        lr=0.05,
    )


def work(group: Group, told: Job, name: str) -> None:
    """Set an arm up under a name where that is new, and time a window of it."""
    if name:
        group.request(SetUp, "setup", name=name, arm=told)
    group.request(Timed, "window", name=name or "steady", steps=STEPS)


def rounds(pool: Pool, minutes: float) -> Iterator[Held]:
    """Use the pool for so long, and yield what is held after each round."""
    begun, number = time.monotonic(), 0
    with contextlib.closing(pool.launch("prepare", 1)) as first, tempfile.TemporaryDirectory() as folder:
        [dataset] = first.request(
            Prepared, "prepare", dataset="digits", data_root=folder, folder=str(pool.folder / "digits")
        )
    told, steady = job(dataset), pool.group("steady", RANKS)
    work(steady, told, "steady")
    while time.monotonic() - begun < 60 * minutes:
        number += 1
        work(steady, told, "")
        with contextlib.closing(pool.launch(f"new-{number}", RANKS)) as new:
            work(new, told, "new")
            if number % KILL_EVERY == 0:
                new.processes[1].kill()
                with contextlib.suppress(WorkerFailure):
                    work(new, told, "again")
        yield held(pool, begun, number)


def growth(seen: Sequence[Held]) -> dict[str, tuple[float, float]]:
    """Return the median of each figure in the first quarter of the rounds and in the last one."""
    quarter = max(1, len(seen) // 4)
    names = [field.name for field in fields(Held)[2:]]

    def middle(part: Sequence[Held], name: str) -> float:
        return statistics.median(getattr(one, name) for one in part)

    return {name: (middle(seen[:quarter], name), middle(seen[-quarter:], name)) for name in names}


def line(one: Held) -> str:
    """Return a row of the table."""
    values = (f"{value:.1f}" if isinstance(value, float) else str(value) for value in astuple(one))
    return f"| {' | '.join(values)} |"


def main() -> int:
    """Print the table, and return 1 where a count has grown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--lines", type=int, default=15, help="of the table")
    asked = parser.parse_args()
    names = [field.name for field in fields(Held)]
    print(f"| {' | '.join(names)} |\n|{'---:|' * len(names)}", flush=True)
    seen: list[Held] = []
    due = 0.0
    with Pool(kind="cpu", import_paths=[Path.cwd()]) as pool:
        for one in rounds(pool, asked.minutes):
            seen.append(one)
            if one.minutes >= due:
                due += asked.minutes / asked.lines
                print(line(one), flush=True)
    print()
    grown = growth(seen)
    for name, (first, last) in grown.items():
        print(f"{name}: {first:,.1f} in the first quarter of {len(seen)} rounds, {last:,.1f} in the last")
    return 1 if any(grown[name][1] > grown[name][0] for name in COUNTS) else 0


if __name__ == "__main__":
    sys.exit(main())
