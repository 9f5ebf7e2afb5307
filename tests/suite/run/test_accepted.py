"""Cells that accepted runs of other times have: which commits are rebuilt, and what counts afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from suite.plan.cells import Arm
from suite.processes.failure import WorkerFailure
from suite.records.baselines import AcceptedRun
from suite.records.calibration import Calibration
from suite.records.record import CellRecord, Record, WaterfallRecord
from suite.render import lead
from suite.room.devices import Devices
from suite.run import accepted, results
from suite.run.observations import Comparison, Observations
from suite.verdict import Outcome
from tests.support.measurements import (
    COMMIT,
    MACHINE,
    VERSIONS,
    accepted_run,
    add_sessions,
    arm,
    baseline,
    calibrated,
    cell,
    run_of,
    settings,
)
from tests.support.repositories import Repository

CELL, OTHER = cell(2), cell(2, "scratch")
OWN, BASE, PIN = arm(2), arm(2, side="base"), arm(2, side="pinned")
GONE = "f" * 40
OLDER_TORCH = {**VERSIONS, "torch": "2.14.0"}
AGREEING_S = (0.5, 0.501, 0.499)
CLOSE_S = (0.5, 0.502, 0.498, 0.501, 0.499)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Three commits, tagged one, two and three."""
    made = Repository(tmp_path_factory.mktemp("repository") / "project")
    for name in ("one", "two", "three"):
        made.commit({"a.py": f"{name} = 1\n"})
        made.git("tag", name)
    return made


@pytest.fixture(scope="module")
def commit(repository: Repository) -> dict[str, str]:
    return {tag: repository.git("rev-parse", tag) for tag in ("one", "two", "three")}


def checked(seconds: float, *kept: AcceptedRun, root: Path = Path(), **changes: object) -> tuple[Observations, Record]:
    """Return a run of one cell with that many seconds a step, its stored checks, and its record without them."""
    run = run_of(CELL, config=settings(root=root), baseline=baseline(*kept), **changes)
    add_sessions(run, {OWN: seconds})
    draft = results.to_record(run)
    run.stored = accepted.checks(run, draft)
    return run, draft


def runs(*seconds: float, commits: Sequence[str] = (), **changes: object) -> list[AcceptedRun]:
    """Return accepted runs, oldest first; those without a commit have one that the repository lacks."""
    known = [*commits, *[GONE] * len(seconds)]
    return [accepted_run({CELL: s}, n, c, **changes) for n, (s, c) in enumerate(zip(seconds, known, strict=False))]


def judged(run: Observations) -> CellRecord:
    [record] = results.to_record(run).cells
    return record


def cells_of(run: Observations) -> tuple[CellRecord, ...]:
    """Add what the accepted runs say, and return the cells of the record."""
    run.stored = accepted.checks(run, results.to_record(run))
    return results.to_record(run).cells


def rebuilt(run: Observations, draft: Record) -> dict[str, str | None]:
    """Return the commit of each base that would be rebuilt."""
    return {side: base.commit for side, base in accepted.rebuild(run, draft).bases.items()}


