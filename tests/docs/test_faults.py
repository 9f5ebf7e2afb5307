"""The campaign of faults: what it draws, and what it sees in a run's aftermath."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.faults import __main__ as faults
from tests.support.faults import aftermath, catalogue
from tests.support.faults.aftermath import Place, Ran
from tests.support.faults.catalogue import FAULTS, Case
from tests.support.faults.trainer import FAULTS as CAUSED_BY_WORKERS

PAIRS = {(fault, moment) for fault in FAULTS for moment in fault.moments}
STAGE: Any = SimpleNamespace(possible=FAULTS)
OPTIONS = argparse.Namespace(seed=1, runs=8, part="1/1")
LOST = catalogue.named("worker: SIGKILL at block")


def test_every_fault_comes_at_every_moment_once_before_any_comes_again() -> None:
    for turn in (0, 1):
        drawn = [catalogue.draw(1, turn * len(PAIRS) + number) for number in range(len(PAIRS))]
        assert Counter((case.fault, case.moment) for case in drawn) == Counter(PAIRS)
    assert catalogue.draw(1, 7) == catalogue.draw(1, 7) != catalogue.draw(2, 7)


def test_what_cannot_be_caused_is_not_drawn() -> None:
    possible = tuple(fault for fault in FAULTS if fault.victim == "controller")
    assert {catalogue.draw(1, number, possible).fault.victim for number in range(50)} == {"controller"}


def test_the_trainer_can_do_everything_that_happens_to_a_worker() -> None:
    assert {fault.what for fault in FAULTS if fault.victim == "worker"} == CAUSED_BY_WORKERS.keys()


def test_a_fault_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'worker: SIGKILL at rendering' is no fault at a moment: expected one of "):
        catalogue.named("worker: SIGKILL at rendering")


def test_the_campaign_goes_on_where_its_log_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was not right is made again by other code."""
    monkeypatch.setattr(faults, "code_state", lambda: {"trees": ["now"]})
    common = {"seed": 1, "right": True, "trees": ["before"]}
    lines = [{**common, "run": 0}, {**common, "run": 1, "right": False}]
    lines += [{**common, "run": 2, "right": False, "trees": ["now"]}, {**common, "run": 3, "seed": 2}]
    left = [about["run"] for about, _ in faults.missing(lines, OPTIONS, STAGE)]
    assert left == [1, 3, 4, 5, 6, 7]
    parted = argparse.Namespace(**{**vars(OPTIONS), "part": "2/3"})
    assert [about["run"] for about, _ in faults.missing(lines, parted, STAGE)] == [1, 4, 7]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A report folder with an accepted run, and an empty TMPDIR."""
    (tmp_path / "tmp").mkdir()
    earlier = tmp_path / "reports" / "machine" / "runs" / "earlier"
    earlier.mkdir(parents=True)
    for path in (earlier / "record.json", earlier.parents[1] / "baseline.json"):
        path.write_text("{}")
    return Place(tmp_path / "reports", tmp_path / "tmp", frozenset(path.name for path in Path("/dev/shm").iterdir()))


def problems(place: Place, before: dict[str, str], case: Case = LOST, **changes: Any) -> list[str]:
    says = "rank 1: its process ended with signal 9 (SIGKILL)"
    ran = replace(Ran(status=1, wall_s=9.0, said=says, happened=True), **changes)
    sign = place.temporary.parent / "sign"
    return [each for each in aftermath.look(place, case, ran, sign, before).problems if each != "no record"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, []),
        ({"status": 3}, ["exit status 3 instead of 1"]),
        ({"status": None}, ["it did not end within 300 s"]),
        ({"happened": False}, ["the fault did not happen"]),
        ({"said": "rank 1: gone"}, [r"nothing says 'its process ended with signal 9 \\(SIGKILL\\)'"]),
        ({"said": "signal"}, [r"nothing says 'its process ended with signal 9 \\(SIGKILL\\)'"]),
    ],
)
def test_an_end_that_is_another_one_is_seen(place: Place, changes: dict[str, Any], problem: list[str]) -> None:
    assert problems(place, place.kept(), **changes) == problem


@pytest.mark.parametrize("shown", ["Traceback (most recent call last)", "INTERNALERROR> "])
def test_a_traceback_of_the_controller_is_seen(place: Place, shown: str) -> None:
    said = f"its process ended with signal 9 (SIGKILL)\n{shown}"
    assert len(problems(place, place.kept(), said=said)) == 1
    raised = catalogue.named("worker: an exception at block")
    allowed = problems(place, place.kept(), raised, said=f"RuntimeError: planted by the campaign\n{shown}")
    assert len(allowed) == ("INTERNAL" in shown)


@pytest.mark.parametrize(
    ("left", "problem"),
    [
        ("tmp/scaling-abc", "temporary files are left: ['scaling-abc']"),
        ("reports/machine/runs/earlier/.record.json.abcd1234", "a file is left: runs/earlier/.record.json.abcd1234"),
        ("reports/machine/.baseline.json.abcd1234", "a file is left: .baseline.json.abcd1234"),
    ],
)
def test_what_a_run_leaves_is_seen(place: Place, left: str, problem: str) -> None:
    before = place.kept()
    (place.temporary.parent / left).touch()
    assert problem in problems(place, before)


def test_a_process_that_is_left_is_seen_and_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aftermath, "GONE_S", 0.0)
    sign = str(place.temporary.parent / "sign")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={"SIGN": sign}) as process:
        [problem] = problems(place, place.kept())
        assert problem.startswith("1 process(es) are left: ")
        assert process.wait(10) == -9


@pytest.mark.parametrize(("name", "what"), [("baseline.json", "has changed"), ("runs/earlier/record.json", "is lost")])
def test_earlier_files_are_compared_byte_by_byte(place: Place, name: str, what: str) -> None:
    before, path = place.kept(), place.reports / "machine" / name
    path.unlink() if what == "is lost" else path.write_text("{ }")
    assert f"machine/{name} {what}" in problems(place, before)


def test_the_table_counts_right_runs_by_fault_and_moment_and_the_last_run_of_a_number() -> None:
    common = {"fault": LOST.fault.name, "moment": "block", "seed": 1, "status": 1, "wall_s": 9.0}
    lines = [
        {**common, "run": 0, "right": False},
        {**common, "run": 0, "right": True},
        {**common, "run": 1, "right": False},
    ]
    head, _, row, every = (line.strip("| ").split(" | ") for line in faults.table(lines).splitlines())
    assert (row[0], row[head.index("right")], row[-2:]) == (LOST.fault.name, "1 of 2", ["1", "9"])
    assert every[head.index("block")] == "1 of 2"
