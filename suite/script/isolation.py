"""Keep what a script writes away from the user's files, and from the next session: an overlay that its ranks share.

The first rank enters a mount namespace of its own, as an unprivileged user together with a user namespace, and mounts
an overlay on each folder: reading goes through to the user's files, and what is written stays in a folder of the
session. The other ranks enter the same namespace, so that they see what the first one writes. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Sequence
from pathlib import Path

CLONE_FS, CLONE_NEWNS, CLONE_NEWUSER = 0x00000200, 0x00020000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
JOINING_S = 30.0  # in which the first rank mounts: it is one of processes that start together
_LIBC = ctypes.CDLL(None, use_errno=True)
_SEPARATORS = str.maketrans({":": r"\:", ",": r"\,", "\\": r"\\"})  # in an overlay's options


class NotIsolated(OSError):
    """The kernel refuses namespaces or overlays here."""


def isolated(folders: Sequence[str], scratch: Path, *, first: bool) -> str:
    """Put overlays on folders, for this thread and what it starts; return "", or what it means where that is refused.

    A user that is not root needs a process of one thread for it.

    Args:
        folders: that the script may write to; those that do not exist are left out.
        scratch: of this group of ranks; it may not exist yet.
        first: whether this rank mounts, and the others follow it.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    marker = scratch / "mounted"
    try:
        if not first:
            _follow(marker)
            return ""
        try:
            _enter_own()
            for number, folder in enumerate(_outermost(folders)):
                _overlay(folder, scratch / f"layer-{number}")
        except OSError as error:
            _write(marker, f"refused: {error.strerror or error}")
            raise
        _write(marker, str(os.getpid()))
    except OSError as error:
        return f"what the script writes is not kept apart ({error.strerror}): it may change {folders[0]}"
    return ""


def _outermost(folders: Sequence[str]) -> list[str]:
    """Return those that exist and are in no other one."""
    real = {os.path.realpath(folder) for folder in folders if os.path.isdir(folder)}
    return [folder for folder in sorted(real) if not any(other != folder and _inside(folder, other) for other in real)]


def _inside(folder: str, other: str) -> bool:
    return os.path.commonpath([folder, other]) == other


def _enter_own() -> None:
    user, group = os.getuid(), os.getgid()
    if not _succeeds(_LIBC.unshare(CLONE_NEWNS)):
        _check(_LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS))
        with contextlib.suppress(FileNotFoundError):
            Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _check(_LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))


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
            if _succeeds(_LIBC.mount(*told)):
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


def _succeeds(status: int) -> bool:
    return status == 0


def _check(status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
