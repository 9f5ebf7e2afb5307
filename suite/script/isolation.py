"""Keep what a script writes away from the user's files, and from the next session: an overlay that its ranks share.

The first rank enters a mount namespace of its own, as an unprivileged user together with a user namespace, and mounts
an overlay on each folder: reading goes through to the user's files, and what is written stays in a folder of the
session. The other ranks enter the same namespace, so that they see what the first one writes. Linux only.

Where the kernel refuses that, as in many containers, the ranks work in a copy of the folder that they begin in: of the
largest of the folders that is small enough. What has changed all the same is named afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

CLONE_FS, CLONE_NEWNS, CLONE_NEWUSER = 0x00000200, 0x00020000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
JOINING_S = 30.0  # in which the first rank mounts or copies: it is one of processes that start together
MOST_BYTES, MOST_FILES = 256 * 10**6, 20_000  # of a folder that is copied
MOST_WATCHED = 200_000  # files whose changes are named
MOST_NAMED = 5
NOT_COPIED = shutil.ignore_patterns("__pycache__", ".pytest_cache")
_LIBC = ctypes.CDLL(None, use_errno=True)
_OCTAL = re.compile(r"\\([0-7]{3})")  # a blank in /proc/self/mountinfo
_SEPARATORS = str.maketrans({":": r"\:", ",": r"\,", "\\": r"\\"})  # in an overlay's options


class NotIsolated(OSError):
    """The kernel refuses namespaces or overlays here."""


@dataclass(frozen=True)
class Kept:
    """How what a script writes is kept apart.

    Attributes:
        why_not: why there are no overlays; "" where there are.
        copies: of folders that the script begins in, by the original.
        stays: mounts inside of the folders that cannot have overlays of their own.
    """

    why_not: str = ""
    copies: Mapping[str, str] = field(default_factory=dict)
    stays: tuple[str, ...] = ()
    _before: Mapping[str, tuple[int, int]] | None = None
    _watched: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What it means for the user's files."""
        if not self.why_not:
            refused = f"no overlay can be on {', '.join(self.stays)}, so that what the script writes there stays"
            return refused if self.stays else ""
        begun = f"overlays are refused here ({self.why_not}), so that "
        if self.copies:
            return f"{begun}the script runs in a copy of {', '.join(self.copies)}; elsewhere what it writes stays"
        return f"{begun}what the script writes is not kept apart: it may change {self._watched[0]}"

    def moved(self, folder: str) -> str:
        """Return where a folder is for the script."""
        for original, copy in self.copies.items():
            if _inside(os.path.realpath(folder), original):
                return os.path.join(copy, os.path.relpath(os.path.realpath(folder), original))
        return folder

    def changed(self) -> str:
        """Return in words what has changed in the user's folders; "" for nothing, and for what is not watched."""
        after = None if self._before is None else _seen(self._watched, MOST_WATCHED)
        if self._before is None or after is None:
            return ""
        names = sorted(name for name in {*self._before, *after} if self._before.get(name) != after.get(name))
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f"while the script ran, these files changed: {', '.join(names[:MOST_NAMED])}{more}" if names else ""


