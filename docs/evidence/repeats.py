"""Does `pytest` ever fail on code that is right? It is run again and again, and what came of each run is kept.

    python -m docs.evidence.repeats                 what is left of ten runs alone and ten beside two busy processes
    python -m docs.evidence.repeats --kind files    each test file by itself
    python -m docs.evidence.repeats --kind reversed all tests in reverse order
    python -m docs.evidence.repeats --table

`repeats.jsonl` grows by a line a run; a stopped script goes on where the log ends. Runs of other code are refused. Exit
status 1 when a run failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.evidence.log import ROOT, append, check_same_code, code_state, read_log

LOG = Path(__file__).with_name("repeats.jsonl")
RUNS = 10
REVERSED = "SCALING_TESTS_REVERSED"
LIMIT_S = 1500
SUMMARY = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected)")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Reverse the order of the tests, where this module is loaded as a plugin for it."""
    if os.environ.get(REVERSED):
        items.reverse()


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Processes that burn a core each."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def run_tests(*arguments: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """One run of pytest in the repository: exit status, wall seconds, what its last line counts, what failed."""
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as stdout:
        tests = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "400", **(environment or {})},  # else the summary leaves the reasons out
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):  # a run that does not end has failed, as others have
                tests.wait(LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tests.pid, signal.SIGKILL)
            status = tests.wait()
        stdout.seek(0)
        lines = stdout.read().splitlines() or [""]
    return {
        "status": status,
        "wall_s": round(time.monotonic() - begun, 1),
        "counts": {name: int(number) for number, name in SUMMARY.findall(lines[-1])},
        "failed": [line for line in lines if line.startswith(("FAILED ", "ERROR "))],
        "end": lines[-30:] if status else [],
    }


def run(kind: str, state: dict[str, Any]) -> int:
    """Do what is left of one kind; how many runs failed."""
    lines = read_log(LOG)
    check_same_code(lines, state)
    mine = [line for line in lines if line["kind"] == kind]
    if kind == "files":
        done = {line["file"] for line in mine}
        paths = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py"))
        left: list[dict[str, Any]] = [{"file": path} for path in paths if path not in done]
    else:
        left = [{} for _ in range((1 if kind == "reversed" else RUNS) - len(mine))]
    for about in left:
        with neighbours(2 if kind == "busy" else 0):
            extra = ["-p", "docs.evidence.repeats"] if kind == "reversed" else [str(v) for v in about.values()]
            found = run_tests(*extra, environment={REVERSED: "1"} if kind == "reversed" else None)
        # A file whose tests all belong to another set collects none.
        found["right"] = found["status"] == 0 or (kind == "files" and found["status"] == 5)
        append(LOG, {"kind": kind, **about, **found, **state})
        print(kind, *about.values(), found["status"], f"{found['wall_s']} s", found["counts"], *found["failed"])
    return sum(not line["right"] for line in read_log(LOG) if line["kind"] == kind)


def table() -> str:
    """What the log says, a line a kind."""
    rows = ["| kind | runs | failed | wall seconds, least to most |", "|---|---|---|---|"]
    lines = read_log(LOG)
    for kind in dict.fromkeys(line["kind"] for line in lines):
        mine = [line for line in lines if line["kind"] == kind]
        walls = sorted(line["wall_s"] for line in mine)
        failed = sum(not line["right"] for line in mine)
        rows.append(f"| {kind} | {len(mine)} | {failed} | {walls[0]:.0f} - {walls[-1]:.0f} |")
    return "\n".join(rows)


def main() -> int:
    """Run what is left, or show the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("alone", "busy", "files", "reversed"), action="append")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    failed = 0
    if not asked.table:
        state = code_state()
        failed = sum(run(kind, state) for kind in asked.kind or ("alone", "busy"))
    print(table())
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
