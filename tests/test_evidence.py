"""The scripts of docs/evidence: what they read, draw, judge and keep. Recordings are made up; one run is real."""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.utils import parse_compare_fail
from scipy.stats import mannwhitneyu

from docs.evidence import log, quiet_room, recording, replay, rules, runs
from docs.evidence.recording import RecordedSession
from docs.evidence.replay import Case
from suite import cells, contract, quiet
from suite.cells import Cell
from suite.git import git
from suite.quiet import available_cores
from suite.record import Record, RecordError
from suite.verdict import Outcome, Verdict
from suite.workloads import BUILT_IN
from tests import records

needs_two_cores = pytest.mark.skipif(len(available_cores()) < 2, reason="two CPU workers need two cores")

RATIO = {"estimate": 1.1, "low": 1.05, "high": 1.15}


def sessions(number: int, seed: int = 1, *, level_sd: float = 0.0, slower: float = 0.0) -> list[RecordedSession]:
    """Recorded sessions of eight rounds with 1 % of noise and `level_sd` between sessions, the candidate `slower`."""
    rng = np.random.default_rng(seed)
    levels = 0.03 * np.exp(rng.normal(0, level_sd, size=(number, 1, 1)))
    times = levels * np.exp(rng.normal(0, 0.01, size=(number, 2, 8)))
    return [RecordedSession(candidate=tuple(a * (1 + slower)), base=tuple(b), steps=4) for a, b in times]


def shake(recorded: list[RecordedSession], sd: float) -> list[RecordedSession]:
    """The same with candidates that differ from their bases, by another factor in every session."""
    factors = np.exp(np.random.default_rng(2).normal(0, sd, len(recorded)))
    return [
        session.model_copy(update={"candidate": tuple(float(factor) * value for value in session.candidate)})
        for session, factor in zip(recorded, factors, strict=True)
    ]


def run_record(**changes: Any) -> Record:
    """A record of one cell beside a base: block 0 visits candidate, base, base, candidate; block 1 was disturbed."""
    arm = {"workload": "lenet", "mode": "strong", "world_size": 2, "global_batch": 256, "lr": 0.1}
    arm |= {"processes": "per-device", "steps_per_window": 2}
    arms = [{**arm, "id": side, "side": side, "trainer": "ddp"} for side in ("candidate", "base")]
    order = [("candidate", 0), ("base", 0), ("base", 0), ("candidate", 0), ("base", 1), ("candidate", 1)]
    windows = [
        {"arm": side, "block": block, "duration_ns": [1_000, 60_000_400 + 2_000_000 * number]}
        for number, (side, block) in enumerate(order)
    ]
    about = {"number": 0, "started_utc": "2026-01-01T00:00:00+00:00", "wall_s": 12.0, "left_out": [1]}
    cell = records.cell(id="ddp-lenet-strong-2", world_size=2, outcome="FAIL", reason="slower", slowdown=RATIO)
    content = {"arms": arms, "cells": [cell], "sessions": [{**about, "windows": windows}], "accuracies": []}
    return records.make(**content | changes)


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


