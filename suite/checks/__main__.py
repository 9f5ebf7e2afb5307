"""`python -m suite.checks TRAINER CHECK CASE`: put one case to a trainer again, as a failure's message says."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from suite.checks.bench import Bench
from suite.checks.draw import CHECKS
from suite.checks.search import describe_failure, ended
from suite.processes.failure import WorkerFailure
from suite.processes.pool import Pool
from suite.properties.answers import UNSEEN
from suite.properties.case import Case
from suite.room import devices


def main(arguments: list[str] | None = None) -> int:
    """Put the case to the trainer; return 0 when the check passes, else 1; exit with 2 for an unreadable case."""
    parser = argparse.ArgumentParser(prog="python -m suite.checks", description=__doc__)
    parser.add_argument("trainer", help="a table name, module:Class or path.py:Class")
    parser.add_argument("check", choices=CHECKS, help="its name")
    parser.add_argument("case", help='JSON, such as \'{"world_size": 2, "batches": [3]}\'')
    parser.add_argument("--devices", default="cpu", help="as --scaling-devices (default: cpu)")
    asked = parser.parse_args(arguments)
    try:
        case = Case.from_json(json.loads(asked.case))
        used = devices.one_host(devices.parse(asked.devices))
    except (RecursionError, ValueError) as error:
        parser.error(f"{type(error).__name__}: {error}")
    if not used.names:
        parser.error(f"--devices {asked.devices}: no device found; {used.remedy}, or use cpu:N")
    try:
        opened = Pool(kind=used.kind, import_paths=[Path.cwd()], preload="trainers")
    except ValueError as error:
        parser.error(str(error))
    with opened as pool:
        right, said = put(Bench(pool, used), asked.trainer, asked.check, case)
    print(said)
    return 0 if right else 1


def put(bench: Bench, trainer: str, check: str, case: Case) -> tuple[bool, str]:
    """Put a case to a trainer; return whether the check passes, and the text to show."""
    try:
        judgement = bench.judge(trainer, check, case)
    except WorkerFailure as failure:
        judgement = ended(case, failure)
    if judgement.finding:
        return False, describe_failure(bench, trainer, check, case, judgement)
    said = judgement.note or "right"
    return True, f"{said}; {UNSEEN}" if bench.about(trainer).only_with_itself else said


if __name__ == "__main__":
    sys.exit(main())
