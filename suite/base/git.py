"""Run git on the user's repository, and check out a commit of it in a temporary folder.

Git runs without hooks, without network, and whatever GIT_DIR says. The checkout is a repository of its own that borrows
the user's objects (`objects/info/alternates`, as `git clone --shared` does). The alternatives do not serve: `git
worktree` writes into the user's .git, `git archive` obeys export-ignore and leaves no repository for a package that
asks git for its version, and `git clone` lends no objects of a shallow repository.

The user's settings do not apply to a checkout: no hooks, templates or filters. Files in Git LFS therefore stay
pointers, and submodules are filled only where the user's own have the commit; `Checkout.notes` names both. Extension
modules that were built in place are missing.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import reference
import suite
from suite.processes.folder import TemporaryFolder

TIMEOUT_S = 30.0
MOST_FILES = 1000  # of a project that differ from its commit
NO_COMMIT = "the checked-out branch has no commit yet; make one with git add and git commit"
FULL_NAME = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")  # of a commit, in SHA-1 or SHA-256

# What runs and commands write below a report folder, wherever it is: in the folder that a machine's key names.
_WRITTEN = re.compile(
    r"(.*/)?(\d+x)?(cpu|cuda)-\d+x[a-z0-9-]*-[0-9a-f]{8}/"
    r"(\.gitignore|index\.html|baseline\.json|calibration\.json|(accepted|runs|traces|sweeps)/.+)"
)

# Git sets these for its hooks and for `rebase --exec`; they would redirect a command to another repository.
_REDIRECTING = {
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
}
# Never wait for a password, and never let a partial clone fetch from its remote.
_OFFLINE = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
_WITHOUT_HOOKS = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")


class GitError(Exception):
    """Git is missing, failed, or timed out; the text ends with git's last words."""


def git(
    folder: Path, *arguments: str, timeout_s: float = TIMEOUT_S, environment: Mapping[str, str] | None = None
) -> str:
    """Run one git command in `folder` and return its stdout without the final line end.

    Args:
        folder: where it runs; the repository is the one around it.
        arguments: the subcommand and its arguments. The caller guards text from elsewhere against being read as an
            option (`--end-of-options`, `--`).
        timeout_s: seconds it may take.
        environment: further variables.

    Raises:
        GitError: git is not installed, failed, or took too long.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in _REDIRECTING}
    try:
        done = subprocess.run(
            ["git", *_WITHOUT_HOOKS, *arguments],
            cwd=folder,
            env={**inherited, **_OFFLINE, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
        )
    except OSError as error:
        cause = "git is not on PATH: install it" if folder.is_dir() else f"there is no folder {folder}"
        raise GitError(f"{cause} ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} did not end within {timeout_s:g} s in {folder}; run it by hand") from error
    if done.returncode != 0:
        lines = [line.strip() for line in os.fsdecode(done.stderr).splitlines() if line.strip()]
        raise GitError(f"git {arguments[0]}: {' '.join(lines[-3:]) or f'exit code {done.returncode}'}")
    return os.fsdecode(done.stdout).removesuffix("\n")


def git_or_none(folder: Path, *arguments: str) -> str | None:
    """Return what git says, without its last line break; None where it fails."""
    try:
        return git(folder, *arguments)
    except GitError:
        return None


def toplevel(folder: Path) -> Path:
    """Return the top of the working tree around `folder`, with links resolved; a GitError where there is none."""
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
    except GitError as error:
        raise GitError(f"{folder} is not inside the working tree of a git repository ({error})") from error


def changes(folder: Path, untracked_in: Iterable[Path] = ()) -> list[str]:
    """Return what differs from the checked-out commit in the working tree around `folder`, as paths from its top.

    What the suite itself writes is left out (`is_written`). A file that git neither tracks nor ignores counts in the
    files and folders `untracked_in`.
    """
    status = ("status", "--porcelain", "-z", "--no-renames")
    told = [git(folder, *status, "--untracked-files=no")]
    if inside := [str(path) for path in untracked_in]:
        told.append(git(folder, "--literal-pathspecs", *status, "--untracked-files=all", "--", *inside))
    names = (entry[len("XY ") :] for entry in "".join(told).split("\0") if entry)
    return [name for name in dict.fromkeys(names) if not is_written(name)]


def is_written(name: str) -> bool:
    """Return whether a path in a repository is one that runs write in a report folder, and so no code.

    These are records, pages, traces, sweeps, the accepted baseline and the calibration of a machine.
    """
    return _WRITTEN.fullmatch(name) is not None


def is_unborn(folder: Path) -> bool:
    """Return whether `folder` is in a repository whose branch has no commit yet."""
    # Without a branch there is no repository, or a commit alone is checked out.
    branch = git_or_none(folder, "symbolic-ref", "--quiet", "HEAD")
    return branch is not None and git_or_none(folder, "rev-parse", "--verify", "--quiet", "HEAD") is None


def is_shallow(folder: Path) -> bool:
    """Return whether the clone around `folder` lacks its older commits."""
    return git(folder, "rev-parse", "--is-shallow-repository") == "true"


CHECKOUT_TIMEOUT_S = 600.0

_OWN_SETTINGS = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
    "GIT_CONFIG_PARAMETERS": "",
    "GIT_ATTR_NOSYSTEM": "1",
}


class CheckoutError(Exception):
    """The base's code is not available; the text names the commit, the cause and a remedy."""


