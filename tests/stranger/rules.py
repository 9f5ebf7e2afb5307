"""What is skipped, cut short and expected, by name and with a reason; and what errors advise.

A rule belongs to every command that its pattern is found in; of several, the first one counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

BUDGET_S = 12  # of one run, in the place of three minutes


# Commands that are not run, and why.
SKIPS = {
    r"-m gpu|requirements-gpu|-gpu\b": "needs a GPU",
    r"^python3? -m venv \.venv$": "first line of a job that needs a GPU",
    r"tox -e versions|torch-2\.\d+/|\btorch==": "installs another torch",
    r"tox -e workflows": "needs node and npm, and checks our own files",
    r"tox -e stranger": "is this command",
    r"^python -m pytest$": "names a way to start pytest",
    r"^git clean ": "removes what git does not have; it is for a checkout of a job",
    r"\bsrun\b|\btorchrun\b|--nnodes": "needs a cluster",
}

# What takes minutes, and what the gate runs as it stands after the first half.
LATER = {
    r"first_minutes": "takes several minutes; the whole run has it",
    r"\.\[tests\]": "the gate runs this block whole, as its last command",
}


@dataclass(frozen=True)
class Cut:
    """How a command is cut short.

    Attributes:
        pattern: of the commands.
        options: for PYTEST_ADDOPTS, which pytest reads before the command's own.
        printed, instead: a text in the command that would win over these options, and what is run for it.
    """

    pattern: str
    options: str = ""
    printed: str = ""
    instead: str = ""


CUTS = (
    Cut(r"--scaling-budget=1800", printed="--scaling-budget=1800", instead=f"--scaling-budget={BUDGET_S}"),
    Cut(r"\.\[tests\]", options="-k test_metrics"),
    Cut(r"-m correctness( --scaling-trainer=\S+:Trainer)?$", options="-k 'gradient or replicas'"),
    Cut(r"-m suite calibrate", printed="calibrate", instead="calibrate --sessions 3"),
    Cut(r"-m suite sweep", printed="sweep", instead="sweep --epochs 1 --seeds 1"),
    Cut(r"--scaling-budget"),
    Cut(r"^([A-Z]+=\S+ )?pytest\b.* -m scaling|^arguments=\(", options=f"--scaling-budget={BUDGET_S}"),
)


@dataclass(frozen=True)
class Expected:
    """An exit status other than 0, where it is expected, who says so, and whether a remedy has to be known."""

    pattern: str
    status: int
    reason: str
    place: str = ""
    advises: bool = False


EXPECTED = (
    Expected(r":Wrong\b", 1, "the trainer is wrong on purpose"),
    Expected(r"scripts/wrong/", 1, "the script is wrong on purpose"),
    Expected(
        r"^pytest .*-against=ref:", 1, "docs/ci.md: a copy would serve both sides of a comparison", "src-wheel", True
    ),
)


# What an error advises, as a pattern that is found in the output of a command that failed, and the command to run then.
# In that `{text}` is the one that failed, and `{code}` the folder of the project's code.
REMEDIES = {
    r"put the folder [^;]* in pytest's setting\s+pythonpath": "{text} --override-ini=pythonpath={code}",
    r"install the project with pip install -e\b": (
        "pip install --quiet --editable . && {text} && pip install --quiet --force-reinstall --no-deps dist/*.whl"
    ),
}


@dataclass(frozen=True)
class Mistake:
    """A command that somebody may type, how it fails, and what its message advises.

    Attributes:
        text: the command. `{trainer}` is the project's.
        status: its exit status.
        said: expected in its output. A group is what it advises.
        do: what a reader types then, which has to end with status 0. `{1}` is the group.
    """

    text: str
    status: int
    said: str
    do: str

    def typed(self, trainer: str) -> str:
        return self.text.format(trainer=trainer)

    def advice(self, output: str, trainer: str) -> str:
        """Return the command that the message advises; empty where it is not said."""
        said = re.search(self.said, output, re.DOTALL)
        return self.do.format("", *said.groups(""), trainer=trainer) if said else ""


CHECK = "pytest --pyargs suite.checks -m correctness -k gradient"
MEASURE = "pytest --pyargs suite.benchmarks -m scaling"
ONE_CELL = "--scaling-mode=strong --scaling-world-sizes=1"
MISTAKES = (
    Mistake(
        f"{CHECK} --scaling-trainer={{trainer}}r",
        1,
        r"it defines [^\n]*\b(Trainer)\b",
        f"{CHECK} --scaling-trainer={{trainer}}",
    ),
    Mistake(
        f"{MEASURE} {ONE_CELL} --scaling-workload=click",
        4,
        r"valid values are [^\n]*\b(clicks)\b",
        f"{MEASURE} {ONE_CELL} --scaling-workload={{1}}",
    ),
    Mistake(
        f"{MEASURE} {ONE_CELL} --scaling-trainer={{trainer}} --scaling-against=ref:mian",
        4,
        r"(?:its branches and tags|similar names) are [^\n]*\b(main)\b",
        f"{MEASURE} {ONE_CELL} --scaling-trainer={{trainer}} --scaling-against=ref:{{1}}",
    ),
    Mistake(
        f"{MEASURE} --scaling-world-sizes=64 --collect-only",
        4,
        r"(--scaling-devices \S+:64) asks for as many",
        f"{MEASURE} --scaling-world-sizes=64 --collect-only {{1}}",
    ),
    Mistake(
        f"{MEASURE} {ONE_CELL} --scaling-trainer=train",
        4,
        r"valid values are [^\n]*\b(module:Class)\b",
        f"{MEASURE} {ONE_CELL} --scaling-trainer={{trainer}}",
    ),
)


def skipped(text: str, *, first_half: bool) -> str:
    rules = SKIPS | (LATER if first_half else {})
    return next((why for pattern, why in rules.items() if re.search(pattern, text, re.MULTILINE)), "")


def cut(text: str) -> Cut:
    return next((each for each in CUTS if re.search(each.pattern, text, re.MULTILINE)), Cut(""))


def expected(text: str, place: str) -> Expected | None:
    known = (each for each in EXPECTED if each.place in ("", place) and re.search(each.pattern, text))
    return next(known, None)


def remedies(output: str, text: str, place: str, code: str) -> Sequence[str]:
    """Return the commands that do what an output advises, one for each advice; one that fails where none is known."""
    known = [do.format(text=text, code=code) for said, do in REMEDIES.items() if re.search(said, output)]
    rule = expected(text, place)
    return known if known or not (rule and rule.advises) else ["false  # this error's advice is not in REMEDIES"]
