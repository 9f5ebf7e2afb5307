"""What the suite itself costs as cells, ranks, runs and nets grow: time, CPU and memory of all that is no user's step.

    python -m docs.performance.growth
    python -m docs.performance.growth --cells 4 16 --ranks 2 4 --stubs 64 --runs 10 100 --nets-mb 1 10     # smaller

The trainer does next to nothing, so the suite's own cost is what grows. Each exponent is the slope of a straight line
through the logarithms of a column. A fixed cost hides it at small sizes: the last row has what the largest size takes
beyond the smallest, for each more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from docs.evidence.log import ROOT, markdown
from suite.records.files import read_model
from suite.records.record import RECORD, Record, Session, Timing
from suite.run.counting import STEPS
from suite.verdict import Outcome

TITLE = "Cost as it grows"
CELLS = (4, 16, 64)
RANKS = (2, 4, 8, 16, 32)
STUBS = (32, 64, 128, 256)
RUNS = (10, 100, 1_000)
NETS_MB = (1, 100, 1_000)
OF_HISTORY = 16  # cells of each run whose record is kept
BUDGET_S = 10  # one session, however many cells it has
EVERY_S = 0.05
LIMIT_S = 560
MB = 1e6

TRAINER = """\
import os
import time

import torch

NAP_S = float(os.environ.get("NAP_S", "0"))


class Idle:
    processes = "per-device"

    def __init__(self, model, devices, *, lr):
        self.model, self.lr = model, lr
        self.smallest = min(model.parameters(), key=torch.numel)

    def step(self, X, y, global_batch_size):
        with torch.no_grad():
            self.smallest.mul_(1 - self.lr)
        time.sleep(NAP_S)

    @property
    def replicas(self):
        return [self.model]


class Wide(torch.nn.Module):
    # Four square layers of so many MB, which keep the size of what goes through them.
    def __init__(self, mb):
        super().__init__()
        width = round((mb * 1e6 / 4 / 4) ** 0.5)
        self.first, self.last = torch.nn.Linear(4, width), torch.nn.Linear(width, 2)
        self.squares = torch.nn.ParameterList(torch.full((width, width), 1 / width) for _ in range(4))

    def forward(self, X):
        hidden = self.first(X.flatten(1))
        for square in self.squares:
            hidden = hidden @ square
        return self.last(hidden)


def net():
    return Wide(float(os.environ.get("NET_MB", "0.001")))


def data():
    X, y = torch.randn(512, 1, 2, 2), torch.randint(2, (512,))
    return (X, y), (X, y)
"""
WORKLOAD = """
[tool.scaling.workloads.idle{}]
model = "idle:net"
dataset = "idle:data"
batch = {}
lr = {}
"""
BATCH, BATCH_OF_NETS = 256, 8
NAP_S = 0.0003  # of a step, for each MB: not far from the plain trainer's, which takes as many steps in a window
INDEX = """\
import sys
from pathlib import Path
from suite.render.pages import write_index
write_index(Path(sys.argv[1]))
"""


class Seen(NamedTuple):
    """What a process took.

    Attributes:
        wall_s: until it ended.
        cpu_s, below_s: of its own, and of all processes below it.
        peak_mb: the most memory that it held.
        descriptors: the most that it had open at once.
        worker_mb: the most that a worker of the idle trainer held.
    """

    wall_s: float
    cpu_s: float
    below_s: float
    peak_mb: float
    descriptors: int
    worker_mb: float = 0.0


class Cost(NamedTuple):
    """What a run of the gate took, and its record."""

    seen: Seen
    record: Record
    record_kb: float

    @property
    def session(self) -> Session:
        """The first one."""
        return self.record.sessions[0]


def parts_s(session: Session) -> list[float]:
    """Return the seconds of a session's parts without its windows and probes, in the order of `PARTS`."""
    windows_s = sum(slowest_s(each) for window in session.windows for each in (window, window.first) if each)
    before = (session.waiting_s + session.starting_s, session.warming_s, session.counting_s)
    after_s = session.wall_s - sum(before) - session.timing_s - sum(map(slowest_s, session.probes))
    return [*before, session.timing_s - windows_s, after_s]


