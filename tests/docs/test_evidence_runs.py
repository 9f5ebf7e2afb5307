"""The scripts of docs/evidence that measure: what they keep, refuse and show."""

from __future__ import annotations

import importlib
import math
import random
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from docs.evidence import disturbance, log, planted_cell, quiet_room, rounds, runs
from reference.trainers import TRAINERS
from suite.base import sides
from suite.plan import cells
from suite.plan.cells import Cell
from suite.plan.workloads import BUILT_IN
from suite.processes.jobs import Place, Prepared
from suite.processes.pool import Pool
from suite.properties import contract
from suite.records.record import Record
from suite.room import quiet
from suite.run import preparing
from tests.support.recordings import run_record
from tests.support.repositories import Repository

FOLDER = Path(runs.__file__).parent
SCRIPTS = sorted(".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_still_fits_the_suite(script: str) -> None:
    importlib.import_module(f"docs.evidence.{script}")


def line(kind: str, outcome: str, wall_s: float, **changes: Any) -> log.Line:
    return {
        "kind": kind,
        "outcome": outcome,
        "wall_s": wall_s,
        "commit": "c1",
        "trees": ["a", "b"],
        "dirty": False,
        **changes,
    }


class TestLog:
    """A line a run."""

    def test_a_torn_line_is_named_and_loses_no_other(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.jsonl"
        assert log.read_log(path) == []
        log.append(path, {"run": 1})
        with path.open("a") as file:
            file.write('{"run": 2, "outc')
        log.append(path, {"run": 3})
        with pytest.raises(ValueError, match=r"line 2: not JSON .*; remove the line"):
            log.read_log(path)

    def test_runs_of_other_code_are_refused(self) -> None:
        here = {"commit": "c2", "trees": ["a", "b"], "dirty": False}
        log.check_same_code([line("10", "FAIL", 1.0)], here)  # another commit of the same code
        with pytest.raises(ValueError, match=r"uncommitted changes.*commit, or --mixed"):
            log.check_same_code([], here | {"dirty": True})
        for other in ({"trees": ["a", "x"]}, {"dirty": True}):
            with pytest.raises(ValueError, match=r"runs of other code \(commit c1\): name another --log"):
                log.check_same_code([line("10", "FAIL", 1.0, **other)], here)
        with pytest.raises(ValueError, match="lean on calibration a-run, these on None: name another --log"):
            log.check_same_code([line("10", "FAIL", 1.0, calibration="a-run")], here)

    def test_the_state_of_the_code_is_that_of_its_folders(self, tmp_path: Path) -> None:
        repository = Repository(tmp_path / "project")
        files = {f"{folder}/file": "1" for folder in (*log.CODE, "docs")}
        repository.commit(files)
        first = log.code_state(repository.path)
        repository.commit({"docs/file": "2"})
        second = log.code_state(repository.path)
        assert (second["trees"], second["dirty"]) == (first["trees"], False)
        assert second["commit"] != first["commit"]
        (repository.path / "suite" / "new").write_text("untracked files can be imported")
        assert log.code_state(repository.path)["dirty"]
        repository.commit({})
        assert log.code_state(repository.path)["trees"] != first["trees"]


class TestRuns:
    """Real runs: what is kept of them, and what is still missing."""

    def test_runs_that_failed_to_run_are_missing(self) -> None:
        wanted = runs.parse_wanted("unchanged=3,10=1")
        assert wanted == {"unchanged": 3, "10": 1}
        done = [line("unchanged", "PASS", 50.0), line("10", "FAIL", 50.0), line("10", "ERROR", 5.0)]
        assert log.missing(done, wanted) == ["unchanged", "unchanged"]
        for wrong in ("7=3", "10", "10=many"):
            with pytest.raises(ValueError, match="KIND one of unchanged, checkout, matrix, matrix-10,"):
                runs.parse_wanted(wrong)

    def test_a_run_is_kept_small_and_whole(self) -> None:
        record = run_record()
        kept = runs.line_of(record, "10")
        assert (kept["outcome"], kept["planted"], kept["wall_s"]) == ("FAIL", 0.10, 100.0)
        assert (kept["ratio"], kept["sessions"], kept["reason"]) == ([1.1, 1.05, 1.15], 1, "slower")
        assert kept["log_s_1e4"] == [[[-35066, -34112], [-34738, -34420]]]
        assert (kept["timed_s"], kept["window_sd"]) == (0.4, 0.0624)
        [cell] = record.cells
        two = record.model_copy(update={"cells": (cell, cell.model_copy(update={"workload": "other"}))})
        kept = runs.line_of(two, "matrix")
        assert kept["cells"] == {cell.id: ["FAIL", [1.1, 1.05, 1.15]], two.cells[1].id: ["FAIL", [1.1, 1.05, 1.15]]}
        assert kept["sessions_1e4"] == {cell.id: [-10], two.cells[1].id: []}

    def test_what_counting_took_and_what_a_cell_warns_of_are_kept(self) -> None:
        record = run_record()
        [session], [cell] = record.sessions, record.cells
        assert (runs.line_of(record, "10")["counting_s"], runs.line_of(record, "10")["cautions"]) == (0.0, {})
        counted = session.model_copy(update={"counting_s": 2.26})
        warned = cell.model_copy(update={"cautions": ("slow",)})
        kept = runs.line_of(record.model_copy(update={"sessions": (counted,), "cells": (warned,)}), "intermittent")
        assert (kept["counting_s"], kept["cautions"]) == (2.3, {cell.id: ("slow",)})

    def test_the_table_counts_outcomes_and_times(self) -> None:
        kept = [
            line("unchanged", "PASS", 50.0),
            line("unchanged", "INCONCLUSIVE", 130.0),
            line("unchanged", "FAIL", 40.0),
        ]
        kept += [line("10", "FAIL", 50.0), line("10", "FAIL", 70.0), line("10", "ERROR", 10.0)]
        rows = runs.table(kept).splitlines()
        assert rows[2] == "| unchanged | 3 | 1 | 1 | 1 | 0 | 66.7% [9.4%, 99.2%] | 67% | 50 | 130 | - | - | - | - | - |"
        slower = "| 10 % slower | 3 | 2 | 0 | 0 | 1 | 66.7% [9.4%, 99.2%] | 67% | 50 | 70 | - | - | 1 | 2 | 2 |"
        assert rows[3] == slower
        assert len({row.count("|") for row in rows}) == 1

    def test_runs_within_a_budget_of_their_own_say_it(self) -> None:
        rows = runs.table([line("10@30", "FAIL", 29.0), line("0@30", "INCONCLUSIVE", 29.0)]).splitlines()
        assert rows[2].startswith("| unchanged, within 30 s | 1 | 0 | 0 | 1 | 0 | 100.0%")
        assert rows[3].startswith("| 10 % slower, within 30 s | 1 | 1 | 0 | 0 | 0 | 100.0%")
        for kind in ("3@120", "0@120"):
            asked = runs.KINDS[kind].options
            assert asked == (*runs.ONE_CELL, "--scaling-tolerance=0.03", "--scaling-budget=120")

    @pytest.mark.parametrize(("outcome", "wanted"), [("PASS", "0.0%"), ("INCONCLUSIVE", "100.0%"), ("FAIL", "100.0%")])
    def test_steps_that_are_slower_on_average_alone_may_not_pass(self, outcome: str, wanted: str) -> None:
        assert f" | {wanted} [" in runs.table([line("intermittent", outcome, 180.0)])

    def test_runs_of_many_cells_and_those_with_a_neighbour_have_their_own_rows(self) -> None:
        cells = {"a": ["PASS", None], "b": ["PASS", None], "c": ["FAIL", None], "d": ["INCONCLUSIVE", None]}
        noise = {"timed_s": 24.2, "window_sd": 0.0512}
        kept = [line("matrix", "FAIL", 50.0, cells=cells, neighbour=busy, **noise) for busy in (True, False)]
        rows = runs.table(kept).splitlines()
        assert rows[2] == "| matrix | 1 | 1 | 0 | 0 | 0 | 0.0% [0.0%, 97.5%] | 75% | 50 | 50 | 24 | 5.1% | - | - | - |"
        assert rows[3].startswith("| matrix, with a neighbour | 1 | 1 |")

    def test_of_several_cells_only_the_slower_ones_may_fail(self) -> None:
        cells = {"a": ["FAIL", None], "b": ["PASS", None]}
        kept = [line("matrix-10", "FAIL", 50.0, cells=cells, slower=slower) for slower in (["a"], ["b"])]
        assert "| matrix, one cell 10 % slower | 2 | 2 | 0 | 0 | 0 | 50.0%" in runs.table(kept)

    @pytest.mark.parametrize("ids", planted_cell.cells(), ids=lambda ids: ids[0])
    def test_a_cell_is_made_slower_and_no_other(
        self, ids: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A module with a right class in it, and a `slowed` that tells which of the two steps is taken."""
        (trainer, _, mode, size), asked = ids[0].rsplit("-", 3), []
        module, _, name = TRAINERS[trainer].partition(":")

        def slowed(spec: str, share: float, at: int) -> type:
            asked.append((spec, share, at))
            return type("Slow", (), {"step": lambda *_: "slow"})

        monkeypatch.setattr("suite.rank.planting.slowed", slowed)
        file = (tmp_path / module.replace(".", "/")).with_suffix(".py")
        file.parent.mkdir(parents=True)
        file.write_text(f"class {name}:\n    def step(self, *_): return 'right'\n")
        planted_cell.plant(tmp_path, ids, 0.1)
        made = runpy.run_path(str(file))[name]()
        of_mode = {"strong": ["slow", "slow", "right"], "weak": ["right", "right", "slow"]}[mode]
        assert [made.step(None, None, batch) for batch in (96, 256, 512)] == (["slow"] * 3 if size == "1" else of_mode)
        assert asked == [(f"{module}:{name}", 0.1, int(size))]

    def test_every_kind_is_a_trainer(self, tmp_path: Path) -> None:
        planted = tmp_path / "planted.py"
        planted.write_text(runs.PLANTED)
        for kind in runs.KINDS.values():
            if kind.in_clone:
                continue
            assert contract.describe(contract.load_trainer(f"{planted}:{kind.trainer}")).processes == "per-device"
        assert f'slowed("ddp", {runs.KINDS["10"].planted:.2f}, at=2)' in runs.PLANTED

    def test_a_run_without_a_record_says_what_pytest_said(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match=r"exit status 4 and 0 records(.|\n)*--scaling-mode 'sideways'"):
            runs.one_run("unchanged", tmp_path, options=("--scaling-mode", "sideways"))

    def test_the_script_goes_on_where_the_log_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path, kept, made = tmp_path / "runs.jsonl", tmp_path / "kept", []
        kept.mkdir()

        def one_run(name: str, folder: Path, *_: object, busy: bool) -> log.Line:
            if len(made) == 2:
                raise KeyboardInterrupt
            assert not busy, "only runs in a clone have a neighbour"
            made.append(name)
            record = folder / f"reports/KEY/runs/{len(made)}-{name}/record.json"
            record.parent.mkdir(parents=True)
            record.touch()
            return {"kind": name, "outcome": "PASS", "wall_s": 1.0}

        monkeypatch.setattr(runs, "one_run", one_run)
        monkeypatch.setattr(log, "code_state", lambda: {"commit": "c", "trees": [], "dirty": False})
        monkeypatch.setattr(
            sys, "argv", ["runs", "--log", str(path), "--records", str(kept), "--wanted", "unchanged=2,10=1"]
        )
        with pytest.raises(SystemExit, match="the run in progress is not kept, 2 are"):
            runs.main()
        assert [entry["kind"] for entry in log.read_log(path)] == made
        assert sorted(path.name for path in kept.iterdir()) == [f"{n}-{name}.json" for n, name in enumerate(made, 1)]
        made.clear()
        runs.main()
        assert sorted(entry["kind"] for entry in log.read_log(path)) == ["10", "unchanged", "unchanged"]


class TestDisturbance:
    """Which of two times of a window count."""

    @staticmethod
    def record(disturbed_at_first: int) -> Record:
        """Return three sessions of eight rounds whose last times are equal; a candidate's first ones are longer."""

        def windows(session: int, place: int) -> Iterator[dict[str, Any]]:
            for side, longer in (("candidate", 1 + session), ("base", 1)):
                window = {"arm": side, "block": place // 2, "duration_ns": [1_000_000], "others_ns": [0]}
                first = {"duration_ns": [longer * 1_000_000], "others_ns": [500_000]}
                yield {**window, **({"first": first} if place < disturbed_at_first else {})}

        [session] = run_record().model_dump(mode="json")["sessions"]
        sessions = [
            {**session, "number": number, "left_out": [], "windows": [w for n in range(8) for w in windows(number, n)]}
            for number in range(3)
        ]
        return run_record(sessions=sessions)

    @pytest.mark.parametrize(("disturbed", "middle", "faster"), [(4, "27.8%", "0.0%"), (8, "55.6%", "55.6%")])
    def test_sessions_are_as_alike_as_the_windows_that_count(self, disturbed: int, middle: str, faster: str) -> None:
        """Log ratios of 0, ln 2 and ln 3 where first times count, in half of the rounds or in all."""
        said = disturbance.table([self.record(disturbed)])
        assert said.startswith(f"1 runs; others disturbed {disturbed / 8:.0%} of the windows on several devices at")
        assert f"| middle of all rounds, first times | - | {middle} |" in said
        assert f"| faster halves, first times | - | {faster} |" in said
        assert "| **faster halves, last times, as judged** | - | 0.0% |" in said
        assert "| middle of all rounds, last times | - | 0.0% |" in said


def test_sessions_that_differ_by_their_rounds_alone_scatter_with_the_root_of_their_number() -> None:
    rng = random.Random(2)
    kept = [
        line(
            "5",
            "FAIL",
            50.0,
            planted=0.05,
            log_ratios_1e4=[[488 + rng.gauss(0, 400) for _ in range(10)] for _ in range(4)],
        )
        for _ in range(100)
    ]
    kept.append(line("checkout", "PASS", 50.0, planted=0.0, neighbour=True, log_ratios_1e4=[[9000] * 10]))
    count, single, *drawn = rounds.row(kept).strip("| ").split(" | ")
    sds = [float(sd.rstrip("%")) for sd in drawn]
    assert (count, float(single.rstrip("%"))) == ("400", pytest.approx(4.0, abs=0.1))
    assert sds[0] / sds[2] == pytest.approx(math.sqrt(2), rel=0.1)
    few, many = (rounds.found(rounds.sessions(kept), (8,) * sessions, 100) for sessions in (3, 6))
    assert few == 0.0, "a FAIL takes four sessions"
    assert many > 0.9


class TestQuietRoom:
    """One measure off at a time."""

    def test_each_condition_takes_its_measures_away_and_gives_them_back(self) -> None:
        arm = cells.arm("candidate", "ddp", Cell("ddp", "lenet", "strong", 2))

        def seen() -> tuple[bool, bool, bool, bool]:
            variables = quiet.environment({}, "cpu")
            place = Place(processes="one", devices=("cpu", "cpu"), backend="gloo", pinned=((0,), (1,)))
            told = {
                "trainer": "ddp",
                "seed": 1,
                "dataset": Prepared(name="", folder="", train_samples=1, test_samples=1),
            }
            job = preparing.job_of(arm, BUILT_IN["lenet"], place, **told)
            names = ("OMP_NUM_THREADS", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
            threads, allocator, pages = (name in variables for name in names)
            return bool(job.pinned), threads, allocator, pages, sides.Pool is Pool

        expected = {
            "quiet room": (True, True, True, True, True),
            "not pinned": (False, True, True, True, True),
            "two threads a rank": (True, False, True, True, True),
            "allocator as it comes": (True, True, False, True, True),
            "small pages": (True, True, True, False, True),
            "all off": (False, False, False, False, True),
            "executed": (True, True, True, True, False),
        }
        for condition, measures in quiet_room.CONDITIONS.items():
            with quiet_room.without(measures):
                assert seen() == expected[condition], condition
            assert seen() == (True, True, True, True, True)

    def test_a_run_under_other_conditions_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the suite took its cores from elsewhere, the run would be measured under a wrong name."""
        observations = SimpleNamespace(jobs={"an arm": SimpleNamespace(pinned=())})
        run = SimpleNamespace(observations=observations, record=run_record())
        ended = SimpleNamespace(interrupted=False, status=0, run=run)
        monkeypatch.setattr(quiet_room.gate, "run", lambda *_: ended)
        assert quiet_room.measure("not pinned", 1, tmp_path) is run.record
        with pytest.raises(RuntimeError, match="quiet room: workers were not pinned; `without` has lost its hold"):
            quiet_room.measure("quiet room", 1, tmp_path)
        observations.jobs["an arm"].pinned = ((0,),)
        with pytest.raises(RuntimeError, match="all off: workers were pinned"):
            quiet_room.measure("all off", 1, tmp_path)
