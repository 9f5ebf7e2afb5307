"""What a run can be compared with: what `--scaling-against` may say, found out before anything is measured.

A trainer, a Python interpreter or a commit of the user's repository, in that order; `trainer:`, `python:` and `ref:`
force one of them. Nothing is imported, and nothing is executed that neither has an interpreter's name nor was named as
a path or by `python:`: a branch may be called `test`, and so is a program. Whether a trainer exists is not looked up
here, and the torch of an interpreter is not loaded: its workers do that.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from suite.base.git import FULL_NAME, GitError, git, is_shallow, toplevel
from suite.plan.base import Base

OLDEST_PYTHON = (3, 10)  # our workers' code needs it, and no torch from 2.9 on was built for an older one
NEEDED = ("torch", "numpy")  # all that a worker imports beside the standard library and our own code
PROBE_TIMEOUT_S = 30.0

_FORCING = ("trainer", "python", "ref")
_INTERPRETER_NAME = re.compile(r"(python|pypy|graalpy)[0-9.]*[dt]*")
# The first line is a syntax error to a shell, so that a shell script given for an interpreter does none of the rest.
# Not isolated (-I): torch may lie in the user's site-packages or on PYTHONPATH, where the workers will find it too. The
# working directory must not count: PYTHONSAFEPATH says so to Python 3.11 and newer, the second line to older ones.
_PROBE = f"""\
sys = __import__("sys")
sys.path[:] = [path for path in sys.path if path]
version = tuple(sys.version_info[:3])
lacks = []
if version >= {OLDEST_PYTHON}:
    from importlib.util import find_spec
    for name in {NEEDED}:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            lacks.append(name)
