"""Count the false alarms of the checks: fresh cases for right trainers, where every finding is wrong.

    python -m tests.right --minutes 60                                  # unusual trainers: those of this folder
    python -m tests.right --of usual --wanted 10000                     # those of the table, the tests' and the docs'
    python -m tests.right --of usual --check low_precision --wanted 2500 --log FILE
    python -m tests.right --of rounding --wanted 100000 --log FILE      # on a device that rounds otherwise
    python -m tests.right --table
    python -m tests.right --again Lion trajectory 1234

A block is one trainer, one check and one seed, from which its cases are drawn again with `--again` and the same version
of hypothesis. The log grows by a line for each block; the next block belongs to the trainer and check with the fewest.
A finding is never drawn again to see whether it goes away. Blocks of other code need another log. Everything runs on
the CPU. The device of `rounding` is `tests.support.other_device`: its functions are off by two units in the last place
at most, and it adds in other orders, as a GPU does, while the oracle is unchanged. Its trainers run in this process,
those of `rounding-ranks` in several. Exit status 1 when the log has a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import torch
from hypothesis import core

from docs.evidence.log import (
    CODE,
    ROOT,
    Line,
    append,
    check_same_code,
    code_state,
    command_line,
    interruptible,
    markdown,
    rate,
    read_log,
)
from reference.trainers import TRAINERS, trains
from suite.checks.bench import Bench
from suite.checks.draw import CHECKS, TEXT_CHECKS, WITH_ONE_DEVICE
from suite.checks.search import SearchResult
from suite.processes.failure import WorkerFailure
from suite.processes.pool import Pool
from suite.room import devices
from tests.right import RIGHT
from tests.support import other_device
from tests.support.in_this_process import InThisProcess

FOLDERS = (*CODE, "docs/adapters", "docs/examples", "tests/right", "tests/support")  # what decides an outcome here
NOTE_CHARACTERS = 160
DTYPES = ("float64", "float32")

ALL, TEXTS = tuple(CHECKS), tuple(TEXT_CHECKS)
OF_A_STEP = ("gradient", "trajectory", "replicas", "loss", "low_precision", "not_a_number")
STEPS, USERS = "tests.support.step_trainers:", "tests.support.trainers_under_test:"
USUAL: dict[str, Sequence[str]] = {
    **{name: TEXTS if trains(name) == ("tokens",) else ALL for name in TRAINERS},
    f"{STEPS}WholeStep": ALL,
    **{f"{STEPS}{name}": OF_A_STEP for name in ("PlainStep", "ClippedByValue", "Hybrid", "Muon", "Gathering")},
    f"{STEPS}NoisyLoss": ALL,
    "tests.support.drawing_trainers:OwnLoss": ALL,
    "tests.support.drawing_trainers:OfNumPy": OF_A_STEP,
    "tests.support.drawing_trainers:WeighsTexts": TEXTS,
    f"{USERS}ByHand": ALL,
    f"{USERS}Adam": ALL,
    "tests.support.texts:Accumulates": TEXTS,
    "docs/examples/real_world_trainer.py:RealWorldTrainer": ALL,
    # torch's FSDP2 ends the process under `refusals`: docs/your-trainer.md
    "docs/adapters/with_hsdp.py:HSDPTrainer": tuple(check for check in CHECKS if check != "refusals"),
}


@dataclass(frozen=True)
class Trainers:
    """Right trainers, as a worker loads them, with the checks that they are right under.

    Attributes:
        checks: of each trainer.
        examples: cases of a block; hypothesis begins with small ones, so that blocks of few would have no others.
        ranks: whether they run in workers.
    """

    checks: Mapping[str, Sequence[str]]
    examples: int
    ranks: bool = True


def _rounding(names: Iterable[str], *, ranks: bool) -> Trainers:
    texts = tuple(check for check in WITH_ONE_DEVICE if check in TEXT_CHECKS)
    checks = {f"{other_device.__name__}:{name}": texts if "Tokens" in name else WITH_ONE_DEVICE for name in names}
    return Trainers(checks, 200, ranks)


SETS = {
    "unusual": Trainers(dict.fromkeys(RIGHT.values(), ALL), 25),
    "usual": Trainers(USUAL, 50),
    "rounding": _rounding(other_device.ONE_PROCESS, ranks=False),
    "rounding-ranks": _rounding(other_device.RANKS, ranks=True),
}


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Have hypothesis draw from a seed, as pytest's --hypothesis-seed does."""
    before, core.global_force_seed = core.global_force_seed, seed
    try:
        yield
    finally:
        core.global_force_seed = before


