"""A project in a folder of its own, and runs of the gate in it: with a fault, and without one."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.faults import aftermath, catalogue, machine, plugin, trainer
from tests.support.faults.aftermath import Ran
from tests.support.faults.catalogue import Case
from tests.support.project import DATA, PYPROJECT, REPOSITORY

PYTEST = (sys.executable, "-m", "pytest", "-p", "suite.plugin", "-p", plugin.__name__, "-p", "no:cacheprovider")
CELLS = ("--scaling-workload", "tiny", "--scaling-devices", "cpu:2", "--scaling-world-sizes", "2")
TRAINERS = tuple(f"--scaling-trainer={trainer.__name__}:{name}" for name in ("Faulty", "Healthy"))
OPTIONS = ("--scaling-mode", "strong", "--scaling-counters", "off")
TRAINING = {False: 4, True: 12}  # the budget of a run that is to train, in runs that do not; True: workers are executed
GATE = (*PYTEST, "--pyargs", "suite.benchmarks.test_scaling", "-m", "scaling", *CELLS, *OPTIONS)

PHASES = {
    catalogue.START: r"^scaling: session \d+: starting",
    catalogue.BLOCK: r"^scaling: session \d+: block",
    catalogue.EPOCH: r"^scaling: training Faulty on 2 device",
}
EPOCHS = 12
REPORTS_MIB, MEMORY_MIB = 64, 1024
STOPPED_S = 2.0
MODULES = {"template": "suite.template", "launcher": "suite.launch", "reaper": "suite.processes.reaper"}
CLOCKS = {"controller's clock": "controller", "workers' clock": "workers"}
STRANGERS = {
    "a stranger who says nothing": b"",
    "a stranger's garbage": b"\xff\x00 garbage\n[1, 2]\n",
    "a stranger's greeting": b'{"event": "hello", "rank": "first"}\n',
}


class Stage:
    """A project, and folders for what its runs write.

    Attributes:
        possible: the faults that can be caused on this machine.
        lacking: why others cannot, in words.
    """

    def __init__(self, folder: Path) -> None:
        """Make the project, without a run in it; `folder` is empty."""
        self.place = aftermath.Place(folder / "project" / "reports", folder / "tmp")
        self._project, self._signs, self._usual_s = folder / "project", folder / "signs", 0.0
        for path in (self.place.reports, self.place.temporary, self._signs):
            path.mkdir(parents=True)
        (self._project / "pyproject.toml").write_text(PYPROJECT.replace("epochs = 2", f"epochs = {EPOCHS}"))
        (self._project / "data.py").write_text(DATA)
        self.lacking, cannot, self._mounted = list[str](), set[str](), list[Path]()
        try:
            for path, mebibytes in ((self.place.reports, REPORTS_MIB), (machine.SHARED_MEMORY, MEMORY_MIB)):
                machine.mount(path, mebibytes)
                self._mounted.append(path)
        except subprocess.CalledProcessError as error:
            self.lacking.append(f"no file system of its own can be mounted ({error.stderr.strip()})")
            cannot.add("report folder")
        try:
            self._libraries = machine.clock_libraries(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            self.lacking.append(f"clocks cannot be moved ({error})")
            cannot.update(CLOCKS)
        self.possible = tuple(fault for fault in catalogue.FAULTS if fault.victim not in cannot)
        self.place.memory = frozenset(os.listdir(machine.SHARED_MEMORY))

    def __enter__(self) -> Stage:
        """Run the gate without a fault, and accept the run.

        Raises:
            RuntimeError: something was not as it must be.
        """
        ran = self.run(None, "--scaling-accept")
        self._usual_s = ran.wall_s
        if ran.problems:
            self.__exit__()
            raise RuntimeError(f"the run without a fault: {'; '.join(ran.problems)}\n{ran.said}")
        return self

    def __exit__(self, *_: object) -> None:
        """Unmount what the stage mounted, so that its folder can be removed."""
        machine.unmount(*self._mounted)

    def run(self, case: Case | None, *options: str) -> Ran:
        """Run the gate, with a fault in it or without one, and look at what it left."""
        sign = Path(tempfile.mkdtemp(dir=self._signs))
        said, within_s = sign / "said", aftermath.wanted(case).within_s
        before, begun = self.place.kept(), time.monotonic()
        with said.open("wb") as output, ExitStack() as undo:
            process = subprocess.Popen(
                [*GATE, *self._what(case), *options],
                cwd=self._project,
                env=self._environment(sign, case),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            undo.callback(process.kill)
            happened = case is None or self._cause(case, process, sign, undo)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, within_s - (time.monotonic() - begun)))
            ended, wall_s = process.poll() is not None, time.monotonic() - begun
        if case is not None and case.fault.victim == "worker":
            happened = (sign / plugin.FIRED).exists()
        status = process.wait() if ended else None
        return aftermath.look(
            self.place, case, Ran(status, wall_s, said.read_text(errors="replace"), happened), sign, before
        )

    def _what(self, case: Case | None) -> list[str]:
        """Return the trainers and the budget of a run, which is as short as its fault allows."""
        trainers = TRAINERS if case is not None and case.fault.victim == "worker" else TRAINERS[:1]
        if case is None or case.moment != catalogue.EPOCH:
            return [*trainers, "--scaling-budget=1"]
        return [*trainers, f"--scaling-budget={TRAINING[case.fault.victim == 'launcher'] * self._usual_s:.0f}"]

    def _environment(self, sign: Path, case: Case | None) -> dict[str, str]:
        left_out = ("PYTEST", "GITHUB", "COV", "TORCHINDUCTOR")
        told = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        told |= {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(self.place.temporary), plugin.FOLDER: str(sign)}
        if case is None:
            return told
        if case.fault.victim == "worker":
            told |= {trainer.FAULT: case.fault.what, trainer.RANK: str(case.rank)}
            if case.moment == catalogue.START:
                told[trainer.IN_CONSTRUCTOR] = "1"
            elif case.moment == catalogue.WARM_UP:
                told[trainer.AT_STEP] = str(case.step)
        if case.moment in (catalogue.WRITING, catalogue.RENDERING):
            told[plugin.HOLD_AT] = f"{'os.rename' if case.renamed else 'open'}:{case.file}:{case.number}"
        if case.fault.victim == "launcher":
            told[plugin.EXECUTE] = "1"
        if case.fault.victim in CLOCKS:
            for name in CLOCKS.values():
                (sign / name).write_text("+0\n")
            told |= machine.SETTABLE | {
                "LD_PRELOAD": self._libraries,
                machine.CLOCK_FILE: str(sign / CLOCKS["controller's clock"]),
                plugin.WORKERS_CLOCK: str(sign / CLOCKS["workers' clock"]),
            }
        return told

    def _cause(self, case: Case, process: subprocess.Popen[bytes], sign: Path, undo: ExitStack) -> bool:
        """Wait for the moment and cause the fault there; False where the run ended before."""
        if case.fault.victim == "worker" and case.moment in (catalogue.START, catalogue.WARM_UP):
            return True  # the trainer knows when
        deadline = time.monotonic() + case.ends.within_s
        while not _is_moment(case.moment, sign):
            if process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(plugin.POLL_S)
        if case.moment not in (catalogue.WRITING, catalogue.RENDERING):
            time.sleep(case.delay_s)
        try:
            return process.poll() is None and self._act(case, process.pid, sign, undo)
        finally:
            (sign / plugin.RELEASED).touch()

    def _act(self, case: Case, controller: int, sign: Path, undo: ExitStack) -> bool:
        """Cause the fault; False where what it should happen to is not there."""
        what, victim, reports = case.fault.what, case.fault.victim, self.place.reports
        if victim == "worker":
            (sign / plugin.ARMED).touch()
        elif what == "SIGSTOP and SIGCONT":
            machine.send(controller, "SIGSTOP")
            time.sleep(STOPPED_S)
            machine.send(controller, "SIGCONT")
        elif victim == "controller":
            machine.send(controller, what)
        elif victim in MODULES:
            pid = machine.helper(controller, MODULES[victim])
            if pid is None:
                return False
            machine.send(pid, what)
        elif victim == "control socket":
            connection = machine.visit(self.place.temporary, STRANGERS[what])
            if connection is None:
                return False
            undo.callback(connection.close)
        elif what == "turns full":
            undo.callback(machine.empty, reports)
            machine.fill(reports)
        elif what == "turns read-only":
            undo.callback(machine.remount, reports, "rw")
            machine.remount(reports, "ro")
        else:
            hours = what.split()[2]
            (sign / CLOCKS[victim]).write_text(f"{hours}h\n")
        return True


def _is_moment(moment: str, sign: Path) -> bool:
    if moment in PHASES:
        return re.search(PHASES[moment], (sign / "said").read_text(errors="replace"), re.MULTILINE) is not None
    return (sign / (plugin.STEPPED if moment == catalogue.WARM_UP else plugin.HELD)).exists()
