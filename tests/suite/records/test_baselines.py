"""Which runs are accepted, kept, pinned and compared with, and whether slow creep is found against the pin."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import pytest

from suite import verdict
from suite.records import baselines
from suite.records.baselines import Baseline, Identity
from suite.records.files import RecordError
from suite.records.record import Environment, Record
from suite.verdict import ALPHA_FAIL, Outcome
from suite.verdict.stored import KEPT_RUNS, hours_apart
from tests.support import records
from tests.support.family import exceeds
from tests.support.records import KEY, accepted


def week(number: int, *, commit: str | None = None, dirty: bool = False, **changes: Any) -> Record:
    """A run of a week's commit."""
    environment = {"versions": {}, "commit": commit or f"commit-{number}", "dirty": dirty}
    return records.make(run_id=f"week-{number}", environment=environment, **changes)


def commits(baseline: Baseline, run: Record, cell: int = 0) -> tuple[str | None, str | None]:
    """Of the pin and of the latest run of a cell."""
    found = [kept.environment.commit for kept in baseline.rebuildable(run.cells[cell], run)]
    return (found[0], found[-1]) if found else (None, None)


def times(baseline: Baseline, run: Record, cell: int = 0) -> list[float]:
    """Seconds an epoch of the accepted runs of a cell."""
    return [round(math.exp(kept.log_t), 9) for kept in baseline.comparable(run.cells[cell], run)]


def test_accepted_runs_are_added_and_read_again(tmp_path: Path) -> None:
    run = records.make()
    baseline = baselines.accept(baselines.read(tmp_path, KEY), run, slower=False)
    path = baselines.write(baseline, tmp_path)
    assert path == tmp_path / KEY / "baseline.json"
    assert path.read_text() == json.dumps(baseline.model_dump(mode="json"), indent=1) + "\n", "a line for each value"
    again = baselines.accept(baselines.read(tmp_path, KEY), week(2), slower=False)
    assert len(again.runs) == 2
    assert times(again, run) == [13.0, 13.0]
    assert again.runs[0].environment.commit == "abc1234"


def test_another_workload_or_dataset_is_another_cell() -> None:
    baseline = accepted(records.make())
    other_hash = records.make(workload_hashes={"lenet": "000000000000"})
    other_data = records.make(datasets={"lenet": "fashion-mnist"})
    assert times(baseline, other_hash) == times(baseline, other_data) == []


def test_weak_scaling_on_one_device_is_strong_scaling_and_on_more_is_another_cell() -> None:
    baseline = accepted(week(1, cells=[records.cell(world_size=k) for k in (1, 2)]))
    weak = week(2, cells=[records.cell(mode="weak", world_size=k) for k in (1, 2)])
    assert [len(times(baseline, weak, cell)) for cell in (0, 1)] == [1, 0]
    assert [len(times(accepted(weak), weak, cell)) for cell in (0, 1)] == [1, 1]


def shared(number: int, *, oversubscribed: bool = True, **changes: Any) -> Record:
    """Return a run of two ranks, which share a device by default; `changes` are the cell's."""
    return week(number, cells=[records.cell(world_size=2, oversubscribed=oversubscribed, **changes)])


def test_ranks_that_share_a_device_are_another_cell() -> None:
    own = shared(2, oversubscribed=False, efficiency=records.interval(0.8))
    baseline = accepted(shared(1), own, shared(3), shared(4, sec_per_epoch={"estimate": 20.0}, outcome="FAIL"))
    assert times(baseline, shared(9)) == [20.0]
    assert times(baseline, own) == [13.0]
    assert (commits(baseline, shared(9)), commits(baseline, own)) == (("commit-4",) * 2, ("commit-2",) * 2)


NEVER = "a run with an ERROR is never a baseline; repair it and run again"
NOTHING = (
    "no cell was measured; select cells with -m scaling, in your own repository with --pyargs suite.benchmarks too"
)
NOT_IN_TIME = "no cell was measured in its budget; raise --scaling-budget"


