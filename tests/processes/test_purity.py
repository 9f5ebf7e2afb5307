"""A base that imports the candidate's code is refused: as installers leave it, in real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import suite
from suite.rank import purity

# As the hook of an editable install does: it leads a package to the working tree, whatever the search path says.
FINDER = """\
import importlib.util, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pkg":
            where = {folder!r}
            return importlib.util.spec_from_file_location(
                name, where + "/__init__.py", submodule_search_locations=[where]
            )

sys.meta_path.{how}
"""

WORKER = """\
import json, sys
sys.path[:] = [path for path in sys.path if path]
for name in {imported!r}:
    __import__(name)
from suite.rank import purity
try:
    purity.require_pure({root!r}, [])
except ImportError as error:
    refused = str(error)
else:
    refused = ""
print(json.dumps([purity.strays({root!r}, []), refused, sys.modules["pkg"].__file__]))
"""

COPIED = {"pkg": "pkg/__init__.py", "pkg.train": "pkg/train.py"}  # by module


class Seen(NamedTuple):
    """A worker's strays, its refusal, and the file of `pkg`."""

    strays: list[str]
    refused: str
    file: str


class Project:
    """A candidate's working tree with `src/pkg`, its checkout, and a virtual environment to install into."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "candidate"
        self.checkout = tmp_path / "checkout"
        for folder in (self.root, self.checkout):
            (folder / "src/pkg").mkdir(parents=True)
            (folder / "src/pkg/__init__.py").touch()
            (folder / "src/pkg/train.py").touch()
        venv = tmp_path / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        self.python = venv / "bin/python"
        [self.packages] = venv.glob("lib/python*/site-packages")
        self.code = tmp_path / "code"  # our own code, as a pool of workers links to it
        self.code.mkdir()
        (self.code / "suite").symlink_to(Path(suite.__path__[0]))

    def hook(self, how: str = "insert(0, Finder)") -> None:
        """Install the working tree by an import hook; setuptools appends its own, others put theirs first."""
        finder = FINDER.format(folder=str(self.root / "src/pkg"), how=how)
        (self.packages / "_editable.py").write_text(finder)
        (self.packages / "editable.pth").write_text("import _editable\n")

    def install(self, url: str | None) -> None:
        """Copy `pkg` into the environment as an installer does that says where it is from, or one that does not."""
        about = self.packages / "pkg-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pkg\nVersion: 1\n")
        (about / "RECORD").write_text("".join(f"{file},,\n" for file in COPIED.values()))
        if url:
            (about / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {}}))
        shutil.copytree(self.root / "src/pkg", self.packages / "pkg")

    def worker(self, *imported: str, path: Path | None = None) -> Seen:
        """Import modules as a base's worker does."""
        code = WORKER.format(imported=imported, root=str(self.root))
        search = os.pathsep.join(map(str, (self.code, path or self.checkout / "src")))
        environment = {**os.environ, "PYTHONPATH": search}
        done = subprocess.run(
            [self.python, "-c", code], env=environment, cwd=self.root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return Seen(*json.loads(done.stdout))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_worker_with_the_checkout_first_is_pure(project: Project) -> None:
    seen = project.worker("pkg", "pkg.train")
    assert (seen.strays, seen.refused) == ([], "")
    assert Path(seen.file).is_relative_to(project.checkout)


def test_an_import_hook_before_the_search_path_is_refused(project: Project) -> None:
    """The hook comes before the search path, which has the checkout."""
    project.hook()
    seen = project.worker("pkg.train")
    train, package = project.root / "src/pkg/train.py", project.root / "src/pkg/__init__.py"
    assert seen.strays == [f"pkg ({package})", f"pkg.train ({train})"]
    assert seen.refused.startswith(f"the base has imported pkg ({package}), pkg.train ({train}) from the candidate's")
    assert "it would be compared with itself" in seen.refused
    assert seen.refused.endswith("whose place in the checkout comes first")


def test_an_import_hook_after_the_search_path_strays_only_where_the_checkout_is_not(project: Project) -> None:
    """As setuptools' own does, which is harmless for what the checkout has."""
    project.hook("append(Finder)")
    assert project.worker("pkg.train").strays == []
    assert [stray.partition(" ")[0] for stray in project.worker("pkg", path=project.checkout).strays] == ["pkg"]


def test_a_pth_file_serves_what_the_commit_does_not_have(project: Project) -> None:
    (project.packages / "editable.pth").write_text(f"{project.root}/src\n")
    (project.root / "src/new.py").touch()
    assert project.worker("pkg.train").strays == []
    assert project.worker("pkg", "new").strays == [f"new ({project.root}/src/new.py)"]


@pytest.mark.parametrize("origin", ["", "/dist/pkg-1-py3-none-any.whl"], ids=["folder", "archive"])
def test_a_copy_that_was_installed_from_the_working_tree_is_refused(project: Project, origin: str) -> None:
    """The base's checkout is on the search path, and its `src` is not: both sides would import the copy."""
    project.install(f"{project.root.as_uri()}{origin}")
    seen = project.worker("pkg.train", path=project.checkout)
    assert seen.strays == [f"{name} ({project.packages / file})" for name, file in COPIED.items()]
    assert "or from a copy installed from there" in seen.refused
    assert project.worker("pkg.train").strays == []


@pytest.mark.parametrize("origin", ["{root}-2", "https://example.org{path}/pkg.whl", None])
def test_what_was_installed_from_elsewhere_is_pure(project: Project, origin: str | None) -> None:
    project.install(origin and origin.format(root=project.root.as_uri(), path=project.root))
    assert project.worker("pkg.train", path=project.checkout).strays == []


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path], None]:
    """Return a function that makes this process look as if it had loaded a module from a file."""

    def load(name: str, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        module = ModuleType(name)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)

    return load


