"""Real runs of the gate on real processes, one after the other, each kept as a line of `runs.jsonl`.

    python -m docs.evidence.runs --wanted unchanged=30,10=15,5=15,3=15 --minutes 120
    python -m docs.evidence.runs --wanted checkout=100,matrix=50 --log docs/evidence/field.jsonl --minutes 120
    python -m docs.evidence.runs --calibration reports/KEY/calibration.json --log docs/evidence/runs-calibrated.jsonl
    python -m docs.evidence.runs --table --log docs/evidence/field*.jsonl

The first two, repeated until nothing is missing, make the runs as on a machine that was never calibrated; the third
gives them what `python -m suite calibrate` measured; the last shows the outcomes of one log or several. Each run is
`pytest -m scaling --scaling-trainer planted.py:X --scaling-against planted.py:Same` in a process of its own, for one
cell: ddp, lenet, strong, two ranks. `Unchanged` is `Same` under another name. The others spend 1, 3, 5 or 10 % more of
their own step's time, at two ranks only (`suite.rank.planting.slowed`), or twice the time of every tenth step. What is
missing is drawn in a random order, so that no kind has the quiet hours for itself.

A `checkout` is the same cell, and a `matrix` all default cells, in a fresh clone against its own commit
(`--scaling-against ref:HEAD`); `accepted` is all default cells next to a run of that clone that was accepted a moment
before. The clone's path has a random length, and the base has a path of its own. A third of them, drawn at random, have
a neighbour: a process that keeps one core busy for half of every two seconds. `matrix-10` and `accepted-10` are without
a neighbour, and one cell of the candidate's working tree, drawn at random, is 10 % slower. A `script` is one cell of
docs/examples/digits.py in such a clone, on two ranks; in `script-10` its steps in the working tree take 10 % longer. A
`net` and a `net-10` are the same with its net and its data under the built-in trainer `ddp`.

10 and 5 % are judged at the default tolerance of 5 % and the default budget. A slowdown below the tolerance may pass by
contract, so smaller ones have a smaller tolerance and a larger budget, as a user chooses who wants to know of them.
`10@30` is 10 % within a budget of 30 s, and `0@30` an unchanged build within as much: the run of a user who only wants
to know whether it is slower. Such a budget leaves no time to take a step apart.

Ctrl-C or SIGTERM ends the run in progress, which is not kept; every line before it stays. Runs of different contents of
suite/ and reference/ are different experiments, and so are those of uncommitted changes: they share a log only with
--mixed.
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

from docs.evidence import planted_cell
from docs.evidence.log import ROOT, Line, fill, read_log
from docs.evidence.recording import of_record
from docs.evidence.replay import rate
from suite.base.git import git
from suite.records.calibration import Calibration
from suite.records.files import read_model
from suite.records.record import CellRecord, Record
from suite.verdict import Middle, Outcome, Windows
from suite.verdict.outcome import GRAVEST_FIRST

LOG = Path(__file__).with_name("runs.jsonl")
END_TIMEOUT_S = 60.0  # an interrupted pytest ends its workers and writes its record first

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
NEIGHBOUR_SHARE = 1 / 3  # of the runs in a clone
LONGEST_NAME = 80  # of a clone's folder
DEADLINE_S = 1800.0  # of a run
ONE_CELL = ("--scaling-devices", "cpu:2", "--scaling-world-sizes", "2", "--scaling-mode", "strong")

SCRIPT = Path("docs/examples/digits.py")
BATCH = 96  # of one device
OF_A_SCRIPT = (*ONE_CELL, "--scaling-script", f"{SCRIPT} --batch_size {{batch}}", f"--scaling-batch={BATCH}")
NET = f"""
[tool.scaling.workloads.net]
model = "docs/evidence/digits_net.py:make"
dataset = "docs/evidence/digits_net.py:data"
batch = {BATCH}
"""
OF_ITS_NET = (*ONE_CELL, "--scaling-workload", "net")
STEP = "            optimizer.zero_grad()\n", "            optimizer.step()\n"  # its first line and its last one

SHOWN = (Outcome.FAIL, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.ERROR)


@dataclass(frozen=True)
class Kind:
    """One kind of run: what the candidate is, how it is judged, and which outcomes are right."""

    trainer: str
    planted: float
    wanted: tuple[Outcome, ...]
    options: tuple[str, ...] = ONE_CELL
    in_clone: bool = False  # against its own commit; else against `Same`
    accepted: bool = False  # the run before it in the clone was accepted
    script: bool = False  # of a training script
    net: bool = False  # of a training script's net, with a trainer


NOT_RED = (Outcome.PASS, Outcome.INCONCLUSIVE)
MATRIX = ("--scaling-devices", "cpu:2")


def _slower(percent: int, budget_s: int | None = None, tolerance: float | None = None) -> Kind:
    """Return the kind whose trainer is slower by so many percent, or unchanged at 0, within a budget of its own."""
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


def one_run(
    name: str, folder: Path, calibration: Calibration | None = None, options: Iterable[str] = (), *, busy: bool = False
) -> Line:
    """Run the gate once, from the repository's root or from a clone.

    Args:
        name: of the kind.
        folder: an empty one, for the clone, the trainers' file, pytest's output and the report.
        calibration: of this machine, for the run to use.
        options: more than the kind's own.
        busy: whether a neighbour keeps a core busy meanwhile.

    Returns:
        The line for the log, without what is known of the code.

    Raises:
        RuntimeError: pytest left no record.
    """
    kind = KINDS[name]
    root = _clone(folder) if kind.in_clone else ROOT
    command = [sys.executable, "-m", "pytest", "-q", "-m", "scaling", "suite/benchmarks", *kind.options, *options]
    command += _sides(kind, folder)
    if calibration is not None:
        calibration.write(folder / "reports")
    if kind.accepted:
        pytest_once([*command, "--scaling-accept=yes"], root, folder)
    slower = list[str]()
    if kind.net:
        with (root / "pyproject.toml").open("a", encoding="utf-8") as file:
            file.write(NET)
    if kind.net and kind.planted:
        planted_cell.plant(root, ["ddp-net-strong-2"], kind.planted, BATCH)
    elif kind.script and kind.planted:
        plant_in_script(root / SCRIPT, kind.planted)
    elif kind.in_clone and kind.planted:
        slower = random.SystemRandom().choice(planted_cell.cells())
        planted_cell.plant(root, slower, kind.planted)
    load, start = os.getloadavg()[0], time.monotonic()
    with neighbour() if busy else contextlib.nullcontext():
        status, record = pytest_once(command, root, folder)
    about = {"status": status, "process_s": round(time.monotonic() - start, 1), "load_before": round(load, 2)}
    return {**line_of(record, name), **about, "neighbour": busy, **({"slower": slower} if slower else {})}


def plant_in_script(path: Path, share: float) -> None:
    """Let every step of the script take so much longer."""
    first, last = STEP
    pad = " " * (len(first) - len(first.lstrip()))
    wait = (f"until = clock() + {share} * (clock() - begun)", "while clock() < until:", "    pass")
    text = "from time import perf_counter as clock\n" + path.read_text(encoding="utf-8").partition('"""\n')[2]
    text = text.replace(first, f"{pad}begun = clock()\n{first}")
    path.write_text(text.replace(last, last + "".join(f"{pad}{line}\n" for line in wait)), encoding="utf-8")