@pytest.mark.parametrize(
    ("changes", "slower", "message"),
    [
        ({"cells": [records.cell(outcome="ERROR")]}, False, NEVER),
        ({"cells": [records.cell(outcome="ERROR")]}, True, NEVER),
        ({"collectives": [records.collective(error="rank 1 hung")]}, True, NEVER),
        ({"interrupted": True}, False, "a run that was cut short is never a baseline; run it to its end"),
        ({"cells": []}, True, NOTHING),
        ({"cells": [records.cell(outcome="INCONCLUSIVE", sec_per_epoch=None)]}, True, NOT_IN_TIME),
        (
            {"cells": [records.cell(outcome="FAIL")]},
            False,
            "the run has a FAIL; --scaling-accept=slower takes a slowdown as the new level",
        ),
        (
            {"run_id": "week-1"},
            False,
            "run week-1 is in the baseline already, and would count as two runs that agree; measure again",
        ),
    ],
)
def test_an_error_an_interrupt_no_cell_a_fail_and_the_same_run_are_not_accepted(
    changes: dict[str, object], slower: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^not accepted: {message}$"):
        baselines.accept(accepted(week(1)), records.make(**changes), slower=slower)


def test_accepting_a_slowdown_drops_the_earlier_runs_of_that_cell_alone_and_moves_its_pin() -> None:
    failed = records.cell(outcome="FAIL", sec_per_epoch={"estimate": 20.0})
    slower = week(3, cells=[failed, records.cell(world_size=2)])
    baseline = accepted(week(1), week(2), slower, week(4))
    assert (times(baseline, slower, 0), commits(baseline, slower, 0)) == ([20.0, 13.0], ("commit-3", "commit-4"))
    assert (times(baseline, slower, 1), commits(baseline, slower, 1)) == ([13.0] * 4, ("commit-1", "commit-4"))


def test_an_accepted_run_keeps_what_parts_take_of_the_ideal_step(tmp_path: Path) -> None:
    bars = [
        {"causes": ["overhead", "exchange"], "step_s": {"estimate": 0.03, "low": 0.02, "high": 0.04}},
        {"causes": ["feed"], "step_s": {"estimate": -0.01}},
    ]
    ends = {"ideal_s": {"estimate": 0.05}, "measured_s": {"estimate": 0.07}}
    fall = {"side": "candidate", "sessions": 4, "bars": bars, "sentence": "", **ends}
    of_base = {**fall, "side": "base", "ideal_s": {"estimate": 5.0}}
    run = week(1, cells=[records.cell(world_size=2, waterfalls=[of_base, fall]), records.cell()])
    baselines.write(accepted(run), tmp_path)
    kept = [baselines.read(tmp_path, KEY).comparable(cell, run)[0].parts for cell in run.cells]
    assert kept == [pytest.approx({"overhead + exchange, not separable": 0.6, "feed": -0.2}), {}]


def test_an_accepted_run_keeps_its_time_efficiency_and_what_a_step_did() -> None:
    sides = {"candidate": records.counters(2), "base": records.counters(1)}
    efficiency = {"estimate": 0.8, "low": 0.75, "high": 0.85}
    run = records.run_of(2, cells=[records.cell(world_size=2, efficiency=efficiency, counters=sides), records.cell()])
    baseline = accepted(run, records.run_of(3, cells=[records.cell(), records.cell(world_size=2)]))
    both, alone = (baseline.comparable(cell, run)[0] for cell in run.cells)
    assert both.started_s == datetime(2026, 1, 2, tzinfo=UTC).timestamp()
    assert (both.log_efficiency, alone.log_efficiency) == (math.log(0.8), None)
    counted = Identity.of(run.cells[0], run)
    assert baseline.newest_counted(counted) == (baseline.runs[0], run.cells[0].counters["candidate"])
    assert baseline.newest_counted(counted._replace(world_size=1)) is None
    assert baseline.newest_counted(counted._replace(trainer="scratch")) is None


def test_accepted_runs_keep_the_newest_accuracy_of_each_seed_on_one_device() -> None:
    """Nets on several devices are compared with one device in their own run."""

    def trained(number: int, *nets: dict[str, Any]) -> Record:
        of_two = records.accuracy(world_size=2, seed=1)
        cells = [records.cell(world_size=1), records.cell(world_size=2)]
        return records.run_of(number, cells=cells, accuracies=[of_two, *nets])

    both = [records.accuracy(world_size=1, seed=seed, per_epoch=[0.5, 0.9 + seed / 100]) for seed in (1, 2)]
    first, second = trained(1, *both), trained(2, records.accuracy(world_size=1, seed=1, per_epoch=[0.5, 0.95]))
    baseline = accepted(first, second)
    one, two = (Identity.of(cell, first) for cell in first.cells)
    assert baseline.accuracies(one, "digits") == {1: 0.95, 2: 0.92}
    assert baseline.accuracies(one, "other digits") == {}
    assert baseline.accuracies(two, "digits") == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machine_key": "another"}, f"baseline of machine another, not of {KEY}"),
        ({"seconds": 0.0}, "sec_per_epoch: Input should be greater than or equal to 0.000000001"),
    ],
)
def test_a_foreign_or_broken_file_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = baselines.write(accepted(week(1)), tmp_path)
    content = json.loads(path.read_text())
    others = dict(changes)  # the parameter itself is every run's
    content["runs"][0]["cells"][0]["sec_per_epoch"] = others.pop("seconds", 13.0)
    path.write_text(json.dumps(content | others))
    with pytest.raises(RecordError, match=message):
        baselines.read(tmp_path, KEY)


