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
from suite.records.record import CellRecord, Record
from suite.run import results, suspicion
from suite.run.observations import Observations
from suite.verdict import Outcome
from tests.support.measurements import (
    MACHINE,
    VERSIONS,
    accepted_run,
    add_sessions,
    arm,
    baseline,
    calibrated,
    cell,
    measurement,
    settings,
)
from tests.support.repositories import Repository

CELL, OTHER = cell(2), cell(2, "scratch")
OWN, BASE, PIN = arm(2), arm(2, side="base"), arm(2, side="pinned")
GONE = "f" * 40
OLDER_TORCH = {**VERSIONS, "torch": "2.14.0"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Three commits, tagged one, two and three."""
    made = Repository(tmp_path_factory.mktemp("repository") / "project")
    for name in ("one", "two", "three"):
        made.commit({"a.py": f"{name} = 1\n"})
        made.git("tag", name)
    return made


def commit(repository: Repository, tag: str) -> str:
    return repository.git("rev-parse", tag)


def held(seconds: float, *accepted: AcceptedRun, root: Path = Path(), **changes: object) -> tuple[Observations, Record]:
    """A run of one cell that takes so long a step, held against accepted runs; and its record without a verdict."""
    run = measurement(CELL, config=settings(root=root), baseline=baseline(*accepted), **changes)
    add_sessions(run, {OWN: seconds})
    draft = results.to_record(run)
    suspicion.hold_against_stored(run, draft)
    return run, draft


def runs(*seconds: float, commits: tuple[str, ...] = (), **changes: object) -> list[AcceptedRun]:
    """One accepted run for each, oldest first; of the commits given, and of one that is gone where there are fewer."""
    known = [*commits, *[GONE] * len(seconds)]
    return [accepted_run({CELL: s}, n, c, **changes) for n, (s, c) in enumerate(zip(seconds, known, strict=False))]


def judged(run: Observations) -> CellRecord:
    [found] = results.to_record(run).cells
    return found


def rebuilt(run: Observations, draft: Record) -> dict[str, str | None]:
    """The commit of each base that would be rebuilt."""
    return {side: base.commit for side, base in suspicion.rebuild(run, draft).bases.items()}


class TestStoredFiguresAlone:
    """They are shown, and neither pass nor fail a cell."""

    @pytest.mark.parametrize("accepted", [(0.5,), (0.5, 0.501, 0.499)], ids=["one run", "three that agree"])
    @pytest.mark.parametrize("seconds", [0.25, 0.5, 5.0], ids=["faster", "the same", "slower"])
    @pytest.mark.parametrize("calibration", [None, calibrated(0.01, CELL)], ids=["", "calibrated"])
    def test_nothing_passes_and_nothing_fails(
        self, seconds: float, accepted: tuple[float, ...], calibration: Calibration | None
    ) -> None:
        run, _ = held(seconds, *runs(*accepted), calibration=calibration)
        assert judged(run).outcome is Outcome.INCONCLUSIVE
        assert "measure a base in the same run (--scaling-against=REF)" in judged(run).reason

    def test_the_ratio_is_shown_with_its_interval(self) -> None:
        run, draft = held(0.6, *runs(0.5, 0.501, 0.499))
        level, pin = judged(run).checks
        assert [(c.rule, c.against, c.counts) for c in (level, pin)] == [
            ("stored", "accepted runs", True),
            ("stored", "the pinned run", True),
        ]
        for check in (level, pin):
            assert check.ratio is not None
            assert check.ratio.low is not None
            assert 1.18 < check.ratio.low < check.ratio.estimate < 1.22
        assert level.reason.startswith("20.0% slower than the 3 accepted run(s) (95 %: ")
        assert suspicion.rebuild(run, draft) == ({}, []), "their commit is gone"

    def test_one_run_gives_an_interval_where_this_host_was_calibrated(self) -> None:
        for host, known in ((MACHINE.host, True), ("another", False)):
            run, _ = held(0.6, *runs(0.5), calibration=calibrated(0.01, CELL, host=host))
            [check] = judged(run).checks
            assert check.ratio is not None
            assert (check.ratio.low is not None) is known

    def test_a_cell_nobody_accepted_has_no_baseline(self) -> None:
        run, draft = held(0.5, accepted_run({OTHER: 0.5}))
        assert (judged(run).outcome, run.stored) == (Outcome.NO_BASELINE, {})
        assert suspicion.rebuild(run, draft) == ({}, [])

    def test_a_cell_that_failed_is_an_error(self) -> None:
        run = measurement(CELL, baseline=baseline(*runs(0.5, 0.5, 0.5)))
        run.lost[OWN] = WorkerFailure("g", "rank 0: gone")
        suspicion.hold_against_stored(run, results.to_record(run))
        assert (judged(run).outcome, run.stored) == (Outcome.ERROR, {})

    @pytest.mark.parametrize(
        ("environment", "says"),
        [
            ({"commit": GONE}, "the commit of run run-2 cannot be rebuilt: 'f+' names no commit of the repository"),
            ({"commit": "main"}, "cannot be rebuilt: 'main' is not the full name of a commit"),
            ({"commit": "unknown"}, "from outside of a git repository: accept a run of a clean commit"),
            ({"dirty": True}, "they come from a working tree with changes"),
        ],
        ids=str,
    )
    def test_what_cannot_be_rebuilt_stays_open_and_says_why(
        self, environment: dict[str, object], says: str, repository: Repository
    ) -> None:
        known = {"commit": commit(repository, "three"), **environment}
        kept = [accepted_run({CELL: s}, n, **known) for n, s in enumerate((0.5, 0.501, 0.499))]
        run, draft = held(0.6, *kept, root=repository.path)
        assert rebuilt(run, draft) == {}
        assert judged(run).outcome is Outcome.INCONCLUSIVE
        assert re.search(says, judged(run).reason), judged(run).reason

    def test_outside_of_a_repository_it_says_so(self, tmp_path: Path) -> None:
        run, draft = held(0.6, *runs(0.5, 0.501, 0.499), root=tmp_path)
        assert rebuilt(run, draft) == {}
        assert "is not inside the working tree of a git repository" in judged(run).reason


class TestRebuild:
    """Which commits are rebuilt, and for which cells; known before anything is measured."""

    @pytest.mark.parametrize("seconds", [0.5, 0.6], ids=["as fast", "slower"])
    def test_the_newest_and_the_pin_whatever_the_times_are(self, seconds: float, repository: Repository) -> None:
        one, two, three = (commit(repository, tag) for tag in ("one", "two", "three"))
        kept = runs(0.5, 0.501, 0.499, commits=(one, two, three))
        run, draft = held(seconds, *kept, root=repository.path)
        assert rebuilt(run, draft) == {"base": three, "pinned": one}
        bases, cells = suspicion.rebuild(run, draft)
        assert (bases["base"].label, cells) == ("the accepted run run-2, rebuilt", [CELL])
        unmeasured = measurement(CELL, config=settings(root=repository.path), baseline=baseline(*kept))
        assert suspicion.rebuild(unmeasured, results.to_record(unmeasured)) == (bases, cells)

    def test_one_commit_is_rebuilt_once(self, repository: Repository) -> None:
        three = commit(repository, "three")
        assert rebuilt(*held(0.6, *runs(0.5, 0.501, 0.499, commits=(three,) * 3), root=repository.path)) == {
            "base": three
        }

    def test_the_commits_of_most_cells_are_rebuilt_and_the_others_say_what_to_do(self, repository: Repository) -> None:
        two, three = commit(repository, "two"), commit(repository, "three")
        one_device = cell(1)
        run = measurement(
            OTHER,
            CELL,
            one_device,
            config=settings(root=repository.path),
            baseline=baseline(accepted_run({CELL: 0.5, one_device: 1.0}, 0, two), accepted_run({OTHER: 0.5}, 1, three)),
        )
        add_sessions(run, {OWN: 0.6, arm(2, "scratch"): 0.6, arm(1): 0.9})
        draft = results.to_record(run)
        run.bases, run.beside = suspicion.rebuild(run, draft)
        assert ({base.commit for base in run.bases.values()}, run.beside) == ({two}, [CELL, one_device])
        suspicion.hold_against_stored(run, draft)
        other = results.to_record(run).cells[0]
        assert other.outcome is Outcome.INCONCLUSIVE
        assert f"the commit of run run-1 was not measured here: run this cell by itself (-k {OTHER.id})" in other.reason


class TestBeside:
    """What counts when the rebuilt commits were measured beside the candidate."""

    def beside(
        self, repository: Repository, base: float, *, pinned: float | None = None, own: float = 0.6, **changes: object
    ) -> CellRecord:
        """Judged when the rebuilt ones took so long: the newest run is of commit three, the pin of one or three."""
        tags = ("three" if pinned is None else "one", "two", "three")
        kept = runs(0.5, 0.501, 0.499, commits=tuple(commit(repository, tag) for tag in tags), **changes)
        return self.measured(repository, kept, {BASE: base} if pinned is None else {BASE: base, PIN: pinned}, own)

    def measured(
        self,
        repository: Repository,
        kept: Sequence[AcceptedRun],
        bases: Mapping[Arm, float],
        own: float = 0.6,
        count: int = 4,
    ) -> CellRecord:
        run, draft = held(own, *kept, root=repository.path)
        run.bases, run.beside = suspicion.rebuild(run, draft)
        assert set(run.bases) == {base.side for base in bases}
        run.alone = len(run.sessions)
        add_sessions(run, {OWN: own, **bases}, count)
        suspicion.hold_against_stored(run, results.to_record(run))
        return judged(run)

    def test_as_fast_as_the_rebuilt_commit_clears_the_cell(self, repository: Repository) -> None:
        """The machine became slower, not the build."""
        found = self.beside(repository, 0.6)
        assert found.outcome is Outcome.PASS
        assert [(c.rule, c.counts) for c in found.checks] == [("time", True), ("stored", False), ("stored", False)]
        assert found.checks[1].reason.endswith("what was measured beside its rebuilt commit decides")

    def test_slower_than_the_rebuilt_commit_is_a_fail(self, repository: Repository) -> None:
        """Also where the stored figures saw nothing, because the machine became faster."""
        for base, own in ((0.5, 0.6), (0.4, 0.48)):
            found = self.beside(repository, base, own=own)
            assert found.outcome is Outcome.FAIL
            assert "than the base, at least" in found.reason

    def test_a_changed_torch_stays_in_doubt_and_is_named(self, repository: Repository) -> None:
        found = self.beside(repository, 0.6, versions=OLDER_TORCH)
        assert found.outcome is Outcome.INCONCLUSIVE
        assert "torch changed from 2.14.0 to 2.15.0 since" in found.reason
        assert "compare with the older environment (--scaling-against=python:...)" in found.reason

    def test_a_changed_torch_excuses_no_slower_code(self, repository: Repository) -> None:
        assert self.beside(repository, 0.5, versions=OLDER_TORCH).outcome is Outcome.FAIL

    def test_a_version_of_long_ago_is_no_change_since_the_newest_run(self, repository: Repository) -> None:
        one, three = commit(repository, "one"), commit(repository, "three")
        kept = [*runs(0.5, commits=(one,), versions=OLDER_TORCH), *runs(0.501, 0.499, commits=(three, three))]
        assert self.measured(repository, kept, {BASE: 0.6, PIN: 0.6}).outcome is Outcome.PASS

    def test_slower_than_the_rebuilt_pin_is_a_fail_whatever_the_newest_says(self, repository: Repository) -> None:
        found = self.beside(repository, 0.6, pinned=0.5)
        assert {c.rule: c.outcome for c in found.checks if c.counts} == {"time": Outcome.PASS, "drift": Outcome.FAIL}
        assert found.outcome is Outcome.FAIL

    def test_a_pin_whose_commit_is_gone_is_not_cleared_by_the_newest_run(self, repository: Repository) -> None:
        """It may have crept: as fast as its newest accepted build, a fifth slower than the first one."""
        creeping = [0.5 * 1.015**week for week in range(15)]
        own = 0.5 * 1.015**15
        kept = runs(*creeping, commits=(GONE, *[commit(repository, "three")] * 14))
        found = self.measured(repository, kept, {BASE: own}, own)
        assert found.outcome is Outcome.INCONCLUSIVE
        assert [(c.rule, c.against) for c in found.checks if c.counts and c.outcome is Outcome.INCONCLUSIVE] == [
            ("stored", suspicion.PINNED)
        ]
        assert "25.0% slower than the pinned run" in found.reason

    def test_a_newest_run_whose_commit_is_gone_is_not_cleared_by_the_pin(self, repository: Repository) -> None:
        """What was gained since the pin is lost again."""
        kept = [*runs(0.6, commits=(commit(repository, "one"),)), *runs(0.5, 0.501, 0.499)]
        found = self.measured(repository, kept, {PIN: 0.6})
        assert found.outcome is Outcome.INCONCLUSIVE
        assert [(c.rule, c.outcome) for c in found.checks if c.counts] == [
            ("drift", Outcome.PASS),
            ("stored", Outcome.INCONCLUSIVE),
        ]

    def test_a_base_that_does_not_build_leaves_the_cell_open(self, repository: Repository) -> None:
        three = commit(repository, "three")
        run, draft = held(0.6, *runs(0.5, 0.501, 0.499, commits=(three,) * 3), root=repository.path)
        run.bases, run.beside = suspicion.rebuild(run, draft)
        run.lost[BASE] = WorkerFailure("base", "rank 0: SyntaxError: invalid syntax")
        suspicion.hold_against_stored(run, draft)
        found = judged(run)
        assert found.outcome is Outcome.INCONCLUSIVE
        assert "the commit of run run-2 could not be measured: rank 0: SyntaxError: invalid syntax" in found.reason

    @pytest.mark.parametrize("versions", [VERSIONS, OLDER_TORCH], ids=["same", "older torch"])
    def test_too_few_sessions_beside_it_decide_nothing_and_claim_nothing(
        self, versions: dict[str, str], repository: Repository
    ) -> None:
        kept = runs(0.5, 0.501, 0.499, commits=(commit(repository, "three"),) * 3, versions=versions)
        found = self.measured(repository, kept, {BASE: 0.6}, count=2)
        assert found.outcome is Outcome.INCONCLUSIVE
        assert "is not slower" not in found.reason
