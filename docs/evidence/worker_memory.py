"""How much memory does a worker take that no other process shares?

    python -m docs.evidence.worker_memory

prints a table: workers that are forked from a template, and workers that load torch by themselves, when they have
answered first and when they have trained LeNet on two CPU devices. "Own" is what the kernel counts as private and
changed (Private_Dirty of smaps_rollup): a control group pays it once for each worker, and the files of torch once for
all. Other processes may use the machine. A worker that has opened a GPU holds more, which the table does not show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from docs.evidence.counters import job, start
from docs.evidence.log import ROOT
from suite.plan.workloads import BUILT_IN
from suite.processes.answers import SetUp, Timed
from suite.processes.jobs import Prepared
from suite.processes.pool import Pool
from suite.properties.answers import Described

FIELDS = ("Rss", "Pss", "Private_Dirty")
TRAINERS = ("ddp", "scratch")  # a process per device, and one for both
STEPS = 20
TIMEOUT_S = 300.0


def held(pids: Iterable[int]) -> list[str]:
    """Return the least and the most that these processes hold of each field, in MB."""
    shown = []
    for pid in pids:
        found = dict(re.findall(r"^(\w+): +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE))
        shown.append([int(found[field]) * 1024 / 1e6 for field in FIELDS])
    return [f"{min(values):.0f} to {max(values):.0f}" for values in zip(*shown, strict=True)]


def rows(*, forks: bool) -> Iterator[list[str]]:
    """Yield the rows of one kind of worker: which process, what it has done, and its memory."""
    kind, launcher = ("forked", "template") if forks else ("executed", "launcher")
    with Pool(kind="cpu", forks=forks, import_paths=[ROOT]) as pool:
        helper = pool.launch("helper", 1)
        told = {"dataset": "synthetic", "data_root": "data", "folder": str(pool.folder / "dataset")}
        [dataset] = helper.request(Prepared, "prepare", TIMEOUT_S, **told)
        helper.close()
        leaves = [child.pid for child in psutil.Process().children(recursive=True) if not child.children()]
        yield [launcher, "has loaded torch", *held(leaves)]
        for trainer in TRAINERS:
            of_trainer = job(trainer, BUILT_IN["lenet"], dataset)
            group = start(pool, trainer, of_trainer)
            group.request(Described, "describe", TIMEOUT_S, trainer=trainer)
            yield [f"{trainer}, {kind}", "has answered", *held(group.pids.values())]
            group.request(SetUp, "setup", TIMEOUT_S, name=trainer, arm=of_trainer)
            group.request(Timed, "window", TIMEOUT_S, name=trainer, steps=STEPS)
            yield [f"{trainer}, {kind}", "has trained", *held(group.pids.values())]
            group.close()


def main() -> None:
    """Print the table."""
    print("| process | | resident, MB | proportional, MB | own, MB |\n|---|---|---|---|---|")
    for forks in (True, False):
        for row in rows(forks=forks):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
