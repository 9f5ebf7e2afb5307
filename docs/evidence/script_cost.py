"""How much longer does a training script's step take while it is timed?

    python -m docs.evidence.script_cost                     # a step of about 10 ms
    python -m docs.evidence.script_cost --compile
    python -m docs.evidence.script_cost --within            # in one process, with and without the counter of updates

The script runs by itself and under the suite, in fresh processes that take turns. Its own clock gives the median of its
last steps in each process; the table has the mean ratio of neighbouring runs with a 95 % interval. The frames of a
compiled net are counted after the warm-up and at the end. Processes differ by more than the suite costs, so `--within`
takes turns in one process: windows of ten steps in which updates are counted as in a timed window, and windows without.
Each of the first is compared with the two around it, so that a drift cancels. The mean leaves out the lowest and the
highest quarter, because a busy machine makes single windows longer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.evidence.log import ROOT, markdown
from suite.processes.channel import listen_on_loopback
from suite.processes.jobs import Job, ModelSpec, Prepared, ScriptRun, SetUp, Timed
from suite.processes.pool import Pool
from suite.verdict.metrics import Interval, from_values, location, location_variance, t_quantile

WARM, STEPS = 50, 250
LONG, TURNS = 10, 1602  # steps of a window, and windows; what is before the first is not one
TIMEOUT_S = 300.0
SCRIPT = f"""\
import json, statistics, sys, time
import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch._dynamo.utils import counters

dist.init_process_group("gloo")
torch.manual_seed(0)
net = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)))
if "compile" in sys.argv:
    net = torch.compile(net)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
X, took, frames = torch.randn(128, 256), [], 0
windows, updates = [], None
for step in range({WARM + STEPS} + 100 if "within" not in sys.argv else {LONG * TURNS}):
    if "within" in sys.argv and step % {LONG} == 0:
        windows.append(took[-{LONG - 2}:])  # the first ones after a change are left out
        if updates is None:
            from suite.script.updates import Updates
            updates = Updates(lambda: None)
        else:
            updates.close()
            updates = None
    begun = time.perf_counter()
    optimizer.zero_grad()
    net(X).square().mean().backward()
    optimizer.step()
    took.append(time.perf_counter() - begun)
    if step == {WARM}:
        frames = counters["frames"]["ok"]
    if step == {WARM + STEPS}:
        found = [statistics.median(took[{WARM}:]), frames, counters["frames"]["ok"]]
        open(sys.argv[1], "w").write(json.dumps(found))
if "within" in sys.argv:
    open(sys.argv[1], "w").write(json.dumps([statistics.median(window) for window in windows[1:]]))
"""


def by_itself(folder: Path, words: list[str]) -> None:
    """Run the script as torchrun starts a rank."""
    torchrun: dict[str, object] = {
        "RANK": 0,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 1,
        "LOCAL_WORLD_SIZE": 1,
        "OMP_NUM_THREADS": 1,
    }
    with listen_on_loopback() as free:
        torchrun |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free.getsockname()[1], "PYTHONPATH": ROOT}
    environment = os.environ | {name: str(value) for name, value in torchrun.items()}
    subprocess.run([sys.executable, *words], cwd=folder, env=environment, check=True, timeout=TIMEOUT_S)


def under_the_suite(pool: Pool, name: str, folder: Path, words: list[str]) -> None:
    """Run the script as a cell's window does."""
    spec = ModelSpec(model="script", loader="resident", precision="float32", memory_format="contiguous", compile=False)
    script = ScriptRun(words=tuple(words), directory=str(folder), environment={}, isolated=(str(folder),))
    job = Job(
        processes="per-device",
        devices=("cpu",),
        backend="gloo",
        trainer="script",
        world_size=1,
        global_batch=1,
        lr=0.0,
        seed=0,
        workload=spec,
        dataset=Prepared(name="script", folder="", train_samples=1, test_samples=0),
        script=script,
    )
    group = pool.launch(name, 1)
    group.request(SetUp, "setup", TIMEOUT_S, name="arm", arm=job)
    group.request(Timed, "window", TIMEOUT_S, name="arm", steps=WARM + STEPS, lead_in=10)
    group.close()


def within() -> str:
    """Return the row of one process that takes turns."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT, encoding="utf-8")
        by_itself(Path(folder), ["train.py", "said.json", "within"])
        step_s = json.loads((Path(folder) / "said.json").read_text())
    logs = list(map(math.log, step_s))  # counted, alone, counted, ...
    ratios = [logs[n] - (logs[n - 1] + logs[n + 1]) / 2 for n in range(2, len(logs) - 1, 2)]
    (variance, df), middle = location_variance(ratios), location(ratios)
    half = t_quantile(df, 0.975) * math.sqrt(4 / 3 * variance)  # neighbours share a window: 2 / N of its, not 1.5 / N
    alone_ms = 1e3 * statistics.median(step_s[1::2])
    return (
        f"a step of {alone_ms:.1f} ms takes {longer(Interval(middle, middle - half, middle + half))} longer while its "
        f"updates are counted, by {len(ratios)} windows and those around them"
    )


def longer(mean: Interval) -> str:
    """Return a mean of logarithms of ratios as a share, with its 95 % interval."""
    shown = [f"{math.expm1(value):+.2%}" for value in (mean.estimate, mean.low, mean.high) if value is not None]
    return f"{shown[0]} [{', '.join(shown[1:])}]"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="pairs of processes (default: %(default)s)")
    parser.add_argument("--compile", action="store_true", help="of a compiled net")
    parser.add_argument("--within", action="store_true", help="in one process")
    options = parser.parse_args()
    if options.within:
        print(within())
        return
    ratios, own_ms, frames = list[float](), list[float](), set[tuple[int, int]]()
    with tempfile.TemporaryDirectory() as said, tempfile.TemporaryDirectory() as project:
        (Path(project) / "train.py").write_text(SCRIPT, encoding="utf-8")
        with Pool(kind="cpu", import_paths=[ROOT]) as pool:
            for number in range(options.rounds):
                step_s = {}
                for suite in (False, True) if number % 2 else (True, False):
                    told = Path(said) / f"{number}-{suite}.json"
                    words = ["train.py", str(told), *(["compile"] if options.compile else [])]
                    if suite:
                        under_the_suite(pool, f"timed-{number}", Path(project), words)
                    else:
                        by_itself(Path(project), words)
                    step_s[suite], *counted = json.loads(told.read_text())
                    frames.add(tuple(counted))
                ratios.append(math.log(step_s[True] / step_s[False]))
                own_ms.append(1e3 * step_s[False])
    counted = ", ".join(f"{warm} and {end}" for warm, end in sorted(frames))
    head = ("step by itself, ms", "longer under the suite", "rounds", "frames compiled, warm and at the end")
    print(markdown(head, [(f"{statistics.median(own_ms):.1f}", longer(from_values(ratios)), len(ratios), counted)]))


if __name__ == "__main__":
    main()