class TestStoredFiguresAlone:
    """They are shown, and decide nothing, however many runs of other hours agree."""

    @pytest.mark.parametrize("kept", [(0.5,), AGREEING_S, CLOSE_S], ids=["one run", "three that agree", "five"])
    @pytest.mark.parametrize("seconds", [0.25, 0.5, 5.0], ids=["faster", "equal", "slower"])
    @pytest.mark.parametrize("calibration", [None, calibrated(0.01, CELL)], ids=["", "calibrated"])
    def test_cell_is_inconclusive(
        self, seconds: float, kept: tuple[float, ...], calibration: Calibration | None
    ) -> None:
        stored = [
            accepted_run({CELL: s}, commit=GONE, run_id=f"20260101T{hour:02}0000Z-abc") for hour, s in enumerate(kept)
        ]
        run, _ = checked(seconds, *stored, calibration=calibration)
        assert judged(run).outcome is Outcome.INCONCLUSIVE
        assert "measure a base in the same run (--scaling-against=REF)" in judged(run).reason

    def test_ratio_is_shown_with_its_interval(self) -> None:
        run, draft = checked(0.6, *runs(*AGREEING_S))
        [level] = (check for check in judged(run).checks if check.rule == "stored")
        assert (level.against, level.counts) == ("accepted runs", True)
        assert level.ratio is not None
        assert level.ratio.low is not None
        assert 1.18 < level.ratio.low < level.ratio.estimate < 1.22
        assert level.reason.startswith("20.0% slower than the 3 accepted run(s) (95 %: ")
        assert accepted.rebuild(run, draft) == Comparison(), "the repository lacks their commit"

    @pytest.mark.parametrize(
        ("environment", "says"),
        [
            ({"commit": GONE}, "the commit of run run-2 cannot be rebuilt: 'f+' names no commit of the repository"),
            ({"commit": "main"}, "cannot be rebuilt: 'main' is not the full name of a commit"),
            ({"commit": "unknown"}, "from outside of a git repository: accept a run of a clean commit"),
            (
                {"commit": "unknown", "commit_problem": "git rev-parse: fatal: dubious"},
                r"git repository \(git rev-parse: fatal: dubious\): accept a run of a clean commit",
            ),
            ({"dirty": True}, "they come from a working tree with changes"),
        ],
        ids=str,
    )
    def test_reason_says_why_a_commit_cannot_be_rebuilt(
        self, environment: dict[str, object], says: str, repository: Repository, commit: Mapping[str, str]
    ) -> None:
        known = {"commit": commit["three"], **environment}
        kept = [accepted_run({CELL: s}, n, **known) for n, s in enumerate(AGREEING_S)]
        run, draft = checked(0.6, *kept, root=repository.path)
        assert rebuilt(run, draft) == {}
        assert judged(run).outcome is Outcome.INCONCLUSIVE
        assert re.search(says, judged(run).reason), judged(run).reason


class Rebuilding:
    """Tests that have the repository and its commits."""

    @pytest.fixture(autouse=True)
    def _known(self, repository: Repository, commit: dict[str, str]) -> None:
        self.root, self.commit = repository.path, commit


class TestRebuild(Rebuilding):
    """Which commits are rebuilt, and for which cells."""

    def test_newest_run_and_pin_are_rebuilt_before_anything_is_measured(self) -> None:
        kept = runs(*AGREEING_S, commits=list(self.commit.values()))
        run, draft = checked(0.6, *kept, root=self.root)
        assert rebuilt(run, draft) == {"base": self.commit["three"], "pinned": self.commit["one"]}
        comparison = accepted.rebuild(run, draft)
        assert (comparison.bases["base"].label, comparison.cells) == ("the accepted run run-2, rebuilt", (CELL,))
        unmeasured = run_of(CELL, config=settings(root=self.root), baseline=baseline(*kept))
        assert accepted.rebuild(unmeasured, results.to_record(unmeasured)) == comparison
        assert accepted.checks(unmeasured, results.to_record(unmeasured)) == {}, "a cell without a time is not compared"

    def test_each_of_several_pinned_commits_is_rebuilt_in_some_runs(self) -> None:
        """Pins never move: a choice of the one that most cells have would leave the others' drift unseen for good."""
        one, two, three = self.commit.values()
        late = {CELL: 0.5, OTHER: 0.5}
        kept = [accepted_run({CELL: 0.5}, 0, one), accepted_run(late, 1, two), accepted_run(late, 2, three)]
        drawn = set()
        for seed in range(10):
            run = run_of(CELL, OTHER, config=settings(root=self.root), baseline=baseline(*kept), seed=seed)
            comparison = accepted.rebuild(run, results.to_record(run))
            assert comparison.bases["base"].commit == three
            drawn.add((comparison.bases["pinned"].commit, comparison.apart))
        assert drawn == {(one, (OTHER,)), (two, (CELL,))}

    def test_pin_of_the_newest_commit_is_not_rebuilt_twice(self) -> None:
        run, draft = checked(0.6, *runs(*AGREEING_S, commits=[self.commit["three"]] * 3), root=self.root)
        assert rebuilt(run, draft) == {"base": self.commit["three"]}

    def test_bases_of_most_cells_are_rebuilt_and_other_cells_say_what_to_do(self) -> None:
        kept = [
            accepted_run({CELL: 0.5, cell(1): 1.0}, 0, self.commit["two"]),
            accepted_run({OTHER: 0.5}, 1, self.commit["three"]),
        ]
        run = run_of(OTHER, CELL, cell(1), config=settings(root=self.root), baseline=baseline(*kept))
        add_sessions(run, {OWN: 0.6, arm(2, "scratch"): 0.6, arm(1): 0.9})
        draft = results.to_record(run)
        assert rebuilt(run, draft) == {"base": self.commit["two"]}
        run.comparison = accepted.rebuild(run, draft)
        assert run.comparison.cells == (CELL, cell(1))
        other = cells_of(run)[0]
        assert other.outcome is Outcome.INCONCLUSIVE
        assert f"the commit of run run-1 was not measured here: run this cell by itself (-k {OTHER.id})" in other.reason
        assert run.comparison.apart == (OTHER,)

    def test_runs_of_one_commit_are_one_base(self) -> None:
        kept = [accepted_run({CELL: 0.5}, 0, self.commit["two"]), accepted_run({OTHER: 0.5}, 1, self.commit["two"])]
        run = run_of(CELL, OTHER, config=settings(root=self.root), baseline=baseline(*kept))
        comparison = accepted.rebuild(run, results.to_record(run))
        assert (list(comparison.bases), comparison.cells, comparison.apart) == (["base"], (CELL, OTHER), ())


