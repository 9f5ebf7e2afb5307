"""`python -m suite.cli.first_minutes`: try everything on a new machine, and write a page about it.

For the owner of a machine with GPUs on the first day: what works, which figures it gave next to published ones, what is
unusual about the machine, and what to run next. A step that fails or hangs costs its own lines. Nothing here is
accepted; runs are kept in the page's folder and not in the project's reports.

It is a module and not a command of `python -m suite`, because it is needed once a machine. It is in the package and not
in docs/, because a runner often has only the installed package.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import suite
from suite.cli.gate import CORRECTNESS, SCALING
from suite.cli.steps import Step, Tried, evidence, try_all
from suite.records.files import RecordError, read_model
from suite.records.record import Record
from suite.render import figures
from suite.render.lead import facts, title
from suite.render.markdown import table, text
from suite.room import devices, hardware
from suite.room.check import neighbours
from suite.room.devices import Devices
from suite.run import machine

DRIVER_S = 120.0  # without persistence mode the driver sets up every card anew for each process that asks
# Variables that change what is measured; images set some of them.
TELLING = ("CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "NVIDIA_TF32", "OMP_", "MKL_", "HIP_", "ROCR_")
PUBLISHED = "resnet18,lenet"  # on GPUs, where the documents have figures for them
# Workers on GPUs are not forked from a template: each loads torch and CUDA. A check starts groups of several sizes.
CHECK_S = {"cpu": 120, "cuda": 300}
GATE_S = {"cpu": 60, "cuda": 180}  # of a run that can FAIL, which takes four sessions
TOO_LONG = "Not known: something hangs, or takes longer here than expected; the log shows how far it came"
OWN_TESTS_S = 600  # half of it for runs that fail on purpose, one of them by a hang
START_S = 90  # of a run, beside its budget: for pytest, and for what a run does before its first session and at its end


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
    on = setting(asked.devices, used)
    wanted = [step for step in steps(used, on, asked.folder) if asked.only in step.name]
    earlier = set(runs(asked.folder))
    tried = try_all(wanted, asked.folder, print)
    new = measured(path for path in runs(asked.folder) if path not in earlier)
    lines = page(on, tried, list(unusual(used)), new, not_checked(used))
    (asked.folder / "page.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("", *lines, "", f"this page: {asked.folder / 'page.md'}", sep="\n")
    return 1 if any(each.problem for each in tried) else 0


def setting(asked: str, used: Devices) -> str:
    """Return the devices as every step is told them: those that "auto" chose, and what was asked for otherwise."""
    return f"{used.kind}:{len(used.names)}" if asked == "auto" else asked


def steps(used: Devices, on: str, folder: Path) -> list[Step]:
    """Return the steps on these devices, which `--scaling-devices` calls `on`."""
    pytest = (sys.executable, "-m", "pytest")
    here = (f"--scaling-devices={on}", f"--scaling-report-dir={folder.resolve() / 'reports'}", "-q")
    several, check_s = len(used.names) > 1, CHECK_S[used.kind]
    chosen = []
    if used.kind != "cpu":
        own_tests = Path(suite.__path__[0]).parent / "tests"  # in a clone
        driver = ("rocm-smi",) if devices.torch_build().platform == "rocm" else ("nvidia-smi", "-q")
        chosen.append(Step(driver[0], driver, DRIVER_S, "the driver does not answer: see its log (dmesg)"))
        if own_tests.is_dir():
            own = (*pytest, "-m", "gpu", f"--scaling-devices={on}", str(own_tests))
            failing = "a kernel, a peer copy, a stream, or a failure that is not ended and named"
            chosen.append(Step("the project's own tests on GPUs pass", own, OWN_TESTS_S, failing))
    wrong = "wrong gradients, or a process group that cannot start; the log has a command that shows it again"
    one_gpu = used.kind != "cpu" and bool(used.alone)
    right = f"computes the right gradients{' on one GPU' if one_gpu else ''}"
    checks = (
        ("ddp", "gradient or replicas or dropout", right),
        ("scratch_overlap", "gradient or replicas", right),
        ("data_parallel", "gradient or batch_norm or dropout", right),
        ("fsdp", *(("identity", "is plain SGD on one device") if one_gpu else ("gradient", right))),
    )
    for trainer, which, what in checks:
        command = (*pytest, *CORRECTNESS, *here, f"--scaling-trainer={trainer}", "-k", which)
        chosen.append(Step(f"{trainer} {what}", command, check_s, wrong))
    if several:
        sweep = (*pytest, "-m", "scaling", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_all_reduce", *here)
        backend = used.backend(used.names)
        only = ("-k", f"{backend}-{len(used.names)}")
        chosen.append(Step(f"{backend} exchanges right sums", (*sweep, *only), check_s, "the links or their library"))
    timed = (*pytest, *SCALING, *here, "--scaling-mode=strong", "--scaling-trainer=ddp")
    gate_s = GATE_S[used.kind]
    budget = f"--scaling-budget={gate_s}"
    same = (budget, "--scaling-against=trainer:ddp", f"--scaling-world-sizes={len(used.names)}")
    untimed = "a worker could not train or be timed; the log names rank and cause"
    alarm = "a false alarm: something else uses the machine, or its clocks change"
    missed = "a gate that is green or undecided is of no use here: the log says which, and why"
    drill = (sys.executable, "-m", "suite", "drill", *here, f"--scaling-budget={gate_s}")
    sizes = "every world size" if several else "one device"
    chosen.append(Step(f"a run measures {sizes}", (*timed, budget), gate_s + START_S, untimed))
    if used.kind != "cpu":
        # Not at every world size: three workloads on eight GPUs are ninety processes at once.
        few = (f"--scaling-workload={PUBLISHED}", f"--scaling-world-sizes={'1,2' if several else '1'}")
        chosen.append(Step("the documents' nets are timed", (*timed, budget, *few), gate_s + START_S, untimed))
        if not several:
            twice = f"--scaling-devices={used.names[0]},{used.names[0]}"  # of two such options the last one counts
            shared = (*timed, budget, twice, "--scaling-world-sizes=2")
            chosen.append(Step("two ranks are timed on one GPU", shared, gate_s + START_S, untimed))
    return [
        *chosen,
        Step("a build compared with itself raises no alarm", (*timed, *same), gate_s + START_S, alarm),
        Step("a planted slowdown and a wrong gradient turn the gates red", drill, gate_s + 2 * START_S, missed),
    ]


def not_checked(used: Devices) -> list[str]:
    """Return a part of the page on what a single device cannot show; no line where there are several."""
    if not used.alone:
        return []
    left_out = ["efficiency, the time of an exchange, and what holds several devices back"]
    if used.kind != "cpu":
        left_out.append("NCCL, and copies between GPUs: ranks on one GPU exchange through gloo")
        left_out.append("fsdp on several devices: two of its ranks cannot share a GPU")
    return ["", f"## Not checked: {used.alone}", "", *(f"- {each}" for each in left_out)]


def unusual(used: Devices, variables: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield a sentence for everything about the machine that a reader of its figures should know."""
    yield from filter(None, [used.problem])
    yield from neighbours(used)
    try:
        yield from hardware.unusual(machine.describe(used).cards)
    except Exception as error:  # of NVML: the page is for machines on which it fails, too
        yield f"the cards cannot be read: {type(error).__name__}: {error}"
    telling = sorted(name for name in variables if name.startswith(TELLING))
    if telling:
        yield f"the environment sets {', '.join(f'{name}={variables[name]}' for name in telling)}"