def pytest_once(
    command: Sequence[str], root: Path, folder: Path, environment: Mapping[str, str] | None = None
) -> tuple[int, Record]:
    """Run pytest, and return its exit status and the record that it left.

    Args:
        command: that starts pytest.
        root: where.
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
        status = wait_to_end(process)
    records = list({*reports.glob("*/runs/*/record.json")} - before)
    if len(records) != 1:
        tail = "\n".join(said.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(f"exit status {status} and {len(records)} records, expected one:\n{tail}")
    return status, read_model(records[0], Record)


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


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """Keep one core busy for one second of every two."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    try:
        yield
    finally:
        process.kill()
        process.wait(END_TIMEOUT_S)


def line_of(record: Record, name: str) -> Line:
    """Return what the log keeps of a run's record: of its only cell also the rounds by session, else their middles.

    Raises:
        RuntimeError: the run has no cell.
    """
    if not record.cells:
        raise RuntimeError(f"run {name}: no cell was measured")
    outcomes = {cell.id: cell.outcome for cell in record.cells}
    line: Line = {
        "kind": name,
        "planted": KINDS[name].planted,
        "utc": record.started_utc,
        "outcome": next(outcome for outcome in GRAVEST_FIRST if outcome in outcomes.values()).value,
        "wall_s": round(record.wall_s, 1),
        "tolerance": record.tolerance,
        "options": list(KINDS[name].options),
        "planned": record.planned,
        "sessions": len(record.sessions),
        "session_s": [round(session.wall_s, 1) for session in record.sessions],
        "counting_s": round(sum(session.counting_s for session in record.sessions), 1),
        "cautions": {cell.id: cell.cautions for cell in record.cells if cell.cautions},
        **_windows(record),
        "machine_key": record.machine.key,
        "versions": record.environment.versions,
    }
    if len(record.cells) > 1:
        cells = {cell.id: [cell.outcome.value, _interval(cell)] for cell in record.cells}
        shown = {
            cell.id: [round(1e4 * Middle.of(each).value) for each in _windows_of(record, cell)] for cell in record.cells
        }
        return {**line, "cells": cells, "sessions_1e4": shown}
    [cell] = record.cells
    windows = [
        [[round(1e4 * value) for value in side] for side in (each.own, each.other)]
        for each in _windows_of(record, cell)
    ]
    return {**line, "ratio": _interval(cell), "reason": cell.reason, "log_s_1e4": windows}


