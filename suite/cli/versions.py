"""`python -m suite.cli.versions BASE CANDIDATE`: one version of torch against another, in a table to decide on.

Each version gets an environment of its own, made by uv and kept in the folder. Gradients, accuracy and efficiency are
taken in each environment alone. Times and counters come from one run, in which the workers of both take turns.
`tox -e versions` runs it. All arguments after `--` are pytest's. `VERSIONS` lists what this project supports; a test
compares pyproject.toml, tox.ini, the workflow and the docs with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import suite
from suite.cli.command import Step, Tried, positive, records_in, try_all
from suite.cli.pytest_run import CORRECTNESS, SCALING
from suite.records import counters
from suite.records.record import CellRecord, Record
from suite.render import figures, lead
from suite.render.document import Table
from suite.render.markdown import text, write_table

VERSIONS = {  # torch: (torch, torchvision) as they are installed
    "2.9": ("2.9.1", "0.24.1"),
    "2.11": ("2.11.0", "0.26.0"),
    "2.13": ("2.13.0", "0.28.0"),
    "2.15": ("2.15.0", "0.29.2"),
}

ROOT = Path(suite.__path__[0]).resolve().parent


class Alone(NamedTuple):
    """The results of one version by itself: checks such as "33 of 33 right", and runs without a base, which train."""

    name: str
    checks: str
    records: Sequence[Record]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two versions and write `page.md`; return 0 if every step ended well, else 1."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, passed = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    parser = argparse.ArgumentParser(prog="python -m suite.cli.versions", description=__doc__.partition("\n")[0])
    parser.add_argument("base", choices=VERSIONS, help="what the candidate is compared with")
    parser.add_argument("candidate", choices=VERSIONS)
    parser.add_argument("--folder", type=Path, default=Path("versions"), help="default: versions")
    parser.add_argument("--budget", type=positive, default=180.0, help="seconds of each of the three runs")
    asked = parser.parse_args(own)
    if not (ROOT / "pyproject.toml").is_file():
        parser.error(f"{ROOT} has no pyproject.toml: run it in a clone, which both environments are made from")
    # A folder of its own, so that no figure of an earlier comparison replaces a missing one.
    folder: Path = asked.folder.resolve() / f"{asked.base}-{asked.candidate}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    folder.mkdir(parents=True, exist_ok=True)
    tried = try_all(steps((asked.base, asked.candidate), folder, asked.budget, passed), folder)
    failed = [each for each in tried if each.problem]
    base, candidate = (
        Alone(name, checks(folder / f"gradients-{name}.xml"), records_in(folder / f"alone-{name}"))
        for name in (asked.base, asked.candidate)
    )
    lines = page(base, candidate, records_in(folder / "compared"), failed)
    (folder / "page.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("", *lines, "", f"this page: {folder / 'page.md'}", sep="\n")
    return 1 if failed else 0


def steps(names: tuple[str, str], folder: Path, budget_s: float, passed: Sequence[str]) -> list[Step]:
    """Return the steps for a base and a candidate, in order; every run has this budget and the arguments `passed`."""
    make = ("uv", "venv", "--allow-existing", "--python", sys.executable)  # the same Python for both
    pythons = {name: folder.parent / f"torch{name}" / "bin" / "python" for name in names}
    measured = ("-m", "pytest", *SCALING, "--scaling-mode=strong", f"--scaling-budget={budget_s:g}", *passed)
    chosen, limit_s = [], 4 * budget_s + 120
    for name, path in pythons.items():
        python, (torch, torchvision) = str(path), VERSIONS[name]
        install = ("uv", "pip", "install", "--python", python, f"torch=={torch}", f"torchvision=={torchvision}")
        check = (python, "-m", "pytest", *CORRECTNESS, f"--junitxml={folder}/gradients-{name}.xml", *passed)
        chosen += [
            Step(f"make torch{name}", (*make, str(path.parents[1])), 60),
            Step(f"install torch {torch}", (*install, "-e", str(ROOT)), 900),
            Step(f"gradients with {name}", check, 1200),
            Step(f"accuracy with {name}", (python, *measured, f"--scaling-report-dir={folder}/alone-{name}"), limit_s),
        ]
    base, candidate = pythons.values()
    against = (f"--scaling-against=python:{base}", f"--scaling-report-dir={folder}/compared")
    return [*chosen, Step(f"{names[1]} against {names[0]}", (str(candidate), *measured, *against), limit_s)]


def checks(junit: Path) -> str:
    """Return how many checks of a JUnit file are right; "-" where there is none."""
    try:
        suites = [*ElementTree.parse(junit).getroot().iter("testsuite")]  # noqa: S314 - pytest has just written it
    except (OSError, ElementTree.ParseError):
        return "-"
    total, *wrong = (sum(int(each.get(name, 0)) for each in suites) for name in ("tests", "failures", "errors"))
    return f"{total - sum(wrong)} of {total} right"


def page(base: Alone, candidate: Alone, compared: Sequence[Record], failed: Sequence[Tried]) -> list[str]:
    """Return the page, as lines of Markdown: a row for each figure, a column for each version, and what failed."""
    rows = [("gradients", base.checks, candidate.checks, "")]
    for cell in (cell for record in compared for cell in record.cells):
        rows += _rows(cell, (base, candidate))
    versions = [VERSIONS[side.name] for side in (base, candidate)]
    sides = (f"torch {torch}, torchvision {torchvision}" for torch, torchvision in versions)
    lines = [f"# torch {versions[1][0]} against {versions[0][0]}", ""]
    columns = ("figure", *sides, "time / base, or what changed")
    lines += write_table(Table("Both versions", columns, tuple(rows)))
    for record in compared:
        said = [*lead.verdicts(record), f"{figures.took(record)} on {record.machine.cpu_model}"]
        lines += [f"- {text(line)}" for line in filter(None, [*said, figures.disturbances(record)])]
    for each in failed:
        lines += ["", f"{each.step.name}: {each.problem}.", "", *each.evidence]
    return lines


def _rows(cell: CellRecord, sides: Sequence[Alone]) -> list[tuple[str, str, str, str]]:
    """Return the rows of a cell: from the run of each version alone, and from the run with both."""
    alone = [{each.id: each for record in side.records for each in record.cells}.get(cell.id) for side in sides]
    accuracies = [figures.accuracy(each) if each else "-" for each in alone]
    efficiencies = [figures.interval(each.efficiency, ".2f") if each else "-" for each in alone]
    now, ratio = cell.sec_per_epoch, cell.slowdown
    before = f"{now.estimate / ratio.estimate:.3g}" if now and ratio else "-"  # the candidate's by their ratio
    judged = f"{figures.interval(ratio, '.3f')} {cell.outcome.value}"
    rows = [
        (f"{cell.label}: accuracy", accuracies[0], accuracies[1], ""),
        (f"{cell.label}: efficiency", efficiencies[0], efficiencies[1], ""),
        (f"{cell.label}: sec/epoch", before, figures.interval(now, ".3g"), judged),
    ]
    if len(cell.counters) > 1:
        changed = counters.changes(cell.counters["candidate"], cell.counters["base"])
        before, after = (_counted(cell.counters[side]) for side in ("base", "candidate"))
        said = "; ".join(each.said for each in changed) or "the same"
        rows.append((f"{cell.label}: a step does", before, after, said))
    return rows if cell.world_size > 1 else [rows[0], *rows[2:]]


def _counted(counted: counters.Counters) -> str:
    """Return the calls of the exchanges and of all operators on the first rank."""
    kept = [each for each in counted.counts if each.unit == "calls" and each.what in (*counters.EXCHANGES, "operator")]
    return ", ".join(f"{each.most[0]} {each.what}" for each in kept if each.most[0]) or "-"


if __name__ == "__main__":
    sys.exit(main())