def runs(folder: Path) -> list[Path]:
    """Return the records in the page's folder, the oldest first."""
    return sorted((folder / "reports").glob("*/runs/*/record.json"), key=lambda path: path.parent.name)


def measured(paths: Iterable[Path]) -> list[Record]:
    """Return what runs have left, without what cannot be read."""
    records = []
    for path in paths:
        with contextlib.suppress(RecordError):
            records.append(read_model(path, Record))
    return records


def page(
    on: str,
    tried: Sequence[Tried],
    remarks: Sequence[str],
    records: Sequence[Record] = (),
    unchecked: Sequence[str] = (),
) -> list[str]:
    """Return the page, as lines of Markdown; `unchecked` is its part from `not_checked`."""
    works = [f"- {each.step.name} ({each.seconds:.0f} s)" for each in tried if not each.problem]
    lines = [f"# First minutes on {on}", "", "## What works", "", *(works or ["- nothing"])]
    broken = [each for each in tried if each.problem]
    if broken:
        lines += ["", "## What does not"]
    for each in broken:
        meaning = TOO_LONG if each.timed_out else f"If it fails: {each.step.failing}"
        lines += ["", f"### {each.step.name}: {each.problem}", "", f"{meaning}.", ""]
        lines += evidence(each)
    lines += [*unchecked, *_figures(records)]
    lines += ["", "## What is unusual about this machine", "", *(f"- {remark}" for remark in remarks or ["nothing"])]
    for record in records[-1:]:
        commit = ("commit", figures.commit(record.environment))
        known = [*figures.facts(record.machine, record.environment), commit]
        lines += ["", "## The machine", "", *(f"- {name}: {text(fact)}" for name, fact in known)]
    return [*lines, "", "## What to run next", "", *(f"    {line}" for line in _next(on, broken))]


def _figures(records: Sequence[Record]) -> list[str]:
    """Return a table of the cells of every run, with published figures next to them, or what collectives reached."""
    lines = ["", "## What was measured"] if records else []
    for record in records:
        against = f"Compared with {figures.compared_with(record)}; " if record.against else ""
        lines += ["", f"{text(title(record))}. {against}{figures.took(record)}.", ""]
        if record.cells:
            lines += [*table(figures.columns(record), figures.rows(record, record.cells))[:-1], *_windows(record)]
        else:
            lines += [f"- {text(line)}" for fact in facts(record) if fact.name == "Exchange" for line in fact.lines]
    return lines


def _windows(record: Record) -> list[str]:
    """Return how long windows and sessions were: a window of few steps on a fast device was planned from a cold one."""
    steps = ", ".join(f"{arm.steps_per_window} of {arm.id}" for arm in record.arms if arm.side == "candidate")
    blocks = ", ".join(str(len(session.conditions)) for session in record.sessions)
    return ["", f"Steps a window: {steps}; blocks a session: {blocks}."] if steps else []


def _next(on: str, broken: Sequence[Tried]) -> list[str]:
    if broken:
        return [shlex.join(broken[0].step.command)]
    devices_option, mark = f"--scaling-devices={on}", "scaling" if on.startswith("cpu") else "gpu"
    # Named as modules, so that pytest finds them from any folder.
    gate = f"pytest --pyargs suite.checks suite.benchmarks -m {mark}"
    return [
        f"python -m suite calibrate {devices_option}    # once a machine: how equal builds differ here",
        f"{gate} {devices_option} --scaling-accept    # the baseline",
        f"python -m suite drill {devices_option} --slowdown 0.05    # is a slowdown as large as the tolerance found?",
    ]


if __name__ == "__main__":
    sys.exit(main())
