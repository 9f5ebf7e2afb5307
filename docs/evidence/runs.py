"""Real runs of the gate on real processes, one after the other, each kept as a line of `runs.jsonl`.

    python -m docs.evidence.runs --wanted unchanged=30,10=15,5=15,3=15 --minutes 120
    python -m docs.evidence.runs --calibration reports/KEY/calibration.json --log docs/evidence/runs-calibrated.jsonl
    python -m docs.evidence.runs --table

The first, repeated until nothing is missing, makes the runs as on a machine that nobody has calibrated; the second lets
them lean on what `python -m suite calibrate` has found; the last shows what they came to. Each run is `pytest
-m scaling --scaling-trainer planted.py:X --scaling-against planted.py:Same` in a process of its own, for one cell: ddp,
lenet, strong, two ranks. `Unchanged` is `Same` under another name. The others spend 3, 5 or 10 % more of their own
step's time, at two ranks only (`suite.rank.planting.slowed`). What is missing is drawn in a random order, so that no
kind has the quiet hours for itself.

10 and 5 % are judged at the default tolerance of 5 % and the default budget. A slowdown below the tolerance may pass by
contract, so 3 % is asked for as a user would who cares for it: tolerance 3 %, budget 300 s.

Ctrl-C ends the run in progress, which is not kept; every line before it stays. Runs of different contents of suite/ and
reference/ are different experiments, and so are those of uncommitted changes: they share a log only with --mixed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from docs.evidence.log import ROOT, Line, append, check_same_code, code_state, read_log
from docs.evidence.recording import of_record
from docs.evidence.replay import rate
from suite.records.calibration import Calibration
from suite.records.record import Record, read_model
from suite.verdict import Outcome

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
"""
ONE_CELL = ("--scaling-devices", "cpu:2", "--scaling-world-sizes", "2", "--scaling-mode", "strong")

SHOWN = (Outcome.FAIL, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.ERROR)


@dataclass(frozen=True)
class Kind:
    """One kind of run: what the candidate is, how it is judged, and which outcomes are right."""

    trainer: str
    planted: float
    wanted: tuple[Outcome, ...]
    options: tuple[str, ...] = ()


KINDS = {
    "unchanged": Kind("Unchanged", 0.0, (Outcome.PASS, Outcome.INCONCLUSIVE)),
    "10": Kind("Slower10", 0.10, (Outcome.FAIL,)),
    "5": Kind("Slower5", 0.05, (Outcome.FAIL,)),
    "3": Kind("Slower3", 0.03, (Outcome.FAIL,), ("--scaling-tolerance", "0.03", "--scaling-budget", "300")),
}


def parse_wanted(text: str) -> dict[str, int]:
    """How many runs of each kind, from `unchanged=30,10=15`.

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


def missing(lines: Iterable[Line], wanted: Mapping[str, int]) -> list[str]:
    """The kinds of the runs that are still to be made, one entry a run; an ERROR counts as made, and as wrong."""
    done = Counter(line["kind"] for line in lines)
    return [kind for kind, number in wanted.items() for _ in range(number - done[kind])]


def one_run(name: str, folder: Path, calibration: Calibration | None = None, options: Iterable[str] = ONE_CELL) -> Line:
    """Run the gate once, from the repository's root.

    Args:
        name: of the kind.
        folder: an empty one, for the trainers' file, pytest's output and the report.
        calibration: of this machine, for the run to lean on.
        options: of the cell.

    Returns:
        The line for the log, without what is known of the code.

    Raises:
        RuntimeError: pytest left no record, or not of one cell.
    """
    kind, planted, reports, said = KINDS[name], folder / "planted.py", folder / "reports", folder / "pytest.log"
    planted.write_text(PLANTED, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "scaling", "suite/benchmarks", *options, *kind.options]
    command += ["--scaling-trainer", f"{planted}:{kind.trainer}", "--scaling-against", f"{planted}:Same"]
    command += [f"--scaling-report-dir={reports}"]
    if calibration is not None:
        calibration.write(reports)
    load, start = os.getloadavg()[0], time.monotonic()
    with said.open("wb") as output:
        # A session of its own: Ctrl-C then reaches it once, through us, and is not in the way of its cleaning up.
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status = wait_to_end(process)
    found = list(reports.glob("*/runs/*/record.json"))
    if len(found) != 1:
        tail = "\n".join(said.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(f"run {name}: exit status {status} and {len(found)} records, expected one:\n{tail}")
    about = {"status": status, "process_s": round(time.monotonic() - start, 1), "load_before": round(load, 2)}
    return {**line_of(read_model(found[0], Record), name), **about}


def line_of(record: Record, name: str) -> Line:
    """What the log keeps of a run's record.

    Raises:
        RuntimeError: the run had another number of cells than one.
    """
    if len(record.cells) != 1:
        raise RuntimeError(f"run {name}: {len(record.cells)} cells, expected one; the options must name one cell")
    [cell] = record.cells
    ratio = cell.slowdown
    try:
        sessions = of_record(record, cell)
    except ValueError:  # an arm that never started was not timed; the outcome says so
        sessions = []
    return {
        "kind": name,
        "planted": KINDS[name].planted,
        "utc": record.started_utc,
        "outcome": cell.outcome.value,
        "wall_s": round(record.wall_s, 1),
        "ratio": ratio and [round(value, 4) for value in (ratio.estimate, ratio.low, ratio.high) if value is not None],
        "reason": cell.reason,
        "tolerance": record.tolerance,
        "options": list(KINDS[name].options),
        "planned": record.planned,
        "sessions": len(sessions),
        "session_s": [round(session.wall_s, 1) for session in record.sessions],
        "log_ratios_1e4": [[round(1e4 * value) for value in session.log_ratios] for session in sessions],
        "machine_key": record.machine.key,
        "versions": record.environment.versions,
    }


def wait_to_end(process: subprocess.Popen[bytes]) -> int:
    """Its exit status; a Ctrl-C is passed on to it, and goes on when it has ended."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
        process.kill()
        raise


