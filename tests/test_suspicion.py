"""A cell that accepted runs of other times do not clear: what is rebuilt, and what counts afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.base import suspicion
from suite.baselines import AcceptedRun
from suite.failure import WorkerFailure
from suite.record import CellRecord, Record
from suite.run import results
from suite.run.measurement import Measurement
from suite.verdict import Outcome
from tests.measurements import (
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
from tests.repositories import Repository

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


def suspected(
    seconds: float, *accepted: AcceptedRun, root: Path = Path(), **changes: object
) -> tuple[Measurement, Record]:
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


def judged(run: Measurement) -> CellRecord:
    [found] = results.to_record(run).cells
    return found


class TestHeldAgainstStored:
    """The verdict of accepted runs alone."""

    @pytest.mark.parametrize("seconds", [0.25, 0.5, 5.0], ids=["faster", "the same", "slower"])
    def test_a_single_accepted_run_passes_nothing_and_says_what_to_do(self, seconds: float) -> None:
        run, _ = suspected(seconds, *runs(0.5))
        assert judged(run).outcome is Outcome.INCONCLUSIVE
        assert judged(run).reason.endswith("accept more runs, or measure a base in the same run (--scaling-against)")

    @pytest.mark.parametrize(("seconds", "outcome"), [(0.5, Outcome.PASS), (0.4, Outcome.PASS), (0.6, Outcome.FAIL)])
    def test_three_that_agree_decide(self, seconds: float, outcome: Outcome) -> None:
        run, draft = suspected(seconds, *runs(0.5, 0.501, 0.499))
        assert judged(run).outcome is outcome
        assert [(c.rule, c.against) for c in judged(run).checks] == [
            ("stored", "accepted runs"),
            ("stored", "the pinned run"),
        ]
        assert suspicion.suspects(run, draft) == ({}, []), "their commit is gone"

    def test_what_creeps_is_seen_against_the_pin(self) -> None:
        """Each run 1.5 % slower than the one before; the newest nine have long forgotten the first."""
        creeping = [0.5 * 1.015**week for week in range(15)]
        run, _ = suspected(0.5 * 1.015**15, *runs(*creeping))
        level, pin = judged(run).checks
        assert level.outcome is not Outcome.FAIL
        assert pin.outcome is Outcome.FAIL
        assert judged(run).outcome is Outcome.FAIL

    def test_a_calibration_may_suspect_with_fewer_runs_and_never_pass(self) -> None:
        known = calibrated(0.01, CELL)
        assert judged(suspected(0.6, *runs(0.5), calibration=known)[0]).outcome is Outcome.FAIL
        assert judged(suspected(0.5, *runs(0.5), calibration=known)[0]).outcome is Outcome.INCONCLUSIVE
        foreign = calibrated(0.01, CELL, host="another")
        assert judged(suspected(0.6, *runs(0.5), calibration=foreign)[0]).outcome is Outcome.INCONCLUSIVE

    def test_a_cell_nobody_accepted_has_no_baseline(self) -> None:
        run, draft = suspected(0.5, accepted_run({OTHER: 0.5}))
        assert (judged(run).outcome, run.stored) == (Outcome.NO_BASELINE, {})
        assert suspicion.suspects(run, draft) == ({}, [])

    def test_a_cell_that_failed_is_an_error_and_no_suspect(self) -> None:
        run = measurement(CELL, baseline=baseline(*runs(0.5, 0.5, 0.5)))
        run.lost[OWN] = WorkerFailure("g", "rank 0: gone")
        suspicion.hold_against_stored(run, results.to_record(run))
        assert (judged(run).outcome, run.stored) == (Outcome.ERROR, {})


class TestSuspects:
    """Which commits are rebuilt, and for which cells."""

    def test_the_newest_and_the_pin(self, repository: Repository) -> None:
        one, two, three = (commit(repository, tag) for tag in ("one", "two", "three"))
        run, draft = suspected(0.6, *runs(0.5, 0.501, 0.499, commits=(one, two, three)), root=repository.path)
        bases, chosen = suspicion.suspects(run, draft)
        assert {side: (base.kind, base.commit) for side, base in bases.items()} == {
            "base": ("ref", three),
            "pinned": ("ref", one),
        }
        assert bases["base"].label == "the accepted run run-2, rebuilt"
        assert chosen == [CELL]

    def test_a_single_run_is_rebuilt_because_it_passes_nothing(self, repository: Repository) -> None:
        three = commit(repository, "three")
        run, draft = suspected(0.5, *runs(0.5, commits=(three,)), root=repository.path)
        assert {side: base.commit for side, base in suspicion.suspects(run, draft)[0].items()} == {"base": three}

    def test_one_commit_is_rebuilt_once(self, repository: Repository) -> None:
        three = commit(repository, "three")
        run, draft = suspected(0.6, *runs(0.5, 0.501, 0.499, commits=(three,) * 3), root=repository.path)
        assert {side: base.commit for side, base in suspicion.suspects(run, draft)[0].items()} == {"base": three}

    def test_what_passes_is_no_suspect(self, repository: Repository) -> None:
        three = commit(repository, "three")
        run, draft = suspected(0.5, *runs(0.5, 0.501, 0.499, commits=(three,) * 3), root=repository.path)
        assert suspicion.suspects(run, draft) == ({}, [])

    @pytest.mark.parametrize("environment", [{"commit": GONE}, {"commit": "unknown"}, {"dirty": True}], ids=str)
    def test_what_cannot_be_rebuilt_keeps_its_stored_verdict(
        self, environment: dict[str, object], repository: Repository
    ) -> None:
        three = commit(repository, "three")
        kept = [
            accepted_run({CELL: s}, n, **{"commit": three, **environment}) for n, s in enumerate((0.5, 0.501, 0.499))
        ]
        run, draft = suspected(0.6, *kept, root=repository.path)
        assert suspicion.suspects(run, draft) == ({}, [])
        assert judged(run).outcome is Outcome.FAIL

    def test_outside_of_a_repository_nothing_is_rebuilt(self, tmp_path: Path) -> None:
        run, draft = suspected(0.6, *runs(0.5, 0.501, 0.499), root=tmp_path)
        assert suspicion.suspects(run, draft) == ({}, [])

    def test_cells_of_other_commits_wait_for_another_run(self, repository: Repository) -> None:
        """Each cell's newest run is of its own commit; those of the first are rebuilt, a third has passed."""
        two, three = commit(repository, "two"), commit(repository, "three")
        passed = cell(1)
        newest = [accepted_run({CELL: 0.5, passed: 1.0}, n, two) for n in range(3)]
        run = measurement(
            CELL,
            OTHER,
            passed,
            config=settings(root=repository.path),
            baseline=baseline(*newest, *[accepted_run({OTHER: 0.5}, n, three) for n in (3, 4, 5)]),
        )
        add_sessions(run, {OWN: 0.6, arm(2, "scratch"): 0.6, arm(1): 0.9})
        draft = results.to_record(run)
        suspicion.hold_against_stored(run, draft)
        bases, chosen = suspicion.suspects(run, draft)
        assert ({base.commit for base in bases.values()}, chosen) == ({two}, [CELL])


