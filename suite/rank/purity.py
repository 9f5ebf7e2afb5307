"""Checks in a base's worker that it runs the base's code; uses the standard library only.

An editable install leads imports to the candidate's working tree, by a .pth file or an import hook, wherever the worker
is started, and any other install of the working tree has a copy of it. Both sides of the comparison would then run the
same code, and it would pass. Covers Python modules, also compiled ones; not files that code opens or loads by itself
(data, `torch.ops.load_library`), and not a wheel that was built from the working tree and is elsewhere.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import sys
import sysconfig
from collections.abc import Iterable
from urllib.parse import urlsplit
from urllib.request import url2pathname


def strays(candidate_root: str, allowed: Iterable[str]) -> list[str]:
    """Return the loaded modules whose file is in the candidate's working tree, or was installed from there.

    Args:
        candidate_root: the top of the candidate's working tree.
        allowed: folders in it that both sides share (the measuring code), or that are the base's own (its checkout,
            where temporary folders are in the working tree).

    Returns:
        "module (file)", sorted. Links are followed, so a link from site-packages into the working tree counts.
        Other packages and the standard library of an environment in the working tree do not count.
    """
    root = os.path.realpath(candidate_root)
    fine = [os.path.realpath(folder) for folder in allowed]
    python = [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
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
        in_tree = _is_in(path, [root]) and not _is_in(path, python) and not _is_installed(path[len(root) :])
        if (in_tree or path in _copies(root)) and not _is_in(path, fine):
            modules.append(f"{name} ({path})")
    return sorted(modules)


def require_pure(candidate_root: str, allowed: Iterable[str]) -> None:
    """Raise if a base's worker has loaded the candidate's code; the arguments are those of `strays`.

    Call it after the trainer is made and again after a window, because a step may import.

    Raises:
        ImportError: it has; the message names the modules.
    """
    if modules := strays(candidate_root, allowed):
        more = f" and {len(modules) - 3} more" if len(modules) > 3 else ""
        raise ImportError(
            f"the base has imported {', '.join(modules[:3])}{more} from the candidate's working tree {candidate_root}, "
            "or from a copy installed from there: it would be compared with itself. Either the base's commit does not "
            "have them, or the install leads to them; put the folder they are imported from on PYTHONPATH or in "
            "pytest's setting pythonpath, whose place in the checkout comes first"
        )


@functools.cache
def _copies(root: str) -> frozenset[str]:
    """Return the files that were installed from a folder, or from an archive in it (PEP 610 has the origin)."""
    files: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:
            origin = urlsplit(json.loads(distribution.read_text("direct_url.json") or "{}")["url"])
        except (KeyError, TypeError, ValueError):  # installed from an index, or by a tool that writes something else
            continue
        if origin.scheme == "file" and _is_in(os.path.join(os.path.realpath(url2pathname(origin.path)), ""), [root]):
            files.update(os.path.realpath(str(distribution.locate_file(file))) for file in distribution.files or ())
    return frozenset(files)


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(os.path.join(folder, "")) for folder in folders)


def _is_installed(path: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep))
