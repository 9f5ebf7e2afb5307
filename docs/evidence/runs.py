"""Real runs of the gate on real processes, one after the other.

    python -m docs.evidence.runs --wanted matrix=12,matrix-10=12 --minutes 120
    python -m docs.evidence.runs --table

The first, repeated until nothing is missing, adds runs to the log; the second prints their outcomes. A run is `pytest
-m scaling` in a process of its own. Kinds are made in random order, so that none has the quiet hours for itself.

`unchanged`, `10`, `5`, `3`, `1` and `intermittent` have one cell: ddp, lenet, strong, two ranks, next to the same
trainer under another name. They take so many percent longer for a step on two ranks (`suite.rank.planting.slowed`);
`intermittent` takes twice the time for every tenth step. 10 and 5 % are judged at the default tolerance and budget. A
slowdown below the tolerance may pass, so the smaller ones have a smaller tolerance and a larger budget. `10@30` is 10 %
within a budget of 30 s, and `0@30` unchanged code within as much.

The other kinds run in a fresh clone, against its own commit (`--scaling-against ref:HEAD`). `checkout` has the same
cell, `matrix` all default cells, `script` one cell of docs/examples/digits.py on two ranks, and `net` its net and data
with the trainer `ddp`. `accepted` has all default cells next to a run that was accepted just before. A kind that ends
in `-10` has one cell whose steps take 10 % longer, drawn at random. The clone's path has a random length. In a third of
the unchanged runs in a clone, another process keeps a core busy for one second of every two.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from docs.evidence.log import ROOT, Line, command_line, fill, interruptible, markdown, rate, read_log
from reference.schedule import MODES
from reference.trainers import TRAINERS, trains
from suite.base.git import git
from suite.options import DEFAULT_TRAINERS
from suite.plan.cells import Cell
from suite.plan.workloads import BUILT_IN
from suite.records.files import read_model
from suite.records.record import CellRecord, Record
from suite.verdict import Outcome
from suite.verdict.outcome import GRAVEST_FIRST

END_TIMEOUT_S = 60.0  # an interrupted pytest ends its workers and writes its record first
DEADLINE_S = 1800.0  # of a run
BUSY_SHARE = 1 / 3  # of the unchanged runs in a clone
LONGEST_NAME = 80  # of a clone's folder

PLANTED = """\
from reference.trainers.ddp import DDPTrainer
from suite.rank.planting import slowed

class Same(DDPTrainer):
    pass

class Unchanged(DDPTrainer):
    pass

Slower10 = slowed("ddp", 0.10, at=2)
Slower5 = slowed("ddp", 0.05, at=2)
Slower3 = slowed("ddp", 0.03, at=2)
Slower1 = slowed("ddp", 0.01, at=2)
Intermittent = slowed("ddp", 1.0, at=2, every=10)
"""
NEIGHBOUR = """\
import time
while True:
    until = time.monotonic() + 1
    while time.monotonic() < until:
        pass
    time.sleep(1)
"""
# Only the batch tells a trainer in which mode it is; the short last batch of an epoch may count as the other mode's.
SLOWER = """

from suite.rank.planting import slowed

_Right, _Slow = {name}, slowed("{module}:{name}", {share}, at={size})


class {name}(_Slow):
    def step(self, X, y, global_batch_size):
        slow = {size} == 1 or (global_batch_size > {batch}) == {weak}
        return (_Slow if slow else _Right).step(self, X, y, global_batch_size)
"""
ONE_CELL = ("--scaling-devices", "cpu:2", "--scaling-world-sizes", "2", "--scaling-mode", "strong")
MATRIX = ("--scaling-devices", "cpu:2")

SCRIPT = Path("docs/examples/digits.py")
BATCH = 96  # of one device
OF_A_SCRIPT = (*ONE_CELL, "--scaling-script", f"{SCRIPT} --batch_size {{batch}}", f"--scaling-batch={BATCH}")
FIRST, LAST = "            optimizer.zero_grad()\n", "            optimizer.step()\n"  # lines of its step
NET = """\
from docs.examples import digits