@pytest.mark.parametrize(
    ("rules", "pin"), [(["floor"], "commit-1"), (["accuracy", "floor"], "commit-1"), (["floor", "drift"], "commit-2")]
)
def test_only_a_fail_of_time_moves_the_pin(rules: list[str], pin: str) -> None:
    """Accepting a FAIL of a floor or an accuracy must not restart the count of slow creep."""
    checks = [{"rule": rule, "against": "", "outcome": "FAIL", "reason": ""} for rule in rules]
    failed = week(2, cells=[records.cell(outcome="FAIL", checks=checks)])
    assert commits(accepted(week(1), failed), failed) == (pin, "commit-2")


def test_a_run_that_cannot_be_built_again_is_no_pin() -> None:
    baseline = accepted(week(1, dirty=True), week(2, commit="unknown"), week(3), week(4), week(5, dirty=True))
    assert commits(baseline, week(9)) == ("commit-3", "commit-4")
    assert len(baseline.comparable(week(9).cells[0], week(9))) == 5
    assert commits(accepted(week(1, dirty=True)), week(9)) == (None, None)
    assert commits(Baseline(machine_key=KEY), week(9)) == (None, None)


def test_the_file_keeps_the_newest_runs_and_the_pin_which_accepting_never_moves_and_no_more() -> None:
    baseline = accepted(*map(week, range(1, 31)))
    run = week(99)
    assert [kept.run_id for kept in baseline.runs] == ["week-1", *(f"week-{n}" for n in range(31 - KEPT_RUNS, 31))]
    assert commits(baseline, run) == ("commit-1", "commit-30")
    assert len(baseline.comparable(run.cells[0], run)) == KEPT_RUNS


def test_every_host_of_a_machine_key_keeps_its_runs() -> None:
    """Three hosts in turn, every day another: each needs five runs of its own before the machine can be judged."""
    runs = [records.run_of(day, host="abc"[day % 3]) for day in range(1, 19)]
    found = accepted(*runs).comparable(runs[-1].cells[0], runs[-1])
    assert [run.host for run in found] == ["abc"[day % 3] for day in range(1, 19)]


def test_many_runs_of_one_afternoon_do_not_replace_those_of_other_days() -> None:
    days = [records.run_of(day) for day in range(1, 6)]
    afternoon = [records.run_of(9, run_id=f"20260109T13{minute:02}00Z-c") for minute in range(0, 60, 5)]
    baseline = accepted(*days, *afternoon)
    kept = [run.run_id for run in baseline.runs]
    assert kept[:5] == [run.run_id for run in days]
    assert (len(kept), kept[-1]) == (KEPT_RUNS, afternoon[-1].run_id)
    found = baseline.comparable(days[0].cells[0], days[0])
    assert (len(found), len(hours_apart(found))) == (KEPT_RUNS, 6)


def test_the_newest_run_that_can_be_built_again_is_kept() -> None:
    dirty = {"versions": {}, "commit": "d", "dirty": True}
    rebuildable, *afternoon = (records.run_of(9, run_id=f"20260109T13{minute:02}00Z-c") for minute in range(10))
    changed = [run.model_copy(update={"environment": Environment.model_validate(dirty)}) for run in afternoon]
    days = [records.run_of(day).model_copy(update={"environment": changed[0].environment}) for day in range(10, 19)]
    baseline = accepted(records.run_of(1), rebuildable, *changed, *days)
    assert baseline.rebuildable(rebuildable.cells[0], rebuildable)[-1] == baseline.runs[1]
    assert baseline.runs[1].run_id == rebuildable.run_id