@pytest.mark.parametrize(
    ("file", "strays"),
    [
        ("candidate/src/probe.py", True),
        ("candidate-2/src/probe.py", False),
        ("candidate/allowed/src/probe.py", False),
        ("candidate/.other/lib/site-packages/probe.py", False),
    ],
    ids=["in the working tree", "in a folder whose name begins alike", "allowed", "installed inside"],
)
def test_a_file_in_the_working_tree_strays_unless_it_is_allowed_or_installed(
    file: str, strays: bool, load: Callable[[str, Path], None], tmp_path: Path
) -> None:
    load("probe", tmp_path / file)
    root = tmp_path / "candidate"
    assert purity.strays(str(root), [str(root / "allowed")]) == ([f"probe ({tmp_path / file})"] if strays else [])


def test_links_to_the_working_tree_are_followed(load: Callable[[str, Path], None], tmp_path: Path) -> None:
    """A strict editable install puts links into site-packages."""
    target, link = tmp_path / "candidate/probe.py", tmp_path / "site-packages/probe.py"
    link.parent.mkdir()
    target.parent.mkdir()
    link.symlink_to(target)
    load("probe", link)
    assert purity.strays(str(tmp_path / "candidate"), []) == [f"probe ({target})"]


def test_an_interpreter_inside_the_working_tree_is_fine() -> None:
    """A conda environment has its standard library inside."""
    around = os.path.dirname(sysconfig.get_paths()["stdlib"])
    assert os.path.realpath(json.__file__).startswith(os.path.realpath(around))
    assert not [stray for stray in purity.strays(around, []) if stray.startswith("json")]


def test_the_refusal_names_three_modules_and_counts_the_others(
    load: Callable[[str, Path], None], tmp_path: Path
) -> None:
    for number in range(5):
        load(f"new{number}", tmp_path / f"new{number}.py")
    with pytest.raises(ImportError, match=r"new2\.py\) and 2 more from the candidate's"):
        purity.require_pure(str(tmp_path), [])


def test_objects_in_the_place_of_modules_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages put objects into sys.modules whose attributes may raise anything."""

    class Odd:
        def __getattr__(self, name: str) -> None:
            raise RuntimeError(name)

    monkeypatch.setitem(sys.modules, "odd", Odd())
    monkeypatch.setitem(sys.modules, "none", None)
    assert purity.strays(str(tmp_path), []) == []