class TestRecording:
    """Reading, and taking out of a record."""

    def test_a_records_rounds_are_neighbours_and_the_slowest_rank_counts(self) -> None:
        [found] = recording.of_record(run_record(), run_record().cells[0])
        # The k-th window takes 30.0002 + k ms a step: candidate 0 3 5, base 1 2 4.
        assert found.candidate == (0.030000, 0.033000, 0.035000)
        assert found.base == (0.031000, 0.032000, 0.034000)
        assert (found.steps, found.wall_s, found.left_out) == (2, 12.0, (2,))

    def test_disturbed_rounds_are_kept_and_do_not_count(self) -> None:
        [found] = recording.of_record(run_record(), run_record().cells[0])
        assert found.log_ratios == pytest.approx([math.log(30 / 31), math.log(33 / 32)])
        assert found.window_s == pytest.approx(2 * 0.195)

    def test_a_base_that_is_the_same_build_is_told_from_another_cells(self) -> None:
        record = run_record()
        other = [arm.model_copy(update={"id": f"{arm.id}-2", "trainer": "scratch"}) for arm in record.arms]
        for arms in ((*record.arms, *other), (*other, *record.arms)):
            [found] = recording.of_record(record.model_copy(update={"arms": arms}), record.cells[0])
            assert found.base == (0.031000, 0.032000, 0.034000)

    def test_what_is_written_is_read_back(self, tmp_path: Path) -> None:
        (tmp_path / "record.json").write_text(run_record().model_dump_json())
        kept = recording.from_record(tmp_path / "record.json", "the command")
        (tmp_path / "recording.json").write_text(recording.to_json(kept))
        assert recording.load(tmp_path / "recording.json") == list(kept.sessions)
        assert json.loads((tmp_path / "recording.json").read_text())["command"] == "the command"

    def test_a_file_that_names_its_arms(self, tmp_path: Path) -> None:
        path, session = tmp_path / "named.json", {"one": [0.06, 0.05], "two": [0.03, 0.04], "twoB": [0.04, 0.03]}
        content = {"unit": "seconds per step, mean over 5 steps", "arms": {}, "sessions": [session]}
        path.write_text(json.dumps(content))
        assert recording.load(path) == [RecordedSession(candidate=(0.03, 0.04), base=(0.04, 0.03), steps=5)]
        with pytest.raises(ValueError, match="no arm oneB; choose two of one, two, twoB"):
            recording.load(path, ("one", "oneB"))
        path.write_text(json.dumps(content | {"unit": "seconds"}))
        with pytest.raises(ValueError, match="does not say 'mean over N steps'"):
            recording.load(path)

    def test_what_is_no_recording_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match="cannot be read"):
            recording.load(tmp_path / "missing.json")
        (tmp_path / "other.json").write_text('{"schema_version": 1}')
        with pytest.raises(RecordError, match="Field required"):
            recording.load(tmp_path / "other.json")

    def test_one_cell_with_a_base_is_asked_for(self, tmp_path: Path) -> None:
        path, record = tmp_path / "record.json", run_record()
        path.write_text(record.model_copy(update={"cells": (*record.cells, *records.make().cells)}).model_dump_json())
        with pytest.raises(ValueError, match=r"choose one with --cell: ddp-lenet-strong-2, ddp-lenet-strong-1"):
            recording.from_record(path, "")
        path.write_text(record.model_copy(update={"arms": record.arms[:1]}).model_dump_json())
        with pytest.raises(ValueError, match="was not timed beside a base; measure with --scaling-against"):
            recording.from_record(path, "")

    def test_the_command_writes_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "record.json").write_text(run_record().model_dump_json())
        out = tmp_path / "kept.json"
        monkeypatch.setattr(
            sys, "argv", ["recording", str(tmp_path / "record.json"), "--command", "c", "--out", str(out)]
        )
        recording.main()
        assert len(recording.load(out)) == 1