make = digits.make

def data():
    train, held_out = digits.load()
    return train.tensors, held_out.tensors
"""
WORKLOAD = f"""
[tool.scaling.workloads.net]
model = "digits_net.py:make"
dataset = "digits_net.py:data"
batch = {BATCH}
"""
OF_ITS_NET = (*ONE_CELL, "--scaling-workload", "net")

SHOWN = (Outcome.FAIL, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.ERROR)
NOT_RED = (Outcome.PASS, Outcome.INCONCLUSIVE)


@dataclass(frozen=True)
class Kind:
    """One kind of run.

    Attributes:
        trainer: the candidate; "" for all default trainers.
        planted: by which share its steps take longer.
        wanted: the outcomes that are right.
        options: of pytest.
        in_clone: compared with its own commit; else with `Same`.
        accepted: compared with a run that was accepted just before.
        script: of a training script.
        net: of that script's net, with a trainer.
    """

    trainer: str
    planted: float
    wanted: tuple[Outcome, ...]
    options: tuple[str, ...] = ONE_CELL
    in_clone: bool = False
    accepted: bool = False
    script: bool = False
    net: bool = False


def _slower(percent: int, budget_s: int | None = None, tolerance: float | None = None) -> Kind:
    """Return the kind whose trainer is slower by so many percent, or unchanged at 0."""
    options = [*ONE_CELL]
    options += [f"--scaling-tolerance={tolerance}"] if tolerance else []
    options += [f"--scaling-budget={budget_s}"] if budget_s else []
    trainer, wanted = (f"Slower{percent}", (Outcome.FAIL,)) if percent else ("Unchanged", NOT_RED)
    return Kind(trainer, percent / 100, wanted, tuple(options))


KINDS = {
    "unchanged": Kind("Unchanged", 0.0, NOT_RED),
    "checkout": Kind("ddp", 0.0, NOT_RED, in_clone=True),
    "matrix": Kind("", 0.0, NOT_RED, MATRIX, in_clone=True),
    "matrix-10": Kind("", 0.10, (Outcome.FAIL,), MATRIX, in_clone=True),
    "accepted": Kind("", 0.0, NOT_RED, MATRIX, in_clone=True, accepted=True),
    "accepted-10": Kind("", 0.10, (Outcome.FAIL,), MATRIX, in_clone=True, accepted=True),
    "script": Kind("", 0.0, NOT_RED, OF_A_SCRIPT, in_clone=True, script=True),
    "script-10": Kind("", 0.10, (Outcome.FAIL,), OF_A_SCRIPT, in_clone=True, script=True),
    "net": Kind("ddp", 0.0, NOT_RED, OF_ITS_NET, in_clone=True, net=True),
    "net-10": Kind("ddp", 0.10, (Outcome.FAIL,), OF_ITS_NET, in_clone=True, net=True),
    "10": _slower(10),
    "5": _slower(5),
    "3": _slower(3, budget_s=300, tolerance=0.03),
    "1": _slower(1, budget_s=600, tolerance=0.01),
    "intermittent": Kind("Intermittent", 0.10, (Outcome.FAIL, Outcome.INCONCLUSIVE)),  # slower on average alone
    "0@30": _slower(0, budget_s=30),
    "0@120": _slower(0, budget_s=120, tolerance=0.03),
    "0@360": _slower(0, budget_s=360, tolerance=0.01),
    "10@30": _slower(10, budget_s=30),
    "5@60": _slower(5, budget_s=60),
    "3@120": _slower(3, budget_s=120, tolerance=0.03),
    "1@360": _slower(1, budget_s=360, tolerance=0.01),
}


def parse_wanted(text: str) -> dict[str, int]:
    """Return how many runs of each kind are wanted, from `unchanged=30,10=15`.

    Raises:
        ValueError: an unknown kind, or no number.
    """
    wanted = {}
    for part in text.split(","):
        kind, _, number = part.partition("=")
        if kind not in KINDS or not number.isdigit():
            raise ValueError(f"--wanted {part!r}: expected KIND=NUMBER, KIND one of {', '.join(KINDS)}")
        wanted[kind] = int(number)
    return wanted


def one_run(name: str, folder: Path, options: Iterable[str] = (), *, busy: bool = False) -> Line:
    """Run the gate once, from the repository's root or from a clone.

    Args:
        name: of the kind.
        folder: an empty one, for the clone, the trainers' file, pytest's output and the report.
        options: of pytest, in addition to the kind's own.
        busy: whether another process keeps a core busy meanwhile.

    Returns:
        The line for the log, without the state of the code.

    Raises:
        RuntimeError: pytest left no record.
    """
    kind = KINDS[name]
    root = _clone(folder) if kind.in_clone else ROOT
    command = [sys.executable, "-m", "pytest", "-q", "-m", "scaling", "suite/benchmarks", *kind.options, *options]
    command += _sides(kind, folder)
    if kind.accepted:
        pytest_once([*command, "--scaling-accept=yes"], root, folder)
    slower = list[str]()
    if kind.net:
        add_workload(root)
    if kind.net and kind.planted:
        plant_in_cell(root, ["ddp-net-strong-2"], kind.planted, BATCH)
    elif kind.script and kind.planted:
        plant_in_script(root / SCRIPT, kind.planted)
    elif kind.in_clone and kind.planted:
        slower = random.SystemRandom().choice(plantable())
        plant_in_cell(root, slower, kind.planted)
    load, start = os.getloadavg()[0], time.monotonic()
    with neighbour() if busy else contextlib.nullcontext():
        status, record = pytest_once(command, root, folder)
    about = {"status": status, "process_s": round(time.monotonic() - start, 1), "load_before": round(load, 2)}
    return {**line_of(record, name), **about, "neighbour": busy, **({"slower": slower} if slower else {})}


def _sides(kind: Kind, folder: Path) -> list[str]:
    """Return the options that say what is compared."""
    if kind.accepted:
        return []
    if kind.in_clone:
        return [*(["--scaling-trainer", kind.trainer] if kind.trainer else []), "--scaling-against", "ref:HEAD"]
    planted = folder / "planted.py"
    planted.write_text(PLANTED, encoding="utf-8")
    return ["--scaling-trainer", f"{planted}:{kind.trainer}", "--scaling-against", f"{planted}:Same"]


def _clone(folder: Path) -> Path:
    """Return a clone of this repository in a folder whose name has a random length."""
    clone = folder / ("c" * random.SystemRandom().randint(1, LONGEST_NAME))
    git(folder, "clone", "--quiet", "--shared", str(ROOT), str(clone))
    return clone


def add_workload(root: Path) -> None:
    """Commit the workload `net` to a clone, so that both sides have it."""
    (root / "digits_net.py").write_text(NET, encoding="utf-8")
    with (root / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(WORKLOAD)
    git(root, "add", "--all")
    git(root, "-c", "user.name=evidence", "-c", "user.email=evidence@localhost", "commit", "--quiet", "-m", "net")


def plantable() -> list[list[str]]:
    """Return the ids of the default cells that can be made slower; cells that are timed once stand together."""
    workload, trainers = BUILT_IN["lenet"].name, [name for name in DEFAULT_TRAINERS if "samples" in trains(name)]
    both = [[Cell(name, workload, mode, 1).id for mode in MODES] for name in trainers]
    return both + [[Cell(name, workload, mode, 2).id] for name in trainers for mode in MODES]


def plant_in_cell(root: Path, ids: Sequence[str], share: float, batch: int = BUILT_IN["lenet"].batch) -> None:
    """Make the steps of a cell longer by a share of their time.

    Args:
        root: of a clone; its commit stays as it is.
        ids: of the cell, and of the one that is timed with it.
        share: 0.1 for a tenth.
        batch: of the workload on one device.
    """
    trainer, _, mode, size = ids[0].rsplit("-", 3)
    module, _, name = TRAINERS[trainer].partition(":")
    told = {"share": share, "size": size, "batch": batch, "weak": mode == "weak"}
    with (root / module.replace(".", "/")).with_suffix(".py").open("a", encoding="utf-8") as file:
        file.write(SLOWER.format(module=module, name=name, **told))


def plant_in_script(path: Path, share: float) -> None:
    """Make every step of `SCRIPT` longer by a share of its time."""
    pad = " " * (len(FIRST) - len(FIRST.lstrip()))
    wait = (f"until = clock() + {share} * (clock() - begun)", "while clock() < until:", "    pass")
    text = "from time import perf_counter as clock\n" + path.read_text(encoding="utf-8").partition('"""\n')[2]
    text = text.replace(FIRST, f"{pad}begun = clock()\n{FIRST}")
    path.write_text(text.replace(LAST, LAST + "".join(f"{pad}{line}\n" for line in wait)), encoding="utf-8")


