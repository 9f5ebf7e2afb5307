"""Check out a commit of the user's repository in a temporary folder, and find the base's code there.

The checkout is a repository of its own that borrows the user's objects (`objects/info/alternates`, as
`git clone --shared` does). The alternatives do not serve: `git worktree` writes into the user's .git, `git archive`
obeys export-ignore and leaves no repository for a package that asks git for its version, and `git clone` lends no
objects of a shallow repository.

The user's settings do not apply: no hooks, templates or filters. Files in Git LFS therefore stay pointers, and
submodules are filled only where the user's own have the commit; `Checkout.notes` names both. Extension modules that
were built in place are missing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from suite.base.git import FULL_NAME, GitError, git, git_or_none, is_shallow, toplevel
from suite.processes.folder import TemporaryFolder

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

        Raises:
            CheckoutError: there is no repository around `root`, or `commit` is no full object name.
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
        """Check out.

        Raises:
            CheckoutError: a commit or file is missing, the disk is full, or git takes too long. Nothing is left behind.
        """
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
        """Return the folder of the checkout that a folder of the working tree has there.

        Raises:
            CheckoutError: it is outside of the repository, or the commit does not have it.
        """
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

        Args:
            spec: a table name, module:Class or path.py:Class, relative to the working directory or, without such a file
                there, to the user's project.

        Raises:
            CheckoutError: the file is outside of the repository, or the commit does not have it.
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

        Args:
            own: the candidate's, which is returned unless the user's repository is this project itself.

        Raises:
            CheckoutError: the repository is this project, and the commit is older than its trainers.
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
