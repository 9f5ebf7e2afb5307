"""Keeps a base's worker on the base's code, and checks that it is; uses the standard library only.

An editable install leads imports to the candidate's working tree, by a .pth file or an import hook, wherever the worker
is started, and any other install of the working tree has a copy of it. Both sides of the comparison would then run the
same code, and it would pass. So `redirect` leads such imports on to the same file in the base's checkout, and
`require_pure` refuses what was imported from the candidate all the same. Covers Python modules, also compiled ones. It
does not cover files that code opens or loads by itself (data, `torch.ops.load_library`), interpreters that the code
starts, and a wheel that was built from the working tree and is elsewhere.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import PurePosixPath
from types import ModuleType
from urllib.parse import urlsplit
from urllib.request import url2pathname

from suite.processes.jobs import Apart

# A line of a .pth file that Python runs, and the module that it imports first.
_PTH_IMPORT = re.compile(r"^import[ \t]+([\w.]+)", re.MULTILINE)


def redirect(apart: Apart) -> None:
    """Lead every later import that finds a file of the candidate's working tree to its place in the base's checkout.

    Whatever found it: a folder on sys.path, or the import hook of an editable install, some of which come before
    sys.path. A file that the checkout does not have stays where it was found, for `require_pure` to refuse.
    """
    if not any(isinstance(finder, _Redirecting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Redirecting(apart))


def strays(apart: Apart) -> list[tuple[str, str]]:
    """Return the loaded modules whose file is in the candidate's working tree, or was installed from there, sorted.

    Links are followed, so a link from site-packages into the working tree counts. Other packages and the standard
    library of an environment in the working tree do not count, nor what an installer generated to lead imports to the
    working tree.
    """
    root = _real(apart.candidate_root)
    modules = []
    for name, module in list(sys.modules.items()):
        try:
            file = module.__file__
        except Exception:  # noqa: S112 - an object that a package puts in its place may raise anything
            continue
        # Built in, a namespace package (which has no code), or without a real file (torch.ops is "_ops.py").
        if not isinstance(file, str) or not os.path.isabs(file):
            continue
        path = os.path.realpath(file)
        if _is_candidates(path, apart) or (path in _copies(root, apart.checkout) and not _is_in(path, _own(apart))):
            modules.append((name, path))
    return sorted(modules)


def require_pure(apart: Apart) -> None:
    """Raise if a base's worker has loaded the candidate's code.

    Call it after the trainer is made and again after a window, because a step may import.

    Raises:
        ImportError: it has; the message names the modules, and what leads to a comparison for the first of them.
    """
    if modules := strays(apart):
        named = ", ".join(f"{name} ({path})" for name, path in modules[:3])
        more = f" and {len(modules) - 3} more" if len(modules) > 3 else ""
        raise ImportError(
            f"the base has imported {named}{more} from the candidate's working tree {apart.candidate_root}, "
            f"or from a copy installed from there: it would be compared with itself; {_remedy(modules[0][1], apart)}"
        )


class _Redirecting:
    """Asks all other finders, and answers with the checkout's file where they found the candidate's.

    A compiled module that was built next to the candidate's sources is found there where nothing else has it: without
    it, code that has a slower replacement would use that, and the base would look slow.
    """

    def __init__(self, apart: Apart) -> None:
        self._apart = apart

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            if find is not None and (found := find(name, path, target)) is not None:
                place = _place(found.origin, self._apart) if found.has_location else None
                return spec_from_file_location(name, place) or found if place else found
        for folder in path or ():
            if (inside := os.path.relpath(folder, self._apart.checkout)).partition(os.sep)[0] != os.pardir:
                module = os.path.join(self._apart.candidate_root, inside, name.rpartition(".")[2])
                for built in filter(os.path.isfile, (module + suffix for suffix in EXTENSION_SUFFIXES)):
                    return spec_from_file_location(name, built)
        return None


def _place(file: str | None, apart: Apart) -> str | None:
    """Return where the checkout has a file of the candidate's working tree; None for any other file, or without one."""
    path = os.path.realpath(file or "")
    if not _is_candidates(path, apart):
        return None
    place = os.path.join(apart.checkout, os.path.relpath(path, _real(apart.candidate_root)))
    return place if os.path.isfile(place) else None


def _is_candidates(path: str, apart: Apart) -> bool:
    """Return whether a file, its links resolved, is in the working tree and neither shared nor of an environment."""
    root = _real(apart.candidate_root)
    if not _is_in(path, [root]):
        return False
    python = [_real(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    in_tree = not _is_in(path, [*python, *_own(apart)])
    return in_tree and {"site-packages", "dist-packages"}.isdisjoint(path[len(root) :].split(os.sep))


def _own(apart: Apart) -> list[str]:
    return [_real(folder) for folder in (apart.checkout, *apart.allowed)]


@functools.lru_cache(maxsize=64)
def _real(folder: str) -> str:
    """Return a folder with its links resolved, as it was at first."""
    return os.path.realpath(folder)


def _remedy(path: str, apart: Apart) -> str:
    if _place(path, apart):
        return (
            "the base's commit has it too, but it was imported before the worker could lead imports there, or by code "
            "that reads files itself; remove the .pth file in site-packages that imports it when Python starts"
        )
    if path.endswith(tuple(EXTENSION_SUFFIXES)):
        return (
            "a compiled module is in no commit; install the base's commit in an environment of its own, and compare "
            "with its interpreter as docs/comparing.md describes"
        )
    if _is_candidates(path, apart):
        return "the base's commit does not have it; compare with a commit that has it"
    return (
        "install the project with pip install -e, or put the folder of its packages, such as src, in pytest's setting "
        "pythonpath"
    )


@functools.cache
def _copies(root: str, checkout: str) -> frozenset[str]:
    """Return the files that were installed from a folder, or from an archive in it (PEP 610 has the origin)."""
    files: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:
            about = json.loads(distribution.read_text("direct_url.json") or "{}")
            origin = urlsplit(about["url"])
        except (KeyError, TypeError, ValueError):  # installed from an index, or by a tool that writes something else
            continue
        if origin.scheme == "file" and _is_in(os.path.join(os.path.realpath(url2pathname(origin.path)), ""), [root]):
            installed = {str(distribution.locate_file(file)) for file in distribution.files or ()}
            if (about.get("dir_info") or {}).get("editable"):
                installed -= set(_generated(installed, root, checkout))
            files.update(map(os.path.realpath, installed))
    return frozenset(files)


def _generated(installed: Iterable[str], root: str, checkout: str) -> Iterator[str]:
    """Yield the files of an editable install that the installer wrote to lead imports to the working tree.

    They are the modules that a .pth file of the same distribution imports when Python starts, and that the project does
    not have: a module of the project that is imported in this way is its code. Of the working tree only the folders
    that modules are imported from are searched, because it may hold data sets and environments.
    """
    for pth in (file for file in installed if file.endswith(".pth")):
        try:
            with open(pth, encoding="utf-8", errors="replace") as opened:
                imported = _PTH_IMPORT.findall(opened.read())
        except OSError:  # removed by hand
            continue
        for module in imported:
            file = str(PurePosixPath(pth).with_name(f"{module}.py"))
            if file in installed and not _has(root, checkout, f"{module}.py"):
                yield file


def _has(root: str, checkout: str, name: str) -> bool:
    """Return whether the project has a file of this name."""
    places = [root, *(entry for entry in sys.path if _is_in(os.path.realpath(entry), [root]))]
    return any(os.path.isfile(os.path.join(place, name)) for place in places) or any(
        name in files for _, _, files in os.walk(checkout)
    )


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(os.path.join(folder, "")) for folder in folders)
