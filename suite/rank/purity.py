"""Does a base's worker really run the base's code? Asked in the worker, with the standard library alone.

An editable install leads every import back to the candidate's working tree, through a .pth file or an import hook, in
whatever folder the worker was started. Both sides of the comparison would then run the same code, and it would pass.
Covers Python modules, compiled ones too; not files that code opens or loads by itself (data, `torch.ops.load_library`).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable


def strays(candidate_root: str, allowed: list[str]) -> list[str]:
    """Loaded modules whose file lies in the candidate's working tree.

    Args:
        candidate_root: the top of the candidate's working tree.
        allowed: folders in it that both sides share (the measuring code), or that are the base's own (its checkout,
            where temporary folders lie in the working tree).

    Returns:
        "module (file)", sorted. Links are followed, so a link in site-packages to the working tree counts; the
        installed packages and the standard library of an environment that lies in the working tree do not.
    """
    root = os.path.realpath(candidate_root)
    fine = [os.path.realpath(folder) for folder in (*allowed, *_interpreter())]
    found = []
    for name, module in list(sys.modules.items()):
        try:
            file = module.__file__
        except Exception:  # noqa: S112 - whatever a package puts in its own place may raise anything
            continue
        # Built in, a namespace package, which has no code of its own, or made up (torch.ops is "_ops.py").
        if not isinstance(file, str) or not os.path.isabs(file):
            continue
        path = os.path.realpath(file)
        if _lies_in(path, [root]) and not _lies_in(path, fine) and not _is_installed(path[len(root) :]):
            found.append(f"{name} ({path})")
    return sorted(found)


def require_pure(candidate_root: str, allowed: list[str]) -> None:
    """Refuse to go on with the candidate's code in a base's worker.

    To be asked once the trainer is built, and again after the last window, because imports may hide in a step.

    Args:
        candidate_root: as `strays`.
        allowed: as `strays`.

    Raises:
        ImportError: naming the modules.
    """
    found = strays(candidate_root, allowed)
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise ImportError(
            f"the base has imported {', '.join(found[:3])}{more} from the candidate's working tree {candidate_root}: "
            "it would be compared with itself. Either the base's commit does not have them, or an editable install "
            "leads to them; put the folder they are imported from on PYTHONPATH, whose place in the checkout comes "
            "first, or install the project without --editable"
        )


def _interpreter() -> Iterable[str]:
    paths = sysconfig.get_paths()
    return [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def _lies_in(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(os.path.join(folder, "")) for folder in folders)


def _is_installed(path: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep))