class TestRebuiltCommits(Rebuilding):
    """What counts when the rebuilt commits were measured in the same sessions as the candidate."""

    def measured(
        self,
        kept: Sequence[AcceptedRun],
        bases: Mapping[Arm, float],
        own: float = 0.6,
        count: int = 4,
        **changes: object,
    ) -> CellRecord:
        """Return the cell after sessions in which candidate and bases took that many seconds a step."""
        run, draft = checked(own, *kept, root=self.root, **changes)
        run.comparison = accepted.rebuild(run, draft)
        assert set(run.comparison.bases) == {base.side for base in bases}
        add_sessions(run, {OWN: own, **bases}, count)
        return cells_of(run)[0]

    def newest(self, **changes: object) -> list[AcceptedRun]:
        """Return three accepted runs of the newest commit."""
        return runs(*AGREEING_S, commits=[self.commit["three"]] * 3, **changes)

    @pytest.mark.parametrize(("base", "own"), [(0.5, 0.6), (0.4, 0.48)], ids=["machine as before", "machine faster"])
    @pytest.mark.parametrize("versions", [VERSIONS, OLDER_TORCH], ids=["equal versions", "older torch"])
    def test_cell_slower_than_the_rebuilt_commit_fails(self, base: float, own: float, versions: dict[str, str]) -> None:
        result = self.measured(self.newest(versions=versions), {BASE: base}, own)
        assert result.outcome is Outcome.FAIL
        assert "slower than the base, " in result.reason

    def test_version_that_changed_since_the_newest_run_is_inconclusive(self) -> None:
        result = self.measured(self.newest(versions=OLDER_TORCH), {BASE: 0.6})
        assert result.outcome is Outcome.INCONCLUSIVE
        assert "torch changed from 2.14.0 to 2.15.0 since" in result.reason
        assert "compare with the older environment (--scaling-against=python:...)" in result.reason

    @pytest.mark.parametrize(
        ("then", "now", "outcome"),
        [
            ("570.1", "580.2", Outcome.INCONCLUSIVE),
            ("570.1", "570.1", Outcome.PASS),
            ("", "580.2", Outcome.PASS),
            ("570.1", "", Outcome.PASS),
        ],
    )
    def test_driver_that_changed_since_the_newest_run_is_inconclusive(
        self, then: str, now: str, outcome: Outcome
    ) -> None:
        kept = [run.model_copy(update={"driver": then}) for run in self.newest()]
        result = self.measured(kept, {BASE: 0.6}, machine=MACHINE.model_copy(update={"driver": now}))
        assert result.outcome is outcome
        assert ("driver changed from 570.1 to 580.2 since" in result.reason) is (outcome is Outcome.INCONCLUSIVE)

    def test_version_that_changed_before_the_newest_run_does_not_count(self) -> None:
        one, three = self.commit["one"], self.commit["three"]
        kept = [*runs(0.5, commits=[one], versions=OLDER_TORCH), *runs(0.501, 0.499, commits=[three, three])]
        assert self.measured(kept, {BASE: 0.6, PIN: 0.6}).outcome is Outcome.PASS

    def test_cell_slower_than_the_rebuilt_pin_fails(self) -> None:
        kept = runs(*AGREEING_S, commits=list(self.commit.values()))
        result = self.measured(kept, {BASE: 0.6, PIN: 0.5})
        assert {c.rule: c.outcome for c in result.checks if c.counts} == {"time": Outcome.PASS, "drift": Outcome.FAIL}
        assert result.outcome is Outcome.FAIL

    def test_newest_run_does_not_clear_a_pin_whose_commit_is_gone(self) -> None:
        """The build drifted: as fast as its newest accepted build, a fifth slower than the first one."""
        drifting = [0.5 * 1.015**week for week in range(15)]
        own = 0.5 * 1.015**15
        kept = runs(*drifting, commits=(GONE, *[self.commit["three"]] * 14))
        result = self.measured(kept, {BASE: own}, own)
        assert result.outcome is Outcome.INCONCLUSIVE
        assert [(c.rule, c.against) for c in result.checks if c.counts and c.outcome is Outcome.INCONCLUSIVE] == [
            ("stored", accepted.PINNED)
        ]
        assert "25.0% slower than the pinned run" in result.reason

    def test_pin_does_not_clear_a_newest_run_whose_commit_is_gone(self) -> None:
        """What was gained since the pin is lost again."""
        kept = [*runs(0.6, commits=[self.commit["one"]]), *runs(*AGREEING_S)]
        result = self.measured(kept, {PIN: 0.6})
        assert result.outcome is Outcome.INCONCLUSIVE
        assert [(c.rule, c.outcome) for c in result.checks if c.counts] == [
            ("drift", Outcome.PASS),
            ("stored", Outcome.INCONCLUSIVE),
        ]

    @pytest.mark.parametrize(
        ("base", "first", "outcome"),
        [(0.6, 0.6, Outcome.PASS), (0.5, 0.6, Outcome.FAIL), (0.6, 0.58, Outcome.PASS)],
        ids=["as fast as its base", "slower than its base", "slower than the stored time of its pin"],
    )
    def test_cell_whose_pin_another_run_draws_is_judged_against_the_newest_commit(
        self, base: float, first: float, outcome: Outcome
    ) -> None:
        """It was accepted later than the others, so it has another pinned commit."""
        one, two, three = self.commit.values()
        seconds = {CELL: 0.6, OTHER: first}
        kept = [accepted_run({CELL: 0.6}, 0, one), accepted_run(seconds, 1, two), accepted_run(seconds, 2, three)]
        run = run_of(CELL, OTHER, config=settings(root=self.root), baseline=baseline(*kept), seed=1)
        run.comparison = accepted.rebuild(run, results.to_record(run))
        assert run.comparison.cells == (CELL, OTHER)
        assert (run.comparison.sides[OTHER], run.comparison.apart) == (("base",), (OTHER,))
        late, late_base = arm(2, "scratch"), arm(2, "scratch", "base")
        add_sessions(run, {OWN: 0.6, BASE: 0.6, PIN: 0.6, late: 0.6, late_base: base})
        before, added = cells_of(run)
        assert (before.outcome, added.outcome) == (Outcome.PASS, outcome)
        [pinned] = [check for check in added.checks if check.against == accepted.PINNED]
        assert not pinned.counts
        assert (
            f"the commit of run run-1 was not measured here: run this cell by itself (-k {OTHER.id})" in pinned.reason
        )

    @pytest.mark.parametrize("versions", [VERSIONS, OLDER_TORCH], ids=["equal versions", "older torch"])
    def test_too_few_sessions_decide_nothing(self, versions: dict[str, str]) -> None:
        result = self.measured(self.newest(versions=versions), {BASE: 0.6}, count=2)
        assert result.outcome is Outcome.INCONCLUSIVE
        assert "is not slower" not in result.reason


