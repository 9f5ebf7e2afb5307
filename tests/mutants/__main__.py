"""`python -m tests.mutants`: every check on every mutant, as the table in docs/correctness.md.

Names given as arguments select mutants.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from suite.checks.bench import Bench
from suite.checks.draw import CHECKS
from suite.processes.pool import Pool
from suite.room import devices
from tests.mutants import Entry, entries
from tests.support.function_cases import FUNCTION_CHECKS, search

EXAMPLES = 50


def kills(entry: Entry, bench: Bench) -> Iterator[str]:
    """Yield the checks that find a mutant."""
    if entry.kind == "trainer":
        return (c for c in CHECKS if entry.killed(bench.search(entry.trainer, c, examples=EXAMPLES, shrink=False)))
    function = entry.function()
    return (c for c in FUNCTION_CHECKS[entry.kind] if search(entry.kind, c, function, EXAMPLES).finding)


def main(names: list[str]) -> int:
    """Print the table row by row; return 1 when a mutant survives or, without names, a check kills none."""
    idle = {*CHECKS, *(check for checks in FUNCTION_CHECKS.values() for check in checks)}
    survivors = []
    print("| mutant | what goes wrong | source | killed by |\n|---|---|---|---|", flush=True)
    with Pool(kind="cpu", preload="trainers") as pool:
        bench = Bench(pool, devices.parse("cpu"))
        for entry in entries():
            if names and entry.name not in names:
                continue
            killers = list(kills(entry, bench))
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
    sys.exit(main(sys.argv[1:]))
