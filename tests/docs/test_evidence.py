"""The scripts of docs/evidence that read recordings, on synthetic recordings."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.utils import parse_compare_fail
from scipy.stats import mannwhitneyu

from docs.evidence import checkouts, long_run, recording, replay, rules
from docs.evidence.recording import RecordedSession
from docs.evidence.replay import Case
from suite.records.files import RecordError
from suite.verdict import Middle, Outcome, Verdict
from tests.support import records
from tests.support.project import REPOSITORY
from tests.support.recordings import run_record, sessions


class TestRecording:
    """Reading, and taking out of a record."""

    def test_a_round_is_two_neighbouring_windows_of_the_slowest_rank(self) -> None:
        """The k-th window takes 30.0002 + k ms a step; the base of another cell and disturbed rounds do not count."""
        record = run_record()
        other = [arm.model_copy(update={"id": f"{arm.id}-2", "trainer": "scratch"}) for arm in record.arms]
        with_others = record.model_copy(update={"arms": (*other, *record.arms)})
        [found] = recording.of_record(with_others, record.cells[0])
        assert found.candidate == (0.030000, 0.033000, 0.035000)
        assert found.base == (0.031000, 0.032000, 0.034000)
        assert (found.steps, found.wall_s, found.left_out) == (2, 12.0, (2,))
        assert found.windows.log_ratios == pytest.approx([math.log(30 / 31), math.log(33 / 32)])
        assert found.window_s == pytest.approx(2 * 0.195)

    def test_the_command_writes_a_file_that_is_read_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        record, out = tmp_path / "record.json", tmp_path / "kept.json"
        record.write_text(run_record().model_dump_json())
        monkeypatch.setattr(sys, "argv", ["recording", str(record), "--command", "c", "--out", str(out)])
        recording.main()
        assert recording.load(out) == recording.of_record(run_record(), run_record().cells[0])
        assert json.loads(out.read_text())["command"] == "c"

    def test_a_file_that_names_its_arms_is_read_by_two_of_them(self, tmp_path: Path) -> None:
        path, session = tmp_path / "named.json", {"one": [0.06, 0.05], "two": [0.03, 0.04], "twoB": [0.04, 0.03]}
        path.write_text(json.dumps({"unit": "seconds per step, mean over 5 steps", "arms": {}, "sessions": [session]}))
        assert recording.load(path) == [RecordedSession(candidate=(0.03, 0.04), base=(0.04, 0.03), steps=5)]
        with pytest.raises(ValueError, match="no arm oneB; choose two of one, two, twoB"):
            recording.load(path, ("one", "oneB"))

    def test_files_without_one_recorded_cell_are_refused(self, tmp_path: Path) -> None:
        path, record = tmp_path / "record.json", run_record()
        with pytest.raises(RecordError, match="cannot be read"):
            recording.load(path)
        path.write_text(record.model_copy(update={"cells": (*record.cells, *records.make().cells)}).model_dump_json())
        with pytest.raises(ValueError, match=r"choose one with --cell: ddp-lenet-strong-2, ddp-lenet-strong-1"):
            recording.from_record(path, "")
        path.write_text(record.model_copy(update={"arms": record.arms[:1]}).model_dump_json())
        with pytest.raises(ValueError, match="was not timed beside a base; measure with --scaling-against"):
            recording.from_record(path, "")


class TestReplay:
    """Runs of our rule, drawn from a recording."""

    def test_whole_sessions_are_drawn_labels_swapped_and_the_plant_added(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fed: list[list[float]] = []

        def judge(middles: Sequence[Middle], *_: object) -> Verdict:
            fed.append([middle.value for middle in middles])
            return Verdict(Outcome.INCONCLUSIVE, "")

        monkeypatch.setattr(replay, "judge", judge)
        recorded = sessions(3)
        found = replay.replay(recorded, Case(0.05), planned=4, session_s=10.0, runs=50)
        assert (found.runs, found.sessions) == (50, 4.0)
        assert [len(seen) for seen in fed] == [1, 2, 3, 4] * 50
        plant = math.log1p(0.05)
        swapped = {sign * Middle.of(session.windows).value + plant for session in recorded for sign in (1, -1)}
        assert sorted({value for seen in fed for value in seen}) == pytest.approx(sorted(swapped))

    def test_a_quiet_recording_passes_and_a_plant_fails(self) -> None:
        """With a hundredth of noise a round there is no doubt; a recording that is not null by itself is made so."""
        clean = replay.replay(sessions(20), Case(0.0), planned=6, session_s=10.0, runs=100)
        slower = replay.replay(sessions(20), Case(0.10), planned=6, session_s=10.0, runs=100)
        assert clean.outcomes[Outcome.PASS] == slower.outcomes[Outcome.FAIL] == 100
        biased = replay.replay(sessions(20, slower=0.10), Case(0.0), planned=6, session_s=10.0, runs=100)
        assert biased.outcomes[Outcome.FAIL] < 50

    def test_a_calibration_comes_from_ten_sessions_or_more_and_shortens_runs(self) -> None:
        known = replay.learn(sessions(40))
        assert known.tau2 < 0.01**2
        found = replay.replay(sessions(20), Case(0.0), 6, 10.0, runs=50, learned=known)
        assert found.sessions < replay.replay(sessions(20), Case(0.0), 6, 10.0, runs=50).sessions
        with pytest.raises(ValueError, match="9 sessions to learn from: a run leans on 10 or more"):
            replay.learn(sessions(9))

    def test_a_rate_has_its_exact_interval(self) -> None:
        """0 of 30 bound a rate at 1 - .025 ** (1 / 30) = 11.6 %."""
        assert replay.rate(0, 30) == "0.0% [0.0%, 11.6%]"
        assert replay.rate(0, 0) == "-"

    def test_a_session_takes_what_was_recorded_or_its_windows_and_a_start(self) -> None:
        one = RecordedSession(candidate=(0.1, 0.1), base=(0.1, 0.1), steps=5)
        assert replay.session_s([one], 3.0) == pytest.approx(5.0)
        assert replay.session_s([one], None) == pytest.approx(2.0 + replay.START_S)
        assert replay.session_s([one.model_copy(update={"wall_s": 9.0})], None) == 9.0
        assert replay.planned_sessions(replay.FIXED_S + 105.0, 10.0) == 10


class TestRules:
    """The other tools' rules, and who is compared with whom."""

    @pytest.mark.parametrize("field", ["mean", "min"])
    def test_pytest_benchmarks_rule_is_that_of_pytest_benchmark(self, field: str) -> None:
        check = parse_compare_fail(f"{field}:5%")
        kind = rules.saved(rules.samples(sessions(40, level_sd=0.04)), 1.0)
        theirs = [
            bool(check.fails({field: getattr(np, field)(a)}, {field: getattr(np, field)(b)}))
            for a, b in zip(kind.candidate, kind.base, strict=True)
        ]
        assert 0 < sum(theirs) < len(theirs)
        assert rules.RULES[f"{field}, 5 %"](kind.candidate, kind.base).tolist() == theirs

    def test_the_u_test_is_two_sided_and_alarms_only_for_slower(self) -> None:
        kind = rules.saved(rules.samples(sessions(12, level_sd=0.02)), 1.0)
        p = [mannwhitneyu(a, b).pvalue for a, b in zip(kind.candidate, kind.base, strict=True)]
        slower = np.median(kind.candidate, axis=1) > np.median(kind.base, axis=1)
        found = rules.RULES["U test, p < .01"](kind.candidate, kind.base)
        assert found.tolist() == [value < 0.01 and bool(worse) for value, worse in zip(p, slower, strict=True)]
        assert (np.array(p) < 0.01).sum() == 2 * found.sum() > 0
        assert rules.RULES["U test, p < .002, and 10 %"](kind.candidate * 1.2, kind.candidate).all()
        assert not rules.RULES["U test, p < .002, and 10 %"](kind.candidate * 1.09, kind.candidate).any()

    def test_saved_runs_are_of_other_sessions_and_interleaved_ones_of_the_same(self) -> None:
        """Samples that say where they are from: 10 x session + arm."""
        x = np.array([[[10.0 * n + arm] * 3 for arm in (0, 1)] for n in range(8)])
        rng = np.random.default_rng(1)
        saved = rules.saved(x, 1.0)
        pairs = set(zip(saved.candidate[:, 0], saved.base[:, 0], strict=True))
        assert len(saved.base) == len(pairs) == 2 * 8 * 7
        assert all(a % 10 == b % 10 and a != b for a, b in pairs)
        same = rules.interleaved(x, 1.0)
        assert len(same.base) == 16
        assert (abs(same.candidate - same.base) == 1).all()
        pooled = rules.saved_pooled(x, 1.0, 4, 50, rng)
        assert pooled.candidate.shape == (50, 12)
        for a, b in zip(pooled.candidate, pooled.base, strict=True):
            assert len({*a // 10, *b // 10}) == 8
            assert len({*a % 10, *b % 10}) == 1
        mixed = rules.interleaved_pooled(x, 1.0, 4, 50, rng)
        assert (abs(mixed.candidate - mixed.base) == 1).all()

    def test_levels_that_differ_between_sessions_fool_only_saved_runs(self) -> None:
        x = rules.samples(sessions(20, level_sd=0.08))
        for name, rule in rules.RULES.items():
            saved, same = (
                rule(kind.candidate, kind.base).mean() for kind in (rules.saved(x, 1), rules.interleaved(x, 1))
            )
            assert saved > 0.05 > same, name

    def test_the_table_has_a_line_for_every_rule_and_kind(self) -> None:
        learned = replay.learn(sessions(10, seed=2))
        lines = rules.table(sessions(30), 10.0, 20, 1, learned).splitlines()
        assert len(lines) == 2 + 4 * len(rules.RULES) + 2 * len(rules.OURS)
        assert {row.count("|") for row in lines} == {9}
        assert lines[2].startswith("| mean, 5 % | saved, 1 session | 0.0% [0.0%, 0.2%] | 100.0%")
        assert all(", calibrated | until decided" in row for row in lines[-len(rules.OURS) :])


class TestLongRun:
    """What a pool holds over time."""

    def test_quarters_of_the_rounds_are_compared(self) -> None:
        seen = [long_run.Held(minutes, minutes, 20.0, 100.0 + minutes, 64, 4, 27) for minutes in range(8)]
        grown = long_run.growth(seen)
        assert grown["pool_mb"] == (100.5, 106.5)
        assert grown["processes"] == (4, 4)
        assert long_run.line(seen[1]) == "| 1 | 1 | 20.0 | 101.0 | 64 | 4 | 27 |"


class TestCheckouts:
    """What runs of the same code show of a bias between two checkouts."""

    def test_a_bias_of_every_run_is_found_and_none_is_not(self) -> None:
        rng = np.random.default_rng(1)
        sessions = rng.normal(0, 0.01, (200, 6))
        biased = checkouts.bias((sessions + rng.normal(0, 0.01, (200, 1))).tolist())
        assert biased.sd == pytest.approx(0.01, rel=0.15)
        assert biased.sd < biased.most < 0.013
        assert checkouts.bias(sessions.tolist()).most < 0.004

    def test_the_upper_limit_is_too_low_in_a_twentieth_of_logs(self) -> None:
        rng, biased = np.random.default_rng(2), 0.006
        logs = rng.normal(0, biased, (1000, 30, 1)) + rng.normal(0, 0.01, (1000, 30, 6))
        assert sum(checkouts.bias(log).most < biased for log in logs.tolist()) / 1000 == pytest.approx(0.05, abs=0.02)

    def test_the_table_in_docs_is_what_the_log_gives(self, capsys: pytest.CaptureFixture[str]) -> None:
        checkouts.main()
        page = " ".join((REPOSITORY / "docs/evidence/verdict.md").read_text().split())
        assert " ".join(capsys.readouterr().out.split()) in page
