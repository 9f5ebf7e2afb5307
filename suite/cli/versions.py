"""`python -m suite.cli.versions BASE CANDIDATE`: one version of torch against another, in a table to decide on.

Each version gets an environment of its own, made by uv and kept in the folder. Gradients, accuracy, efficiency and
memory are taken in each environment alone. Times and counters come from one run, in which the candidate's workers and
the base's take turns. `tox -e versions` runs it. All arguments after `--` are pytest's.

`VERSIONS` is the list of the versions that this project supports; pyproject.toml, tox.ini, the workflow and the docs
are held to it by a test.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import suite
from suite.cli.command import positive
from suite.cli.gate import CORRECTNESS, SCALING
from suite.cli.steps import Step, Tried, evidence, try_all
from suite.records import counters
from suite.records.files import RecordError, read_model
from suite.records.record import CellRecord, Record
from suite.render import figures, lead
from suite.render.markdown import table, text

VERSIONS = {  # torch: (torch, torchvision) as they are installed
    "2.9": ("2.9.1", "0.24.1"),
    "2.11": ("2.11.0", "0.26.0"),
    "2.13": ("2.13.0", "0.28.0"),
    "2.15": ("2.15.0", "0.29.2"),
}

ROOT = Path(suite.__path__[0]).resolve().parent
MEMORY_STEPS, MEMORY_BATCH = 20, 256


@dataclass(frozen=True)
class Alone:
    """What one version does by itself; None is what failed.

    Attributes:
        checks: correctness checks by outcome, such as "33 of 33 right"; "-" where none ended.
        record: of a run without a base, which trains.
        peak_mib: resident memory of a process that trains LeNet.
    """

    name: str
    checks: str
    record: Record | None
    peak_mib: int | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two versions and write `page.md`; return 0 if every step ended well, else 1."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["peak"]:
        print(peak_mib())
        return 0
    own, passed = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    parser = argparse.ArgumentParser(prog="python -m suite.cli.versions", description=__doc__.partition("\n")[0])
    parser.add_argument("base", choices=VERSIONS, help="what the candidate is compared with")
    parser.add_argument("candidate", choices=VERSIONS)
    parser.add_argument("--folder", type=Path, default=Path("versions"), help="default: versions")
    parser.add_argument("--budget", type=positive, default=180.0, help="seconds of each of the three runs")
    asked = parser.parse_args(own)
    if not (ROOT / "pyproject.toml").is_file():
        parser.error(f"{ROOT} has no pyproject.toml: run it in a clone, which both environments are made from")
    # A folder of its own: a figure of an earlier comparison must not stand where this one has none.
    now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    folder: Path = asked.folder.resolve() / f"{asked.base}-{asked.candidate}-{now}"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = steps(asked.base, asked.candidate, asked.folder.resolve(), folder, asked.budget, passed)
    tried = try_all(wanted, folder, print)
    base, candidate = (alone(name, folder, tried) for name in (asked.base, asked.candidate))
    lines = page(base, candidate, newest(folder / "compared"), [each for each in tried if each.problem])
    (folder / "page.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("", *lines, "", f"this page: {folder / 'page.md'}", sep="\n")
    return 1 if any(each.problem for each in tried) else 0


def steps(
    base: str, candidate: str, environments: Path, folder: Path, budget_s: float, passed: Sequence[str]
) -> list[Step]:
    """Return what is to be done, in order; every run has this budget, and gets the arguments `passed` to pytest."""
    make = ("uv", "venv", "--allow-existing", "--python", sys.executable)  # the same Python for both
    chosen, pythons = [], {name: environments / f"torch{name}" / "bin" / "python" for name in (base, candidate)}
    measured = ("-m", "pytest", *SCALING, "--scaling-mode=strong", f"--scaling-budget={budget_s:g}", *passed)
    for name, python in pythons.items():
        made, (torch, torchvision) = str(python.parents[1]), VERSIONS[name]
        install = ("uv", "pip", "install", "--python", str(python), f"torch=={torch}", f"torchvision=={torchvision}")
        wrong = "see the log; -k and a trainer's name narrow it down"
        chosen += [
            Step(f"make torch{name}", (*make, made), 60, "uv cannot make an environment"),
            Step(f"install torch {torch}", (*install, "-e", str(ROOT)), 900, "the registry lacks one of the two"),
            Step(
                f"gradients with {name}",
                (str(python), "-m", "pytest", *CORRECTNESS, f"--junitxml={folder}/gradients-{name}.xml", *passed),
                1200,
                f"this version computes wrong gradients, or cannot run a trainer: {wrong}",
            ),
            Step(
                f"memory of {name}", (str(python), "-m", "suite.cli.versions", "peak"), 120, "torch cannot train LeNet"
            ),
            Step(
                f"accuracy with {name}",
                (str(python), *measured, f"--scaling-report-dir={folder}/alone-{name}"),
                4 * budget_s + 120,
                f"a cell could not be measured: {wrong}",
            ),
        ]
    against = (f"--scaling-against=python:{pythons[base]}", f"--scaling-report-dir={folder}/compared")
    slower = "a cell is slower than with the base, or could not be measured: the table says which"
    compare = Step(
        f"{candidate} against {base}", (str(pythons[candidate]), *measured, *against), 4 * budget_s + 120, slower
    )
    return [*chosen, compare]


def alone(name: str, folder: Path, tried: Sequence[Tried]) -> Alone:
    """Return what the steps of one version have left in the folder."""
    logs = {each.step.name: each for each in tried}
    peak = logs[f"memory of {name}"].tail[-1:] if f"memory of {name}" in logs else []
    return Alone(
        name,
        _checks(folder / f"gradients-{name}.xml"),
        newest(folder / f"alone-{name}"),
        int(peak[0]) if peak and peak[0].isdecimal() else None,
    )


def newest(reports: Path) -> Record | None:
    """Return the newest record in a report folder; None where there is none."""
    try:
        return read_model(sorted(reports.glob("*/runs/*/record.json"))[-1], Record)
    except (IndexError, RecordError):
        return None


def _checks(junit: Path) -> str:
    try:
        suites = ElementTree.parse(junit).getroot().iter("testsuite")  # noqa: S314 - pytest has just written it
        counts = [
            (int(each.get("tests", 0)), int(each.get("failures", 0)) + int(each.get("errors", 0))) for each in suites
        ]
    except (OSError, ElementTree.ParseError):
        return "-"
    total, wrong = (sum(column) for column in zip(*counts, strict=True))
    return f"{total - wrong} of {total} right"


def page(base: Alone, candidate: Alone, compared: Record | None, failed: Sequence[Tried]) -> list[str]:
    """Return the page, as lines of Markdown: a row for each figure, a column for each version, and what failed."""
    sides = (base, candidate)
    rows = [
        ("gradients", base.checks, candidate.checks, ""),
        ("peak memory of a process, MiB", *(str(side.peak_mib or "-") for side in sides), _ratio(base, candidate)),
    ]
    for cell in compared.cells if compared else ():
        rows += [*_trained(cell, sides), *_timed(cell)]
    versions = [VERSIONS[side.name] for side in sides]
    columns = [
        "",
        *(f"torch {torch}, torchvision {torchvision}" for torch, torchvision in versions),
        "time / base, or what changed",
    ]
    lines = [f"# torch {versions[1][0]} against {versions[0][0]}", "", *table(columns, rows)]
    if compared is not None:
        said = [*lead.verdicts(compared), _run(compared), figures.disturbances(compared)]
        lines += [f"- {text(line)}" for line in filter(None, said)]
    for each in failed:
        lines += ["", f"{each.step.name}: {each.problem}; {each.step.failing}.", "", *evidence(each)]
    return lines


def _trained(cell: CellRecord, sides: Sequence[Alone]) -> list[tuple[str, ...]]:
    """Return the rows of a cell that come from the run of each version alone."""
    cells = [
        next((each for each in side.record.cells if each.id == cell.id), None) if side.record else None
        for side in sides
    ]
    accuracies = (figures.accuracy(each) if each else "-" for each in cells)
    efficiencies = (figures.interval(each.efficiency, ".2f") if each else "-" for each in cells)
    rows: list[tuple[str, ...]] = [(f"{cell.label}: accuracy", *accuracies, "")]
    if cell.world_size > 1:
        rows.append((f"{cell.label}: efficiency", *efficiencies, ""))
    return rows


def _timed(cell: CellRecord) -> list[tuple[str, str, str, str]]:
    """Return the rows of a cell that come from the run with both; the base's time is the candidate's by their ratio."""
    now, ratio = cell.sec_per_epoch, cell.slowdown
    before = f"{now.estimate / ratio.estimate:.3g}" if now and ratio else "-"
    judged = f"{figures.interval(ratio, '.3f')} {cell.outcome.value}"
    rows = [(f"{cell.label}: sec/epoch", before, figures.interval(now, ".3g"), judged)]
    if len(cell.counters) > 1:
        changed = counters.changes(cell.counters["candidate"], cell.counters["base"])
        said = "; ".join(change.said for change in changed) or "the same"
        before, after = (_counted(cell.counters[side]) for side in ("base", "candidate"))
        rows.append((f"{cell.label}: a step does", before, after, said))
    return rows


def _counted(counted: counters.Counters) -> str:
    """Return the calls of the exchanges and of all operators on the first rank."""
    calls = [count for count in counted.counts if count.unit == "calls" and count.most[0]]
    kept = [count for count in calls if count.what in (*counters.EXCHANGES, "operator")]
    return ", ".join(f"{count.most[0]} {count.what}" for count in kept) or "-"


def _ratio(base: Alone, candidate: Alone) -> str:
    return f"{candidate.peak_mib / base.peak_mib:.2f}" if base.peak_mib and candidate.peak_mib else ""


def _run(record: Record) -> str:
    where = f"{record.machine.cpu_model}, {figures.plural(record.machine.cpu_cores, 'core')}"
    return f"{figures.took(record)} on {where}, {record.started_utc[:10]}"


def peak_mib() -> int:
    """Train LeNet on one device for a few steps; return the most resident memory that this process had, in MiB."""
    import torch

    from reference.models.lenet import LeNet
    from reference.trainers.single import Single

    torch.set_num_threads(1)
    trainer = Single(LeNet(), [torch.device("cpu")], lr=0.1)
    X, y = torch.randn(MEMORY_BATCH, 1, 28, 28), torch.arange(MEMORY_BATCH) % 10
    for _ in range(MEMORY_STEPS):
        trainer.step(X, y, MEMORY_BATCH)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # Linux has it in KiB


if __name__ == "__main__":
    sys.exit(main())
