"""The user's repository at a commit, in a folder of ours, and where the base's workers find their code in it.

A repository of its own that borrows the objects of the user's (`objects/info/alternates`, as `git clone --shared`
does) and has one commit checked out. Why not otherwise: `git worktree` writes into the user's .git and stays there when
we are killed; `git archive` leaves out and rewrites what .gitattributes says (export-ignore, export-subst), and is no
repository for a package that asks git for its version; `git clone` does not lend objects of a shallow repository.

Nothing of the user's settings applies there: no hooks, no templates, no filters. Files kept by Git LFS therefore stay
pointers. Submodules are checked out in the same way where the user's own has the commit, and stay empty otherwise;
`Checkout.notes` names both. Sparse checkouts come whole. What was built in place (extension modules) is not there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from suite.base.git import FULL_NAME, GitError, git, is_shallow, toplevel

CHECKOUT_TIMEOUT_S = 600.0

_APART = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
    "GIT_CONFIG_PARAMETERS": "",
    "GIT_ATTR_NOSYSTEM": "1",
}


class CheckoutError(Exception):
    """The base's code cannot be had; the text says of which commit, why, and what would help."""


class Checkout:
    """One commit, checked out apart for as long as the context lasts. The user's repository is only read.

    Attributes:
        toplevel: of the user's working tree, links resolved.
        commit: full object name.
        folder: the checkout, while the context lasts.
        notes: what it lacks, a line each, for people.
    """

    def __init__(self, root: Path, commit: str, label: str | None = None) -> None:
        """Nothing is written yet.

        Args:
            root: the user's project, anywhere in the repository.
            commit: full object name (`suite.base.bases.of_ref` finds it).
            label: how people call it; used in messages.

        Raises:
            CheckoutError: there is no repository around `root`, or `commit` is no full object name.
        """
        if not FULL_NAME.fullmatch(commit):
            raise CheckoutError(f"commit {commit!r}: expected a full object name, as git rev-parse prints it")
        self.commit = commit
        self.notes: tuple[str, ...] = ()
        self._label = label or commit[:7]
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        try:
            self.toplevel = toplevel(root)
        except GitError as error:
            raise CheckoutError(f"base {self._label}: {error}") from error

    @property
    def folder(self) -> Path:
        """The top of the checkout."""
        if self._temporary is None:
            raise RuntimeError("a Checkout has its folder inside its with block only")
        return Path(self._temporary.name).resolve() / (self.toplevel.name or "repository")

    def __enter__(self) -> Checkout:
        """Check out.

        Raises:
            CheckoutError: a commit or file is missing, the disk is full, or git takes too long. Nothing is left then.
        """
        try:
            self._temporary = tempfile.TemporaryDirectory(prefix="scaling-base-", ignore_cleanup_errors=True)
            self.notes = tuple(_fill(self.folder, self.toplevel, self.commit))
        except (GitError, OSError) as error:
            where = _where()  # how full it is, before it is emptied
            self.__exit__()
            raise CheckoutError(
                f"base {self._label}: its commit {self.commit[:12]} cannot be checked out in {where} ({error}); "
                f"{_remedy(self.toplevel)}"
            ) from error
        except BaseException:  # Ctrl-C above all: what is half there goes too
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def place(self, path: Path) -> Path | None:
        """Where a file or folder of the user's working tree would lie in the checkout; None for one outside of it."""
        resolved = path.resolve()
        if not resolved.is_relative_to(self.toplevel):
            return None
        return self.folder / resolved.relative_to(self.toplevel)

    def paths(self, own: Iterable[Path], search: Iterable[str]) -> list[Path]:
        """What the base's workers import from, in the order given.

        Args:
            own: the folders that the candidate's workers import from (working directory, project); one outside of the
                repository serves both sides and stays.
            search: `sys.path` (editable installs and src layouts put their folders there), or the parts of PYTHONPATH;
                entries outside of the repository belong to the interpreter and are left out.

        Returns:
            Paths in the checkout, those that the commit does not have left out.
        """
        wanted = [self.place(path) or path for path in own]
        wanted += [place for entry in search if (place := self.place(Path(entry))) is not None]
        return [path for path in dict.fromkeys(wanted) if path.exists()]

    def python_path(self, inherited: str) -> str:
        """PYTHONPATH with its entries in the user's working tree moved to the checkout, the others as they are."""
        entries = [entry for entry in inherited.split(os.pathsep) if entry]
        return os.pathsep.join(str(self.place(Path(entry)) or entry) for entry in entries)

    def spec(self, spec: str) -> str:
        """How the base's workers name a trainer or model: path.py:Class is found in the checkout, all else stays.

        Args:
            spec: a table name, module:Class or path.py:Class, relative to the working directory.

        Raises:
            CheckoutError: the file lies outside of the repository, or the commit does not have it.
        """
        source, _, name = spec.rpartition(":")
        if not source.endswith(".py"):
            return spec
        place = self.place(Path(source))
        if place is None:
            raise CheckoutError(
                f"{spec!r} lies outside of the repository {self.toplevel}, so nobody knows how it was at "
                f"{self._label}; move it into the repository, or name it as module:Class to use the same for both"
            )
        if not place.is_file():
            raise CheckoutError(
                f"{spec!r}: {self._label} has no file {place.relative_to(self.folder)}; compare with a commit that has "
                "it, or with another trainer (--scaling-against trainer:...)"
            )
        return f"{place}:{name}"

    def reference(self, own: Path) -> Path:
        """The folder of the package `reference` that the base's workers use.

        Args:
            own: the candidate's.

        Returns:
            The checkout's where the user's repository is this project itself, because then it is what is under test;
            `own` everywhere else.

        Raises:
            CheckoutError: the repository is this project, and the commit is older than its trainers.
        """
        if not (self.toplevel / "reference" / "trainers").is_dir() or not (self.toplevel / "suite/plugin.py").is_file():
            return own
        place = self.folder / "reference"
        if not (place / "trainers").is_dir():
            raise CheckoutError(f"{self._label} has no reference/trainers; compare with a later commit")
        return place


