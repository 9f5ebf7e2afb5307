"""What the documents ask of two devices, measured: three tables.

    python -m docs.evidence.two_devices            # all, five minutes on two idle cores
    python -m docs.evidence.two_devices ratio      # or one of ratio, memory, unequal

ratio: seconds of computation and of exchange in a step of DistributedDataParallel, LeNet and ResNet-18 at the same
batches. memory: peak bytes of a rank during a step, for one device, DistributedDataParallel and FSDP2. unequal: devices
of unequal speed, and what shares by weight gain over equal ones. GPUs are used where there are enough: two, four for
`memory`, one beside a CPU device for `unequal`; otherwise CPU devices of one core.

`ratio` and `memory` have a process for each device, started by torch's launcher; `unequal` has one for both. Intervals
are 95 % t-intervals over rounds of one set of processes: another set may differ by more.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from docs.evidence.log import markdown
from reference.load import load_named
from reference.models.init import build
from reference.trainers import TRAINERS
from reference.trainers.weighted import Weighted
from suite.room import quiet
from suite.verdict.metrics import from_values, location

Step = Callable[[], Any]

BATCHES = (8, 32, 128)  # over both devices
LEAST_ROUNDS, MOST_ROUNDS = 4, 30
SETTING_S = 12.0
WINDOW_S = 0.05
BAR = 50  # characters

MEMORY_BATCH = 8

NEIGHBOURS = (0, 1, 3)  # busy processes on the second device's core, which leave it all, a half and a quarter of it
UNEQUAL_BATCH = 256


# ratio


def ratio(device: torch.device) -> None:
    """Print the table and the figure; on every rank, rank 0 speaks."""
    rows, bars = [], []
    for model in ("lenet", "resnet18"):
        for batch in BATCHES:
            one_s, apart_s, step_s = _times(model, batch, device)
            pairs = [step - apart for step, apart in zip(step_s, apart_s, strict=True)]
            found, computation_s = from_values(pairs), location(apart_s)
            assert found.low is not None, "there are several rounds"
            assert found.high is not None
            exchange = f"{found.estimate * 1e3:.1f} [{found.low * 1e3:.1f}, {found.high * 1e3:.1f}]"
            share, least, most = (
                max(0.0, each) / (computation_s + max(0.0, each)) for each in (found.estimate, found.low, found.high)
            )
            speedup = location(one_s) / location(step_s)
            shares = f"{share:.1%} [{least:.1%}, {most:.1%}]"
            rows.append((model, batch, f"{computation_s * 1e3:.1f}", exchange, shares, f"{speedup:.2f}"))
            filled = round(share * BAR)
            bars.append(f"    {model:<8} {batch:>4}  {'█' * (BAR - filled)}{'░' * filled}  {share:.1%}")
    if dist.get_rank() == 0:
        head = ("net", "batch", "computation, ms", "exchange, ms", "exchange's share", "one device's time / two's")
        print(markdown(head, rows), "", "A step: █ computation, ░ exchange.", "", *bars, sep="\n")


def _times(model: str, batch: int, device: torch.device) -> tuple[list[float], list[float], list[float]]:
    """Seconds a step of one device on the whole batch, of two without their exchange, and with it, round by round."""
    net, rank, k = build(model), dist.get_rank(), dist.get_world_size()
    X, y = torch.rand(batch, 1, 28, 28, device=device), torch.zeros(batch, dtype=torch.int64, device=device)
    mine = slice(rank * batch // k, (rank + 1) * batch // k)
    single, ddp = (load_named(name, TRAINERS, "trainer")(net, [device], lr=1e-3) for name in ("single", "ddp"))
    arms: tuple[Step, ...] = (
        lambda: single.step(X, y, batch) if rank == 0 else None,
        lambda: ddp.step_unsynced(X[mine], y[mine], batch),
        lambda: ddp.step(X[mine], y[mine], batch),
    )
    for _ in range(2):
        warm = [_window(arm, 1) for arm in arms]
    steps = [max(1, math.ceil(WINDOW_S / step_s)) for step_s in warm]
    taken: list[list[float]] = [[] for _ in arms]
    spent_s, rounds = 0.0, 0
    # Every rank knows the same times, so all stop at the same round.
    while rounds < LEAST_ROUNDS or (spent_s < SETTING_S and rounds < MOST_ROUNDS):
        order = range(len(arms)) if rounds % 2 == 0 else range(len(arms))[::-1]
        for arm in order:
            taken[arm].append(_window(arms[arm], steps[arm]))
            spent_s += taken[arm][-1] * steps[arm]
        rounds += 1
    return taken[0], taken[1], taken[2]


def _window(arm: Step, steps: int) -> float:
    """Seconds a step of the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        arm()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    slowest = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    dist.all_reduce(slowest.cuda() if dist.get_backend() == "nccl" else slowest, dist.ReduceOp.MAX)
    return slowest.item() / steps