def test_an_old_pin_does_not_count_as_spread() -> None:
    """The cell became twice as fast after the first run: the newest runs alone say how runs differ now."""
    fast = [week(n, cells=[records.cell(sec_per_epoch={"estimate": 6.5 + n / 1000})]) for n in range(2, 20)]
    baseline = accepted(week(1), *fast)
    found = baseline.comparable(fast[0].cells[0], fast[0])
    assert max(run.log_t for run in found) < math.log(6.6)
    assert commits(baseline, fast[0])[0] == "commit-1"


def test_a_cell_that_is_rarely_measured_keeps_its_runs() -> None:
    rare = week(1, cells=[records.cell(world_size=2)])
    baseline = accepted(rare, *(week(n, cells=[records.cell()]) for n in range(2, 30)))
    assert len(times(baseline, rare)) == 1
    assert len(baseline.runs) == KEPT_RUNS + 2


def test_cells_of_a_redefined_workload_are_dropped() -> None:
    """Nothing is compared with them again and nothing replaces them, so they would stay for ever."""
    changed = week(2, workload_hashes={"lenet": "000000000000"})
    baseline = accepted(week(1), changed)
    assert [kept.run_id for kept in baseline.runs] == ["week-2"]
    other_data = week(2, datasets={"lenet": "fashion-mnist"})
    assert len(accepted(week(1), other_data).runs) == 2


CREEP, SESSION_SD, SESSIONS, WEEKS = math.log(1.01), 0.02, 6, 8
PAIRS = 2  # comparisons in the run of one cell: with the latest run's commit and with the pin's

PIN, LATEST = 0, 1  # as `commits` has them


def interleaved(rng: numpy.random.Generator, delta: float) -> Outcome:
    """One comparison in the same sessions: looked at after each, ended when it is decided."""
    sessions: list[verdict.Middle] = []
    outcome = Outcome.INCONCLUSIVE
    while len(sessions) < SESSIONS and outcome is Outcome.INCONCLUSIVE:
        sessions.append(verdict.Middle(rng.normal(delta, SESSION_SD)))
        outcome = verdict.paired(sessions, verdict.Terms(0.05, PAIRS, SESSIONS, 10.0)).outcome
    return outcome


def alarms(rng: numpy.random.Generator, base: int, creep: float, trials: int) -> int:
    """How many of so many histories, in which every week is accepted, have a FAIL by week 8."""
    history = [commits(accepted(*map(week, range(weeks))), week(weeks)) for weeks in range(1, WEEKS + 1)]
    weeks = [number - int((pair[base] or "").removeprefix("commit-")) for number, pair in enumerate(history, 1)]
    return sum(any(interleaved(rng, creep * distance) is Outcome.FAIL for distance in weeks) for _ in range(trials))


def test_one_percent_a_week_is_found_by_week_8_against_the_pin_only() -> None:
    trials = 300
    found = alarms(numpy.random.default_rng(1), PIN, CREEP, trials)
    against_last_week = alarms(numpy.random.default_rng(2), LATEST, CREEP, trials)
    assert found >= 0.95 * trials
    assert against_last_week <= 0.2 * trials  # an estimate of half the margin by chance, in one of eight weeks


def test_without_drift_the_pin_alarms_no_more_than_its_share() -> None:
    trials = 3000
    rng = numpy.random.default_rng(3)
    found = sum(interleaved(rng, 0.0) is Outcome.FAIL for _ in range(trials))
    assert not exceeds(found, trials, ALPHA_FAIL / PAIRS)


@pytest.mark.parametrize(
    ("commit", "dirty", "why"),
    [("abc1234", True, "uncommitted changes"), ("unknown", False, "git knows no commit here"), ("abc1234", False, "")],
)
def test_a_run_that_no_later_one_can_be_decided_by_says_so(commit: str, dirty: bool, why: str) -> None:
    said = baselines.warning(week(1, commit=commit, dirty=dirty))
    end = "so later runs compared with it stay INCONCLUSIVE: commit, and accept a run of that commit."
    assert said == (f"The commit of this run cannot be rebuilt ({why}), {end}" if why else "")
    unknown = {"versions": {}, "commit": "unknown", "dirty": False, "commit_problem": "git rev-parse: fatal: dubious"}
    assert "rebuilt (git rev-parse: fatal: dubious)" in baselines.warning(records.make(environment=unknown))