class Checkout:
    """One commit, checked out for as long as the context lasts. The user's repository is only read.

    Attributes:
        toplevel: of the user's working tree, links resolved.
        notes: what the checkout lacks, one line each.
    """

    def __init__(self, root: Path, commit: str, label: str | None = None) -> None:
        """Find the repository; nothing is written yet.

        Args:
            root: the user's project, anywhere in the repository.
            commit: full object name (`suite.base.bases.of_ref` finds it).
            label: the commit's name in messages.
        """
        if not FULL_NAME.fullmatch(commit):
            raise CheckoutError(f"commit {commit!r}: expected a full object name, as git rev-parse prints it")
        self.notes: tuple[str, ...] = ()
        self._root = root
        self._commit = commit
        self._label = label or commit[:7]
        self._temporary: TemporaryFolder | None = None
        try:
            self.toplevel = toplevel(root)
        except GitError as error:
            raise CheckoutError(f"base {self._label}: {error}") from error

    @property
    def folder(self) -> Path:
        """The top of the checkout."""
        if self._temporary is None:
            raise RuntimeError("the folder of a Checkout was asked for outside of its with block: enter it first")
        return self._temporary.path.resolve() / (self.toplevel.name or "repository")

    def __enter__(self) -> Checkout:
        """Check out. After a CheckoutError nothing is left behind."""
        try:
            self._temporary = TemporaryFolder("base-")
            self.notes = tuple(_fill(self.folder, self.toplevel, self._commit))
        except (GitError, OSError) as error:
            place = _temporary_folder()  # before cleaning up changes how full it is
            self.__exit__()
            raise CheckoutError(
                f"base {self._label}: its commit {self._commit[:12]} cannot be checked out in {place} ({error}); "
                f"{_remedy(self.toplevel)}"
            ) from error
        except BaseException:  # such as KeyboardInterrupt
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._temporary is not None:
            self._temporary.close()
            self._temporary = None

    def place(self, path: Path) -> Path | None:
        """Return the path in the checkout of a path in the user's working tree; None for one outside of it."""
        resolved = path.resolve()
        if not resolved.is_relative_to(self.toplevel):
            return None
        return self.folder / resolved.relative_to(self.toplevel)

    def directory(self, path: Path) -> Path:
        """Return the folder of the checkout for one of the working tree; a CheckoutError if the commit has none."""
        place = self.place(path)
        if place is None or not place.is_dir():
            raise CheckoutError(f"{self._label} has no folder for {path}; start the script inside of its repository")
        return place

    def paths(self, own: Iterable[Path], search: Iterable[str]) -> list[Path]:
        """Return what the base's workers import from, without paths that the commit does not have.

        Args:
            own: the folders that the candidate's workers import from. One outside of the repository serves both sides.
            search: `sys.path`, which has the folders of editable installs and src layouts; entries outside of the
                repository belong to the interpreter and are left out.
        """
        wanted = [self.place(path) or path for path in own]
        wanted += [place for entry in search if (place := self.place(Path(entry))) is not None]
        return [path for path in dict.fromkeys(wanted) if path.exists()]

    def python_path(self, inherited: str) -> str:
        """Return PYTHONPATH with its entries in the user's working tree moved to the checkout."""
        entries = [entry for entry in inherited.split(os.pathsep) if entry]
        return os.pathsep.join(str(self.place(Path(entry)) or entry) for entry in entries)

    def spec(self, spec: str) -> str:
        """Return a trainer or model as the base's workers name it: a path.py:Class is moved to the checkout.

        A path is relative to the working directory or, without such a file there, to the user's project. A
        CheckoutError says that the file is outside of the repository, or that the commit does not have it.
        """
        source, _, name = spec.rpartition(":")
        if not source.endswith(".py"):
            return spec
        place = self.place(Path(source) if os.path.isfile(source) else self._root / source)
        if place is None:
            raise CheckoutError(
                f"{spec!r} is outside of the repository {self.toplevel}, so its version at {self._label} is not known; "
                "move it into the repository, or name it as module:Class to use the same for both"
            )
        if not place.is_file():
            raise CheckoutError(
                f"{spec!r}: {self._label} has no file {place.relative_to(self.folder)}; compare with a commit that has "
                "it, or with another trainer (--scaling-against trainer:...)"
            )
        return f"{place}:{name}"

    def reference(self, own: Path) -> Path:
        """Return the folder of the package `reference` for the base's workers.

        It is the candidate's `own` unless the user's repository is this project itself. A CheckoutError says that the
        commit is older than its trainers then.
        """
        if not (self.toplevel / "reference/trainers").is_dir() or not (self.toplevel / "suite/plugin.py").is_file():
            return own
        place = self.folder / "reference"
        if not (place / "trainers").is_dir():
            raise CheckoutError(f"{self._label} has no reference/trainers; compare with a later commit")
        return place