# memory


def memory(device: torch.device) -> None:
    """Print the table: the same batch on one device, and shared by all."""
    net, rank, k = build("resnet18"), dist.get_rank(), dist.get_world_size()
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in net.parameters())
    rows = []
    for name, devices in (("single", 1), ("ddp", k), ("fsdp", k)):
        mine = MEMORY_BATCH // devices
        X, y = torch.rand(mine, 1, 28, 28, device=device), torch.zeros(mine, dtype=torch.int64, device=device)
        trainer = load_named(name, TRAINERS, "trainer")
        peak = 0
        if rank < devices:
            make, step = partial(trainer, net, [device], lr=0.1), methodcaller("step", X, y, MEMORY_BATCH)
            peak = peak_bytes(make, step, device)
        peaks: list[Any] = [None] * k
        dist.all_gather_object(peaks, peak)
        rows.append((name, devices, mine, f"{max(peaks) / 1e6:.1f}", f"{max(peaks) / parameters:.2f}"))
    if rank == 0:
        print(f"ResNet-18, parameters {parameters / 1e6:.1f} MB, as much for their gradients.\n")
        print(markdown(("trainer", "devices", "samples on each", "peak, MB", "peak / parameters"), rows))


def peak_bytes(make: Callable[[], Any], step: Callable[[Any], Any], device: torch.device) -> int:
    """Return the most bytes that torch's allocator had given out at once during the second step of what `make` makes.

    On a GPU that is `torch.cuda.max_memory_allocated`. On a CPU torch's profiler sees every allocation of this process,
    whichever thread made it, and the bytes counted are those allocated from `make` on. What a library allocates behind
    torch's back (gloo's buffers, oneDNN's scratch) is not in it.
    """
    if device.type == "cuda":
        made = make()
        step(made)
        torch.cuda.reset_peak_memory_stats(device)
        step(made)
        return torch.cuda.max_memory_allocated(device)
    gc.collect()  # what an earlier call has left would be given back while this one is watched
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        with record_function("begin"):
            torch.empty(1)
        made = make()
        step(made)
        gc.collect()
        with record_function("step"):
            step(made)
    with tempfile.TemporaryDirectory() as folder:
        prof.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    spans = {event["name"]: event for event in events if event.get("cat") == "user_annotation"}
    memory = sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"])
    # The counter goes on from the process's earlier profiles.
    first = next(event["args"] for event in memory if event["ts"] >= spans["begin"]["ts"])
    start, end = spans["step"]["ts"], spans["step"]["ts"] + spans["step"]["dur"]
    totals = [(event["ts"], event["args"]["Total Allocated"]) for event in memory]
    standing = max(total for total in totals if total[0] < start)[1]
    highest = max(standing, *(total for at, total in totals if start <= at <= end))
    return int(highest - (first["Total Allocated"] - first["Bytes"]))


# unequal


