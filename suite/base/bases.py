"""Find out what `--scaling-against` names, before anything is measured.

A trainer, a Python interpreter or a commit of the user's repository, tried in that order; `trainer:`, `python:` and
`ref:` force one, and only `script:` names a training script. Nothing is imported. A program runs only if it has an
interpreter's name, is given as a path, or is forced by `python:`, because a branch called `test` is also a program.
Workers check later whether a trainer exists and whether an interpreter's torch loads.
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

from suite.base.git import FULL_NAME, NO_COMMIT, GitError, git, git_or_none, is_shallow, is_unborn, toplevel
from suite.plan.config import Base
from suite.plan.scripts import Script

OLDEST_PYTHON = (3, 10)  # the workers' code needs it, and torch from 2.9 on is built for nothing older
NEEDED = ("torch", "numpy")  # all that a worker imports besides the standard library and our own code
PROBE_TIMEOUT_S = 30.0
MOST_NAMES = 8  # of branches and tags in a message

_RULE = "expected a Python interpreter that has torch, such as python3.12 or path/to/venv/bin/python"
_FORCING = ("trainer", "script", "python", "ref")
_INTERPRETER_NAME = re.compile(r"(python|pypy|graalpy)[0-9.]*[dt]*")
# The first line is a syntax error to a shell, which then runs none of the rest. Not isolated (-I): torch may be in the
# user's site-packages or on PYTHONPATH, where workers find it too. The working directory must not count: PYTHONSAFEPATH
# excludes it from Python 3.11 on, the second line before.
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
_ANSWER = re.compile(r"Python (\d+)\.(\d+)\.(\d+) lacks \[(.*)\]")


def parse(
    setting: str,
    root: Path,
    is_table_name: Callable[[str], bool],
    script_of: Callable[[str], Script],
) -> Base:
    """Return the base that `--scaling-against` names; a ValueError where that is none, or cannot serve.

    Args:
        setting: its value.
        root: the user's project; a git ref is one of the repository around it.
        is_table_name: whether a trainer of that name is built in.
        script_of: returns the script that a command or a name stands for, or raises ValueError.
    """
    try:
        return _parse(setting, root, is_table_name, script_of)
    except ValueError as error:
        raise ValueError(f"--scaling-against {setting!r}: {error}") from error


def _parse(setting: str, root: Path, is_table_name: Callable[[str], bool], script_of: Callable[[str], Script]) -> Base:
    prefix, colon, value = setting.partition(":")
    forced = prefix if colon and prefix in _FORCING else None
    value = value if forced else setting
    if not value.strip():
        raise ValueError("expected a trainer, a Python interpreter or a git ref")
    if forced == "script":
        script = script_of(value)
        return Base("script", script.name, trainer=script.name, script=script)
    if forced == "trainer" and ":" not in value and not is_table_name(value):
        raise ValueError(f"{value!r} is not a built-in trainer; one of your own is module:Class or path.py:Class")
    if forced == "trainer" or (not forced and (":" in value or is_table_name(value))):
        return Base("trainer", value, trainer=value)
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
            f"nor a Python interpreter ({no_python}), nor a git ref ({error}); "
            "trainer:, python: or ref: before it says which of them it is"
        ) from error


def of_python(name: str) -> Base:
    """Return an interpreter, by its path or a name on PATH, after asking it for its version and what a worker imports.

    A ValueError says that there is none, that it is too old, or that torch or numpy are missing there.
    """
    path = _executable(name)
    try:
        answer = _probe(path)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{name!r} did not report its version within {PROBE_TIMEOUT_S:g} s; {_RULE}") from error
    except OSError as error:
        raise ValueError(f"{name!r} cannot be run ({error.strerror}); {_RULE}") from error
    match = _ANSWER.fullmatch(answer)
    if not match:
        raise ValueError(f"{name!r} does not answer as a Python interpreter, but with {answer[:200]!r}; {_RULE}")
    major, minor, micro, lacking = match.groups()
    version = f"Python {major}.{minor}.{micro}"
    if (int(major), int(minor)) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise ValueError(f"{name!r} is {version}; workers need {oldest} or newer, so name a newer interpreter")
    if lacking:
        lacks = " and ".join(lacking.split())
        raise ValueError(f"{name!r} ({version}) lacks {lacks}; {path} -m pip install {' '.join(NEEDED)}")
    return Base("python", f"{name} ({version})", python=path)


def of_ref(ref: str, root: Path) -> Base:
    """Return a commit of the repository around `root` as base, by anything that git resolves: a branch, HEAD~3.

    A ValueError says that there is no repository, or no such commit in it, and has similar names.
    """
    try:
        top = toplevel(root)
    except GitError as error:
        raise ValueError(f"{error}; a git ref needs one") from error
    # --end-of-options: a ref such as --help is no option. Older versions of git repeat it in their answer.
    asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    commit = (git_or_none(top, *asked) or "").rpartition("\n")[2]
    if not FULL_NAME.fullmatch(commit):
        raise ValueError(_no_such_commit(ref, top))
    label = commit[:7] if commit.startswith(ref) else f"{ref} ({commit[:7]})"
    return Base("ref", label, commit=commit)


def _why_not_run(value: str) -> str | None:
    """Return why a value is not run without `python:`; None for a path or a program with an interpreter's name."""
    try:
        _executable(value)
    except ValueError as error:
        return str(error)
    # No git ref can look like such a path.
    if _INTERPRETER_NAME.fullmatch(os.path.basename(value)) or value.startswith(("/", "./", "../", "~")):
        return None
    return f"{value!r} is a program whose name is not an interpreter's; python:{value} forces it"


def _executable(name: str) -> str:
    """Return the absolute path of a program, links kept: a virtual environment's interpreter is a link."""
    path = os.path.expanduser(name)
    if (program := shutil.which(path)) is not None:
        return os.path.abspath(program)
    if os.path.isdir(path):
        inside = Path(path, "bin", "python")
        remedy = f"its interpreter is {inside}" if inside.exists() else "name a program in it"
        raise ValueError(f"{name!r} is a directory; {remedy}")
    if os.sep in path:
        raise ValueError(f"{name!r}: there is no executable file of that name; check the path")
    raise ValueError(f"{name!r}: there is no such program on PATH; name its path")


def _probe(path: str) -> str:
    """Return the last line that a program answers to the probe, on stdout or else on stderr."""
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
            stdout, stderr = process.communicate(timeout=PROBE_TIMEOUT_S)
        except BaseException:
            # With its children: a wrapper's child keeps the pipes open, and leaving the context waits for them.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    lines = (stdout.strip() or stderr.strip()).splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"


def _no_such_commit(ref: str, top: Path) -> str:
    names = git(top, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes").split()
    similar = [name for name in names if name.endswith(f"/{ref}")] + difflib.get_close_matches(ref, names)
    remedy = NO_COMMIT if is_unborn(top) and not names else "git log --all shows what it has"
    if similar:
        remedy = f"similar names are {', '.join(dict.fromkeys(similar))}"
    elif names:
        some = names if len(names) <= MOST_NAMES else [*names[:MOST_NAMES], "..."]
        remedy = f"its branches and tags are {', '.join(some)}"
    shallow = "; the clone is shallow: git fetch --unshallow --tags brings the rest" if is_shallow(top) else ""
    return f"{ref!r} names no commit of the repository {top}; {remedy}{shallow}"
