"""The faults of a campaign: what happens, to which process, at which moments, and how the run must end."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

Victim = Literal[
    "worker",
    "controller",
    "template",
    "launcher",
    "reaper",
    "control socket",
    "report folder",
    "controller's clock",
    "workers' clock",
]

START, WARM_UP, BLOCK, EPOCH = "session start", "warm-up", "block", "accuracy epoch"
WRITING, RENDERING = "record writing", "rendering"
WITH_WORKERS = (START, WARM_UP, BLOCK, EPOCH)
MOMENTS = (*WITH_WORKERS, WRITING, RENDERING)

DELAY_S = {START: 0.4, WARM_UP: 0.4, BLOCK: 0.4, EPOCH: 0.1}  # at most, from the beginning of a phase to the fault
USUAL_S = 300.0  # for a run without a hang beside 40 other processes on two cores; it takes 6 s at rest
HANG_S = {START: 60.0, WARM_UP: 60.0, BLOCK: 20.0, EPOCH: 80.0}  # the suite's deadlines where the budget is spent
FILES = ("record.json", "report.html", "summary.md")

Left = Literal["complete", "cell lost", "cells lost", "cut short", "killed", "in fallback", "refused"]
"""What a run leaves:

- complete: its record, in which no cell is an ERROR;
- cell lost: its record, in which one cell is an ERROR and another trainer's is not;
- cells lost: its record, in which at least one cell is an ERROR;
- cut short: its record, which says so where it was not complete yet;
- killed: the record of its last session;
- in fallback: its record in a folder that the run names;
- refused: nothing, because the run ended before it measured.
"""


@dataclass(frozen=True)
class Ending:
    """How a run with a fault must end.

    Attributes:
        status: pytest's exit status, negative for a signal.
        left: in the report folder.
        says: a pattern that pytest's output or the reason of a lost cell has.
        within_s: wall seconds.
    """

    status: int
    left: Left
    says: str = ""
    within_s: float = USUAL_S


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        what: a key of `tests.support.faults.trainer.FAULTS` for a worker, a signal's name, or words.
        victim: where it happens.
        moments: at which it can.
        ends: how a run with it ends.
    """

    what: str
    victim: Victim
    moments: tuple[str, ...]
    ends: Ending

    @property
    def name(self) -> str:
        return f"{self.victim}: {self.what}"


def _lost(says: str) -> Ending:
    return Ending(1, "cell lost", says)


def _worker(what: str, ends: Ending) -> Fault:
    return Fault(what, "worker", WITH_WORKERS, ends)


FINE = Ending(0, "complete")
BROKEN = r"rank \d: its connection to the controller broke and its process went on"
SILENT = r"rank.* \d: no answer to '\w+' within \d+ s"
RESTARTED = Ending(0, "complete", r"the launcher has ended: signal 9 \(SIGKILL\).*; it is started again, once in a run")
UNWRITABLE = r"cannot be written \((No space left on device|Read-only file system)\): this run's files are in "

FAULTS = (
    _worker("SIGKILL", _lost(r"its process ended with signal 9 \(SIGKILL\)")),
    _worker("SIGSTOP", _lost(SILENT)),
    _worker("SIGTERM", _lost(r"its process ended with signal 15 \(SIGTERM\)")),
    _worker("exit 3", _lost("its process ended with exit code 3")),
    _worker("exit 0", _lost("its process ended with exit code 0")),
    _worker("an exception", _lost("RuntimeError: planted by the campaign")),
    _worker("out of memory", _lost("can't allocate memory|MemoryError|Cannot allocate memory")),
    _worker("NaN", _lost("the loss is nan|the loss of .* is not finite")),
    _worker("garbage to the controller", _lost(BROKEN)),
    _worker("a forged answer", _lost(BROKEN)),
    _worker("no answer", _lost(SILENT)),
    _worker("a closed connection", _lost(BROKEN)),
    _worker("100 MB on stderr", FINE),
    _worker("text on descriptor 1", FINE),
    _worker("a daemon left behind", FINE),
    *(Fault(name, "controller", MOMENTS, Ending(2, "cut short", name)) for name in ("SIGTERM", "SIGHUP")),
    Fault("SIGINT", "controller", MOMENTS, Ending(2, "cut short", "Ctrl-C|KeyboardInterrupt")),
    Fault("SIGKILL", "controller", MOMENTS, Ending(-9, "killed")),
    Fault("SIGSTOP and SIGCONT", "controller", MOMENTS, FINE),
    Fault("SIGKILL", "template", WITH_WORKERS, RESTARTED),
    Fault("SIGKILL", "launcher", WITH_WORKERS, replace(RESTARTED, within_s=2 * USUAL_S)),
    Fault("SIGKILL", "reaper", WITH_WORKERS, RESTARTED),
    *(
        Fault(what, "control socket", WITH_WORKERS, FINE)
        for what in ("a stranger who says nothing", "a stranger's garbage", "a stranger's greeting")
    ),
    *(
        Fault(what, "report folder", MOMENTS, Ending(1, "in fallback", UNWRITABLE))
        for what in ("turns full", "turns read-only")
    ),
    *(Fault(f"jumps by {h:+} h", "controller's clock", MOMENTS, FINE) for h in (2, -2)),
    *(Fault(f"jumps by {h:+} h", "workers' clock", WITH_WORKERS, FINE) for h in (2, -2)),
)
HANGS = ("SIGSTOP", "no answer")


