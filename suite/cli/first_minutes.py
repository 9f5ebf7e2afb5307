"""`python -m suite.cli.first_minutes`: try everything on a new machine, in ten minutes, and write a page about it.

For the owner of a machine with GPUs on the first day: what works, what is unusual about the machine, and what to run
next. Every step is a process of its own with a time limit, so one that fails or hangs costs its own line. Nothing here
is judged or accepted; runs are kept in the page's folder and not in the project's reports.

It is a module and not a command of `python -m suite`, because it is needed once a machine. It is in the package and not
in docs/, because a runner often has only the installed package.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import suite
from suite.cli.gate import CORRECTNESS, SCALING
from suite.processes.ending import as_interrupts
from suite.room import devices, hardware, quiet
from suite.room.check import neighbours
from suite.room.devices import Devices
from suite.run import machine

ALL_S = 600.0
END_S = 15.0  # for pytest to end its workers and to write what it has after Ctrl-C
TAIL_LINES = 6
SHM = Path("/dev/shm")  # noqa: S108 - NCCL's segments between processes; only its size is read
LEAST_SHM_BYTES = 1 << 30
# Variables that change what is measured; images set some of them.
TELLING = ("CUDA_", "NCCL_", "TORCH_", "PYTORCH_", "NVIDIA_TF32", "OMP_", "MKL_", "HIP_", "ROCR_")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One thing to try.

    Attributes:
        name: what works if it passes.
        command: its exit status is 0 if it passes.
        limit_s: it is ended after so many seconds.
        failing: what a failure means, and what to look at.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    failing: str


@dataclass(frozen=True)
class Tried:
    """What became of a step: `problem` is empty where it passed, and `log` has what it printed."""

    step: Step
    problem: str
    seconds: float
    log: Path

    @property
    def tail(self) -> list[str]:
        """The last lines that it printed."""
        if not self.log.is_file():
            return []
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]


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
    tried = try_all(wanted, asked.folder, print)
    lines = page(on, tried, list(unusual(used)))
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
    several = len(used.names) > 1
    chosen = []
    if used.kind != "cpu":
        own_tests = Path(suite.__path__[0]).parent / "tests" / "gpu"  # in a clone
        driver = ("rocm-smi",) if devices.torch_build().platform == "rocm" else ("nvidia-smi", "-q")
        chosen.append(Step(driver[0], driver, 30, "the driver does not answer: see its log (dmesg)"))
        if own_tests.is_dir():
            own = (*pytest, "-m", "gpu", str(own_tests))
            chosen.append(Step("scatter and wrapper equal torch's", own, 90, "a kernel, a peer copy or a stream"))
    wrong = "wrong gradients, or a process group that cannot start; the log has a command that shows it again"
    checks = (
        ("ddp", "gradient or replicas or dropout", 120),
        ("scratch_overlap", "gradient or replicas", 60),
        ("data_parallel", "gradient or batch_norm or dropout", 60),
        ("fsdp", "gradient", 90),
    )
    for trainer, which, limit_s in checks:
        command = (*pytest, *CORRECTNESS, *here, f"--scaling-trainer={trainer}", "-k", which)
        chosen.append(Step(f"{trainer} computes the right gradients", command, limit_s, wrong))
    measured = (*pytest, *SCALING, *here, "--scaling-mode=strong", "--scaling-trainer=ddp")
    chosen.append(
        Step(
            "a run measures every world size",
            (*measured, "--scaling-budget=60"),
            180,
            "a worker could not train or be timed; the log names rank and cause",
        )
    )
    chosen.append(
        Step(
            "a build compared with itself raises no alarm",
            (
                *measured,
                "--scaling-budget=60",
                "--scaling-against=trainer:ddp",
                f"--scaling-world-sizes={len(used.names)}",
            ),
            180,
            "a false alarm: something else uses the machine, or its clocks change",
        )
    )
    if several:
        sweep = (*pytest, "-m", "scaling", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_all_reduce", *here)
        backend = used.backend(used.names)
        only = ("-k", f"{backend}-{len(used.names)}")
        chosen.append(Step(f"{backend} exchanges right sums", (*sweep, *only), 120, "the links or their library"))
    return chosen


def try_all(wanted: Sequence[Step], folder: Path, say: Say, all_s: float = ALL_S) -> list[Tried]:
    """Try the steps one after the other, within `all_s` seconds. A signal that ends a job ends the present one."""
    begun, tried = time.monotonic(), []
    with as_interrupts():
        for number, step in enumerate(wanted, start=1):
            left_s = all_s - (time.monotonic() - begun)
            say(f"{number} of {len(wanted)}: {step.name} (at most {min(step.limit_s, max(left_s, 0)):.0f} s)")
            log = folder / f"{number}.log"
            tried.append(_try(step, log, left_s))
            say(f"    {tried[-1].problem or 'works'}")
    return tried


def _try(step: Step, log: Path, left_s: float) -> Tried:
    """Run a step in a process group of its own, which is ended with everything in it at the limit."""
    begun = time.monotonic()
    limit_s = min(step.limit_s, left_s)
    if limit_s <= 0:
        return Tried(step, "not tried: the time is over", 0.0, log)
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=functools.partial(quiet.die_with_parent, signal.SIGTERM),
            )
        except OSError as error:
            return Tried(step, f"cannot be started: {error.strerror}: {step.command[0]}", 0.0, log)
        problem = ""
        try:
            status = process.wait(limit_s)
            problem = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            problem = f"no end within {limit_s:.0f} s"
        finally:
            _end(process)
    return Tried(step, problem, time.monotonic() - begun, log)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt what is left of a process, wait, and kill its group."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def unusual(used: Devices, variables: Mapping[str, str] = os.environ, shm: Path = SHM) -> Iterator[str]:
    """Yield a sentence for everything about the machine that a reader of its figures should know."""
    yield from filter(None, [used.problem])
    yield from neighbours(used)
    try:
        yield from hardware.unusual(machine.describe(used).cards)
    except Exception as error:  # of NVML: the page is for machines on which it fails, too
        yield f"the cards cannot be read: {type(error).__name__}: {error}"
    if used.kind != "cpu":
        with contextlib.suppress(OSError):
            if (size := shutil.disk_usage(shm).total) < LEAST_SHM_BYTES:
                yield f"{shm} has {size >> 20} MiB, too few for NCCL between processes: docker run --shm-size=1g"
    telling = sorted(name for name in variables if name.startswith(TELLING))
    if telling:
        yield f"the environment sets {', '.join(f'{name}={variables[name]}' for name in telling)}"


def page(on: str, tried: Sequence[Tried], remarks: Sequence[str]) -> list[str]:
    """Return the page, as lines of Markdown."""
    works = [f"- {each.step.name} ({each.seconds:.0f} s)" for each in tried if not each.problem]
    lines = [f"# First minutes on {on}", "", "## What works", "", *(works or ["- nothing"])]
    broken = [each for each in tried if each.problem]
    if broken:
        lines += ["", "## What does not"]
    for each in broken:
        lines += ["", f"### {each.step.name}: {each.problem}", "", f"If it fails: {each.step.failing}.", ""]
        lines += evidence(each)
    lines += ["", "## What is unusual about this machine", "", *(f"- {remark}" for remark in remarks or ["nothing"])]
    return [*lines, "", "## What to run next", "", *(f"    {line}" for line in _next(on, broken))]


def evidence(each: Tried) -> list[str]:
    """Return a step's command, the end of its output, and where all of it is, as an indented block."""
    return [f"    {line}" for line in (f"$ {shlex.join(each.step.command)}", *each.tail, f"all of it: {each.log}")]


def _next(on: str, broken: Sequence[Tried]) -> list[str]:
    if broken:
        return [shlex.join(broken[0].step.command)]
    devices_option, mark = f"--scaling-devices={on}", "scaling" if on.startswith("cpu") else "gpu"
    # Named as modules, so that pytest finds them from any folder.
    gate = f"pytest --pyargs suite.checks suite.benchmarks -m {mark}"
    return [
        f"python -m suite calibrate {devices_option}    # once a machine: how equal builds differ here",
        f"{gate} {devices_option} --scaling-accept    # the baseline",
        f"python -m suite drill {devices_option}    # is a planted slowdown found?",
    ]


if __name__ == "__main__":
    sys.exit(main())
