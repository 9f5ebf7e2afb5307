"""`python -m tests.mutants`: every check on every mutant, as a table; docs/correctness.md counts its rows.

Names given as arguments select mutants, and `--check`, which may be repeated, selects checks. `--seeds N` shows instead
how surely a mutant is found: its own check searches for it N times, as in a usual run but with other cases each time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Collection

from suite.checks.bench import Bench
from suite.checks.draw import CHECKS
from suite.checks.functions import FUNCTION_CHECKS, search
from suite.processes.pool import Pool
from suite.room import devices
from tests.mutants import Entry, entries
from tests.support.project import REPOSITORY

EXAMPLES = 50
EVERY = (*CHECKS, *FUNCTION_CHECKS)


def finds(check: str, entry: Entry, bench: Bench) -> bool:
    """Say whether a check finds a mutant."""
    if entry.kind == "trainer":
        return check in CHECKS and entry.killed(bench.search(entry.trainer, check, examples=EXAMPLES, shrink=False))
    fits = check in FUNCTION_CHECKS and FUNCTION_CHECKS[check].kind == entry.kind
    return fits and bool(search(check, entry.function(), EXAMPLES).finding)


def searches(names: Collection[str], seeds: int) -> int:
    """Print for each mutant of a trainer how many of its searches missed it; return 1 when any did."""
    missed = made = 0
    print("| mutant | check | missed | cases until it was found, mean | most |\n|---|---|---|---|---|", flush=True)
    with Pool(kind="cpu", import_paths=[REPOSITORY], preload="trainers") as pool:
        bench = Bench(pool, devices.parse("cpu"))
        for entry in entries():
            if entry.kind != "trainer" or (names and entry.name not in names):
                continue
            results = [bench.search(entry.trainer, entry.killed_by, fresh=True, shrink=False) for _ in range(seeds)]
            found = [result.examples for result in results if entry.killed(result)]
            missed, made = missed + seeds - len(found), made + seeds
            cases = f"{statistics.fmean(found):.1f} | {max(found)}" if found else "- | -"
            print(f"| {entry.name} | {entry.killed_by} | {seeds - len(found)} of {seeds} | {cases} |", flush=True)
    print(f"\n{missed} of {made} searches missed their mutant")
    return int(missed > 0)


def main(names: Collection[str], checks: Collection[str]) -> int:
    """Print the table row by row; return 1 when a mutant survives or, without names, a check kills none."""
    idle = set(checks)
    survivors = []
    print("| mutant | what goes wrong | source | killed by |\n|---|---|---|---|", flush=True)
    with Pool(kind="cpu", import_paths=[REPOSITORY], preload="trainers") as pool:
        bench = Bench(pool, devices.parse("cpu"))
        for entry in entries():
            if names and entry.name not in names:
                continue
            killers = [check for check in checks if finds(check, entry, bench)]
            idle -= set(killers)
            survivors += [] if killers else [entry.name]
            print(
                f"| {entry.name} | {entry.bug} | {entry.source} | {', '.join(killers) or '**nothing**'} |", flush=True
            )
    if survivors or (idle and not names):
        print(f"\nsurvivors: {survivors or 'none'}; checks that kill nothing: {sorted(idle) or 'none'}")
        return 1
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="default: all")
    parser.add_argument("--check", action="append", choices=EVERY, metavar="CHECK", help="default: all")
    parser.add_argument("--seeds", type=int, metavar="N", help="search for each mutant of a trainer N times")
    options = parser.parse_args()
    sys.exit(searches(options.names, options.seeds) if options.seeds else main(options.names, options.check or EVERY))
