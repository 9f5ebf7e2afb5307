"""Fresh cases put to right trainers, a block of one check and one trainer after the other: what it finds is wrong.

    python -m docs.evidence.cases --minutes 3.5
    python -m docs.evidence.cases --check low_precision --wanted 2000 --log docs/evidence/low_precision.jsonl
    python -m docs.evidence.cases --table
    python -m docs.evidence.cases --again ddp gradient 1234

The first two add blocks to a log until it has `--wanted` cases or the time is up, and go on where it ends. A block is
what `pytest -m correctness` does for one item, with other cases each time: they are drawn from a seed that the log has,
so that the last command draws them again, with the same version of hypothesis. The next block belongs to the trainer
and check with the fewest blocks so far. Trainers are those of the table, of tests/support and of docs/ that are right,
each with the checks that it is right under. Everything runs on the CPU.

A finding is a false alarm. It stays in the log in full, with its smallest case, and is never drawn again to see whether
it goes away. Blocks of other code share the log only with --mixed. Exit status 1 when the log has a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from hypothesis import core

from docs.evidence.log import ROOT, Line, append, check_same_code, code_state, interruptible, read_log
from docs.evidence.replay import rate
from reference.trainers import TRAINERS, trains
from suite.checks.bench import Bench
from suite.checks.draw import CHECKS, TEXT_CHECKS
from suite.checks.search import SearchResult
from suite.processes.failure import WorkerFailure
from suite.processes.pool import Pool
from suite.room import devices

LOG = Path(__file__).with_name("cases.jsonl")
WANTED = 10_000
EXAMPLES = 50  # of a block; hypothesis begins with small ones, so that a block of few would have no others
NOTE_CHARACTERS = 160

STEPS = "tests.support.step_trainers:"
USERS = "tests.support.trainers_under_test:"
OF_A_STEP = ("gradient", "trajectory", "replicas", "loss", "low_precision", "not_a_number")
LOUD = tuple(check for check in CHECKS if check != "refusals")
UNDER_SELF = tuple(check for check in CHECKS if check != "batch_norm")  # which says "not checked" there

# Every right trainer, and the checks that it is right under. A page's is the class of its one block of Python.
RIGHT: dict[str, Sequence[str]] = {
    **{name: tuple(TEXT_CHECKS) if trains(name) == ("tokens",) else tuple(CHECKS) for name in TRAINERS},
    f"{STEPS}WholeStep": UNDER_SELF,
    **{f"{STEPS}{name}": OF_A_STEP for name in ("PlainStep", "ClippedByValue", "Hybrid", "Muon", "Gathering")},
    f"{STEPS}NoisyLoss": UNDER_SELF,
    "tests.support.drawing_trainers:OwnLoss": tuple(CHECKS),
    "tests.support.drawing_trainers:OfNumPy": OF_A_STEP,
    "tests.support.drawing_trainers:WeighsTexts": tuple(TEXT_CHECKS),
    f"{USERS}ByHand": tuple(CHECKS),
    f"{USERS}Adam": UNDER_SELF,
    "tests.support.text_trainers:Accumulates": tuple(TEXT_CHECKS),
    "docs/real-world-trainer.md": UNDER_SELF,
    "docs/adapters/with_hsdp.py:HSDPTrainer": LOUD,  # torch's FSDP2 ends its process there: docs/adapters.md
}


def loadable(name: str, folder: Path) -> str:
    """Return how a worker loads a trainer; the class of a page is first written into a folder."""
    if not name.endswith(".md"):
        return name
    [code] = re.findall(r"^```python\n(.*?)^```$", (ROOT / name).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    path = folder / f"{Path(name).stem}.py"
    path.write_text(code, encoding="utf-8")
    *_, last = re.findall(r"^class (\w+)", code, flags=re.MULTILINE)
    return f"{path}:{last}"


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Have hypothesis draw from a seed, as pytest's --hypothesis-seed does."""
    before, core.global_force_seed = core.global_force_seed, seed
    try:
        yield
    finally:
        core.global_force_seed = before


def judge(bench: Bench, trainer: str, check: str, seed: int, examples: int = EXAMPLES) -> SearchResult:
    """Put the cases of a seed to a trainer. A trainer that cannot be asked any more is a finding too."""
    with seeded(seed):
        try:
            return bench.search(trainer, check, examples=examples, fresh=True)
        except WorkerFailure as failure:
            return SearchResult(str(failure), [], 0, crashed=True)


