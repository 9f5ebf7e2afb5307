"""What must be true after a run: how it ended, what it said, and that nothing is left or lost."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from suite.records.files import RecordError, read_model
from suite.records.record import RECORD, Record
from suite.render import pages
from suite.run.execute import ACCEPTED
from suite.verdict import Outcome
from tests.support.faults import catalogue, machine
from tests.support.faults.catalogue import Case, Ending

GONE_S = 15.0  # for the processes of a killed controller to end
OF_A_RUN = {RECORD, pages.REPORT, pages.SUMMARY}
OF_A_MACHINE = {".gitignore", "baseline.json", pages.INDEX}
OF_ACCEPTED = {RECORD, pages.SUMMARY}
TRACEBACK = "Traceback (most recent call last)"
SHOWN_WITH_TRACEBACK = ("an exception", "out of memory")  # of a worker, and that is what the user asked for


@dataclass
class Place:
    """Where runs write.

    Attributes:
        reports: the report folder.
        temporary: TMPDIR.
        memory: the names in shared memory before the first run.
    """

    reports: Path
    temporary: Path
    memory: frozenset[str] = frozenset()

    def kept(self) -> dict[str, str]:
        """Return a digest of every file in the report folder that runs keep; every run writes the index again."""
        kept = OF_A_RUN | OF_A_MACHINE - {pages.INDEX}
        files = [path for path in self.reports.rglob("*") if path.name in kept and path.is_file()]
        return {str(path.relative_to(self.reports)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@dataclass
class Ran:
    """A run of the gate.

    Attributes:
        status: pytest's, negative for a signal; None where it had to be killed.
        wall_s: of the run.
        said: pytest's output.
        happened: whether its fault did.
        records: what it wrote that can be read.
        problems: what is not as it must be.
    """

    status: int | None
    wall_s: float
    said: str
    happened: bool
    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def errors(self) -> dict[str, str]:
        """Return the reasons of the cells that are an ERROR, in the record that was written last."""
        cells = self.records[-1].cells if self.records else ()
        return {cell.id: cell.reason for cell in cells if cell.outcome is Outcome.ERROR}


def wanted(case: Case | None) -> Ending:
    return catalogue.FINE if case is None else case.ends


def look(place: Place, case: Case | None, ran: Ran, sign: Path, before: Mapping[str, str]) -> Ran:
    """Return the run with its records and problems, and remove its fallback folder.

    Args:
        place: where it wrote.
        case: its fault.
        ran: how it ended.
        sign: a path that is in the environment of each of its processes.
        before: what `Place.kept` returned before it.
    """
    ran.problems += _processes(sign)
    fallback = sorted(place.temporary.glob("scaling-report-*"))
    known = {place.reports / Path(name).parent for name in before}
    new = [path for path in place.reports.glob("*/runs/*") if path not in known]
    for folder in [*new, *fallback]:
        try:
            if (folder / RECORD).exists():
                ran.records.append(read_model(folder / RECORD, Record))
        except RecordError as error:
            ran.problems.append(f"a record cannot be read: {error}")
    ran.problems += _ended(ran, case)
    ran.problems += _recorded(ran, case, new, fallback)
    for folder in fallback:
        shutil.rmtree(folder)
    ran.problems += _left(place, case)
    ran.problems += _lost(place, before, accepted=case is None)
    return ran


def _ended(ran: Ran, case: Case | None) -> Iterator[str]:
    ends = wanted(case)
    if not ran.happened:
        yield "the fault did not happen"
    if ran.status is None:
        yield f"it did not end within {ends.within_s:.0f} s"
    elif ran.status != ends.status:
        yield f"exit status {ran.status} instead of {ends.status}"
    if not re.search(ends.says, "\n".join([ran.said, *ran.errors.values()])):
        yield f"nothing says {ends.says!r}"
    if "INTERNALERROR" in ran.said:
        yield "pytest reports an internal error"
    if TRACEBACK in ran.said and (case is None or case.fault.what not in SHOWN_WITH_TRACEBACK):
        yield "a traceback is shown"


def _recorded(ran: Ran, case: Case | None, new: list[Path], fallback: list[Path]) -> Iterator[str]:
    left, errors = wanted(case).left, ran.errors
    if left == "refused":
        if new or fallback:
            yield f"{len(new) + len(fallback)} folder(s) of a run that did not measure"
        return
    if case is not None and case.writes_first_record and left in ("cut short", "killed"):
        return  # nothing was measured
    if not ran.records:
        yield "no record"
        return
    record = ran.records[-1]
    if left in ("complete", "cell lost", "cells lost", "in fallback") and record.interrupted:
        yield f"the record says that it was cut short: {record.cut_short}"
    if left == "killed" and not record.interrupted and case is not None and case.moment != catalogue.RENDERING:
        yield "the record does not say that the run was killed"
    if left == "cut short" and not record.interrupted and case is not None and case.moment in catalogue.WITH_WORKERS:
        yield "the record does not say that it was cut short"
    if left == "in fallback" and not fallback:
        yield "no fallback folder"
    if left == "cell lost" and not all("Faulty" in cell for cell in errors):
        yield f"another trainer's cells are lost too: {errors}"
    if left in ("cell lost", "cells lost") and not errors:
        yield "no cell is an ERROR"
    if left in ("complete", "in fallback") and errors:
        yield f"ERROR: {errors}"


def _processes(sign: Path) -> Iterator[str]:
    deadline = time.monotonic() + GONE_S
    while pids := machine.marked(str(sign)):
        if time.monotonic() > deadline:
            yield f"{len(pids)} process(es) are left: {machine.end(pids)}"
            return
        time.sleep(0.1)


def _left(place: Place, case: Case | None) -> Iterator[str]:
    """What only the next run can remove is looked at after that."""
    if memory := set(os.listdir(machine.SHARED_MEMORY)) - place.memory:
        yield f"shared memory is left: {sorted(memory)}"
    if sockets := machine.sockets(place.temporary):
        yield f"sockets are left: {sockets}"
    if case is not None and (case.fault.what == "turns read-only" or case.ends.left == "killed"):
        return
    if temporary := sorted(os.listdir(place.temporary)):
        yield f"temporary files are left: {temporary}"
    for path in place.reports.rglob("*"):
        about = path.relative_to(place.reports).parts
        known = {2: OF_A_MACHINE, 3: OF_ACCEPTED if ACCEPTED in about else set(), 4: OF_A_RUN}
        if path.is_file() and path.name not in known.get(len(about), ()):
            yield f"a file is left: {'/'.join(about[1:])}"
        if path.is_dir() and len(about) == 3 and not os.listdir(path):
            yield f"an empty folder is left: {'/'.join(about[1:])}"


def _lost(place: Place, before: Mapping[str, str], *, accepted: bool) -> Iterator[str]:
    after = place.kept()
    for name, digest in before.items():
        if after.get(name) != digest and not (accepted and name.endswith("baseline.json")):
            yield f"{name} {'has changed' if name in after else 'is lost'}"