print("Python %d.%d.%d lacks [%s]" % (version + (" ".join(lacks),)))
"""
_PROBED = re.compile(r"Python (\d+)\.(\d+)\.(\d+) lacks \[(.*)\]")


def parse(setting: str, root: Path, is_table_name: Callable[[str], bool]) -> Base:
    """The base that `--scaling-against` names.

    Args:
        setting: its value.
        root: the user's project; a git ref is one of the repository around it.
        is_table_name: whether a trainer of that name is built in.

    Raises:
        ValueError: it names nothing, or what it names cannot serve; with what each kind of base would need.
    """
    try:
        return _parse(setting, root, is_table_name)
    except ValueError as error:
        raise ValueError(f"--scaling-against {setting!r}: {error}") from error


def of_trainer(name: str, is_table_name: Callable[[str], bool]) -> Base:
    """Another trainer, with the candidate's code and interpreter.

    Raises:
        ValueError: it is neither built in nor spelled module:Class or path.py:Class.
    """
    if ":" not in name and not is_table_name(name):
        raise ValueError(f"{name!r} is no built-in trainer; one of your own is module:Class or path.py:Class")
    return Base("trainer", name, trainer=name)


def of_python(name: str) -> Base:
    """Another interpreter: asked for its version, and whether it could import what a worker needs.

    Args:
        name: a path, or a name that is looked up on PATH.

    Raises:
        ValueError: there is no such program, it is no Python or one too old, or torch or numpy are missing there.
    """
    path = _executable(name)
    rule = "expected a Python interpreter that has torch, such as python3.12 or path/to/venv/bin/python"
    try:
        said = _ask(path)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{name!r} did not tell its version within {PROBE_TIMEOUT_S:g} s; {rule}") from error
    except OSError as error:
        raise ValueError(f"{name!r} cannot be run ({error.strerror}); {rule}") from error
    found = _PROBED.fullmatch(said)
    if not found:
        raise ValueError(f"{name!r} does not answer as a Python interpreter, but with {said[:200]!r}; {rule}")
    major, minor, micro, lacking = found.groups()
    version = f"Python {major}.{minor}.{micro}"
    if (int(major), int(minor)) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise ValueError(f"{name!r} is {version}; workers need {oldest} or newer, so name a newer interpreter")
    if lacking:
        lacks = " and ".join(lacking.split())
        raise ValueError(f"{name!r} ({version}) lacks {lacks}; {path} -m pip install {' '.join(NEEDED)}")
    return Base("python", f"{name} ({version})", python=path)


def of_ref(ref: str, root: Path) -> Base:
    """A commit of the repository around `root`.

    Args:
        ref: whatever git understands as one: branch, tag, object name, HEAD~3.
        root: the user's project.

    Raises:
        ValueError: there is no repository, or no such commit in it; with names that are close.
    """
    try:
        top = toplevel(root)
    except GitError as error:
        raise ValueError(f"{error}; a git ref needs one") from error
    try:
        # --end-of-options keeps a ref such as --help from being one; older versions of git repeat it in their answer.
        said = git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}").splitlines()
    except GitError as error:
        raise ValueError(_no_such_commit(ref, top)) from error
    commit = said[-1] if said else ""
    if not FULL_NAME.fullmatch(commit):
        raise ValueError(_no_such_commit(ref, top))
    label = commit[:7] if commit.startswith(ref) else f"{ref} ({commit[:7]})"
    return Base("ref", label, commit=commit)


def _parse(setting: str, root: Path, is_table_name: Callable[[str], bool]) -> Base:
    prefix, colon, value = setting.partition(":")
    forced = prefix if colon and prefix in _FORCING else None
    value = value if forced else setting
    if not value.strip():
        raise ValueError("expected a trainer, a Python interpreter or a git ref")
    if forced == "trainer" or (not forced and (":" in value or is_table_name(value))):
        return of_trainer(value, is_table_name)
    if forced == "ref":
        return of_ref(value, root)
    no_python = None if forced else _why_not_run(value)
    if no_python is None:
        return of_python(value)
    try:
        return of_ref(value, root)
    except ValueError as error:
        raise ValueError(
            "neither a trainer (a built-in name, module:Class or path.py:Class), "
            f"nor a Python interpreter ({no_python}), nor a git ref ({error})"
        ) from error


def _why_not_run(value: str) -> str | None:
    """Why it is not executed unless `python:` says so; None for a program with an interpreter's name, or a path.

    A path is what no git ref can look like.
    """
    try:
        _executable(value)
    except ValueError as error:
        return str(error)
    if _INTERPRETER_NAME.fullmatch(os.path.basename(value)) or value.startswith(("/", "./", "../", "~")):
        return None
    return f"{value!r} is a program, but not called like one; python:{value} if it is"


def _executable(name: str) -> str:
    """The absolute path of a program; links stay, because a virtual environment's interpreter is one."""
    path = os.path.expanduser(name)
    found = shutil.which(path)
    if found is not None:
        return os.path.abspath(found)
    if os.path.isdir(path):
        inside = Path(path, "bin", "python")
        raise ValueError(f"{name!r} is a directory" + (f"; its interpreter is {inside}" if inside.exists() else ""))
    if os.path.islink(path) and not os.path.exists(path):
        raise ValueError(f"{name!r} is a link to {os.readlink(path)}, which is not there")
    if os.path.isfile(path) and os.sep in path:
        raise ValueError(f"{name!r} is not executable; chmod +x {path} if it is an interpreter")
    where = "there is no such file" if os.sep in path else "there is no such program on PATH"
    raise ValueError(f"{name!r}: {where}")


def _ask(path: str) -> str:
    """The last line that the interpreter answers to the probe, or says to stderr instead."""
    process = subprocess.Popen(
        [path, "-c", _PROBE],
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with process:
        try:
            said, complaint = process.communicate(timeout=PROBE_TIMEOUT_S)
        except BaseException:
            # With its children: a wrapper's child would hold the pipes open, and leaving waits for them.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    lines = (said.strip() or complaint.strip()).splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"


def _no_such_commit(ref: str, top: Path) -> str:
    listed = git(top, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes")
    names = listed.splitlines()
    close = [name for name in names if name.endswith(f"/{ref}")] + difflib.get_close_matches(ref, names)
    text = f"{ref!r} names no commit of the repository {top}"
    if close:
        text += f"; close to it are {', '.join(dict.fromkeys(close))}"
    if is_shallow(top):
        text += "; the clone is shallow: git fetch --unshallow --tags brings the rest"
    return text