class TestMachine(Rebuilding):
    """The accepted commit, rebuilt or checked out, keeps less of two devices than in accepted runs of this host."""

    ONE = cell(1)
    OWN_ONE, BASE_ONE = arm(1), arm(1, side="base")

    def kept(self, commit: str, count: int = 6, versions: dict[str, str] = VERSIONS) -> list[AcceptedRun]:
        """Return accepted runs of one commit, an hour apart, with an efficiency of .8."""
        kept = []
        for hour in range(count):
            made = accepted_run({self.ONE: 0.8, CELL: 0.5}, commit=commit, versions=versions)
            cells = [
                c.model_copy(update={"efficiency": 0.8 + hour / 500}) if c.world_size > 1 else c for c in made.cells
            ]
            kept.append(made.model_copy(update={"run_id": f"20261120T{hour:02}0000Z-abc", "cells": tuple(cells)}))
        return kept

    def judged(
        self, two_s: float, kept: Sequence[AcceptedRun], one_s: float = 0.8, **changes: object
    ) -> tuple[Observations, CellRecord]:
        """Return the run and its cell on two devices, where every step takes `two_s`, and `one_s` on one device."""
        run = run_of(self.ONE, CELL, config=settings(root=self.root, **changes), baseline=baseline(*kept))
        add_sessions(run, {OWN: two_s, self.OWN_ONE: one_s})
        run.comparison = accepted.rebuild(run, results.to_record(run))
        add_sessions(run, {OWN: two_s, BASE: two_s, self.OWN_ONE: one_s, self.BASE_ONE: one_s})
        run.stored = accepted.checks(run, results.to_record(run))
        return run, cells_of(run)[1]

    def test_code_is_as_fast_as_the_rebuilt_commit_and_the_machine_fails(self) -> None:
        run, two = self.judged(1.0, self.kept(self.commit["three"], versions=OLDER_TORCH))
        assert two.outcome is Outcome.FAIL
        assert two.reason.startswith(
            "the machine, not the code: the accepted commit has efficiency 0.40, and had 0.80 to"
        )
        assert "since then torch changed from 2.14.0 to 2.15.0" in two.reason
        assert {check.rule: check.outcome for check in two.checks}["time"] is Outcome.PASS
        assert "the machine, not the code" in lead.verdicts(results.to_record(run))[0]

    def test_accepted_runs_without_an_efficiency_are_too_little_history(self) -> None:
        """Such as those of `--scaling-world-sizes=2`, which measured nothing on one device."""
        one_s, two_s = 0.8, 0.5
        kept = runs(*[two_s] * 6, commits=[self.commit["three"]] * 6)
        run, two = self.judged(two_s, kept, one_s)
        assert two.outcome is Outcome.PASS
        [shown] = [fact.lines for fact in lead.facts(results.to_record(run)) if fact.name == "The machine"]
        assert "0 accepted run(s) of this host, an hour or more apart, have it: 5 are needed" in shown[0]

    @pytest.mark.parametrize("two_s", [0.5, 0.505])
    def test_one_device_that_became_faster_is_a_warning_and_no_failure(self, two_s: float) -> None:
        """The efficiency is half of what it was, and nothing takes longer."""
        _, two = self.judged(two_s, self.kept(self.commit["three"]), one_s=0.4)
        assert two.outcome is Outcome.PASS
        assert two.cautions[0].startswith(
            "gap widened, nothing slower: the accepted commit has efficiency 0.40, and had 0.80 to"
        )
        _, two = self.judged(0.52, self.kept(self.commit["three"]), one_s=0.4)
        assert (two.outcome, two.cautions) == (Outcome.FAIL, ())

    @pytest.mark.parametrize("lost", [BASE, BASE_ONE], ids=["on two devices", "on one device"])
    @pytest.mark.parametrize("sessions", [0, 1], ids=["it cannot be checked out", "it fails later"])
    def test_candidate_of_the_accepted_commit_shows_the_machine_where_the_checkout_of_it_fails(
        self, lost: Arm, sessions: int
    ) -> None:
        kept, now = self.kept(self.commit["three"]), {OWN: 1.0, self.OWN_ONE: 0.8}
        config = settings(root=self.root)
        run = run_of(self.ONE, CELL, config=config, baseline=baseline(*kept), commit=self.commit["three"])
        run.comparison = accepted.rebuild(run, results.to_record(run))
        add_sessions(run, {**now, BASE: 1.0, self.BASE_ONE: 0.8}, sessions)
        add_sessions(run, now)
        run.lost[lost] = WorkerFailure("base", "it does not build")
        two = cells_of(run)[1]
        assert two.outcome is Outcome.FAIL
        assert "the machine, not the code: the accepted commit has efficiency 0.40, and had 0.80 to" in two.reason

    def test_two_ranks_on_one_card_are_not_judged_by_accepted_runs_on_two(self) -> None:
        shared = Devices("cuda", ("cuda:0", "cuda:0"), ())
        _, two = self.judged(1.0, self.kept(self.commit["three"]), devices=shared)
        assert (two.outcome, two.checks) == (Outcome.NO_BASELINE, ())
        of_one_card = [
            run.model_copy(update={"cells": tuple(c.model_copy(update={"oversubscribed": True}) for c in run.cells)})
            for run in runs(*AGREEING_S, commits=[self.commit["three"]] * 3)
        ]
        _, two = self.judged(1.0, of_one_card, devices=shared)
        assert two.outcome is Outcome.PASS
        assert "machine" not in {check.rule for check in two.checks}

    @pytest.mark.parametrize(("two_s", "count"), [(0.494, 6), (1.0, 4)], ids=["as it was", "too little history"])
    def test_what_is_no_failure_of_the_machine_changes_no_outcome(self, two_s: float, count: int) -> None:
        run, two = self.judged(two_s, self.kept(self.commit["three"], count))
        assert two.outcome is Outcome.PASS
        [check] = [check for check in two.checks if check.rule == "machine"]
        assert not check.counts
        shown = [fact.lines for fact in lead.facts(results.to_record(run)) if fact.name == "The machine"]
        few = "4 accepted run(s) of this host, an hour or more apart, have it: 5 are needed"
        assert shown == ([] if count >= 5 else [(f"INCONCLUSIVE by ddp-lenet-strong-2: {few}",)])

    @pytest.mark.parametrize(
        ("commit", "dirty", "outcome"),
        [(COMMIT, False, Outcome.FAIL), (COMMIT, True, Outcome.INCONCLUSIVE), (GONE, False, Outcome.INCONCLUSIVE)],
        ids=["the accepted commit", "with changes", "another commit"],
    )
    def test_on_several_hosts_the_accepted_commit_itself_shows_the_machine(
        self, commit: str, dirty: bool, outcome: Outcome
    ) -> None:
        """No commit is rebuilt there, but the one that is checked out is measured."""
        config = settings(devices=Devices("cpu", ("cpu", "cpu"), (0,), hosts=2))
        known = baseline(*self.kept(COMMIT))
        run = run_of(self.ONE, CELL, config=config, baseline=known, commit=commit, dirty=dirty)
        add_sessions(run, {OWN: 0.6, self.OWN_ONE: 0.48})
        two = cells_of(run)[1]
        assert two.outcome is outcome
        assert ("the machine, not the code: the accepted commit has efficiency 0.40" in two.reason) is (
            outcome is Outcome.FAIL
        )
        [stored] = [check for check in two.checks if check.rule == "stored"]
        assert "measure a base in the same run (--scaling-against=module:Class)" in stored.reason

    @pytest.mark.parametrize(
        ("side", "one_s", "names"),
        [("candidate", 0.48, True), ("base", 0.48, False), ("candidate", 0.97, False)],
        ids=["exchange grew", "another commit's exchange grew", "the machine does not fail"],
    )
    def test_part_that_grew_since_accepted_runs_is_the_cause(self, side: str, one_s: float, names: bool) -> None:
        def taken_apart(run: AcceptedRun) -> AcceptedRun:
            parts = {"parts": {"exchange": 0.2, "feed": 0.0}}
            return run.model_copy(update={"cells": tuple(cell.model_copy(update=parts) for cell in run.cells)})

        config = settings(devices=Devices("cpu", ("cpu", "cpu"), (0,), hosts=2))
        run = run_of(self.ONE, CELL, config=config, baseline=baseline(*map(taken_apart, self.kept(COMMIT))))
        add_sessions(run, {OWN: 0.6, self.OWN_ONE: one_s})
        bars = [
            {"causes": [name], "step_s": {"estimate": s, "low": s - half, "high": s + half}}
            for name, s, half in (("exchange", 0.30, 0.02), ("feed", 0.0, 0.01))
        ]
        ends = {"ideal_s": {"estimate": 0.24}, "measured_s": {"estimate": 0.54}}
        fall = WaterfallRecord.model_validate({"side": side, "sessions": 4, "bars": bars, "sentence": "", **ends})
        draft = results.to_record(run)
        one, two = draft.cells
        draft = draft.model_copy(update={"cells": (one, two.model_copy(update={"waterfalls": (fall,)}))})
        [check] = [check for check in accepted.checks(run, draft)[CELL] if check.rule == "machine"]
        grew = "accepted runs: at least 49.0% less (99% confidence); cause: exchange, which takes 105%"
        assert (grew in check.reason) is ("cause" in check.reason) is names