def _fill(folder: Path, source: Path, commit: str) -> Sequence[str]:
    """Make `folder` a repository that borrows the objects of the one at `source`, at a commit; what it lacks."""
    folder.mkdir(exist_ok=True)
    hashing = ("--object-format=sha256",) if len(commit) == 64 else ()  # the option is younger than the default
    git(folder, "init", "--quiet", "--template=", *hashing, environment=_APART)
    information = folder / ".git" / "objects" / "info"
    information.mkdir(exist_ok=True)
    (information / "alternates").write_bytes(os.fsencode(_git_path(source, "objects")) + b"\n")
    if (shallow := _git_path(source, "shallow")).is_file():  # else whoever walks its history stumbles over the end
        shutil.copyfile(shallow, folder / ".git" / "shallow")
    # Not `git checkout`: where objects are missing it leaves their files out, and ends with success.
    git(folder, "read-tree", "-u", "--reset", commit, timeout_s=CHECKOUT_TIMEOUT_S, environment=_APART)
    git(folder, "update-ref", "--no-deref", "HEAD", commit, environment=_APART)
    notes: list[str] = []
    for line in _listed(folder, "--stage"):
        mode, name, _ = line.split(maxsplit=2)
        if mode == "160000":
            notes += _fill_submodule(folder, source, line.partition("\t")[2], name)
    pointers = _listed(folder, "--", ":(attr:filter=lfs)")
    if pointers:
        notes.append(f"{len(pointers)} file(s) kept by Git LFS are pointers there, such as {folder.name}/{pointers[0]}")
    return notes


def _fill_submodule(folder: Path, source: Path, path: str, commit: str) -> Sequence[str]:
    try:
        git(source / path, "cat-file", "-e", f"{commit}^{{commit}}")
    except GitError:
        return [
            f"submodule {path} is empty there: its commit {commit[:12]} is not in the working tree's; "
            f"git submodule update --init {path}, then fetch in it"
        ]
    return _fill(folder / path, source / path, commit)


def _git_path(source: Path, name: str) -> Path:
    """A file of the repository, which in a linked worktree or a submodule does not lie in its .git."""
    return (source / git(source, "rev-parse", "--git-path", name)).resolve()


def _listed(folder: Path, *arguments: str) -> list[str]:
    return [entry for entry in git(folder, "ls-files", "-z", *arguments, environment=_APART).split("\0") if entry]


def _where() -> str:
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
    except GitError:  # none of the two: git ends with 1 where nothing is configured
        return "is there room, and is the repository whole (git fsck)? TMPDIR names another place"
    return "the clone is partial: git archive of that commit, thrown away, fetches what it needs"