def judge(bench: Bench, trainer: str, check: str, seed: int, examples: int) -> SearchResult:
    """Put the cases of a seed to a trainer. A trainer that cannot be asked is a finding too."""
    with seeded(seed):
        try:
            return bench.search(trainer, check, examples=examples, fresh=True)
        except WorkerFailure as failure:
            return SearchResult(str(failure), [], 0, crashed=True)


def checks(bench: Bench, trainer: str, wanted: Iterable[str]) -> list[str]:
    """Return the wanted checks without those that compare nothing: batch normalisation is not compared under "self"."""
    own = "batch_norm" in wanted and bench.about(trainer).oracle == "sgd"
    return [check for check in wanted if own or check != "batch_norm"]


def fewest(lines: Iterable[Line], right: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """Return the trainer and check with the fewest blocks so far, however many cases they had; of several any."""
    count = Counter({(name, check): 0 for name, checks in right.items() for check in checks})
    for line in lines:
        if (line["trainer"], line["check"]) in count:
            count[line["trainer"], line["check"]] += 1
    least = min(count.values())
    return random.SystemRandom().choice([pair for pair, blocks in count.items() if blocks == least])


def block(bench: Bench, trainer: str, check: str, seed: int, examples: int) -> Line:
    """Put the cases of a seed to a trainer, and return the log's line, without paths of this machine."""
    of_dtypes = bench if isinstance(bench, InThisProcess) else None
    if of_dtypes:
        of_dtypes.dtypes.clear()
        of_dtypes.nearest.clear()
    begun = time.monotonic()
    result = judge(bench, trainer, check, seed, examples)
    return {
        "trainer": trainer,
        "check": check,
        "seed": seed,
        "asked": examples,
        "cases": result.examples,
        "notes": [note.replace(f"{ROOT}/", "")[:NOTE_CHARACTERS] for note in result.notes],
        "finding": result.failure.replace(f"{ROOT}/", ""),
        "crashed": result.crashed,
        "wall_s": round(time.monotonic() - begun, 2),
        "versions": {name: version(name) for name in ("hypothesis", "torch")},
        **({"dtypes": dict(of_dtypes.dtypes), "nearest": dict(of_dtypes.nearest)} if of_dtypes else {}),
    }


def fill(bench: Bench, right: Mapping[str, Sequence[str]], examples: int, options: argparse.Namespace) -> None:
    """Add blocks until there are as many cases as wanted, or the time is up. The code is checked before every one."""
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        lines = read_log(options.log)  # another process may add to it as well
        cases = sum(line["cases"] for line in lines)
        if cases >= options.wanted:
            return
        state = code_state(folders=FOLDERS)
        if not options.mixed:
            check_same_code(lines, state)
        (trainer, check), seed = fewest(lines, right), random.SystemRandom().getrandbits(32)
        line = {**block(bench, trainer, check, seed, examples), **state}
        append(options.log, line)
        said = line["finding"] or "right"
        print(
            f"{cases + line['cases']}: {short(trainer)}, {check}, seed {seed}: {line['wall_s']} s, {said}", flush=True
        )


def short(trainer: str) -> str:
    """Return the name of a trainer's class, or that of the table."""
    return trainer.rpartition(":")[2]


def named(name: str, sets: Iterable[Trainers]) -> tuple[str, Trainers]:
    """Return the trainer that has this name, and its set.

    Args:
        name: as a worker loads it, or that of its class.
        sets: that may have it; the first one counts.

    Raises:
        ValueError: none has.
    """
    every = [(trainer, each) for each in sets for trainer in each.checks]
    for is_named in (lambda trainer: trainer == name, lambda trainer: short(trainer) == name):
        if found := [pair for pair in every if is_named(pair[0])]:
            return found[0]
    raise ValueError(f"no trainer {name!r}: expected one of {', '.join(short(trainer) for trainer, _ in every)}")


def table(lines: Sequence[Line]) -> str:
    """Return the log as Markdown: cases and false alarms by trainer and by check, and the command of each alarm.

    "Nearest" is the largest error of a gradient as a share of what is allowed, where that was noted.
    """

    def counts(mine: Sequence[Line]) -> list[object]:
        return [f"{sum(line['cases'] for line in mine):,}", sum(bool(line["finding"]) for line in mine)]

    by_trainer, by_check = dict[str, list[Line]](), dict[str, list[Line]]()
    for line in lines:
        by_trainer.setdefault(short(line["trainer"]), []).append(line)
        by_check.setdefault(line["check"], []).append(line)
    shown = [markdown(["trainer", "cases", "false alarms"], [[name, *counts(m)] for name, m in by_trainer.items()])]
    rows = list[list[object]]()
    for check, mine in ({check: by_check[check] for check in CHECKS if check in by_check} | {"all": lines}).items():
        near = [max((line.get("nearest", {}).get(dtype, 0.0) for line in mine), default=0.0) for dtype in DTYPES]
        rows.append([check, *counts(mine), *(f"{share:.2g}" if share else "" for share in near)])
    shown += ["", markdown(["check", "cases", "false alarms", *(f"nearest, {dtype}" for dtype in DTYPES)], rows)]
    total, wrong = sum(line["cases"] for line in lines), [line for line in lines if line["finding"]]
    shown += ["", f"False alarms among {total:,} cases, with the exact 95 % interval: {rate(len(wrong), total, 4)}."]
    for line in wrong:
        again = re.search(r"see it again: (.*)", line["finding"])
        command = (
            again[1] if again else f"python -m tests.right --again {line['trainer']} {line['check']} {line['seed']}"
        )
        shown += [f"- {line['finding'].splitlines()[0]}", f"  `{command}`"]
    return "\n".join(shown)


@contextlib.contextmanager
def bench_for(trainers: Trainers) -> Iterator[Bench]:
    """Yield a bench for a set of trainers."""
    here = devices.one_host(devices.parse("cpu"))
    if not trainers.ranks:
        torch.set_num_threads(1)
        yield InThisProcess(None, here)
        return
    with Pool(kind="cpu", import_paths=[ROOT], preload="trainers") as pool:
        yield Bench(pool, here)


def main() -> int:
    """Add blocks to the log, draw one again, or print the table."""
    parser = command_line(__doc__, "right")
    parser.add_argument("--of", choices=SETS, default="unusual", help="which trainers (default: %(default)s)")
    parser.add_argument("--wanted", type=int, default=10_000, help="cases in the log (default: %(default)s)")
    parser.add_argument("--trainer", action="append", metavar="NAME", help="of the set; default: all")
    parser.add_argument("--check", action="append", choices=CHECKS, metavar="CHECK", help="default: all")
    parser.add_argument("--again", nargs=3, metavar=("TRAINER", "CHECK", "SEED"), help="draw a block again")
    options = parser.parse_args()
    with interruptible(parser):
        if options.again:
            (trainer, own), (_, check, seed) = named(options.again[0], SETS.values()), options.again
            with bench_for(own) as bench:
                line = block(bench, trainer, check, int(seed), own.examples)
            print(line["finding"] or "right")
            return int(bool(line["finding"]))
        if not options.table:
            own = SETS[options.of]
            names = [named(name, [own])[0] for name in options.trainer or own.checks]
            with bench_for(own) as bench:
                wanted = {name: [c for c in own.checks[name] if c in (options.check or CHECKS)] for name in names}
                fill(bench, {name: checks(bench, name, c) for name, c in wanted.items()}, own.examples, options)
        lines = read_log(options.log)
        print(table(lines))
        return int(any(line["finding"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