def unequal() -> None:
    """Print the table: LeNet on a fast device alone, on two by equal shares, and by shares that follow the speed."""
    cuda = torch.cuda.is_available()
    devices = [torch.device("cuda:0"), torch.device("cpu")] if cuda else [torch.device("cpu")] * 2
    rows = []
    for neighbours in (0,) if cuda else NEIGHBOURS:
        core = quiet.available_cores()[1 % len(quiet.available_cores())]
        with busy(core, neighbours):
            first, second, (alone, equal, weighted) = shares_by_weight(devices)
        taken_ms = (f"{seconds * 1e3:.1f}" for seconds in (alone, equal, weighted))
        rows.append((neighbours, f"{second / first:.2f}", *taken_ms, f"{weighted / alone:.2f}"))
    print(f"LeNet, batch {UNEQUAL_BATCH}, on {devices[0]} and {devices[1]}.\n")
    head = ("neighbours on the second device", "its speed / the first's, measured", "the first alone, ms")
    print(markdown((*head, "equal shares, ms", "shares by weight, ms", "by weight / alone"), rows))


def shares_by_weight(devices: Sequence[torch.device], rounds: int = 20) -> tuple[float, float, tuple[float, ...]]:
    """Both devices' measured speeds; and seconds a step on the first alone, by equal shares, by weight."""
    X = torch.rand(UNEQUAL_BATCH, 1, 28, 28, device=devices[0])
    y = torch.zeros(UNEQUAL_BATCH, dtype=torch.int64, device=devices[0])
    net = build("lenet", "xavier")
    trainers = [Weighted(net, devices, lr=1e-3, weights=weights) for weights in ((1, 0), (1, 1))]
    trainers.append(Weighted(net, devices, lr=1e-3, warmup=10))
    try:
        for trainer in trainers:
            for _ in range(12):
                trainer.step(X, y, len(X)).item()
        taken: list[list[float]] = [[] for _ in trainers]
        for number in range(rounds):
            for arm in range(len(trainers))[:: 1 if number % 2 == 0 else -1]:
                start = time.perf_counter()
                trainers[arm].step(X, y, len(X)).item()
                taken[arm].append(time.perf_counter() - start)
        first, second = trainers[-1].weights
    finally:
        for trainer in trainers:
            trainer.close()
    return first, second, tuple(map(location, taken))


@contextlib.contextmanager
def busy(core: int, count: int) -> Iterator[None]:
    """Keep so many processes busy on a core, with a device's work and beside it."""
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            started.append(subprocess.Popen([sys.executable, "-c", code], preexec_fn=quiet.die_with_parent))
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


ON_RANKS = {"ratio": ratio, "memory": memory}
RANKS = {"ratio": 2, "memory": 4}  # bytes can be counted on more ranks than there are cores
TITLES = {
    "ratio": "Computation and exchange: LeNet and ResNet-18",
    "memory": "Peak memory of a device",
    "unequal": "Devices of unequal speed",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables that are asked for; a rank of torch's launcher takes part in one."""
    parser = argparse.ArgumentParser(prog="python -m docs.evidence.two_devices", description="Two devices, measured.")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TITLES)} (default: all)")
    tables: list[str] = parser.parse_args(argv).tables or list(TITLES)
    if unknown := set(tables) - set(TITLES):
        parser.error(f"no table {', '.join(sorted(unknown))}: choose of {', '.join(TITLES)}")
    if "LOCAL_RANK" in os.environ:
        _rank(tables)
        return
    for name in tables:
        print(f"## {TITLES[name]}\n", flush=True)
        if name in ON_RANKS:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS[name]}"]
            command += ["-m", "docs.evidence.two_devices", name]
            subprocess.run(command, check=True, env=quiet.environment(os.environ, "cpu"))
        else:
            unequal()
        print(flush=True)


def _rank(tables: Sequence[str]) -> None:
    rank, cores = int(os.environ["LOCAL_RANK"]), quiet.available_cores()
    cuda = torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        quiet.pin([cores[rank % len(cores)]])
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")
    for name in tables:
        ON_RANKS[name](device)
    dist.barrier()
    sys.stdout.flush()
    # Gloo's threads end the process with an abort, rarely, if they are still there when the interpreter shuts down.
    os._exit(0)


if __name__ == "__main__":
    main()
