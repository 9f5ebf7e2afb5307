"""What the suite itself costs as ranks or cells grow: the controller's CPU, memory and descriptors, and the record.

    python -m docs.evidence.scale                                             # about fifteen minutes
    python -m docs.evidence.scale --budget 40 --ranks 2 4 8 16 32 64 128

The trainer does next to nothing, so the suite's own cost is what grows. One series has one cell on 2, 4, 8, ... CPU
workers, the other more and more cells on one. Each exponent is the slope of a straight line through the logarithms of
a column.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import psutil

from docs.evidence.log import ROOT, markdown
from suite.records.files import read_model
from suite.records.record import Record

TRAINER = """\
import torch


class Trivial:
    processes = "per-device"

    def __init__(self, model, devices, *, lr):
        self.model, self.lr = model, lr

    def step(self, X, y, global_batch_size):
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1 - self.lr)

    @property
    def replicas(self):
        return [self.model]


def net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))


def data():
    X, y = torch.randn(512, 1, 2, 2), torch.randint(2, (512,))
    return (X, y), (X, y)
"""
WORKLOAD = """
[tool.scaling.workloads.tiny{}]
model = "trivial:net"
dataset = "trivial:data"
batch = 256
lr = 0.0{}
"""
RANKS = (2, 4, 8, 16, 32)
CELLS = (2, 4, 8, 16, 32)
EVERY_S = 0.1
LIMIT_S = 560


@dataclass(frozen=True)
class Cost:
    """What one run cost.

    Attributes:
        sessions: that it measured.
        outcome: of its cells, each named once.
        wall_s: of the whole run.
        session_s: of a session, the median.
        cpu_s: of the controller, for each session.
        peak_mib: of the controller's memory.
        descriptors: the most that the controller had open at once.
        processes: the most that it had below it at once.
        record_kb: of the record, for each session.
    """

    sessions: int
    outcome: str
    wall_s: float
    session_s: float
    cpu_s: float
    peak_mib: float
    descriptors: int
    processes: int
    record_kb: float


def measured(project: Path, *options: str) -> Cost:
    """Run the gate and watch its controller."""
    gate = [sys.executable, "-m", "pytest", "-q", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling"]
    gate += ["-m", "scaling", "--scaling-trainer=trivial.py:Trivial", "--scaling-mode=strong", *options]
    begun = time.monotonic()
    with watched(subprocess.Popen(gate, cwd=project, stdout=sys.stderr)) as seen:
        pass
    wall_s = time.monotonic() - begun
    newest = max(project.glob("reports/*/runs/*/record.json"), key=lambda path: path.stat().st_mtime_ns)
    record = read_model(newest, Record)
    sessions = max(1, len(record.sessions))
    return Cost(
        sessions=len(record.sessions),
        outcome=", ".join(sorted({str(cell.outcome) for cell in record.cells})),
        wall_s=wall_s,
        session_s=float(np.median([session.wall_s for session in record.sessions])),
        cpu_s=max(one[0] for one in seen) / sessions,
        peak_mib=max(one[1] for one in seen) / 2**20,
        descriptors=max(one[2] for one in seen),
        processes=max(one[3] for one in seen),
        record_kb=len(record.model_dump_json()) / 1000 / sessions,
    )


@contextlib.contextmanager
def watched(process: subprocess.Popen[bytes]) -> Iterator[list[tuple[float, int, int, int]]]:
    """Yield a process' CPU seconds, bytes, descriptors and descendants as they were every tenth of a second."""
    seen: list[tuple[float, int, int, int]] = []
    controller, until = psutil.Process(process.pid), time.monotonic() + LIMIT_S
    try:
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(psutil.Error), controller.oneshot():
                times, below = controller.cpu_times(), controller.children(recursive=True)
                bytes_ = controller.memory_info().rss
                seen.append((times.user + times.system, bytes_, controller.num_fds(), len(below)))
            time.sleep(EVERY_S)
        yield seen
    finally:
        process.terminate()
        process.wait(60)


def table(name: str, sizes: Sequence[int], costs: Sequence[Cost]) -> str:
    """Return the rows of a series, and under them each column's exponent."""
    head = [name, "sessions", "outcomes", "run s", "session s", "controller CPU s/session", "controller MiB"]
    rows = list[list[object]]()
    for size, cost in zip(sizes, costs, strict=True):
        first, outcome, *figures = astuple(cost)
        rows.append([size, first, outcome, *(f"{figure:.4g}" for figure in figures)])
    columns = np.array([astuple(cost)[2:] for cost in costs], dtype=float)
    slopes = np.polyfit(np.log(sizes), np.log(columns), 1)[0]
    rows.append(["exponent", "", "", *(f"{slope:.2f}" for slope in slopes)])
    return markdown([*head, "descriptors", "processes", "record kB/session"], rows)


def main() -> None:
    """Measure both series."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--cells", type=int, nargs="+", default=CELLS)
    parser.add_argument("--budget", type=int, default=60, help="seconds of each run")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
        project = Path(folder)
        (project / "trivial.py").write_text(TRAINER)
        workloads = "".join(WORKLOAD.format(number, number + 1) for number in range(max(asked.cells)))
        (project / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\npythonpath = ['.', '{ROOT}']\n{workloads}")
        budget = f"--scaling-budget={asked.budget}"
        one = ("--scaling-workload=tiny0", budget)
        ranks = [
            measured(project, f"--scaling-devices=cpu:{k}", f"--scaling-world-sizes={k}", *one) for k in asked.ranks
        ]
        print(table("ranks", asked.ranks, ranks), flush=True)
        named = [[f"--scaling-workload=tiny{number}" for number in range(count)] for count in asked.cells]
        cells = [measured(project, "--scaling-devices=cpu:1", *names, budget) for names in named]
        print("\n" + table("cells", asked.cells, cells))


if __name__ == "__main__":
    main()
