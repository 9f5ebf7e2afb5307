"""`python -m suite.cli.first_minutes`: try everything on a new machine, and write a page about it.

A step that fails or hangs does not stop the others. Nothing is accepted, and runs are kept in the page's folder. A
machine needs it once, so it is no command of `python -m suite`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.cli.command import Step, Tried, records_in, try_all
from suite.cli.pytest_run import CORRECTNESS, SCALING
from suite.records.record import Record
from suite.render import figures
from suite.render.lead import facts, title
from suite.render.markdown import text, write_table
from suite.render.sections.cells import table
from suite.room import devices
from suite.room.check import neighbours
from suite.room.devices import Devices

DRIVER_S = 120.0  # without persistence mode the driver sets up every card anew for each process that asks
PUBLISHED = "resnet18,lenet"  # on GPUs, where the documents have figures for them
# Workers on GPUs are not forked from a template: each loads torch and CUDA. A check starts groups of several sizes.
CHECK_S = {"cpu": 120, "cuda": 300}
GATE_S = {"cpu": 60, "cuda": 180}  # of a run that can FAIL, which takes four sessions
START_S = 90  # of a run, beside its budget: for pytest, and for what a run does before its first session and at its end
TRAINERS = ("ddp", "scratch_overlap", "data_parallel", "fsdp")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all steps and write the page; return 0 if all passed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m suite.cli.first_minutes", description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", default="auto", help="as --scaling-devices (default: auto)")
    parser.add_argument("--folder", type=Path, default=Path("first-minutes"), help="default: first-minutes")
    parser.add_argument("--only", default="", metavar="TEXT", help="try only steps whose name contains this")
    asked = parser.parse_args(arguments)
    try:
        used = devices.one_host(devices.parse(asked.devices))
        asked.folder.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    on = f"{used.kind}:{len(used.names)}" if asked.devices == "auto" else asked.devices
    reports = asked.folder / "reports"
    earlier = {record.run_id for record in records_in(reports)}
    tried = try_all([step for step in steps(used, on, reports) if asked.only in step.name], asked.folder)
    lines = page(used, on, tried, [record for record in records_in(reports) if record.run_id not in earlier])
    (asked.folder / "page.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("", *lines, "", f"this page: {asked.folder / 'page.md'}", sep="\n")
    return 1 if any(each.problem for each in tried) else 0


def steps(used: Devices, on: str, reports: Path) -> list[Step]:
    """Return the steps on these devices, which `--scaling-devices` calls `on`."""
    pytest, count = (sys.executable, "-m", "pytest"), len(used.names)
    here = (f"--scaling-devices={on}", f"--scaling-report-dir={reports.resolve()}", "-q")
    several, on_gpus, check_s, gate_s = count > 1, used.kind != "cpu", CHECK_S[used.kind], GATE_S[used.kind]
    chosen = []
    if on_gpus:
        driver = ("rocm-smi",) if devices.torch_build().platform == "rocm" else ("nvidia-smi", "-q")
        chosen.append(Step(driver[0], driver, DRIVER_S))
    for trainer in TRAINERS:
        shares = trainer != "fsdp" or not (on_gpus and used.alone)  # two of its ranks cannot share a GPU
        which, what = ("gradient", "computes the right gradients") if shares else ("identity", "is right on one device")
        command = (*pytest, *CORRECTNESS, *here, f"--scaling-trainer={trainer}", "-k", which)
        chosen.append(Step(f"{trainer} {what}", command, check_s))
    if several:
        sweep = ("-m", "scaling", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_all_reduce")
        backend = used.backend(used.names)
        only = ("-k", f"{backend}-{count}")
        chosen.append(Step(f"{backend} exchanges right sums", (*pytest, *sweep, *here, *only), check_s))
    budget = f"--scaling-budget={gate_s}"
    timed = (*pytest, *SCALING, *here, "--scaling-mode=strong", "--scaling-trainer=ddp", budget)
    chosen.append(Step(f"a run measures {'every world size' if several else 'one device'}", timed, gate_s + START_S))
    if on_gpus:
        # Not at every world size: two workloads on eight GPUs are sixty processes at once.
        few = (f"--scaling-workload={PUBLISHED}", f"--scaling-world-sizes={'1,2' if several else '1'}")
        chosen.append(Step("the documents' nets are timed", (*timed, *few), gate_s + START_S))
    same = ("--scaling-against=trainer:ddp", f"--scaling-world-sizes={count}")
    drill = (sys.executable, "-m", "suite", "drill", *here, budget)
    return [
        *chosen,
        Step("a build compared with itself raises no alarm", (*timed, *same), gate_s + START_S),
        Step("a planted slowdown and a wrong gradient turn the gates red", drill, gate_s + 2 * START_S),
    ]


def page(used: Devices, on: str, tried: Sequence[Tried], records: Sequence[Record]) -> list[str]:
    """Return the page, as lines of Markdown, with what the runs that left these records say."""
    works, broken = ([each for each in tried if bool(each.problem) is failed] for failed in (False, True))
    lines = [f"# First minutes on {on}", "", "## What works", "", *(f"- {each.step.name}" for each in works)]
    for each in broken:
        lines += ["", f"## Does not work: {each.step.name}: {each.problem}", "", *each.evidence]
    if used.alone:
        lines += ["", f"Not checked: efficiency, the exchange, and what else takes several devices ({used.alone})"]
    for record in records:
        lines += ["", f"## Measured: {text(title(record))}", ""]
        lines += [f"- {fact.name}: {text(line)}" for fact in facts(record) for line in fact.lines]
        lines += ["", *write_table(table(record, record.cells))] if record.cells else []
    lines += ["", "## What is unusual about this machine", ""]
    lines += [f"- {text(each)}" for each in filter(None, [used.problem, *neighbours(used)])] or ["- nothing"]
    for record in records[-1:]:
        lines += ["", "## The machine", ""]
        lines += [f"- {name}: {text(fact)}" for name, fact in figures.facts(record.machine, record.environment)]
    gate = f"pytest --pyargs suite.checks suite.benchmarks -m {'scaling' if used.kind == 'cpu' else 'gpu'}"
    commands = [
        f"python -m suite calibrate --scaling-devices={on}    # once a machine: how equal builds differ here",
        f"{gate} --scaling-devices={on} --scaling-accept    # the baseline",
        f"python -m suite drill --scaling-devices={on} --slowdown 0.05    # is a slowdown of the tolerance found?",
    ]
    commands = [shlex.join(each.step.command) for each in broken[:1]] or commands
    return [*lines, "", "## What to run next", "", *(f"    {command}" for command in commands)]


if __name__ == "__main__":
    sys.exit(main())