def isolated(folders: Sequence[str], scratch: Path, begins: Sequence[str] = (), *, first: bool) -> Kept:
    """Keep folders as they are, for this thread and what it starts: by overlays, or by a copy of where it begins.

    A user that is not root needs a process of one thread for an overlay.

    Args:
        folders: that the script may write to; those that do not exist are left out.
        scratch: of this group of ranks; it may not exist yet.
        begins: its working directory and others whose relative paths it uses.
        first: whether this rank mounts or copies, and the others follow it.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    marker, kept = scratch / "mounted", _outermost(folders)
    mounted, stays = dict[str, int](), list[str]()
    try:
        if not first:
            _follow(marker)
            return Kept()
        _enter_own()
        mounted = _mounted_in(kept)
        for number, folder in enumerate(kept):
            _overlay(folder, scratch / f"layer-{number}")
        for number, (folder, seen) in enumerate(mounted.items(), len(kept)):  # which the overlay around it hides
            _check(_LIBC.mount(b"/proc/self/fd/%d" % seen, os.fsencode(folder), None, MS_BIND | MS_REC, None))
            os.close(seen)
            try:
                _overlay(folder, scratch / f"layer-{number}")
            except OSError:  # it is a file, or of a file system that no overlay can be on
                stays.append(folder)
        _write(marker, str(os.getpid()))
    except OSError as error:
        why_not = error.strerror or str(error)
        if error.errno == errno.EINVAL and mounted:  # only root may hide a mount
            why_not = f"{next(iter(mounted))} is a mount of its own"
        return _without_overlays(why_not, folders, scratch, begins, first=first)
    return Kept(stays=tuple(stays))


def _without_overlays(
    why_not: str, folders: Sequence[str], scratch: Path, begins: Sequence[str], *, first: bool
) -> Kept:
    """Copy the largest folder around each beginning that is small enough, or return what the first rank has copied."""
    real = sorted({os.path.realpath(folder) for folder in folders}, key=len)
    copies = {folder: scratch / f"copy-{number}" for number, folder in enumerate(real)}
    watched = _outermost(folders)
    before = None
    if first:
        before = _seen(watched, MOST_WATCHED)
        if before is None:
            watched = _outermost({*real} - {*watched})
            before = _seen(watched, MOST_WATCHED)
        for begin in map(os.path.realpath, begins):
            for folder in filter(partial(_inside, begin), real):
                if copies[folder].exists() or _copied(folder, copies[folder]):
                    break
        _write(scratch / "mounted", f"refused: {why_not}")
    made = {folder: str(copy) for folder, copy in copies.items() if copy.exists()}
    return Kept(why_not, made, _before=before, _watched=tuple(watched))


def _copied(folder: str, copy: Path) -> bool:
    """Copy a folder that is small enough, and return whether it was copied: whole or not at all."""
    files = _seen([folder], MOST_FILES)
    if files is None or sum(size for _, size in files.values()) > MOST_BYTES:
        return False
    try:
        shutil.copytree(folder, copy, symlinks=True, ignore=NOT_COPIED)
    except OSError:  # a file that cannot be read, or is no file
        shutil.rmtree(copy, ignore_errors=True)
        return False
    return True


def _seen(folders: Sequence[str], most: int) -> dict[str, tuple[int, int]] | None:
    """Return when the files of folders were changed, in ns, and their sizes; None where they are more than `most`."""
    found = {}
    for folder in folders:
        for root, inside, names in os.walk(folder):
            ignored = NOT_COPIED(root, inside)
            inside[:] = [name for name in inside if name not in ignored]
            for path in (os.path.join(root, name) for name in names):
                with contextlib.suppress(OSError):
                    about = os.stat(path, follow_symlinks=False)
                    found[path] = about.st_mtime_ns, about.st_size
            if len(found) > most:
                return None
    return found


def _outermost(folders: Iterable[str]) -> list[str]:
    """Return those that exist and are in no other one."""
    real = {os.path.realpath(folder) for folder in folders if os.path.isdir(folder)}
    return [folder for folder in sorted(real) if not any(other != folder and _inside(folder, other) for other in real)]


def _inside(folder: str, other: str) -> bool:
    return os.path.commonpath([folder, other]) == other


def _enter_own() -> None:
    user, group = os.getuid(), os.getgid()
    if _LIBC.unshare(CLONE_NEWNS) != 0:
        _check(_LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS))
        with contextlib.suppress(FileNotFoundError):
            Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _check(_LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))


def _mounted_in(folders: Sequence[str]) -> dict[str, int]:
    """Return what else is mounted inside of folders, such as a volume with data, with an open descriptor of each."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    paths = sorted({_OCTAL.sub(lambda found: chr(int(found[1], 8)), point) for point in points} - {*folders})
    inside = [path for path in paths if any(_inside(path, folder) for folder in folders)]
    return {path: os.open(path, os.O_PATH) for path in inside}


def _overlay(folder: str, layer: Path) -> None:
    """Mount an overlay on a folder; what is written stays in `layer`, or in memory where `layer` is an overlay too."""
    layer.mkdir()
    for in_memory in (False, True):
        if in_memory:
            _check(_LIBC.mount(b"tmpfs", os.fsencode(layer), b"tmpfs", 0, None))
        parts = {"lowerdir": folder, "upperdir": str(layer / "upper"), "workdir": str(layer / "work")}
        for name in ("upper", "work"):
            (layer / name).mkdir()
        options = ",".join(f"{name}={path.translate(_SEPARATORS)}" for name, path in parts.items())
        for more in ("", ",userxattr"):  # which an unprivileged mount needs, and a kernel before 5.11 does not know
            told = (b"overlay", os.fsencode(folder), b"overlay", 0, os.fsencode(options + more))
            if _LIBC.mount(*told) == 0:
                return
    _check(-1)


def _follow(marker: Path) -> None:
    end = time.monotonic() + JOINING_S
    while not marker.exists():
        if time.monotonic() > end:
            raise NotIsolated(0, f"the first rank did not mount within {JOINING_S:g} s")
        time.sleep(0.005)
    said = marker.read_text()
    if not said.isdigit():
        raise NotIsolated(0, said.removeprefix("refused: "))
    _check(_LIBC.unshare(CLONE_FS))  # no other thread's root may change with this one's
    for kind in ("user", "mnt"):
        theirs, own = f"/proc/{said}/ns/{kind}", f"/proc/self/ns/{kind}"
        if os.stat(theirs).st_ino == os.stat(own).st_ino:
            continue
        entered = os.open(theirs, os.O_RDONLY)
        try:
            _check(_LIBC.setns(entered, 0))
        finally:
            os.close(entered)


def _write(marker: Path, text: str) -> None:
    """Write a file that appears with its content."""
    new = marker.with_suffix(".new")
    new.write_text(text)
    new.rename(marker)


def _check(status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
