"""Used from another repository: a wheel, outside of the tree, next to packages of the user's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.stranger.places import trainer, write
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


in_its_tox_environment = pytest.mark.skipif(
    "SCALING_STRANGER" not in os.environ, reason="takes a minute, and pytest-cov and -randomly: tox -e stranger"
)

PRICES = """\
def with_tax(price):
    return price * 1.25
"""

TEST_SHOP = """\
import time

import pytest
from torch import distributed as dist
from shop.prices import with_tax

def sleep():
    time.sleep(90)

def test_price():
    assert with_tax(8) == 10

def test_ranks(on_ranks):
    assert on_ranks(dist.get_world_size, 2) == [2, 2]

@pytest.mark.timeout(15)
def test_hangs(on_ranks):
    on_ranks(sleep, 2)
"""

STRICT = """\
[tool.pytest.ini_options]
pythonpath = ["src"]
addopts = "--strict-markers --strict-config"
filterwarnings = ["error"]
xfail_strict = true
timeout = 100
scaling_trainer = ["shop.train:Trainer", "shop.train:Wrong"]
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build(copy_sources(folder / "clone"), folder / "wheels")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    made = Elsewhere(tmp_path_factory.mktemp("elsewhere") / "environment")
    made.install(wheel)
    return made


def test_a_wheel_has_the_packages_and_neither_tests_nor_a_conftest(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {
        "reference",
        "suite",
        "torch_scaling_suite.py",
    }
    assert not [name for name in names if "conftest" in name]
    folders = (REPOSITORY / "suite", REPOSITORY / "reference")
    ours = {str(path.relative_to(REPOSITORY)) for folder in folders for path in folder.rglob("*.*")}
    missing = {name for name in ours - set(names) if "__pycache__" not in name}
    assert not missing


def test_trainers_of_a_strict_project_are_checked(installed: Elsewhere, tmp_path: Path) -> None:
    """Its code is in src/, every warning is an error, and one of its two trainers is wrong."""
    wrong = "\n\nclass Wrong(Trainer):\n    def step(self, X, y, global_batch_size):\n"
    wrong += "        return super().step(X, y, max(1, len(y)) * torch.distributed.get_world_size())\n"
    project = write(tmp_path, {"src/shop/train.py": trainer() + wrong, "pyproject.toml": STRICT})
    ended = installed.run("pytest --pyargs suite.checks -m correctness -k gradient", project)
    assert ended.returncode == 1, ended.stdout
    assert "1 failed, 1 passed" in ended.stdout
    assert "looks like: mean of the shards' means" in ended.stdout
    again = ended.stdout.partition("see it again: ")[2].splitlines()[0]
    assert again.startswith("env PYTHONPATH=src python -m suite.checks shop.train:Wrong gradient ")
    seen = installed.run(again, project)
    assert seen.returncode == 1
    assert "shop.train:Wrong, check 'gradient': step 0: the gradient of" in seen.stdout


@pytest.mark.parametrize(
    ("package", "others", "command", "status"),
    [
        ("suite/__init__.py", {}, "python -m pytest", 4),
        ("reference.py", {"conftest.py": ""}, "pytest", 4),
        ("src/suite/__init__.py", {"pytest.ini": "[pytest]\npythonpath = src\n"}, "pytest", 4),
        ("suite/__init__.py", {"suite/cart.py": "", "tests/__init__.py": ""}, "pytest", 2),
    ],
    ids=["working directory", "conftest", "pythonpath", "test module"],
)
def test_a_package_of_the_users_with_a_name_of_ours_ends_in_one_message(
    installed: Elsewhere, tmp_path: Path, package: str, others: dict[str, str], command: str, status: int
) -> None:
    name = "reference" if "reference" in package else "suite"
    test = f"import {name}{'.cart' if 'suite/cart.py' in others else ''}\n\ndef test_it(): ...\n"
    project = write(tmp_path, {package: "", "tests/test_it.py": test, **others})
    ended = installed.run(command, project)
    assert ended.returncode == status, ended.stdout
    assert f"torch-scaling-suite: 'import {name}' gives {tmp_path}" in ended.stdout
    assert f"instead of {installed.packages / name}, which the plugin needs; rename that package" in ended.stdout
    assert "Traceback" not in ended.stdout
    assert "Error: " not in ended.stdout
    without = installed.run(f"{command} -p no:torch_scaling_suite", project)
    assert without.returncode == 0, without.stdout


@in_its_tox_environment
def test_other_plugins_go_along(installed: Elsewhere, tmp_path: Path) -> None:
    """pytest-xdist spreads, pytest-cov covers the tests' process, pytest-randomly shuffles, pytest-timeout ends."""
    files = {"shop/train.py": trainer(), "shop/prices.py": PRICES, "tests/test_shop.py": TEST_SHOP}
    project = write(tmp_path, files)
    where = "--pyargs suite.checks tests -k 'shop or gradient or identity' --scaling-trainer shop.train:Trainer"
    ended = installed.run(f"python -m pytest -n 2 --cov=shop --timeout=60 {where}", project)
    assert ended.returncode == 1, ended.stdout
    assert "1 failed, 4 passed" in ended.stdout
    assert "Timeout (>15.0s) from pytest-timeout" in ended.stdout
    assert "Using --randomly-seed=" in ended.stdout
    assert re.search(r"prices\.py +2 +0 +100%", ended.stdout)
    refused = installed.run("pytest -n 2 --pyargs suite.benchmarks -m scaling", project)
    assert refused.returncode == 1, refused.stdout
    assert "scaling cells are not timed under xdist" in refused.stdout
    assert "INTERNALERROR" not in refused.stdout
    limited = "pytest --cov=shop --timeout=1 --pyargs suite.benchmarks -m scaling --scaling-trainer single -k strong-1"
    timed = installed.run(f"{limited} --scaling-budget=1", project)
    assert timed.returncode == 0, timed.stdout