@dataclass(frozen=True)
class Case:
    """One run's fault, with everything that is left to chance drawn.

    Attributes:
        fault: of the catalogue.
        moment: one of the fault's.
        rank: of the worker that it happens to.
        step: of a warm-up, from 1.
        delay_s: from the beginning of a longer phase.
        file: whose writing is the moment.
        renamed: whether the moment is when that file takes its name, not before it is opened.
        number: which writing of the file, from 1.
    """

    fault: Fault
    moment: str
    rank: int = 1
    step: int = 1
    delay_s: float = 0.0
    file: str = FILES[0]
    renamed: bool = False
    number: int = 2

    @property
    def ends(self) -> Ending:
        """How the run must end: the fault's ending, where the moment does not make it another one."""
        ends, fault = self.fault.ends, self.fault
        if fault.victim == "worker" and fault.what in HANGS:
            return Ending(ends.status, ends.left, ends.says, USUAL_S + HANG_S[self.moment])
        # A full disk lets a written file take its name, so it is noticed one file later.
        if fault.victim == "report folder" and self.writes_first_record and not self.renamed:
            return Ending(1, "refused", "choose another --scaling-report-dir")
        return ends

    @property
    def next_is_clean(self) -> bool:
        """Return whether the next run has no fault: this one may leave files that only the next run can remove."""
        return self.fault.victim in ("controller", "report folder")

    @property
    def writes_first_record(self) -> bool:
        """Return whether nothing has been measured at this moment."""
        return self.moment == WRITING and self.number == 1


def draw(seed: int, number: int, possible: tuple[Fault, ...] = FAULTS) -> Case:
    """Return the fault of a campaign's run.

    Every fault comes at every of its moments once, in a random order, before any comes again.

    Args:
        seed: of the campaign.
        number: of the run, from 0.
        possible: the faults that can be caused here.
    """
    pairs = [(fault, moment) for fault in FAULTS for moment in fault.moments]
    turn, place = divmod(number, len(pairs))
    random.Random(f"{seed}, turn {turn}").shuffle(pairs)
    fault, moment = pairs[place]
    rng = random.Random(f"{seed}, run {number}")
    if fault not in possible:
        fault = rng.choice([other for other in possible if moment in other.moments])
    return Case(
        fault,
        moment,
        rank=rng.randrange(2),
        step=rng.randint(1, 3),
        delay_s=round(rng.uniform(0, DELAY_S.get(moment, 0.0)), 3),
        file=FILES[0] if moment == WRITING else rng.choice(FILES[1:]),
        # No file system can be remounted while the file is open that is to be renamed.
        renamed=rng.random() < 0.5 and fault.what != "turns read-only",
        number=rng.randint(1, 3) if moment == WRITING else 1,
    )


def named(text: str) -> Case:
    """Return the case that is written as 'VICTIM: WHAT at MOMENT'.

    Raises:
        ValueError: there is no such fault, or not at this moment.
    """
    name, _, moment = text.rpartition(" at ")
    fault = next((fault for fault in FAULTS if fault.name == name), None)
    if fault is None or moment not in fault.moments:
        known = "; ".join(f"{fault.name} at {'|'.join(fault.moments)}" for fault in FAULTS)
        raise ValueError(f"{text!r} is no fault at a moment: expected one of {known}")
    file = FILES[0] if moment == WRITING else FILES[1]
    return Case(fault, moment, file=file, number=2 if moment == WRITING else 1)
