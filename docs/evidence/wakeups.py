"""How long gloo takes for a small gather of more ranks than cores, by the ranks' scheduling policy, at rest and not.

    python -m docs.evidence.wakeups

Prints a row for each number of ranks: milliseconds under Linux's usual policy, under SCHED_BATCH, and their ratio,
first on a machine at rest, then beside one process that burns a core for each core. Needs Linux, and two minutes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from docs.evidence.repeats import neighbours
from suite.room.quiet import ONE_THREAD, available_cores

GATHERS, NUMBERS, REPEATS = 200, 16, 3
POLICIES = {"usual": os.SCHED_OTHER, "batch": os.SCHED_BATCH}


def rank() -> None:
    """Time gathers as one rank of torchrun's; the first rank prints milliseconds for one."""
    import torch
    import torch.distributed as dist

    os.sched_setscheduler(0, POLICIES[sys.argv[1]], os.sched_param(0))
    dist.init_process_group("gloo")
    mine = torch.zeros(NUMBERS)
    all_ranks = mine.new_zeros(NUMBERS * dist.get_world_size())
    dist.all_gather_into_tensor(all_ranks, mine)
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(GATHERS):
        dist.all_gather_into_tensor(all_ranks, mine)
    if dist.get_rank() == 0:
        print((time.perf_counter() - begun) / GATHERS * 1e3, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def milliseconds(ranks: int, policy: str) -> float:
    """Return how long a gather took in one group of ranks."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*torchrun, "-m", "docs.evidence.wakeups", policy],
        env=os.environ | ONE_THREAD,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    return float(done.stdout)


def main() -> None:
    """Print the table."""
    print("| machine | ranks | usual, ms | batch, ms | batch / usual |\n|---|---|---|---|---|")
    cores = len(available_cores())
    for machine, burning in (("at rest", 0), ("busy", cores)):
        with neighbours(burning):
            for ranks in (cores, 2 * cores):
                groups = [{policy: milliseconds(ranks, policy) for policy in POLICIES} for _ in range(REPEATS)]
                usual, batch = (statistics.median(group[policy] for group in groups) for policy in POLICIES)
                print(f"| {machine} | {ranks} | {usual:.2f} | {batch:.2f} | {batch / usual:.2f} |", flush=True)


if __name__ == "__main__":
    rank() if "RANK" in os.environ else main()