def pytest_once(
    command: Sequence[str], root: Path, folder: Path, environment: Mapping[str, str] | None = None
) -> tuple[int, Record]:
    """Run pytest, and return its exit status and the record that it left.

    Args:
        command: that starts pytest.
        root: its working directory.
        folder: for its output, and `reports` in it for its report.
        environment: its variables; ours without it.

    Raises:
        RuntimeError: it left no record.
    """
    said, reports = folder / "pytest.log", folder / "reports"
    before = set(reports.glob("*/runs/*/record.json"))
    with said.open("wb") as output:
        # A session of its own: Ctrl-C then reaches it once, through us, and does not disturb its cleaning up.
        process = subprocess.Popen(
            [*command, f"--scaling-report-dir={reports}"],
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status = _wait(process)
    records = list({*reports.glob("*/runs/*/record.json")} - before)
    if len(records) != 1:
        tail = "\n".join(said.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(f"exit status {status} and {len(records)} records, expected one:\n{tail}")
    return status, read_model(records[0], Record)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Return its exit status. Ctrl-C and the deadline end it as Ctrl-C does, and are raised when it has ended."""
    try:
        return process.wait(DEADLINE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
        process.kill()
        raise


@contextlib.contextmanager
def neighbour(code: str = NEIGHBOUR) -> Iterator[None]:
    """Run a program beside what is measured; by default one that keeps a core busy for one second of every two."""
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait(END_TIMEOUT_S)


def line_of(record: Record, name: str) -> Line:
    """Return what the log keeps of a run.

    Raises:
        RuntimeError: the run has no cell.
    """
    if not record.cells:
        raise RuntimeError(f"run {name}: no cell was measured")
    outcomes = {cell.outcome for cell in record.cells}
    return {
        "kind": name,
        "planted": KINDS[name].planted,
        "utc": record.started_utc,
        "outcome": next(outcome for outcome in GRAVEST_FIRST if outcome in outcomes).value,
        "wall_s": round(record.wall_s, 1),
        "tolerance": record.tolerance,
        "options": list(KINDS[name].options),
        "planned": record.planned,
        "session_s": [round(session.wall_s, 1) for session in record.sessions],
        "counting_s": round(sum(session.counting_s for session in record.sessions), 1),
        "window_sd": _window_sd(record),
        "cells": {cell.id: [cell.outcome.value, _interval(cell), cell.reason] for cell in record.cells},
        "cautions": {cell.id: cell.cautions for cell in record.cells if cell.cautions},
        "machine_key": record.machine.key,
        "versions": record.environment.versions,
    }


def _window_sd(record: Record) -> float | None:
    """Return the median, over arms and sessions, of the SD of ln(seconds) of a window."""
    seconds: dict[tuple[int, str], list[float]] = {}
    for session in record.sessions:
        for window in session.windows:
            seconds.setdefault((session.number, window.arm), []).append(max(window.duration_ns) / 1e9)
    sds = [statistics.stdev(map(math.log, times)) for times in seconds.values() if len(times) > 1]
    return round(statistics.median(sds), 4) if sds else None


def _interval(cell: CellRecord) -> list[float] | None:
    ratio = cell.slowdown
    return ratio and [round(value, 4) for value in (ratio.estimate, ratio.low, ratio.high) if value is not None]


def table(lines: Iterable[Line]) -> str:
    """Return the log as Markdown, a row for each kind."""
    head = ["kind", "runs", *(outcome.value for outcome in SHOWN), "as wanted (exact 95 %)", "cells decided"]
    by_row: dict[tuple[str, bool], list[Line]] = {}
    for line in lines:
        by_row.setdefault((line["kind"], line["neighbour"]), []).append(line)
    rows = []
    for (name, busy), ran in sorted(by_row.items(), key=lambda item: (list(KINDS).index(item[0][0]), item[0][1])):
        outcomes = Counter(line["outcome"] for line in ran)
        cells = Counter(outcome for line in ran for outcome, *_ in line["cells"].values())
        walls = [line["wall_s"] for line in ran]
        sds = [line["window_sd"] for line in ran if line["window_sd"] is not None]
        row = [_label(name) + ", with a neighbour" * busy, len(ran), *(outcomes[outcome] for outcome in SHOWN)]
        row += [rate(sum(map(_as_wanted, ran)), len(ran))]
        row += [f"{(cells[Outcome.PASS] + cells[Outcome.FAIL]) / cells.total():.0%}"]
        row += [f"{statistics.median(walls):.0f}", f"{max(walls):.0f}"]
        rows.append([*row, f"{statistics.median(sds):.1%}" if sds else "-"])
    return markdown([*head, "median s", "max s", "SD of a window"], rows)


def _label(name: str) -> str:
    """Return a kind as its row is called."""
    percent, _, budget_s = name.partition("@")
    label = "unchanged" if percent == "0" else f"{percent} % slower" if percent.isdigit() else percent
    label = label.replace("-10", ", one cell 10 % slower")
    return f"{label}, within {budget_s} s" if budget_s else label


def _as_wanted(line: Line) -> bool:
    """Return whether a run ended as it should; of several cells only the slower ones may have failed."""
    failed = {id for id, (outcome, *_) in line["cells"].items() if outcome == Outcome.FAIL}
    return line["outcome"] in KINDS[line["kind"]].wanted and failed <= set(line.get("slower", failed))


def make(options: argparse.Namespace) -> None:
    """Make what is missing until the time is up."""
    if options.records:
        options.records.mkdir(parents=True, exist_ok=True)

    def one(name: str, folder: Path) -> Line:
        kind = KINDS[name]
        busy = kind.in_clone and not kind.planted and random.SystemRandom().random() < BUSY_SHARE
        line = one_run(name, folder, busy=busy)
        for record in folder.glob("reports/*/runs/*/record.json") if options.records else ():
            shutil.copy(record, options.records / f"{record.parent.name}.json")
        return line

    fill(options, parse_wanted(options.wanted), one)


def main() -> None:
    """Make the runs that the log lacks, or print its table."""
    parser = command_line(__doc__, "runs")
    parser.add_argument("--wanted", default="unchanged=30,10=15,5=15", help="KIND=NUMBER,... (default: %(default)s)")
    parser.add_argument("--records", type=Path, metavar="FOLDER", help="also keep the records of all runs there")
    options = parser.parse_args()
    with interruptible(parser):
        if options.table:
            print(table(read_log(options.log)))
        else:
            make(options)


if __name__ == "__main__":
    main()
