"""What it costs one-process trainers that the garbage collector is off while replicas compute: a paired measurement.

`python -m docs.evidence.collector --blocks 200` times the scratch trainer on LeNet and two CPU devices, with
`reference.per_device._NO_COLLECTION` and with a context that does nothing in its place, in blocks of ABBA or BAAB
order. It prints the ratio of the two times with its 95 % interval over the blocks.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from contextlib import nullcontext

import torch
from scipy.stats import t

from reference import per_device
from reference.models.lenet import LeNet
from reference.trainers.scratch import Scratch

STEPS = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=200, help="blocks of four windows of five steps (default: 200)")
    parser.add_argument("--batch", type=int, default=256, help="samples in a minibatch (default: 256)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trainer = Scratch(LeNet(), [torch.device("cpu")] * 2, lr=0.01)
    X, y = torch.randn(arguments.batch, 1, 28, 28), torch.randint(10, (arguments.batch,))
    arms = {"off": per_device._NO_COLLECTION, "on": nullcontext()}

    def window(arm: str) -> float:
        per_device._NO_COLLECTION = arms[arm]  # type: ignore[assignment]
        start = time.perf_counter()
        for _ in range(STEPS):
            trainer.step(X, y, len(X))
        return math.log((time.perf_counter() - start) / STEPS)

    for arm in arms:  # warm-up
        window(arm)
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    differences = []
    for _ in range(arguments.blocks):
        first, second = random.sample(list(arms), 2)
        times: dict[str, list[float]] = {arm: [] for arm in arms}
        for arm in (first, second, second, first):
            times[arm].append(window(arm))
        differences.append(statistics.mean(times["off"]) - statistics.mean(times["on"]))
        for arm in arms:
            seconds[arm] += times[arm]
    mean = statistics.mean(differences)
    half = t.ppf(0.975, len(differences) - 1) * statistics.stdev(differences) / math.sqrt(len(differences))
    for arm in arms:
        print(
            f"collector {arm} in the threads: median {1000 * math.exp(statistics.median(seconds[arm])):.2f} ms a step"
        )
    low, high = math.exp(mean - half), math.exp(mean + half)
    print(f"off / on: {math.exp(mean):.4f} [{low:.4f}, {high:.4f}], {len(differences)} blocks")


if __name__ == "__main__":
    main()
