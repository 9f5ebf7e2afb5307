"""A user's environment outside of the tree: this project's wheel, and the torch of the environment that runs tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

from tests.support.deadlines import WHOLE_S
from tests.support.project import REPOSITORY

SOURCES = ("reference", "suite", "torch_scaling_suite.py", "pyproject.toml", "README.md", "LICENSE")
OURS = re.compile(r"(__editable__|torch_scaling_suite|suite|reference)\b.*|.*\.pth")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def copy_sources(folder: Path) -> Path:
    """Copy what a wheel is built from, so that building leaves nothing in the tree."""
    folder.mkdir(parents=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *SOURCES],
        cwd=REPOSITORY, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, listed):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((REPOSITORY / name).read_bytes())
    return folder


def build(sources: Path, folder: Path) -> Path:
    """Build the wheel by the project's own backend."""
    folder.mkdir()
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=sources, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    return wheel


class Elsewhere:
    """A virtual environment that has everything of this one except this project."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        self.packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        for place in {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}:
            for entry in Path(place).iterdir():
                if not OURS.fullmatch(entry.name):
                    (self.packages / entry.name).symlink_to(entry)
        self._script("pytest", f"#!{self.bin}/python\nimport sys\nimport pytest\nsys.exit(pytest.main())\n")
        # Works from outside, so that the environment needs none of its own. Everything required is there: no network.
        self._script("pip", f'#!/bin/sh\nexec {sys.executable} -m pip --python {self.bin}/python "$@"\n')

    def install(self, wheel: Path) -> None:
        """Unpack a wheel that has only Python files, as an installer would."""
        with zipfile.ZipFile(wheel) as content:
            content.extractall(self.packages)

    def run(self, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a shell command in a folder; stderr is part of stdout."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        environment |= {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "COLUMNS": "200",
        }
        environment.pop("GITHUB_STEP_SUMMARY", None)  # a job of our own wants its own summary
        return subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=folder, env=environment, timeout=WHOLE_S, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _script(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
