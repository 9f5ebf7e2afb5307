"""The scripts of docs/evidence that read recordings, on recordings made up."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.utils import parse_compare_fail
from scipy.stats import mannwhitneyu

from docs.evidence import recording, replay, rules
from docs.evidence.recording import RecordedSession
from docs.evidence.replay import Case
from suite.records.record import RecordError
from suite.room.quiet import available_cores
from suite.verdict import Outcome, Verdict
from tests.support import records
from tests.support.recordings import run_record, sessions

needs_two_cores = pytest.mark.skipif(len(available_cores()) < 2, reason="two CPU workers need two cores")


def shake(recorded: list[RecordedSession], sd: float) -> list[RecordedSession]:
    """The same with candidates that differ from their bases, by another factor in every session."""
    factors = np.exp(np.random.default_rng(2).normal(0, sd, len(recorded)))
    return [
        session.model_copy(update={"candidate": tuple(float(factor) * value for value in session.candidate)})
        for session, factor in zip(recorded, factors, strict=True)
    ]


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