def _windows_of(record: Record, cell: CellRecord) -> list[Windows]:
    """Return the windows of a cell and its base, by session; none where an arm never started."""
    try:
        sessions = of_record(record, cell)
    except ValueError:
        return []
    return [session.windows for session in sessions if session.windows.own]


def _windows(record: Record) -> Line:
    """Return the seconds of all windows, and the usual SD (its median) of the logarithm of an arm's in a session."""
    seconds: dict[tuple[int, str], list[float]] = {}
    again_s = 0.0
    for session in record.sessions:
        for window in session.windows:
            seconds.setdefault((session.number, window.arm), []).append(max(window.duration_ns) / 1e9)
            again_s += max(window.first.duration_ns) / 1e9 if window.first else 0.0
    sds = [statistics.stdev(map(math.log, times)) for times in seconds.values() if len(times) > 1]
    timed_s = round(again_s + sum(map(sum, seconds.values())), 1)
    return {"timed_s": timed_s, "window_sd": round(statistics.median(sds), 4) if sds else None}


def _interval(cell: CellRecord) -> list[float] | None:
    ratio = cell.slowdown
    return ratio and [round(value, 4) for value in (ratio.estimate, ratio.low, ratio.high) if value is not None]


def wait_to_end(process: subprocess.Popen[bytes]) -> int:
    """Return its exit status. A Ctrl-C, and the deadline, end it as Ctrl-C does, and are raised when it has ended."""
    try:
        return process.wait(DEADLINE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
        process.kill()
        raise


def table(lines: Iterable[Line]) -> str:
    """Return the log as Markdown, a row for each kind; a planted slowdown is found when its run ends in FAIL."""
    head = ["kind", "runs", *(outcome.value for outcome in SHOWN), "as wanted (exact 95 %)", "cells decided"]
    head += ["median s", "max s", "timed s", "SD of a window", *(f"found in {minutes} min" for minutes in (1, 2, 5))]
    rows = [" | ".join(head), "|".join(["---"] * len(head))]
    by_row: dict[tuple[str, bool], list[Line]] = {}
    for line in lines:
        by_row.setdefault((line["kind"], line.get("neighbour", False)), []).append(line)
    for (name, busy), ran in sorted(by_row.items(), key=lambda item: (list(KINDS).index(item[0][0]), item[0][1])):
        outcomes = Counter(line["outcome"] for line in ran)
        cells = Counter(outcome for line in ran for outcome in _by_cell(line))
        walls = [line["wall_s"] for line in ran]
        failed_s = [line["wall_s"] for line in ran if line["outcome"] == Outcome.FAIL]
        wanted = sum(map(_as_wanted, ran))
        row = [_label(name) + ", with a neighbour" * busy, len(ran), *(outcomes[outcome] for outcome in SHOWN)]
        row += [rate(wanted, len(ran)), f"{(cells[Outcome.PASS] + cells[Outcome.FAIL]) / cells.total():.0%}"]
        row += [f"{statistics.median(walls):.0f}", f"{max(walls):.0f}"]
        row += [_median(ran, "timed_s", "{:.0f}"), _median(ran, "window_sd", "{:.1%}")]
        row += [sum(s <= 60 * minutes for s in failed_s) if KINDS[name].planted else "-" for minutes in (1, 2, 5)]
        rows.append(" | ".join(map(str, row)))
    return "\n".join(f"| {row} |" for row in rows)


def _label(name: str) -> str:
    """Return a kind as its row is called."""
    percent, _, budget_s = name.partition("@")
    label = "unchanged" if percent == "0" else f"{percent} % slower" if percent.isdigit() else percent
    label = label.replace("-10", ", one cell 10 % slower")
    return f"{label}, within {budget_s} s" if budget_s else label


def _median(ran: Iterable[Line], name: str, form: str) -> str:
    """Return the median of a field that lines of earlier code lack, as text."""
    values = [line[name] for line in ran if line.get(name) is not None]
    return form.format(statistics.median(values)) if values else "-"


def _as_wanted(line: Line) -> bool:
    """Return whether a run ended as it should; of several cells only the slower ones may have failed."""
    failed = {id for id, (outcome, _) in line.get("cells", {}).items() if outcome == Outcome.FAIL}
    return line["outcome"] in KINDS[line["kind"]].wanted and failed <= set(line.get("slower", failed))


def _by_cell(line: Line) -> list[str]:
    """Return the outcomes of a run's cells."""
    return [outcome for outcome, _ in line["cells"].values()] if "cells" in line else [line["outcome"]]


def make(log: Path, wanted: Mapping[str, int], options: argparse.Namespace) -> None:
    """Make what is missing until the time is up."""
    if options.records:
        options.records.mkdir(parents=True, exist_ok=True)
    calibration = options.calibration and read_model(options.calibration, Calibration)

    def one(name: str, folder: Path) -> Line:
        rng = random.SystemRandom()
        busy = KINDS[name].in_clone and not KINDS[name].planted and rng.random() < NEIGHBOUR_SHARE
        line = one_run(name, folder, calibration, busy=busy)
        for record in folder.glob("reports/*/runs/*/record.json") if options.records else ():
            shutil.copy(record, options.records / f"{record.parent.name}.json")
        return line

    about = {"calibration": calibration and calibration.run_id}
    fill(log, wanted, one, minutes=options.minutes, mixed=options.mixed, about=about)


def main() -> None:
    """Make the runs that the log lacks, or print its table."""
    parser = argparse.ArgumentParser(description="Real runs of the gate, appended to a log.")
    parser.add_argument(
        "--wanted", default="unchanged=30,10=15,5=15,3=15", help="KIND=NUMBER,... (default: %(default)s)"
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="start no run after this long (default: %(default)s)"
    )
    parser.add_argument("--log", type=Path, nargs="+", default=[LOG], help=f"default: {LOG.name} beside this script")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="calibration.json of this machine to lean on")
    parser.add_argument(
        "--records", type=Path, metavar="FOLDER", help="also keep the record of every run, in this folder"
    )
    parser.add_argument("--mixed", action="store_true", help="keep runs of different or uncommitted code in one log")
    parser.add_argument("--table", action="store_true", help="print the logs as one table, and run nothing")
    options = parser.parse_args()
    for ending in (signal.SIGINT, signal.SIGTERM):  # a shell lets what it starts in the background ignore the first
        signal.signal(ending, signal.default_int_handler)
    try:
        if options.table:
            print(table(line for log in options.log for line in read_log(log)))
        elif len(options.log) > 1:
            parser.error("new runs go to one log: give --log one file, or --table")
        else:
            make(options.log[0], parse_wanted(options.wanted), options)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
