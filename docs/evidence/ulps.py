"""Cases of the checks that compare floats, put to right trainers whose steps run on a device that rounds otherwise.

    python -m docs.evidence.ulps --log FILE                            # until the log has 100,000 cases
    python -m docs.evidence.ulps --log FILE --ranks --wanted 102000    # more, by trainers of several processes
    python -m docs.evidence.ulps --log FILE --table
    python -m docs.evidence.ulps --again SingleTokens low_precision 1234

The device is `tests.support.other_device`: its functions are off by two units in the last place at most, and it adds in
other orders, as a GPU does. The oracle stays on the CPU as it is. Without --ranks everything runs in this process,
without process groups. A block is one trainer, one check and one seed, from which its cases are drawn again with
--again. The log grows by a line for each block, and a later call goes on where it ends; blocks of other code (`suite`,
`reference`) need another log. A finding is a false alarm. Exit status 1 when the log has one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from docs.evidence.cases import fewest, judge, line_of
from docs.evidence.log import ROOT, Line, append, check_same_code, code_state, interruptible, read_log
from docs.evidence.replay import rate
from suite.checks.bench import Bench
from suite.checks.draw import TEXT_CHECKS, WITH_ONE_DEVICE
from suite.processes.failure import WorkerFailure
from suite.processes.pool import Pool
from suite.properties import contract, tolerance
from suite.properties.answers import About, Judgement
from suite.properties.case import Case
from suite.properties.observe import observe
from suite.rank import commands
from suite.room import devices
from tests.support import other_device

WANTED = 100_000
EXAMPLES = 200  # of a block
OF_TEXTS = ", texts"
DTYPES = ("float64", "float32")
FINE = 1e-9  # a share of a bound that is looked for


@dataclass
class InThisProcess(Bench):
    """Puts cases to trainers of one process in this one.

    Attributes:
        cases: how many there were of each dtype.
        nearest: the largest error of a gradient over its bound, by the dtype of the case.
    """

    cases: Counter[str] = field(default_factory=Counter)
    nearest: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _state: commands.State = field(default_factory=lambda: commands.State(0))

    def about(self, trainer: str) -> About:
        """Return the description of a trainer."""
        return contract.describe(contract.load_trainer(trainer))

    def judge(self, trainer: str, check: str, case: Case) -> Judgement:
        """Put one case to a trainer and apply one check."""
        self.cases[case.dtype] += 1
        with self._noting(case.dtype):
            return super().judge(trainer, check, case)

    def _observe(self, trainer: str, case: Case, check: str, **how: bool) -> tuple[Any, list[Any]]:
        made = contract.load_trainer(trainer)
        record, self._state.loss = observe(made, [torch.device("cpu")] * case.world_size, case, check=check, **how)
        self._state.oracle = getattr(made, "oracle", "sgd")
        return None, [record]

    def _asked(self, group: Any, told: dict[str, Any]) -> Judgement:
        try:
            return commands.judge(self._state, **told)
        except Exception as error:  # as from a worker
            raise WorkerFailure("in this process", repr(error)) from error

    @contextmanager
    def _noting(self, dtype: str) -> Iterator[None]:
        worst = tolerance.worst

        def noted(names: Any, expected: Any, actual: Any, allowed: Sequence[Tensor]) -> Any:
            if found := worst(names, expected, actual, [FINE * bound for bound in allowed]):
                self.nearest[dtype] = max(self.nearest[dtype], FINE * found[1] / found[2])
            return worst(names, expected, actual, allowed)

        tolerance.worst = noted
        try:
            yield
        finally:
            tolerance.worst = worst


def block(bench: Bench, name: str, check: str, seed: int) -> Line:
    """Put the cases of a seed to a trainer, and return the log's line."""
    if isinstance(bench, InThisProcess):
        bench.cases.clear()
        bench.nearest.clear()
    begun = time.monotonic()
    result = judge(bench, f"tests.support.other_device:{name}", check, seed, EXAMPLES)
    line = {**line_of(name, check, seed, result, time.monotonic() - begun, ROOT), "asked": EXAMPLES, **code_state()}
    if isinstance(bench, InThisProcess):
        line |= {"dtypes": dict(bench.cases), "nearest": dict(bench.nearest)}
    return line


def fill(bench: Bench, trainers: Sequence[str], options: argparse.Namespace) -> None:
    """Add blocks until there are as many cases as wanted, or the time is up."""
    texts = [check for check in WITH_ONE_DEVICE if check in TEXT_CHECKS]
    checks = {name: texts if "Tokens" in name else WITH_ONE_DEVICE for name in trainers}
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        lines = read_log(options.log)
        cases = sum(line["cases"] for line in lines)
        if cases >= options.wanted:
            return
        check_same_code(lines, code_state())
        (name, check), seed = fewest(lines, checks), random.SystemRandom().getrandbits(32)
        line = block(bench, name, check, seed)
        append(options.log, line)
        print(f"{cases + line['cases']}: {name}, {check}, seed {seed}: {line['finding'] or 'right'}", flush=True)


def table(lines: Sequence[Line]) -> str:
    """Return the log as Markdown: the cases of each check, how near errors came to their bounds, and false alarms."""
    shown = ["| check | cases | false alarms | nearest, float64 | nearest, float32 |", "|---|---|---|---|---|"]
    kinds = [check + of for check in WITH_ONE_DEVICE for of in ("", OF_TEXTS)]
    for kind in (*kinds, "all"):
        mine = [line for line in lines if kind in (line["check"] + OF_TEXTS * ("Tokens" in line["trainer"]), "all")]
        near = [max((line.get("nearest", {}).get(dtype, 0.0) for line in mine), default=0.0) for dtype in DTYPES]
        cases, alarms = sum(line["cases"] for line in mine), sum(bool(line["finding"]) for line in mine)
        if cases:
            shown.append(f"| {kind} | {cases:,} | {alarms} | " + " | ".join(f"{share:.2g}" for share in near) + " |")
    total, wrong = sum(line["cases"] for line in lines), [line for line in lines if line["finding"]]
    shown += ["", f"False alarms among {total:,} cases, with the exact 95 % interval: {rate(len(wrong), total, 4)}."]
    return "\n".join(
        [*shown, *(f"- {line['trainer']}, {line['check']}, seed {line['seed']}: {line['finding']}" for line in wrong)]
    )


def main() -> int:
    """Add blocks to the log, draw one again, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wanted", type=int, default=WANTED, help="cases in the log (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=600.0, help="start no block after them (default: %(default)s)")
    parser.add_argument("--ranks", action="store_true", help="trainers of several processes")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--log", type=Path, help="of the blocks")
    asked.add_argument("--again", nargs=3, metavar=("TRAINER", "CHECK", "SEED"), help="draw a block again")
    parser.add_argument("--table", action="store_true", help="print the log as Markdown, and run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with interruptible(parser):
        if not options.table:
            with Pool(kind="cpu", import_paths=[ROOT], preload="trainers") if options.ranks else nullcontext() as pool:
                kind: Any = Bench if options.ranks else InThisProcess
                bench = kind(pool, devices.one_host(devices.parse("cpu")))
                if options.again:
                    name, check, seed = options.again
                    line = block(bench, name, check, int(seed))
                    print(line["finding"] or "right")
                    return int(bool(line["finding"]))
                fill(bench, other_device.RANKS if options.ranks else other_device.ONE_PROCESS, options)
        lines = read_log(options.log)
        print(table(lines))
        return int(any(line["finding"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
