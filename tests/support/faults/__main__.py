"""Faults in real runs of the gate, one in each run.

    python -m tests.support.faults --seed 1 --runs 100
    python -m tests.support.faults --only "worker: SIGKILL at block"
    python -m tests.support.faults --table

The first makes the runs that the log lacks. Every run draws a fault and a moment from
`tests.support.faults.catalogue`: each fault at each of its moments once, in random order, then again. It is a small
gate on two ranks, in which a trainer or the machine around it misbehaves. Afterwards the script checks exit status,
message, wall time, processes, sockets, shared memory, temporary folders and all earlier files. The next run of the same
project shows that it still works: the next fault's, or one without a fault after faults of the controller or the report
folder, after a run that was not right, and after the last one. A run is right if all of this is as it must be.

Disks are small file systems in memory, which the script mounts in a namespace of its own: as root, or where users may
make namespaces. Clocks are moved by libfaketime. Where either is missing, the script says so and draws other faults.
Exit status 1 when a run was not right.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from docs.evidence.log import (
    ROOT,
    Line,
    append,
    check_same_code,
    code_state,
    command_line,
    interruptible,
    markdown,
    read_log,
)
from tests.support.faults import catalogue
from tests.support.faults.catalogue import Case
from tests.support.faults.stage import Stage

INSIDE = "FAULTS_NAMESPACE"
SHOWN_CHARACTERS = 160
TAIL_LINES = 60
AFTERWARDS = "the next run: "
Numbered = tuple[dict[str, int], Case]  # seed and number of the run, and its case


def enter_namespace() -> None:
    """Run this script again where it may mount; without effect where that cannot be, or has happened."""
    unshare = ["unshare", "--map-root-user", "--mount"] if os.geteuid() else ["unshare", "--mount"]
    if INSIDE in os.environ or shutil.which("unshare") is None:
        return
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode == 0:
        command = [*unshare, sys.executable, "-m", "tests.support.faults", *sys.argv[1:]]
        os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})  # a list of our own


def one_run(stage: Stage, case: Case) -> Line:
    """Run the gate with a fault, then without one where the next fault's run does not serve; return the log's line."""
    accepts = ("--scaling-accept",) if case.ends.left in ("cell lost", "cells lost") else ()
    load, begun = os.getloadavg()[0], datetime.now(UTC)
    ran = stage.run(case, *accepts)
    problems, following = ran.problems, None
    if case.next_is_clean or problems:
        following = stage.run(None)
        problems = [*problems, *(AFTERWARDS + problem for problem in following.problems)]
    reasons = [reason.splitlines()[0][:SHOWN_CHARACTERS] for reason in ran.errors.values()]
    return {
        "fault": case.fault.name,
        "moment": case.moment,
        "drawn": {"rank": case.rank, "step": case.step, "delay_s": case.delay_s, "file": case.file}
        | {"renamed": case.renamed, "number": case.number},
        "status": ran.status,
        "wall_s": round(ran.wall_s, 1),
        "within_s": case.ends.within_s,
        "reasons": sorted(set(reasons)),
        "right": not problems,
        "problems": problems,
        "followed": following is not None,
        "said": ran.said.replace(f"{ROOT}/", "").splitlines()[-TAIL_LINES:] if problems else [],
        "next_said": following.said.splitlines()[-TAIL_LINES:] if following and following.problems else [],
        "utc": begun.isoformat(timespec="seconds"),
        "load_before": round(load, 2),
    }


def make(cases: Iterable[Numbered], stage: Stage, options: argparse.Namespace) -> int:
    """Run these cases and append them to the log, then one without a fault; return how many were not right."""
    (wrong, followed), end = (0, True), time.monotonic() + 60 * options.minutes
    for about, case in cases:
        if time.monotonic() > end:
            break
        state = code_state()
        if not options.mixed:
            check_same_code(read_log(options.log), state)
        line = {**about, **one_run(stage, case), **state}
        append(options.log, line)
        wrong, followed = wrong + (not line["right"]), line["followed"]
        words = "right" if line["right"] else "; ".join(line["problems"])
        print(f"{about.get('run', '')} {line['fault']} at {line['moment']}: {line['wall_s']} s, {words}", flush=True)
    if followed:
        return wrong
    last = stage.run(None).problems
    print("a last run without a fault:", "; ".join(last) or "right", flush=True)
    return wrong + bool(last)


def missing(lines: Sequence[Line], options: argparse.Namespace, stage: Stage) -> Iterator[Numbered]:
    """Yield the runs of a seed, or of a part of it, that the log lacks; those of other code that were not right too."""
    trees = code_state()["trees"]
    mine = (line for line in lines if line.get("seed") == options.seed)
    done = {line["run"] for line in mine if line["right"] or line["trees"] == trees}
    part, parts = map(int, options.part.split("/"))
    for number in range(part - 1, options.runs, parts):
        if number not in done:
            drawn = catalogue.draw(options.seed, number, stage.possible)
            yield {"seed": options.seed, "run": number}, drawn


def table(lines: Iterable[Line]) -> str:
    """Return the log as Markdown: a row for each fault, a column for each moment, right runs of all runs.

    Of a run that was made again with other code the last one counts.
    """
    count, right = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    statuses: dict[str, set[str]] = {}
    walls: dict[str, list[float]] = {}
    for line in {(line.get("seed"), line.get("run", number)): line for number, line in enumerate(lines)}.values():
        name = line["fault"]
        for key in ((name, line["moment"]), ("all", line["moment"]), (name, ""), ("all", "")):
            count[key] += 1
            right[key] += line["right"]
        for key in (name, "all"):
            statuses.setdefault(key, set()).add(str(line["status"]))
            walls.setdefault(key, []).append(line["wall_s"])
    rows = []
    for name in (*(fault.name for fault in catalogue.FAULTS), "all"):
        if name in walls:
            keys = [(name, moment) for moment in (*catalogue.MOMENTS, "")]
            cells = [f"{right[key]} of {count[key]}" if count[key] else "" for key in keys]
            rows.append([name, *cells, ", ".join(sorted(statuses[name])), f"{max(walls[name]):.0f}"])
    return markdown(["fault", *catalogue.MOMENTS, "right", "exit status", "most seconds"], rows)


def main() -> int:
    """Make the runs that the log lacks, or print its table."""
    parser = command_line(__doc__, "faults")
    parser.add_argument("--seed", type=int, default=1, help="of the draws (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=100, help="of this seed in the log (default: %(default)s)")
    parser.add_argument("--part", metavar="K/N", default="1/1", help="every N-th run from the K-th on (default: all)")
    parser.add_argument("--only", metavar="FAULT at MOMENT", action="append", help="run this, whatever the log has")
    options = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and a fault is this signal
    with interruptible(parser):
        lines = read_log(options.log)
        if options.table:
            print(table(lines))
            return 0
        only = [catalogue.named(text) for text in options.only or ()]
        enter_namespace()
        with tempfile.TemporaryDirectory(prefix="faults-") as folder, Stage(Path(folder)) as stage:
            for why in stage.lacking:
                print(f"not every fault can be caused here: {why}")
            asked = [(dict[str, int](), case) for case in only if case.fault in stage.possible]
            wanted = asked if only else missing(lines, options, stage)
            return int(make(wanted, stage, options) > 0)


if __name__ == "__main__":
    sys.exit(main())