def slowest_s(timed: Timing) -> float:
    """Return the seconds of a window, those of its slowest rank."""
    return max(timed.duration_ns) / 1e9


def gate(project: Path, cells: Sequence[str], *options: str, watch_workers: bool = False, **environment: str) -> Cost:
    """Run the gate once on these workloads.

    Raises:
        RuntimeError: a cell is an ERROR, or pytest ended in another way than with undecided cells.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling"]
    command += ["-m", "scaling", "--scaling-trainer=idle.py:Idle", f"--scaling-budget={BUDGET_S}"]
    command += [*(f"--scaling-workload={name}" for name in cells), *options]
    seen = watched(command, project, watch_workers=watch_workers, **environment)
    newest = max(project.glob(f"reports/*/runs/*/{RECORD}"), key=lambda path: path.stat().st_mtime_ns)
    record = read_model(newest, Record)
    if failed := [cell.reason for cell in record.cells if cell.outcome is Outcome.ERROR]:
        raise RuntimeError(f"{len(failed)} cell(s) of {len(record.cells)} are ERROR: {failed[0]}")
    return Cost(seen, record, newest.stat().st_size / 1e3)


def watched(command: Sequence[str], folder: Path, *, watch_workers: bool = False, **environment: str) -> Seen:
    """Run a command in a folder, and return what it took; how much memory it holds is read every `EVERY_S`.

    Raises:
        RuntimeError: it takes longer than `LIMIT_S`, or ends with a status that is not 0.
    """
    begun, peak_mb, descriptors, worker_mb = time.monotonic(), 0.0, 0, 0.0
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}, stdout=sys.stderr)
    try:
        about = psutil.Process(process.pid)
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > begun + LIMIT_S:
                raise RuntimeError(f"{command[:4]}: still running after {LIMIT_S} s")
            with suppress(psutil.Error):
                peak_mb = max(peak_mb, held_mb(process.pid))
                descriptors = max(descriptors, about.num_fds())
                below = about.children(recursive=True) if watch_workers else []
                worker_mb = max([worker_mb, *(held_mb(each.pid) for each in below if of_idle(each.pid))])
            time.sleep(EVERY_S)
        times = about.cpu_times()  # of a process that has ended and was not waited for
    finally:
        process.terminate()
        process.wait(60)
    if process.returncode:
        raise RuntimeError(f"{command[:4]}: it ended with status {process.returncode}")
    cpu_s, below_s = times.user + times.system, times.children_user + times.children_system
    return Seen(time.monotonic() - begun, cpu_s, below_s, peak_mb, descriptors, worker_mb)


def held_mb(pid: int) -> float:
    """Return the most memory that a process has held, or since a worker last let the kernel forget it; 0 once ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / MB
    return 0.0


def of_idle(pid: int) -> bool:
    """Return whether a process is a worker of the idle trainer, by the folder of its output."""
    with suppress(OSError):
        return "-candidate-Idle-" in os.readlink(f"/proc/{pid}/fd/1")
    return False


def table(head: Sequence[str], sizes: Sequence[float], rows: Sequence[Sequence[float]], unit: str) -> str:
    """Return a series as a table: a row for each size, then each column's exponent, then what each more takes.

    Args:
        head: names of the columns, the first one of the sizes.
        sizes: in increasing order.
        rows: of each size its figures.
        unit: one more of what grows, in words.
    """
    shown = [[f"{size:,}", *(figure(value) for value in row)] for size, row in zip(sizes, rows, strict=True)]
    if len(sizes) > 1:
        columns = list(zip(*rows, strict=True))
        shown.append(["exponent", *(f"{slope:.2f}" if slope is not None else "-" for slope in exponents(sizes, rows))])
        each = [(column[-1] - column[0]) / (sizes[-1] - sizes[0]) for column in columns]
        shown.append([f"each more {unit}", *(figure(value) for value in each)])
    return markdown(head, shown)


