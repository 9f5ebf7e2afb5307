"""`python -m tests.mutants.diagnoses`: how often "looks like" names the right bug, over all mutants and wrong trainers.

Every check is put to a mutant as a user would, with the default number of cases and with shrinking, under its own
oracle, and the usual ones under oracle "self" too where that is "sgd", as a subclass in a folder of its own. Each line
that a failure says it looks like is right if it contains a phrase of the file's `LOOKS_LIKE`, which " | " parts;
without a phrase, no known bug fits and every line that names one is wrong. Besides the mutants there are wrong trainers
of `tests.support` (`WRONG`), and right ones of `tests.right` under oracle "sgd", which they are not (`UNDECLARED`).

The log grows by a line for each search, and a later call goes on where it ends, also after Ctrl-C. What is right is
decided when the table is made: `--table` prints it and searches nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from suite.checks.bench import Bench
from suite.checks.draw import CHECKS
from suite.checks.search import SearchResult
from suite.processes.failure import WorkerFailure
from suite.processes.pool import Pool
from suite.properties.answers import NONE_FITS
from suite.room import devices
from tests.mutants import entries
from tests.right import RIGHT

MOST_WRONG = 0.1  # a guess that is wrong in more than one of ten cases is not made
BETWEEN = " | "
NO_EXCHANGE = "no exchange | missing exchange | drifted apart"
LOWER_PRECISION = "lower precision | less precision"

# Wrong trainers that are no mutants, with what they look like.
WRONG = {
    "tests.support.trainers_under_test:MeanOfMeans": "mean of the shards' means | must return its",
    "tests.support.trainers_under_test:NoExchange": NO_EXCHANGE,
    "tests.support.trainers_under_test:AdamWithoutExchange": NO_EXCHANGE,
    "tests.support.trainers_under_test:AdamByTheClock": "randomness without a seed",
    "tests.support.trainers_under_test:NormalisesInPlace": "in-place operation | samples changed",
    "tests.support.step_trainers:ExchangesInAClosureTwice": "times the right gradient | summed over the devices",
    "tests.support.step_trainers:ExchangesInAHookTwice": "times the right gradient | summed over the devices",
    "tests.support.step_trainers:OwnOverflow": "decided on one rank's own | loss scale",
    "tests.support.step_trainers:WithReferenceMisreporting": "must return its",
    "tests.support.step_trainers:WithALossOfReferenceMisreporting": "must return its",
    "tests.support.step_trainers:Float16": LOWER_PRECISION,
    "tests.support.step_trainers:Float16WithoutExchange": NO_EXCHANGE,
}
# Right ones under oracle "sgd", which they are not.
UNDECLARED = ("Lion", "LARS", "AMSGrad", "ClipsByNorm", "WarmsUpFromZero", "WeighsByLosses", "ServesMomentum", "LAMB")
NOT_PLAIN = "another step than plain SGD"
OF_UNDECLARED = ("gradient", "trajectory", "identity")
# What says what a failure looks like in most ways.
USUAL = ("gradient", "trajectory", "identity", "replicas", "loss", "not_a_number", "resume")

# What follows from another failure of the same trainer is right where there is one.
AFTER_ANOTHER = {
    "the weights are wrong since an earlier step": ("trajectory", "gradient"),
    "the bug that the check `gradient` or `trajectory` names": ("trajectory", "gradient"),
}


# What follows from what was seen, and is no guess at a bug.
FOLLOWS = (
    "something that training goes on from is in no part of `state_dict`",
    "the instance that goes on does not hold what it has loaded",
    "the weights differ as well",
    "the weights are not in what `state_dict` returns, or `load_state_dict` puts them elsewhere",
)


@dataclass(frozen=True)
class Subject:
    """A wrong trainer under one oracle.

    Attributes:
        name: of the mutant, or of the class.
        trainer: what a worker loads; of another oracle than its own the name of the class to make a subclass of.
        oracle: "sgd" or "self".
        own: whether that is the class's own oracle.
        looks_like: phrases of right suspects, " | " between them.
        checks: to put to it.
    """

    name: str
    trainer: str
    oracle: str
    own: bool
    looks_like: str
    checks: Sequence[str]


def subjects(bench: Bench) -> Iterator[Subject]:
    """Yield all wrong trainers; those with their own oracle come first, because others have ranks of their own."""
    others = []
    for entry in entries():
        if entry.kind != "trainer":
            continue
        trainer = f"tests.mutants.{entry.name}:Mutant"
        checks = (entry.killed_by,) if entry.crashes else tuple(CHECKS)
        about = bench.about(trainer)
        yield Subject(entry.name, trainer, about.oracle, True, entry.looks_like, checks)
        if about.oracle == "sgd" and about.trains == "samples" and not entry.crashes:
            others.append(Subject(entry.name, trainer, "self", False, entry.looks_like, USUAL))
    for trainer, looks_like in WRONG.items():
        oracle = bench.about(trainer).oracle
        yield Subject(trainer.partition(":")[2], trainer, oracle, True, looks_like, USUAL)
    for name in UNDECLARED:
        yield Subject(name, RIGHT[name], "sgd", False, NOT_PLAIN, OF_UNDECLARED)
    yield from others


def loadable(subject: Subject, folder: Path) -> str:
    """Return how a worker loads a trainer under an oracle; a subclass is first written into a folder."""
    if subject.own:
        return subject.trainer
    module, _, name = subject.trainer.partition(":")
    path = folder / f"{subject.name}_{subject.oracle}.py"
    path.write_text(f'from {module} import {name} as Own\n\n\nclass Other(Own):\n    oracle = "{subject.oracle}"\n')
    return f"{path}:Other"


def search(bench: Bench, trainer: str, check: str) -> SearchResult:
    """Search as a user would. A trainer that cannot be asked has no failure to score."""
    try:
        return bench.search(trainer, check)
    except WorkerFailure as failure:
        return SearchResult(f"not asked: {failure}", [], 0, crashed=True)


def suspects_of(failure: str) -> list[str]:
    """Return the lines that a failure says it looks like."""
    return re.findall(r"^  looks like: (.*)$", failure, re.MULTILINE)


def fill(bench: Bench, folder: Path, options: argparse.Namespace) -> None:
    """Make all searches that the log lacks."""
    lines, state = read_log(options.log), code_state()
    if not options.mixed:
        check_same_code(lines, state)
    made = {(line["name"], line["oracle"], line["check"]) for line in lines}
    end = time.monotonic() + 60 * options.minutes
    for subject in subjects(bench):
        if options.names and subject.name not in options.names:
            continue
        for check in subject.checks:
            if (subject.name, subject.oracle, check) in made:
                continue
            if time.monotonic() > end:
                return
            result = search(bench, loadable(subject, folder), check)
            line = {
                "name": subject.name,
                "oracle": subject.oracle,
                "check": check,
                "found": bool(result.failure),
                "crashed": result.crashed,
                "suspects": suspects_of(result.failure),
                "failure": result.failure.partition("\n  see it again")[0].replace(f"{folder}/", ""),
                **state,
            }
            append(options.log, line)
            print(f"{subject.name}, {subject.oracle}, {check}: {line['suspects'] or line['found']}", flush=True)


def kind(suspect: str) -> str:
    """Return a suspect without its figures and its explanation, for the table."""
    return re.split(r"[:;(]", re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?(?= times)", "N", suspect))[0].strip()


def is_right(suspect: str, looks_like: str, line: Line, lines: Sequence[Line]) -> bool:
    """Return whether a suspect is the bug of the trainer."""
    for phrase, checks in AFTER_ANOTHER.items():
        if phrase in suspect:
            same = [other for other in lines if (other["name"], other["oracle"]) == (line["name"], line["oracle"])]
            return any(other["found"] and other["check"] in checks for other in same)
    return bool(looks_like) and any(phrase in suspect for phrase in looks_like.split(BETWEEN))


def table(lines: Sequence[Line]) -> str:
    """Return as Markdown how often each line was right or wrong, and how often failures named a right or wrong one."""
    looks_like = {entry.name: entry.looks_like for entry in entries()}
    looks_like |= {trainer.partition(":")[2]: phrases for trainer, phrases in WRONG.items()}
    looks_like |= dict.fromkeys(UNDECLARED, NOT_PLAIN)
    failures = [line for line in lines if line["found"] and not line["failure"].startswith("not asked")]
    named: dict[tuple[str, str], Counter[bool]] = defaultdict(Counter)
    wrong_for: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for line in failures:
        specific = [suspect for suspect in line["suspects"] if not suspect.startswith((NONE_FITS, *FOLLOWS))]
        verdicts = [is_right(suspect, looks_like[line["name"]], line, lines) for suspect in specific]
        for suspect, right in zip(specific, verdicts, strict=True):
            key = kind(suspect), line["oracle"]
            named[key][right] += 1
            if not right:
                wrong_for[key][line["name"]] += 1
        total = totals[line["oracle"]]
        total["failures"] += 1
        total["right"] += any(verdicts)
        total["wrong"] += not all(verdicts)
        total["only wrong"] += bool(verdicts) and not any(verdicts)
        total["none"] += not verdicts
    rows = []
    for (what, oracle), count in sorted(named.items(), key=lambda item: -item[1][False]):
        bold = "**" if count[False] > MOST_WRONG * count.total() else ""
        whom = ", ".join(f"{name} ({times})" for name, times in wrong_for[what, oracle].most_common())
        rows.append((what, oracle, count.total(), count[True], f"{bold}{count[False]}{bold}", whom))
    keys = ("failures", "right", "wrong", "only wrong", "none")
    ends = [(oracle, *(total[key] for key in keys)) for oracle, total in sorted(totals.items())]
    head = ("oracle", "failures", "right one named", "wrong one named", "only wrong ones", "none named")
    by_line = markdown(("looks like", "oracle", "named", "right", "wrong", "wrong for"), rows)
    return f"{by_line}\n\n{markdown(head, ends)}"


def main() -> int:
    """Make the searches that the log lacks, and print the table; return 1 when a line is wrong too often."""
    parser = command_line(__doc__, "diagnoses")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants or classes (default: all)")
    options = parser.parse_args()
    with interruptible(parser):
        if not options.table:
            with (
                tempfile.TemporaryDirectory(prefix="diagnoses-") as folder,
                Pool(kind="cpu", import_paths=[ROOT], preload="trainers") as pool,
            ):
                fill(Bench(pool, devices.one_host(devices.parse("cpu"))), Path(folder), options)
        shown = table(read_log(options.log))
        print(shown)
        return int("**" in shown)


if __name__ == "__main__":
    sys.exit(main())
