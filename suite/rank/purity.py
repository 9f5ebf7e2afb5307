"""Checks in a base's worker that it runs the base's code; uses the standard library only.

An editable install leads imports to the candidate's working tree, by a .pth file or an import hook, wherever the worker
is started. Both sides of the comparison would then run the same code, and it would pass. Covers Python modules, also
compiled ones; not files that code opens or loads by itself (data, `torch.ops.load_library`).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable


def strays(candidate_root: str, allowed: Iterable[str]) -> list[str]:
    """Return the loaded modules whose file is in the candidate's working tree.

    Args:
        candidate_root: the top of the candidate's working tree.
        allowed: folders in it that both sides share (the measuring code), or that are the base's own (its checkout,
            where temporary folders are in the working tree).

    Returns:
        "module (file)", sorted. Links are followed, so a link from site-packages into the working tree counts.
        Installed packages and the standard library of an environment in the working tree do not count.
    """
    root = os.path.realpath(candidate_root)
    fine = [os.path.realpath(folder) for folder in (*allowed, *_interpreter())]
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
        if _is_in(path, [root]) and not _is_in(path, fine) and not _is_installed(path[len(root) :]):
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
            f"the base has imported {', '.join(modules[:3])}{more} from the candidate's working tree {candidate_root}: "
            "it would be compared with itself. Either the base's commit does not have them, or an editable install "
            "leads to them; put the folder they are imported from on PYTHONPATH, whose place in the checkout comes "
            "first, or install the project without --editable"
        )


def _interpreter() -> Iterable[str]:
    paths = sysconfig.get_paths()
    return [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(os.path.join(folder, "")) for folder in folders)


def _is_installed(path: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep))