def fewest(lines: Iterable[Line], right: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """Return the trainer and check with the fewest blocks so far, however many cases they had; of several any."""
    count = Counter({(name, check): 0 for name, checks in right.items() for check in checks})
    for line in lines:
        if (line["trainer"], line["check"]) in count:
            count[line["trainer"], line["check"]] += 1
    least = min(count.values())
    return random.SystemRandom().choice([pair for pair, blocks in count.items() if blocks == least])


def line_of(name: str, check: str, seed: int, result: SearchResult, wall_s: float, folder: Path) -> Line:
    """Return what the log keeps of a block, without the paths of this machine."""

    def plain(text: str) -> str:
        return text.replace(f"{folder}/", "").replace(f"{ROOT}/", "")

    return {
        "trainer": name,
        "check": check,
        "seed": seed,
        "asked": EXAMPLES,
        "cases": result.examples,
        "notes": [plain(note)[:NOTE_CHARACTERS] for note in result.notes],
        "finding": plain(result.failure),
        "crashed": result.crashed,
        "wall_s": round(wall_s, 2),
        "versions": {name: version(name) for name in ("hypothesis", "torch")},
    }


def make(bench: Bench, folder: Path, options: argparse.Namespace) -> None:
    """Add blocks until there are as many cases as wanted, or the time is up. The code is checked before every one."""
    lines, end = read_log(options.log), time.monotonic() + 60 * options.minutes
    right = {name: [c for c in checks if options.check in (None, c)] for name, checks in RIGHT.items()}
    while (cases := sum(line["cases"] for line in lines)) < options.wanted and time.monotonic() < end:
        state = code_state()
        if not options.mixed:
            check_same_code(lines, state)
        (name, check), seed = fewest(lines, right), random.SystemRandom().getrandbits(32)
        begun = time.monotonic()
        result = judge(bench, loadable(name, folder), check, seed)
        line = {**line_of(name, check, seed, result, time.monotonic() - begun, folder), **state}
        append(options.log, line)
        lines.append(line)
        print(f"{cases + line['cases']}: {name}, {check}: {line['wall_s']} s, {line['finding'] or 'right'}", flush=True)


def table(lines: Sequence[Line]) -> str:
    """Return the log as Markdown: cases of each of its trainers and checks, and the false alarms with their seeds."""
    checks = [check for check in CHECKS if check in {line["check"] for line in lines}]
    rows = [["trainer", *checks, "cases", "false alarms"], ["---"] * (len(checks) + 3)]
    for name in (*(name for name in RIGHT if name in {line["trainer"] for line in lines}), "all"):
        mine = [line for line in lines if name in ("all", line["trainer"])]
        by_check = {check: sum(line["cases"] for line in mine if line["check"] == check) for check in checks}
        false = sum(bool(line["finding"]) for line in mine)
        rows.append([name.rpartition(":")[2], *(str(cases or "") for cases in by_check.values())])
        rows[-1] += [f"{sum(by_check.values()):,}", str(false)]
    total, wrong = sum(line["cases"] for line in lines), [line for line in lines if line["finding"]]
    shown = [f"| {' | '.join(row)} |" for row in rows]
    shown += ["", f"False alarms among {total:,} cases, with the exact 95 % interval: {rate(len(wrong), total, 3)}."]
    shown += [f"- {line['finding'].splitlines()[0]} (seed {line['seed']})" for line in wrong]
    return "\n".join(shown)


def main() -> int:
    """Add blocks to the log, draw one again, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wanted", type=int, default=WANTED, help="cases in the log (default: %(default)s)")
    parser.add_argument("--check", choices=CHECKS, help="default: all")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no block after them (default: %(default)s)")
    parser.add_argument("--log", type=Path, default=LOG, help=f"default: {LOG.name} beside this script")
    parser.add_argument("--mixed", action="store_true", help="keep blocks of different or uncommitted code in one log")
    parser.add_argument("--again", nargs=3, metavar=("TRAINER", "CHECK", "SEED"), help="draw a block again")
    parser.add_argument("--table", action="store_true", help="print the log as Markdown, and run nothing")
    options = parser.parse_args()
    with interruptible(parser):
        if not options.table:
            with (
                tempfile.TemporaryDirectory(prefix="cases-") as folder,
                Pool(kind="cpu", import_paths=[ROOT], preload="trainers") as pool,
            ):
                bench, at = Bench(pool, devices.one_host(devices.parse("cpu"))), Path(folder)
                if options.again:
                    name, check, seed = options.again
                    result = judge(bench, loadable(name, at), check, int(seed))
                    print(result)
                    return int(bool(result.failure))
                make(bench, at, options)
        lines = read_log(options.log)
        print(table(lines))
        return int(any(line["finding"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