class TestSuperseded:
    """What counts when the rebuilt commits were measured beside the candidate."""

    def beside(
        self, repository: Repository, base: float, *, pinned: float | None = None, own: float = 0.6, **changes: object
    ) -> CellRecord:
        """Judged when the rebuilt ones took so long: the newest run is of commit three, the pin of one or three."""
        tags = ("three" if pinned is None else "one", "two", "three")
        kept = runs(0.5, 0.501, 0.499, commits=tuple(commit(repository, tag) for tag in tags), **changes)
        run, draft = suspected(own, *kept, root=repository.path)
        run.bases, run.beside = suspicion.suspects(run, draft)
        run.alone = len(run.sessions)
        add_sessions(run, {OWN: own, BASE: base} if pinned is None else {OWN: own, BASE: base, PIN: pinned})
        suspicion.supersede(run, draft)
        return judged(run)

    def test_as_fast_as_the_rebuilt_commit_clears_the_cell(self, repository: Repository) -> None:
        """The machine became slower, not the build."""
        found = self.beside(repository, 0.6)
        assert found.outcome is Outcome.PASS
        assert [(c.rule, c.counts) for c in found.checks] == [("time", True), ("stored", False), ("stored", False)]

    def test_slower_than_the_rebuilt_commit_is_a_fail(self, repository: Repository) -> None:
        found = self.beside(repository, 0.5)
        assert found.outcome is Outcome.FAIL
        assert "than the base, surely not equal" in found.reason

    def test_a_changed_torch_stays_in_doubt_and_is_named(self, repository: Repository) -> None:
        found = self.beside(repository, 0.6, versions=OLDER_TORCH)
        assert found.outcome is Outcome.INCONCLUSIVE
        assert "torch changed from 2.14.0 to 2.15.0 since" in found.reason
        assert "compare with the older environment (--scaling-against python:...)" in found.reason

    def test_a_changed_torch_excuses_no_slower_code(self, repository: Repository) -> None:
        assert self.beside(repository, 0.5, versions=OLDER_TORCH).outcome is Outcome.FAIL

    def test_a_version_of_long_ago_is_no_change_since_the_newest_run(self, repository: Repository) -> None:
        three = commit(repository, "three")
        kept = [*runs(0.5, versions=OLDER_TORCH), *runs(0.501, 0.499, commits=(three, three))]
        run, draft = suspected(0.6, *kept, root=repository.path)
        run.bases, run.beside = suspicion.suspects(run, draft)
        add_sessions(run, {OWN: 0.6, BASE: 0.6})
        suspicion.supersede(run, draft)
        assert [c.counts for c in run.stored[CELL] if c.against == suspicion.ACCEPTED] == [False]

    def test_slower_than_the_rebuilt_pin_is_a_fail_whatever_the_newest_says(self, repository: Repository) -> None:
        found = self.beside(repository, 0.6, pinned=0.5)
        assert {c.rule: c.outcome for c in found.checks if c.counts} == {"time": Outcome.PASS, "drift": Outcome.FAIL}
        assert found.outcome is Outcome.FAIL

    def test_a_pin_whose_commit_is_gone_is_not_cleared_by_the_newest_run(self, repository: Repository) -> None:
        """It crept: as fast as its newest accepted build, a fifth slower than the first one."""
        creeping = [0.5 * 1.015**week for week in range(15)]
        own = 0.5 * 1.015**15
        kept = runs(*creeping, commits=(GONE, *[commit(repository, "three")] * 14))
        run, draft = suspected(own, *kept, root=repository.path)
        run.bases, run.beside = suspicion.suspects(run, draft)
        assert list(run.bases) == ["base"]
        add_sessions(run, {OWN: own, BASE: own})
        suspicion.supersede(run, draft)
        assert judged(run).outcome is Outcome.FAIL
        assert [c.against for c in judged(run).checks if c.counts and c.outcome is Outcome.FAIL] == [suspicion.PINNED]

    def test_a_newest_run_whose_commit_is_gone_is_not_cleared_by_the_pin(self, repository: Repository) -> None:
        """What was gained since the pin is lost again."""
        kept = [*runs(0.6, commits=(commit(repository, "one"),)), *runs(0.5, 0.501, 0.499)]
        run, draft = suspected(0.6, *kept, root=repository.path)
        run.bases, run.beside = suspicion.suspects(run, draft)
        assert list(run.bases) == ["pinned"]
        add_sessions(run, {OWN: 0.6, PIN: 0.6})
        suspicion.supersede(run, draft)
        assert judged(run).outcome is Outcome.INCONCLUSIVE
        assert [(c.rule, c.outcome) for c in judged(run).checks if c.counts] == [
            ("drift", Outcome.PASS),
            ("stored", Outcome.INCONCLUSIVE),
        ]

    def test_a_base_that_does_not_build_leaves_the_stored_verdict(self, repository: Repository) -> None:
        three = commit(repository, "three")
        run, draft = suspected(0.6, *runs(0.5, 0.501, 0.499, commits=(three,) * 3), root=repository.path)
        run.bases, run.beside = suspicion.suspects(run, draft)
        run.lost[BASE] = WorkerFailure("base", "rank 0: SyntaxError: invalid syntax")
        suspicion.supersede(run, draft)
        found = judged(run)
        assert found.outcome is Outcome.FAIL
        assert found.reason.endswith("its commit could not be rebuilt: rank 0: SyntaxError: invalid syntax")

    @pytest.mark.parametrize("versions", [VERSIONS, OLDER_TORCH], ids=["same", "older torch"])
    def test_too_few_sessions_beside_it_decide_nothing_and_claim_nothing(
        self, versions: dict[str, str], repository: Repository
    ) -> None:
        three = commit(repository, "three")
        kept = runs(0.5, 0.501, 0.499, commits=(three,) * 3, versions=versions)
        run, draft = suspected(0.6, *kept, root=repository.path)
        run.bases, run.beside = suspicion.suspects(run, draft)
        add_sessions(run, {OWN: 0.6, BASE: 0.6}, count=2)
        suspicion.supersede(run, draft)
        assert judged(run).outcome is Outcome.INCONCLUSIVE
        assert "is not slower" not in judged(run).reason