def exponents(sizes: Sequence[float], rows: Sequence[Sequence[float]]) -> list[float | None]:
    """Return the slope of the line through the logarithms of each column; None where a figure is not above 0."""
    found: list[float | None] = []
    for column in zip(*rows, strict=True):
        above = all(value > 0 for value in column)
        found.append(float(np.polyfit(np.log(sizes), np.log(column), 1)[0]) if above else None)
    return found


def figure(value: float) -> str:
    """Return a number with three digits, and without an exponent."""
    digits = 0 if value == 0 or abs(value) >= 100 else min(6, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"


PARTS = ("start s", "warm-up s", "counting s", "between windows s", "rest s")
HEAD = (*PARTS, "CPU of workers s", "controller CPU s", "controller MB", "descriptors", "record kB")


def row(cost: Cost) -> list[float]:
    """Return the figures of a run under `HEAD`."""
    seen, sessions = cost.seen, len(cost.record.sessions)
    shared = [seen.below_s / sessions, seen.cpu_s / sessions, seen.peak_mb, seen.descriptors]
    return [*parts_s(cost.session), *shared, cost.record_kb / sessions]


def of_cells(project: Path, sizes: Sequence[int]) -> str:
    """Return the series of cells: both modes of workloads on one and on two devices."""
    rows = []
    for size in sizes:
        workloads = [f"idle{number}" for number in range(size // 4)]
        rows.append(row(gate(project, workloads, "--scaling-devices=cpu:2", "--scaling-world-sizes=1,2")))
    return table(("cells", *HEAD), sizes, rows, "cell")


def of_ranks(project: Path, sizes: Sequence[int], *more: str) -> str:
    """Return the series of ranks: a cell on so many CPU workers, which share the cores."""
    rows = []
    for size in sizes:
        on = (f"--scaling-devices=cpu:{size}", f"--scaling-world-sizes={size}", "--scaling-mode=strong")
        rows.append(row(gate(project, ["idle0"], *on, *more)))
    return table(("ranks", *HEAD), sizes, rows, "rank")


def of_runs(project: Path, sizes: Sequence[int]) -> str:
    """Return the series of records: a run's end, which reads the history and writes its page, and `suite render`."""
    workloads = [f"idle{number}" for number in range(OF_HISTORY // 4)]
    record = gate(project, workloads, "--scaling-devices=cpu:2", "--scaling-world-sizes=1,2").record
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="performance-") as folder:
            machine = Path(folder, record.machine.key)
            keep_copies(machine, record, size)
            one = watched([sys.executable, "-c", INDEX, str(machine)], ROOT)
            page_kb = (machine / "index.html").stat().st_size / 1e3
            every = watched([sys.executable, "-m", "suite", "render", folder], ROOT)
            rows.append([one.cpu_s, one.peak_mb, page_kb, every.cpu_s, every.peak_mb])
    head = ("runs", "index.html CPU s", "index.html MB", "index.html kB", "all pages CPU s", "all pages MB")
    return table(head, sizes, rows, "run")


def keep_copies(machine: Path, record: Record, count: int) -> None:
    """Write a record as that many runs, a day apart, into a machine's folder."""
    content = record.model_dump(mode="json")
    for number, day in enumerate(np.datetime64("2020-01-01") + np.arange(count)):
        run_id = f"{str(day).replace('-', '')}T000000Z-{number:07}"
        folder = machine / "runs" / run_id
        folder.mkdir(parents=True)
        content |= {"run_id": run_id, "started_utc": f"{day}T00:00:00+00:00"}
        content["environment"] |= {"commit": f"{number:040x}"}
        (folder / RECORD).write_text(json.dumps(content))


def of_nets(project: Path, sizes: Sequence[int]) -> str:
    """Return the series of nets: a cell on one device; beside it the plain trainer is timed, for the speed-up."""
    rows = []
    for size in sizes:
        on = ("--scaling-devices=cpu:1", "--scaling-mode=strong")
        cost = gate(project, ["idle_net"], *on, watch_workers=True, NET_MB=str(size), NAP_S=str(NAP_S * size))
        own = next(arm for arm in cost.record.arms if arm.trainer.endswith("Idle"))
        in_windows_mb = max(rank.resident_bytes or 0 for rank in own.memory) / MB
        memory = [in_windows_mb - size, cost.seen.worker_mb - size, cost.seen.peak_mb]
        starting_s, warming_s, counting_s, *others = parts_s(cost.session)
        counting_s -= (1 + STEPS) * NAP_S * size
        rows.append([starting_s, warming_s, counting_s, *others, cost.seen.below_s, *memory])
    head = ("MB of parameters", *PARTS, "CPU of workers s", "worker MB beyond the net, in windows", "at its peak")
    return table((*head, "controller MB"), sizes, rows, "MB")


def section(
    cells: Sequence[int] = CELLS,
    ranks: Sequence[int] = RANKS,
    stubs: Sequence[int] = STUBS,
    runs: Sequence[int] = RUNS,
    nets_mb: Sequence[int] = NETS_MB,
) -> str:
    """Return all series; one of no size is left out."""
    stub = ("-p", "docs.performance.stub_ranks")
    series: list[tuple[str, Sequence[int], Callable[[Path, Sequence[int]], str]]] = [
        (CELLS_SAID, cells, of_cells),
        (RANKS_SAID, ranks, of_ranks),
        (STUBS_SAID, stubs, lambda project, sizes: of_ranks(project, sizes, *stub)),
        (RUNS_SAID, runs, of_runs),
        (NETS_SAID, nets_mb, of_nets),
    ]
    texts = [SAID]
    with tempfile.TemporaryDirectory(prefix="performance-") as folder:
        project = Path(folder)
        (project / "idle.py").write_text(TRAINER)
        numbers = range(max([OF_HISTORY, *cells]) // 4)
        workloads = [WORKLOAD.format(number, BATCH, (number + 1) / 1e5) for number in numbers]
        workloads.append(WORKLOAD.format("_net", BATCH_OF_NETS, 1e-3))
        settings = f"[tool.pytest.ini_options]\npythonpath = ['.', '{ROOT}']\n"
        (project / "pyproject.toml").write_text(settings + "".join(workloads))
        for said, sizes, measure in series:
            if sizes:
                texts += [said, measure(project, sizes)]
                print(texts[-1], file=sys.stderr, flush=True)
    return "\n\n".join(texts)


SAID = f"""\
The trainer does next to nothing. Every run has one session (a budget of {BUDGET_S} s), and every figure is of the whole
session or run, without the windows that are timed: a session's seconds are parts of its record, CPU seconds are those
of the processes. An exponent is the slope of the straight line through the logarithms of a column; a fixed cost hides
it at small sizes, and the last row has what each more takes from the smallest size to the largest."""
CELLS_SAID = "**Cells.** Workloads with both modes on one and on two devices, four cells each:"
RANKS_SAID = "**Ranks.** A cell on so many workers of one host, which share its cores:"
STUBS_SAID = """\
**More ranks.** Processes that answer as ranks do and load no torch stand for them (`docs/performance/stub_ranks.py`);
all of the controller's work is real:"""
RUNS_SAID = f"""\
**Records.** Runs of {OF_HISTORY} cells on one machine. A run ends with reading the newest 300 and writing the machine's
`index.html`; `python -m suite render` also writes the pages of every run again:"""
NETS_SAID = f"""\
**Nets.** A cell on one device with so many MB of parameters, and a batch of {BATCH_OF_NETS}. A step sleeps for
about as long as one of the plain trainer takes, which is warmed up and timed beside it and really trains. The start has
the user's own building of the net, and the warm-up has steps of both:"""


def main() -> None:
    """Measure the series that were asked for, and print the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, sizes in (("cells", CELLS), ("ranks", RANKS), ("stubs", STUBS), ("runs", RUNS), ("nets-mb", NETS_MB)):
        parser.add_argument(f"--{name}", type=int, nargs="*", default=sizes)
    print(section(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