def _fill(folder: Path, source: Path, commit: str) -> list[str]:
    """Check a commit of the repository at `source` out into `folder`, and return what is missing there."""

    def own_git(*arguments: str) -> str:
        return git(folder, *arguments, timeout_s=CHECKOUT_TIMEOUT_S, environment=_OWN_SETTINGS)

    folder.mkdir(exist_ok=True)
    own_git("init", "--quiet", "--template=", *(("--object-format=sha256",) if len(commit) == 64 else ()))
    information = folder / ".git/objects/info"
    information.mkdir(exist_ok=True)
    (information / "alternates").write_bytes(os.fsencode(_git_path(source, "objects")) + b"\n")
    if (shallow := _git_path(source, "shallow")).is_file():  # without it, `git log` fails where the history ends
        shutil.copyfile(shallow, folder / ".git/shallow")
    # Not `git checkout`, which leaves out files whose objects are missing and succeeds.
    own_git("read-tree", "-u", "--reset", commit)
    own_git("update-ref", "--no-deref", "HEAD", commit)
    notes: list[str] = []
    for line in filter(None, own_git("ls-files", "-z", "--stage").split("\0")):
        mode, name, _ = line.split(maxsplit=2)
        if mode == "160000":
            notes += _fill_submodule(folder, source, line.partition("\t")[2], name)
    if pointers := own_git("ls-files", "-z", "--", ":(attr:filter=lfs)").rstrip("\0"):
        names = pointers.split("\0")
        notes.append(f"{len(names)} file(s) in Git LFS stay pointers there, such as {folder.name}/{names[0]}")
    return notes


def _fill_submodule(folder: Path, source: Path, path: str, commit: str) -> list[str]:
    if git_or_none(source / path, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        return [
            f"submodule {path} is empty there: its commit {commit[:12]} is not in the working tree's; "
            f"git submodule update --init {path}, then fetch in it"
        ]
    return _fill(folder / path, source / path, commit)


def _git_path(source: Path, name: str) -> Path:
    """Return a file of the repository, which a linked worktree and a submodule keep outside of their .git."""
    return (source / git(source, "rev-parse", "--git-path", name)).resolve()


def _temporary_folder() -> str:
    folder = tempfile.gettempdir()
    try:
        return f"{folder}, which has {shutil.disk_usage(folder).free / 1e6:.1f} MB left"
    except OSError:
        return folder


def _remedy(top: Path) -> str:
    try:
        if is_shallow(top):
            return "the clone is shallow: git fetch --unshallow brings the rest"
        git(top, "config", "--get-regexp", r"remote\..*\.promisor")
    except GitError:  # also where nothing is configured
        return "check free space (TMPDIR names another place) and the repository (git fsck)"
    return "the clone is partial: git archive of that commit fetches what is missing"


def commit_here(folder: Path) -> str:
    """Return the commit that is checked out in `folder`; "unknown" outside of a repository."""
    return git_or_none(folder, "rev-parse", "HEAD") or "unknown"


def digests(folder: Path) -> dict[str, str]:
    """Return a digest for each of the suite's own files, and for those of the project that differ from its commit.

    Of the project only Python files and pyproject.toml count.
    """
    packages = [Path(package.__path__[0]) for package in (suite, reference)]
    own = {f"{path.name}/{file.relative_to(path)}": file for path in packages for file in path.rglob("*.py")}
    wanted = ("--exclude-standard", "--", "*.py", "*pyproject.toml")
    listed = git_or_none(folder, "ls-files", "-z", "-m", "-o", *wanted) or ""
    changed = {name: folder / name for name in sorted(filter(None, listed.split("\0")))[:MOST_FILES]}
    return {name: _digest(path) for name, path in {**changed, **own}.items()}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return "none"