class TestReplay:
    """Runs of our rule, drawn from a recording."""

    def test_whole_sessions_are_drawn_labels_swapped_and_the_plant_added(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fed: list[list[list[float]]] = []

        def judge(rounds: list[list[float]], *_: object) -> Verdict:
            fed.append([list(session) for session in rounds])
            return Verdict(Outcome.INCONCLUSIVE, "")

        monkeypatch.setattr(replay, "judge", judge)
        recorded = sessions(3)
        found = replay.replay(recorded, Case(0.05), planned=4, session_s=10.0, runs=50)
        assert (found.runs, found.sessions) == (50, 4.0)
        assert [len(rounds) for rounds in fed] == [1, 2, 3, 4] * 50
        plant = math.log1p(0.05)
        whole = {
            (number, sign): tuple(sign * value + plant for value in session.log_ratios)
            for number, session in enumerate(recorded)
            for sign in (1.0, -1.0)
        }
        assert {tuple(session) for session in fed[-1]} <= set(whole.values())
        assert {tuple(session) for rounds in fed for session in rounds} == set(whole.values())

    def test_a_run_ends_when_it_is_decided(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def judge(rounds: list[list[float]], *_: object) -> Verdict:
            return Verdict(Outcome.FAIL if len(rounds) == 2 else Outcome.INCONCLUSIVE, "")

        monkeypatch.setattr(replay, "judge", judge)
        found = replay.replay(sessions(3), Case(0.0), planned=4, session_s=10.0, runs=10)
        assert (found.outcomes, found.sessions) == ({Outcome.FAIL: 10}, 2.0)

    def test_a_quiet_recording_passes_and_a_plant_fails(self) -> None:
        """With a hundredth of noise a round there is no doubt; a recording that is not null by itself is made so."""
        clean = replay.replay(sessions(20), Case(0.0), planned=6, session_s=10.0, runs=100)
        slower = replay.replay(sessions(20), Case(0.10), planned=6, session_s=10.0, runs=100)
        assert clean.outcomes[Outcome.PASS] == slower.outcomes[Outcome.FAIL] == 100
        biased = replay.replay(sessions(20, slower=0.10), Case(0.0), planned=6, session_s=10.0, runs=100)
        assert biased.outcomes[Outcome.FAIL] < 50

    def test_the_seed_decides(self) -> None:
        def outcomes(seed: int) -> replay.Replayed:
            return replay.replay(sessions(20, level_sd=0.1), Case(0.03), 6, 10.0, runs=60, seed=seed)

        assert outcomes(1) == outcomes(1)
        assert outcomes(1) != outcomes(2)

    def test_what_a_calibration_knows_comes_from_ten_sessions_or_more(self) -> None:
        still, shaken = (replay.learn(shake(sessions(40), sd)) for sd in (0.0, 0.05))
        assert still.tau2 < 0.01**2 < 0.03**2 < shaken.tau2 < 0.08**2
        found = replay.replay(sessions(20), Case(0.0), 6, 10.0, runs=50, learned=still)
        assert found.sessions < replay.replay(sessions(20), Case(0.0), 6, 10.0, runs=50).sessions
        with pytest.raises(ValueError, match="9 sessions to learn from: a run leans on 10 or more"):
            replay.learn(sessions(9))
        short = [session.model_copy(update={"left_out": tuple(range(7))}) for session in sessions(10)]
        with pytest.raises(ValueError, match="no session to learn from has two rounds that count"):
            replay.learn(short)

    def test_a_rate_has_its_exact_interval(self) -> None:
        """0 of 30 bound a rate at 1 - .025 ** (1 / 30) = 11.6 %."""
        assert replay.rate(0, 30) == "0.0% [0.0%, 11.6%]"
        assert replay.rate(0, 0) == "-"

    def test_a_session_takes_what_was_recorded_or_its_windows_and_a_start(self) -> None:
        one = RecordedSession(candidate=(0.1, 0.1), base=(0.1, 0.1), steps=5)
        assert replay.session_s([one], 3.0) == pytest.approx(5.0)
        assert replay.session_s([one], None) == pytest.approx(2.0 + replay.START_S)
        timed = one.model_copy(update={"wall_s": 9.0})
        assert replay.session_s([timed], None) == 9.0
        assert replay.session_s([timed, one], None) == pytest.approx(2.0 + replay.START_S)

    def test_the_budget_buys_sessions(self) -> None:
        assert replay.planned_sessions(replay.FIXED_S + 105.0, 10.0) == 10
        assert replay.planned_sessions(1.0, 10.0) == replay.MIN_SESSIONS


class TestRules:
    """The other tools' rules, and who is compared with whom."""

    @pytest.mark.parametrize("field", ["mean", "min"])
    def test_pytest_benchmarks_rule_is_that_of_pytest_benchmark(self, field: str) -> None:
        check = parse_compare_fail(f"{field}:5%")
        x = rules.samples(sessions(40, level_sd=0.04))
        kind = rules.saved(x, 1.0)
        theirs = [
            bool(check.fails({field: getattr(np, field)(a)}, {field: getattr(np, field)(b)}))
            for a, b in zip(kind.candidate, kind.base, strict=True)
        ]
        assert 0 < sum(theirs) < len(theirs)
        assert rules.RULES[f"{field}, 5 %"](kind.candidate, kind.base).tolist() == theirs
        other = {"mean": "min", "min": "mean"}[field]
        assert rules.RULES[f"{other}, 5 %"](kind.candidate, kind.base).tolist() != theirs

    def test_the_u_test_is_two_sided_and_alarms_for_slower_alone(self) -> None:
        kind = rules.saved(rules.samples(sessions(12, level_sd=0.02)), 1.0)
        p = [mannwhitneyu(a, b).pvalue for a, b in zip(kind.candidate, kind.base, strict=True)]
        slower = np.median(kind.candidate, axis=1) > np.median(kind.base, axis=1)
        found = rules.RULES["U test, p < .01"](kind.candidate, kind.base)
        assert found.tolist() == [value < 0.01 and bool(worse) for value, worse in zip(p, slower, strict=True)]
        assert (np.array(p) < 0.01).sum() == 2 * found.sum() > 0
        assert rules.RULES["U test, p < .002, and 10 %"](kind.candidate * 1.2, kind.candidate).all()
        assert not rules.RULES["U test, p < .002, and 10 %"](kind.candidate * 1.09, kind.candidate).any()

    def test_who_is_compared_with_whom(self) -> None:
        """Samples that say where they are from: 10 x session + arm."""
        x = np.array([[[10.0 * n + arm] * 3 for arm in (0, 1)] for n in range(8)])
        rng = np.random.default_rng(1)
        saved = rules.saved(x, 1.0)
        pairs = set(zip(saved.candidate[:, 0], saved.base[:, 0], strict=True))
        assert len(saved.base) == len(pairs) == 2 * 8 * 7
        assert all(a % 10 == b % 10 and a != b for a, b in pairs)
        beside = rules.interleaved(x, 1.0)
        assert len(beside.base) == 16
        assert (abs(beside.candidate - beside.base) == 1).all()
        pooled = rules.saved_pooled(x, 1.0, 4, 50, rng)
        assert pooled.candidate.shape == (50, 12)
        for a, b in zip(pooled.candidate, pooled.base, strict=True):
            assert len({*a // 10, *b // 10}) == 8
            assert len({*a % 10, *b % 10}) == 1
        mixed = rules.interleaved_pooled(x, 1.0, 4, 50, rng)
        assert (abs(mixed.candidate - mixed.base) == 1).all()
        assert {*mixed.candidate.ravel() % 10} == {0, 1}

    def test_levels_that_differ_between_sessions_fool_saved_runs_alone(self) -> None:
        x = rules.samples(sessions(20, level_sd=0.08))
        for name, rule in rules.RULES.items():
            saved, beside = (
                rule(kind.candidate, kind.base).mean() for kind in (rules.saved(x, 1), rules.interleaved(x, 1))
            )
            assert saved > 0.05 > beside, name

    def test_the_table_has_a_line_for_every_rule_and_kind(self) -> None:
        text = rules.table(sessions(30), start_s=10.0, runs=20, seed=1)
        lines = text.splitlines()
        assert len(lines) == 2 + 4 * len(rules.RULES) + len(rules.OURS)
        assert {row.count("|") for row in lines} == {9}
        assert lines[2].startswith("| mean, 5 % | saved, 1 session | 0.0% [0.0%, 0.2%] | 100.0%")
        assert "**ours**, tolerance 5%" in lines[-2]
        more = rules.table(sessions(30), 10.0, 20, 1, replay.learn(sessions(10, seed=2))).splitlines()
        assert more[: len(lines)] == lines
        assert all(", calibrated | until decided" in row for row in more[len(lines) :])
        assert len(more) == len(lines) + len(rules.OURS)

    def test_too_few_sessions_for_two_pools_leave_that_kind_out(self) -> None:
        assert "saved, 1" in (text := rules.table(sessions(6), start_s=10.0, runs=20, seed=1))
        assert text.count("saved") == len(rules.RULES)


class TestLog:
    """A line a run."""

    def test_a_torn_line_loses_no_other(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.jsonl"
        assert log.read_log(path) == []
        log.append(path, {"run": 1})
        with path.open("a") as file:
            file.write('{"run": 2, "outc')
        log.append(path, {"run": 3})
        with pytest.raises(ValueError, match=r"line 2: not JSON .*; remove the line"):
            log.read_log(path)
        first, _, last = path.read_text().splitlines()
        path.write_text(f"{first}\n{last}\n")
        assert log.read_log(path) == [{"run": 1}, {"run": 3}]

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
        git(tmp_path, "init", "-q")
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")

        def commit() -> None:
            git(tmp_path, "add", ".")
            git(tmp_path, *identity, "commit", "-q", "-m", "a change")

        for folder in (*log.CODE, "docs"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "file").write_text("1")
        commit()
        first = log.code_state(tmp_path)
        (tmp_path / "docs" / "file").write_text("2")
        assert log.code_state(tmp_path) == first
        commit()
        second = log.code_state(tmp_path)
        assert (second["trees"], second["dirty"]) == (first["trees"], False)
        assert second["commit"] != first["commit"]
        (tmp_path / "suite" / "new").write_text("untracked counts: it can be imported")
        assert log.code_state(tmp_path)["dirty"]
        commit()
        assert log.code_state(tmp_path)["trees"] != first["trees"]


class TestRuns:
    """Real runs: what is kept of them, and what is still missing."""

    def test_what_is_missing_is_drawn_kind_by_kind(self) -> None:
        wanted = runs.parse_wanted("unchanged=3,10=1")
        assert wanted == {"unchanged": 3, "10": 1}
        done = [line("unchanged", "PASS", 50.0), line("10", "FAIL", 50.0), line("10", "ERROR", 5.0)]
        assert runs.missing(done, wanted) == ["unchanged", "unchanged"]
        for wrong in ("7=3", "10", "10=many"):
            with pytest.raises(ValueError, match="KIND one of unchanged, 10, 5, 3"):
                runs.parse_wanted(wrong)

    def test_a_run_is_kept_small_and_whole(self) -> None:
        kept = runs.line_of(run_record(), "10")
        assert (kept["outcome"], kept["planted"], kept["wall_s"]) == ("FAIL", 0.10, 100.0)
        assert (kept["ratio"], kept["sessions"], kept["reason"]) == ([1.1, 1.05, 1.15], 1, "slower")
        assert kept["log_ratios_1e4"] == [[-328, 308]]
        lost = runs.line_of(run_record(arms=[], sessions=[]), "10")
        assert (lost["sessions"], lost["log_ratios_1e4"]) == (0, [])
        with pytest.raises(RuntimeError, match="run 10: 2 cells, expected one"):
            runs.line_of(records.make(), "10")

    def test_the_table_counts_outcomes_and_times(self) -> None:
        kept = [
            line("unchanged", "PASS", 50.0),
            line("unchanged", "INCONCLUSIVE", 130.0),
            line("unchanged", "FAIL", 40.0),
        ]
        kept += [line("10", "FAIL", 50.0), line("10", "FAIL", 70.0), line("10", "ERROR", 10.0)]
        rows = runs.table(kept).splitlines()
        assert rows[2] == "| unchanged | 3 | 1 | 1 | 1 | 0 | 66.7% [9.4%, 99.2%] | 50 | 130 | - | - | - |"
        assert rows[3] == "| 10 % slower | 3 | 2 | 0 | 0 | 1 | 66.7% [9.4%, 99.2%] | 50 | 70 | 1 | 2 | 2 |"
        assert len({row.count("|") for row in rows}) == 1

    def test_every_kind_is_a_trainer(self, tmp_path: Path) -> None:
        planted = tmp_path / "planted.py"
        planted.write_text(runs.PLANTED)
        for kind in runs.KINDS.values():
            assert contract.describe(contract.load_trainer(f"{planted}:{kind.trainer}"))["processes"] == "per-device"
        assert f'slowed("ddp", {runs.KINDS["10"].planted:.2f}, at=2)' in runs.PLANTED

    def test_an_interrupt_is_passed_on(self) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        said = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: raise SystemExit(7)"
        process = subprocess.Popen([sys.executable, "-c", said], start_new_session=True)
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        try:
            with pytest.raises(KeyboardInterrupt):
                runs.wait_to_end(process)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert process.wait() == 7

    def test_a_run_without_a_record_says_what_pytest_said(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match=r"exit status 4 and 0 records(.|\n)*--scaling-mode 'sideways'"):
            runs.one_run("unchanged", tmp_path, options=("--scaling-mode", "sideways"))

    @needs_two_cores
    def test_a_real_run_becomes_a_line(self, tmp_path: Path) -> None:
        found = runs.one_run("unchanged", tmp_path, options=(*runs.ONE_CELL, "--scaling-budget", "1"))
        assert (found["kind"], found["outcome"], found["sessions"]) == ("unchanged", "INCONCLUSIVE", 1)
        assert found["log_ratios_1e4"][0]
        assert found["process_s"] > found["wall_s"] > 0
        json.dumps(found)

    def test_the_script_goes_on_where_the_log_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path, made = tmp_path / "runs.jsonl", []

        def one_run(name: str, *_: object) -> log.Line:
            if len(made) == 2:
                raise KeyboardInterrupt
            made.append(name)
            return {"kind": name, "outcome": "PASS", "wall_s": 1.0}

        state: Callable[[], dict[str, Any]] = lambda: {"commit": "c", "trees": [], "dirty": False}  # noqa: E731
        monkeypatch.setattr(runs, "one_run", one_run)
        monkeypatch.setattr(runs, "code_state", state)
        monkeypatch.setattr(sys, "argv", ["runs", "--log", str(path), "--wanted", "unchanged=2,10=1"])
        with pytest.raises(SystemExit, match="the run in progress is not kept, 2 are"):
            runs.main()
        assert [entry["kind"] for entry in log.read_log(path)] == made
        made.clear()
        runs.main()
        assert sorted(entry["kind"] for entry in log.read_log(path)) == ["10", "unchanged", "unchanged"]
        monkeypatch.setattr(sys, "argv", ["runs", "--log", str(path), "--table"])
        capsys.readouterr()
        runs.main()
        assert capsys.readouterr().out == runs.table(log.read_log(path)) + "\n"


class TestQuietRoom:
    """One measure off at a time."""

    def test_each_condition_takes_its_measures_away_and_gives_them_back(self) -> None:
        arm = cells.arm("candidate", "ddp", Cell("ddp", "lenet", "strong", 2))

        def seen() -> tuple[bool, bool, bool]:
            variables = quiet.environment({}, "cpu")
            order = cells.describe(arm, BUILT_IN["lenet"], pinned=[0, 1])
            return bool(order["pinned"]), "OMP_NUM_THREADS" in variables, "MALLOC_TOP_PAD_" in variables

        expected = {
            "quiet room": (True, True, True),
            "not pinned": (False, True, True),
            "two threads a rank": (True, False, True),
            "allocator as it comes": (True, True, False),
            "all off": (False, False, False),
        }
        for condition, measures in quiet_room.CONDITIONS.items():
            with quiet_room.without(measures):
                assert seen() == expected[condition], condition
            assert seen() == (True, True, True)

    def test_a_run_that_does_not_follow_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A campaign that took its cores from elsewhere would be measured under a wrong name."""
        ended = SimpleNamespace(interrupted=False, status=0)
        monkeypatch.setattr(quiet_room.gate, "run", lambda *_: ended)
        for condition, pinned in (("quiet room", [0, 1]), ("not pinned", [])):
            measurement = SimpleNamespace(orders={"an arm": {"pinned": pinned}})
            ended.run = SimpleNamespace(measurement=measurement, record=run_record())
            assert quiet_room.measure(condition, 1, tmp_path) is ended.run.record
        with pytest.raises(RuntimeError, match="quiet room: workers were not pinned; `without` has lost its hold"):
            quiet_room.measure("quiet room", 1, tmp_path)
        ended.run.measurement.orders["an arm"]["pinned"] = [0]
        with pytest.raises(RuntimeError, match="all off: workers were pinned"):
            quiet_room.measure("all off", 1, tmp_path)
        ended.run = None
        with pytest.raises(RuntimeError, match="all off: pytest ended with status 0 and nothing measured"):
            quiet_room.measure("all off", 1, tmp_path)
        ended.interrupted = True
        with pytest.raises(KeyboardInterrupt):
            quiet_room.measure("all off", 1, tmp_path)

    def test_every_conditions_trainer_is_one(self, tmp_path: Path) -> None:
        (tmp_path / "trainers.py").write_text(quiet_room.TRAINERS)
        for name in ("Quiet", "Threads"):
            loaded = contract.load_trainer(f"{tmp_path / 'trainers.py'}:{name}")
            assert contract.describe(loaded)["processes"] == "per-device"

    def test_a_spread_has_its_interval(self) -> None:
        """Ten normal deviations: 95 % of chi-square with 9 df lies within 2.700 and 19.023."""
        values = [0.01, -0.01] * 5
        low, high = (math.sqrt(10 * 0.01**2 / q) for q in (19.023, 2.700))
        assert quiet_room.spread(values, 9) == f"{0.01 * math.sqrt(10 / 9):.1%} [{low:.1%}, {high:.1%}]"
        assert quiet_room.spread([0.0], 0) == "-"

    def test_a_line_keeps_the_rounds_and_the_table_tells_them_apart(self) -> None:
        kept = quiet_room.line_of(run_record(), "quiet room")
        [back] = quiet_room.sessions_of([kept], "quiet room")
        assert (back.candidate, back.base) == ((0.030, 0.033, 0.035), (0.031, 0.032, 0.034))
        assert quiet_room.sessions_of([kept], "all off") == []
        drawn = random.Random(1)

        def of(session: RecordedSession) -> dict[str, Any]:
            us = {f"{arm}_us": [round(1e6 * v) for v in getattr(session, arm)] for arm in ("candidate", "base")}
            return {"steps": 4, "wall_s": drawn.uniform(10, 12), **us}

        loud = {"condition": "all off", "sessions": [of(session) for session in sessions(30, level_sd=0.08)]}
        still = {"condition": "quiet room", "sessions": [of(session) for session in sessions(30)]}
        head, _, quiet_row, loud_row = quiet_room.table([loud, still]).splitlines()
        names = [name.strip() for name in head.split("|")]
        sds = [
            {
                name: float(value.split("%")[0])
                for name, value in zip(names, row.split("|"), strict=True)
                if "SD" in name
            }
            for row in (quiet_row, loud_row)
        ]
        # sqrt(2) x 1 % a round in both; the loud one's levels differ by 8 %, which pairing does not see.
        for found in sds:
            assert found["SD of a round"] == pytest.approx(1.41, abs=0.3)
            assert found["SD of a session's ratio"] < 1.0
        assert sds[0]["SD of unpaired ln t"] < 1.0 < 5.0 < sds[1]["SD of unpaired ln t"]

    def test_a_cell_that_was_not_measured_is_an_error(self) -> None:
        with pytest.raises(RuntimeError, match="all off: FAIL: slower"):
            quiet_room.line_of(run_record(arms=[]), "all off")