def table(lines: Iterable[Line]) -> str:
    """The log as Markdown, one row a kind; a planted slowdown counts as found when its run ended in FAIL by then."""
    head = ["kind", "runs", *(outcome.value for outcome in SHOWN), "as wanted (exact 95 %)", "median s", "max s"]
    head += [f"found in {minutes} min" for minutes in (1, 2, 5)]
    rows = [" | ".join(head), "|".join(["---"] * len(head))]
    by_kind = {name: [line for line in lines if line["kind"] == name] for name in KINDS}
    for name, ran in by_kind.items():
        if not ran:
            continue
        outcomes = Counter(line["outcome"] for line in ran)
        walls = [line["wall_s"] for line in ran]
        found = [line["wall_s"] for line in ran if line["outcome"] == Outcome.FAIL]
        wanted = sum(outcomes[outcome] for outcome in KINDS[name].wanted)
        row = [name if name == "unchanged" else f"{name} % slower", len(ran), *(outcomes[outcome] for outcome in SHOWN)]
        row += [rate(wanted, len(ran)), f"{statistics.median(walls):.0f}", f"{max(walls):.0f}"]
        row += [sum(wall <= 60 * minutes for wall in found) if KINDS[name].planted else "-" for minutes in (1, 2, 5)]
        rows.append(" | ".join(map(str, row)))
    return "\n".join(f"| {row} |" for row in rows)


def make(lines: list[Line], wanted: Mapping[str, int], options: argparse.Namespace) -> None:
    """Make what is missing until the time is up; the code may change meanwhile, so it is looked at before every run."""
    end = time.monotonic() + 60 * options.minutes
    calibration = options.calibration and read_model(options.calibration, Calibration)
    while (left := missing(lines, wanted)) and time.monotonic() < end:
        state = {**code_state(), "calibration": calibration and calibration.run_id}
        if not options.mixed:
            check_same_code(lines, state)
        name = random.SystemRandom().choice(left)
        with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
            try:
                line = {**one_run(name, Path(folder), calibration), **state}
            except KeyboardInterrupt:
                sys.exit(f"interrupted: the run in progress is not kept, {len(lines)} are")
        append(options.log, line)
        lines.append(line)
        print(f"{name}: {line['outcome']} in {line['wall_s']} s; {len(left) - 1} runs are missing", flush=True)


def main() -> None:
    """Make the runs that the log lacks, or print its table."""
    parser = argparse.ArgumentParser(description="Real runs of the gate, appended to a log.")
    parser.add_argument(
        "--wanted", default="unchanged=30,10=15,5=15,3=15", help="KIND=NUMBER,... (default: %(default)s)"
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="start no run after this long (default: %(default)s)"
    )
    parser.add_argument("--log", type=Path, default=LOG, help=f"default: {LOG.name} beside this script")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="calibration.json of this machine to lean on")
    parser.add_argument("--mixed", action="store_true", help="keep runs of different or uncommitted code in one log")
    parser.add_argument("--table", action="store_true", help="print the log as Markdown, and run nothing")
    options = parser.parse_args()
    try:
        lines = read_log(options.log)
        if options.table:
            print(table(lines))
        else:
            make(lines, parse_wanted(options.wanted), options)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
