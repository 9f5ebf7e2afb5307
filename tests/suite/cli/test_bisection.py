"""A whole bisection: its error is bounded, its ends and its answer are measured, and git's tree is as it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from docs.evidence.bisection import SLOW_MODES, SPREADS, Line, judge, step, whole
from suite.base.git import GitError
from suite.cli import bisection
from suite.cli.bisection import ABORT, BAD, ERROR, GOOD, SKIP, GitHistory, find
from suite.cli.command import Stop
from suite.verdict import ALPHA_FAIL, ALPHA_PASS
from tests.support.rates import exceeds
from tests.support.repositories import Repository


def ends(spread: str, slower: float, count: int) -> list[str]:
    """What came of so many simulated bisections of 100 commits, judged by the rule that judges runs."""
    rng = np.random.default_rng(1)
    return [whole(step(rng, 100, np.log1p(slower)), judge(rng, SPREADS[spread], 8))[0] for _ in range(count)]


@pytest.mark.parametrize(("spread", "slower"), [("sessions 1 %", 0.05), ("sessions 3 %", 0.10), (SLOW_MODES, 0.05)])
def test_a_wrong_commit_is_named_as_rarely_as_promised(spread: str, slower: float) -> None:
    assert not exceeds(ends(spread, slower, 40).count("wrong"), 40, ALPHA_PASS)


def test_a_quiet_machine_has_an_answer() -> None:
    assert ends("sessions 1 %", 0.10, 20).count("right") >= 18


@pytest.mark.parametrize(("shared", "kept"), [(True, True), (False, False)])
def test_the_promise_holds_where_every_error_repeats_and_only_where_runs_share_it(shared: bool, kept: bool) -> None:
    """A second measurement of the answer is no help then, so the levels alone have to keep the promise."""
    rng, wrong, count = np.random.default_rng(2), 0, 500
    for _ in range(count):
        line, said = step(rng, 500, 0.10), dict[str, int]()

        def measure(commit: str, runs: int, line: Line = line, said: dict[str, int] = said) -> int:
            slow = line.deltas[commit] > 0
            error = rng.random() < (ALPHA_PASS if slow else ALPHA_FAIL) / (runs if shared else 1)
            return said.setdefault(commit, BAD if slow is not error else GOOD)

        try:
            answer = find(line, measure, lambda text: None)
        except Stop:
            continue
        wrong += line.deltas[answer] <= 0 or line.deltas[line.parent(answer)] > 0
    assert exceeds(wrong, count, ALPHA_PASS) is not kept


@pytest.mark.parametrize("commits", [1, 2, 3, 5, 8, 9, 100])
def test_the_right_commit_is_found_in_no_more_steps_than_there_are_halves(commits: int) -> None:
    for first in range(commits):
        asked: list[str] = []

        def measure(commit: str, runs: int, first: int = first, asked: list[str] = asked) -> int:
            asked.append(commit)
            assert runs == bisection.searching(commits) + bisection.VERIFYING
            return BAD if int(commit) >= first else GOOD

        assert find(Line([0.0] * commits), measure, lambda text: None) == str(first)
        assert len(asked) <= int(np.ceil(np.log2(commits))) + bisection.VERIFYING
        assert asked[:2] == ["-1", str(commits - 1)]
        assert asked[-2:] == [str(first), str(first - 1)]


def scripted(said: Mapping[str, list[int]]) -> bisection.Measure:
    """A measurement that says these things of a commit, one after the other."""
    left = {commit: list(statuses) for commit, statuses in said.items()}
    return lambda commit, runs: left[commit].pop(0)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"-1": [BAD]}, "the good end, -1, is not good but bad: it is compared with itself, .*raise --scaling-budget"),
        ({"-1": [SKIP]}, "the good end, -1, has no verdict and had to be good: raise --scaling-budget"),
        ({"-1": [GOOD], "3": [GOOD]}, "the bad end, 3, is not bad but good: nothing slower was shown.*another --bad"),
        ({"-1": [GOOD], "3": [SKIP]}, "the bad end, 3, has no verdict and had to be bad"),
        (
            {"-1": [GOOD], "3": [BAD], "1": [BAD, GOOD], "0": [GOOD]},
            "the answer of the search, 1, is not bad but good: two runs of it disagree",
        ),
        (
            {"-1": [GOOD], "3": [BAD], "1": [BAD, BAD], "0": [GOOD, BAD]},
            "the answer's parent, 0, is not good but bad: the search or this run is wrong",
        ),
        (
            {"-1": [GOOD], "3": [BAD], "1": [SKIP], "0": [SKIP], "2": [SKIP]},
            "no answer after 5 runs, some without a verdict: the first bad one is among 3, 2, 1, 0",
        ),
        ({"-1": [ERROR]}, "ended at -1: error"),
        ({"-1": [-9]}, "ended at -1: exit status -9"),
    ],
)
def test_a_bisection_without_a_sure_answer_says_why(said: dict[str, list[int]], message: str) -> None:
    with pytest.raises(Stop, match=message) as stopped:
        find(Line([0.0] * 4), scripted(said), lambda text: None)
    assert stopped.value.status == 1


def test_an_interrupted_run_ends_the_bisection_with_its_status() -> None:
    with pytest.raises(Stop, match="ended at -1: stop") as stopped:
        find(Line([0.0] * 4), scripted({"-1": [ABORT]}), lambda text: None)
    assert stopped.value.status == ABORT


def test_commits_without_a_verdict_use_up_the_runs_that_share_the_error() -> None:
    """Otherwise the union bound would not hold: any number of commits could be tried until one errs."""
    with pytest.raises(Stop, match=f"no answer after {2 + bisection.searching(64)} runs"):
        find(Line([0.0] * 64), lambda commit, runs: {"-1": GOOD, "63": BAD}.get(commit, SKIP), lambda text: None)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "project")
    made.commit({"speed": "fast"})
    made.git("tag", "v1")
    return made


def by_file(history: GitHistory, repository: Repository) -> bisection.Measure:
    """A measurement that reads the checked-out tree, in place of a run of the gate."""
    statuses = {"fast": GOOD, "slow": BAD, "broken": SKIP}

    def measure(commit: str, runs: int) -> int:
        history.check_out(commit)
        return statuses[(repository.path / "speed").read_text()]

    return measure


def search(repository: Repository, bad: str = "HEAD") -> str:
    with GitHistory(repository.path, "v1", bad) as history:
        return find(history, by_file(history, repository), lambda text: None)


def test_git_finds_the_commit_past_broken_ones_and_leaves_the_tree_as_it_was(repository: Repository) -> None:
    for number, speed in enumerate(["fast", "fast", "broken", "broken", "fast"]):
        repository.commit({"speed": speed, "number": str(number)})
    slow = repository.commit({"speed": "slow"})
    repository.commit({"number": "later"})
    (repository.path / "untracked").write_text("mine")
    assert search(repository) == slow
    assert repository.git("symbolic-ref", "--short", "HEAD") == "main"
    assert repository.git("status", "--porcelain") == "?? untracked"
    assert not repository.git("for-each-ref", "refs/bisect")


def test_git_finds_a_commit_on_a_merged_branch(repository: Repository) -> None:
    repository.commit({"other": "main"})
    repository.git("checkout", "--quiet", "-b", "branch", "v1")
    repository.commit({"number": "1"})
    slow = repository.commit({"speed": "slow"})
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "--no-edit", "branch")
    assert search(repository) == slow


def test_broken_commits_before_the_slow_one_are_named_with_it(repository: Repository) -> None:
    broken = repository.commit({"speed": "broken"})
    slow = repository.commit({"speed": "slow"})
    with pytest.raises(Stop, match=f"no answer after 3 runs.*among {slow[:12]}, {broken[:12]}"):
        search(repository)
    assert repository.git("symbolic-ref", "--short", "HEAD") == "main"


def test_what_git_cannot_bisect_is_refused_before_anything_is_measured(repository: Repository) -> None:
    repository.commit({"speed": "slow"})
    for good, bad, message in (
        ("v0", "HEAD", "--good 'v0': expected a commit"),
        ("v1", "-x", "--bad '-x': expected a commit"),
        ("HEAD", "v1", "--good HEAD: expected an ancestor of --bad v1"),
        ("v1", "v1", "--good v1 and --bad v1 are the same commit: name two"),
    ):
        with pytest.raises(Stop, match=message):
            GitHistory(repository.path, good, bad)
    (repository.path / "speed").write_text("changed")
    with pytest.raises(Stop, match=r"the working tree has changes: commit or stash them \(speed, \.\.\.\)"):
        GitHistory(repository.path, "v1", "HEAD")
    repository.git("checkout", "speed")
    repository.git("bisect", "start", "HEAD", "v1")
    with pytest.raises(Stop, match="a bisection is in progress: git bisect reset ends it"):
        GitHistory(repository.path, "v1", "main")


def test_pages_that_runs_write_again_are_not_in_the_way(repository: Repository) -> None:
    """Where commits have them, git would refuse to check out over what the run before has written."""
    page = "reports/cpu-2xamd-epyc-53291ccc/index.html"
    for number in range(3):
        repository.commit({"number": str(number), page: f"of commit {number}"})
    slow = repository.commit({"speed": "slow", page: "of the slow commit"})
    (repository.path / page).unlink()
    repository.commit({"number": "without the page"})
    repository.commit({"number": "with it again", page: "newest"})
    (repository.path / page).write_text("written by a run before")
    with GitHistory(repository.path, "v1", "HEAD") as history:
        told = by_file(history, repository)

        def measure(commit: str, runs: int) -> int:
            status = told(commit, runs)
            (repository.path / page).parent.mkdir(parents=True, exist_ok=True)
            (repository.path / page).write_text(f"written by a run of {commit}")
            return status

        assert find(history, measure, lambda text: None) == slow
    assert repository.git("symbolic-ref", "--short", "HEAD") == "main"
    assert (repository.path / page).read_text() == "written by a run before"


def test_an_accepted_run_that_a_bisection_would_overwrite_is_to_be_committed_first(repository: Repository) -> None:
    accepted = "reports/cpu-2xamd-epyc-53291ccc/baseline.json"
    repository.commit({"number": "0", accepted: "one"})
    repository.commit({"speed": "slow"})
    repository.git("tag", "v2", "HEAD~1")
    (repository.path / accepted).write_text("two")
    with pytest.raises(Stop, match=rf"the working tree has changes: commit or stash them \({accepted}, "):
        GitHistory(repository.path, "v1", "HEAD")
    GitHistory(repository.path, "v2", "HEAD")  # whose commits all have the same


def test_there_is_nothing_to_bisect_outside_of_a_repository(tmp_path: Path) -> None:
    with pytest.raises(GitError, match="is not inside the working tree of a git repository"):
        GitHistory(tmp_path, "v1", "HEAD")
