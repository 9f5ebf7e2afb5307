"""`python -m tests.right`: fresh cases of every check for every unusual right trainer. Each finding is a false alarm.

The log grows by a line for each block: one trainer, one check, one seed, from which the cases are drawn again with
`--again`. A later call goes on where it ends, also after Ctrl-C, and begins with what has the fewest blocks. Blocks of
other code (`suite`, `reference`) need another log, and those of a trainer whose file has changed since do not count.
Everything runs on the CPU. Exit status 1 when the log has a finding.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from docs.evidence.cases import fewest, judge, line_of
from docs.evidence.log import ROOT, Line, append, check_same_code, code_state, interruptible, read_log
from docs.evidence.replay import rate
from suite.checks.bench import Bench
from suite.checks.draw import CHECKS
from suite.processes.pool import Pool
from suite.room import devices
from tests.right import RIGHT

OUT = ROOT / "docs" / "evidence" / "right.jsonl"
WANTED = 10_000
EXAMPLES = 25  # of a block, so that all trainers and checks have their turn in 20,000 cases


def digest(trainer: str) -> str:
    """Return a digest of the file that has a trainer of `RIGHT`."""
    path = ROOT / (RIGHT[trainer].partition(":")[0].replace(".", "/") + ".py")
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def counting(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of trainers that have not changed since."""
    known = {name: digest(name) for name in RIGHT}
    return [line for line in lines if known.get(line["trainer"]) == line["file"]]


def block(bench: Bench, name: str, check: str, seed: int) -> Line:
    """Put the cases of a seed to a trainer, and return the log's line."""
    begun = time.monotonic()
    result = judge(bench, RIGHT[name], check, seed, EXAMPLES)
    line = line_of(name, check, seed, result, time.monotonic() - begun, ROOT)
    return {**line, "asked": EXAMPLES, "file": digest(name), **code_state()}


def checks(bench: Bench, name: str, wanted: Iterable[str]) -> list[str]:
    """Return those of the wanted checks that check something: batch normalisation is not compared under "self"."""
    own = bench.about(RIGHT[name]).oracle == "sgd"
    return [check for check in wanted if own or check != "batch_norm"]


def fill(bench: Bench, right: Mapping[str, Sequence[str]], options: argparse.Namespace) -> None:
    """Add blocks until there are as many cases as wanted, or the time is up."""
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        lines = counting(read_log(options.out))  # another process may add to it as well
        cases = sum(line["cases"] for line in lines)
        if cases >= options.cases:
            return
        if not options.mixed:
            check_same_code(lines, code_state())
        (name, check), seed = fewest(lines, right), random.SystemRandom().getrandbits(32)
        line = block(bench, name, check, seed)
        append(options.out, line)
        said = line["finding"] or "right"
        print(f"{cases + line['cases']}: {name}, {check}, seed {seed}: {line['wall_s']} s, {said}", flush=True)


def table(lines: Sequence[Line]) -> str:
    """Return the log as Markdown: the cases and false alarms of each trainer, and the command of each alarm."""
    shown = ["| trainer | cases | false alarms |", "|---|---|---|"]
    for name in RIGHT:
        mine = [line for line in lines if line["trainer"] == name]
        alarms = sum(bool(line["finding"]) for line in mine)
        shown.append(f"| {name} | {sum(line['cases'] for line in mine):,} | {alarms} |")
    total, wrong = sum(line["cases"] for line in lines), [line for line in lines if line["finding"]]
    shown += ["", f"False alarms among {total:,} cases, with the exact 95 % interval: {rate(len(wrong), total, 3)}."]
    for line in wrong:
        again = re.search(r"see it again: (.*)", line["finding"])
        command = (
            again[1] if again else f"python -m tests.right --again {line['trainer']} {line['check']} {line['seed']}"
        )
        shown += [f"- {line['finding'].splitlines()[0]}", f"  `{command}`"]
    return "\n".join(shown)


def main() -> int:
    """Add blocks to the log, draw one again, or print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.right", description=__doc__)
    parser.add_argument("--cases", type=int, default=WANTED, help="cases in the log (default: %(default)s)")
    parser.add_argument("--trainer", action="append", choices=RIGHT, metavar="NAME", help="default: all")
    parser.add_argument("--check", action="append", choices=CHECKS, metavar="CHECK", help="default: all")
    parser.add_argument("--minutes", type=float, default=600.0, help="start no block after them (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help=f"the log (default: {os.path.relpath(OUT, ROOT)})")
    parser.add_argument("--mixed", action="store_true", help="keep blocks of different or uncommitted code in one log")
    parser.add_argument("--again", nargs=3, metavar=("TRAINER", "CHECK", "SEED"), help="draw a block again")
    parser.add_argument("--table", action="store_true", help="print the log as Markdown, and run nothing")
    options = parser.parse_args()
    with interruptible(parser):
        if not options.table:
            with Pool(kind="cpu", import_paths=[ROOT], preload="trainers") as pool:
                bench = Bench(pool, devices.one_host(devices.parse("cpu")))
                if options.again:
                    name, check, seed = options.again
                    line = block(bench, name, check, int(seed))
                    print(line["finding"] or "right")
                    return int(bool(line["finding"]))
                wanted = {name: checks(bench, name, options.check or CHECKS) for name in options.trainer or RIGHT}
                fill(bench, wanted, options)
        lines = counting(read_log(options.out))
        print(table(lines))
        return int(any(line["finding"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
