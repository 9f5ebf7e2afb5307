"""A whole bisection: both ends are measured, git searches between them, and its answer is measured again.

Every commit is judged by one run, against the good end and in the same sessions as it. The number of runs is limited
beforehand, and each gets an equal share of the error probabilities. By the union bound, a commit that is named is not
slower than the good end, or its parent is already slower by the tolerance, with a probability of `ALPHA_PASS` at most:
docs/bisect.md derives it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from suite.base.checkout import CHECKOUT_TIMEOUT_S
from suite.base.git import GitError, changes, git, is_written, toplevel
from suite.cli.command import USAGE_ERROR, Stop
from suite.verdict import ALPHA_PASS

GOOD, BAD, SKIP, ERROR, ABORT = 0, 1, 125, 128, 130  # what a run tells `git bisect run`; from 128 on git stops
NAMES = {GOOD: "good", BAD: "bad", SKIP: "skip", ERROR: "error", ABORT: "stop"}
VERIFYING = 4  # runs: both ends before the search, its answer and that one's parent after it
TRIES = 2  # commits that may be tried for every one that halves the rest: some are skipped

_TOO_NOISY = "raise --scaling-budget or --scaling-tolerance, or find a quieter machine"
_REMEDIES = {  # where a run says the opposite of what it had to
    "the good end": f"it is compared with itself, so its code is not the cause: {_TOO_NOISY}",
    "the bad end": "nothing slower was shown: name another --bad, or a smaller --scaling-tolerance",
    "the answer of the search": f"two runs of it disagree: {_TOO_NOISY}",
    "the answer's parent": f"the search or this run is wrong: {_TOO_NOISY}",
}

Measure = Callable[[str, int], int]  # a commit, and how many runs share the errors -> GOOD, BAD, SKIP, ERROR or ABORT
Say = Callable[[str], None]


class History(Protocol):
    """The commits between a good one and a bad one, as far as they may still be the first bad one."""

    good: str
    bad: str

    def left(self) -> list[str]:
        """Return the commits that may be the first bad one."""

    def next(self) -> str | None:
        """Return the commit to be measured next; None where no more can be excluded."""

    def tell(self, commit: str, status: int) -> None:
        """Note that a commit is `GOOD` or `BAD`, or has no verdict (`SKIP`)."""

    def parent(self, commit: str) -> str:
        """Return the first parent of a commit."""

    def subject(self, commit: str) -> str:
        """Return what a commit calls itself."""


def searching(commits: int) -> int:
    """Return how many commits a search among so many may try: `TRIES` for each of its ceil(log2 n) steps."""
    return TRIES * (commits - 1).bit_length()


def find(history: History, measure: Measure, say: Say) -> str:
    """Return the first bad commit, when both ends, it and its parent were measured to be what they have to be.

    Raises:
        Stop: an end or the answer is not, too many commits had no verdict, or a run ended the bisection.
    """
    commits = len(history.left())
    most, done = searching(commits), 0
    runs = most + VERIFYING
    say(f"{commits} commit(s) may be the first bad one; at most {runs} runs share the error probabilities")

    def measured(commit: str) -> int:
        nonlocal done
        done += 1
        say(f"run {done} of at most {runs}: {commit[:12]} {history.subject(commit)}")
        status = measure(commit, runs)
        if status not in (GOOD, BAD, SKIP):
            named = NAMES.get(status, f"exit status {status}")
            raise Stop(f"ended at {commit[:12]}: {named}", ABORT if status == ABORT else 1)
        return status

    def verify(what: str, commit: str, wanted: int) -> None:
        if (status := measured(commit)) == SKIP:
            raise Stop(f"{what}, {commit[:12]}, has no verdict and had to be {NAMES[wanted]}: {_TOO_NOISY}")
        if status != wanted:
            raise Stop(f"{what}, {commit[:12]}, is not {NAMES[wanted]} but {NAMES[status]}: {_REMEDIES[what]}")

    verify("the good end", history.good, GOOD)
    verify("the bad end", history.bad, BAD)
    for _ in range(most):
        if (commit := history.next()) is None:
            break
        history.tell(commit, measured(commit))
    answer, *others = history.left()
    if others:
        names = ", ".join(commit[:12] for commit in (answer, *others))
        raise Stop(f"no answer after {done} runs, some without a verdict: the first bad one is among {names}")
    verify("the answer of the search", answer, BAD)
    verify("the answer's parent", history.parent(answer), GOOD)
    say(f"{answer} is the first bad commit: {history.subject(answer)}")
    say(
        f"{done} runs; with a probability of {ALPHA_PASS:.0%} at most it is not slower than the good end, or its "
        "parent is already slower by the tolerance"
    )
    return answer


class GitHistory:
    """`History` by `git bisect`, in the user's working tree, which is as before when the context ends."""

    def __init__(self, folder: Path, good: str, bad: str) -> None:
        """Find the commits; nothing is checked out yet.

        Raises:
            Stop: there is no such repository, commit, or line of descent, or git is not ready for a bisection.
            GitError: git failed otherwise.
        """
        self._top = toplevel(folder)
        self.good, self.bad = self._commit("--good", good), self._commit("--bad", bad)
        try:
            self._git("merge-base", "--is-ancestor", self.good, self.bad)
        except GitError:
            raise Stop(f"--good {good}: expected an ancestor of --bad {bad}; git merge-base names one") from None
        if self.good == self.bad:
            raise Stop(f"--good {good} and --bad {bad} are the same commit: name two", USAGE_ERROR)
        # What commits of the search have of what runs write: git checks none out over one that differs.
        moved = self._git("log", "--format=", "--name-only", "-z", "-m", self.bad, "HEAD", "--not", self.good).split(
            "\0"
        )
        written = {name for name in map(str.strip, moved) if is_written(name)}
        self._pages = [self._top / name for name in written if name.endswith("/index.html")]
        kept = [name for name in self._git("diff", "--name-only", "-z", "HEAD").split("\0") if name in written]
        if changed := changes(self._top) + [name for name in kept if not name.endswith("/index.html")]:
            raise Stop(f"the working tree has changes: commit or stash them ({changed[0]}, ...)")
        with contextlib.suppress(GitError):
            self._git("bisect", "log")
            raise Stop("a bisection is in progress: git bisect reset ends it")

    def __enter__(self) -> Self:
        """Begin, and check out what is to be measured first."""
        self._before = {page: page.read_bytes() for page in self._pages if page.is_file()}
        self._move("bisect", "start", self.bad, self.good, "--")
        self._next = self._git("rev-parse", "HEAD")
        return self

    def __exit__(self, *_: object) -> None:
        self._move("bisect", "reset")
        for page, content in self._before.items():
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_bytes(content)

    def check_out(self, commit: str) -> None:
        """Check a commit out."""
        self._move("checkout", "--quiet", "--detach", commit)

    def left(self) -> list[str]:
        """Return the commits that may be the first bad one, the earliest that is known to be bad first."""
        return self._git("rev-list", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*").splitlines()

    def next(self) -> str | None:
        """Return the commit that git wants to know of; None where all that are left were skipped."""
        skipped = self._git("for-each-ref", "--format=%(objectname)", "refs/bisect/skip-*").splitlines()
        return self._next if set(self.left()[1:]) - set(skipped) else None

    def tell(self, commit: str, status: int) -> None:
        """Tell git, which checks out the next commit."""
        try:
            self._move("bisect", NAMES[status], commit)
        except GitError:  # also where nothing is left but what was skipped
            if self.next() is not None:
                raise
        self._next = self._git("rev-parse", "HEAD")

    def parent(self, commit: str) -> str:
        """Return the first parent of a commit."""
        return self._git("rev-parse", "--verify", f"{commit}^1")

    def subject(self, commit: str) -> str:
        """Return the first line of a commit's message."""
        return self._git("log", "-1", "--format=%s", commit)

    def _commit(self, option: str, revision: str) -> str:
        try:
            return self._git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
        except GitError as error:
            raise Stop(f"{option} {revision!r}: expected a commit ({error})", USAGE_ERROR) from None

    def _move(self, *arguments: str) -> None:
        """Let git check another commit out, over the pages that the last run has written from all records."""
        for page in self._pages:
            page.unlink(missing_ok=True)
        self._git(*arguments)

    def _git(self, *arguments: str) -> str:
        return git(self._top, *arguments, timeout_s=CHECKOUT_TIMEOUT_S)
