"""A base that imports the candidate's code is refused: real editable installs, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

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
    purity.require_pure({root!r}, {allowed!r})
except ImportError as error:
    refused = str(error)
else:
    refused = ""
print(json.dumps([purity.strays({root!r}, {allowed!r}), refused, sys.modules["pkg"].__file__]))
"""


@dataclass
class Seen:
    """A worker's strays, its refusal, and the file of `pkg`."""

    strays: list[str]
    refused: str
    file: Path


class Project:
    """A candidate's working tree with `src/pkg`, its checkout, and a virtual environment to install into."""

    def __init__(self, tmp_path: Path, environment: str) -> None:
        self.root = tmp_path / "candidate"
        self.checkout = tmp_path / "checkout"
        for folder in (self.root, self.checkout):
            (folder / "src/pkg").mkdir(parents=True)
            (folder / "src/pkg/__init__.py").touch()
            (folder / "src/pkg/train.py").touch()
        venv = tmp_path / environment
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

    def worker(self, *imported: str, allowed: tuple[Path, ...] = (), paths: tuple[Path, ...] = ()) -> Seen:
        """Import modules as a base's worker does."""
        code = WORKER.format(imported=imported, root=str(self.root), allowed=[*map(str, allowed)])
        search = os.pathsep.join(map(str, (self.code, *(paths or (self.checkout / "src",)))))
        environment = {**os.environ, "PYTHONPATH": search}
        done = subprocess.run(
            [self.python, "-c", code], env=environment, cwd=self.root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        strays, refused, file = json.loads(done.stdout)
        return Seen(strays, refused, Path(file))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, "venv")


def test_a_worker_with_the_checkout_first_is_pure(project: Project) -> None:
    seen = project.worker("pkg", "pkg.train")
    assert (seen.strays, seen.refused) == ([], "")
    assert seen.file.is_relative_to(project.checkout)


def test_an_import_hook_before_the_search_path_is_refused(project: Project) -> None:
    """The hook comes before the search path, which has the checkout."""
    project.hook()
    seen = project.worker("pkg.train")
    train, package = project.root / "src/pkg/train.py", project.root / "src/pkg/__init__.py"
    assert seen.strays == [f"pkg ({package})", f"pkg.train ({train})"]
    assert seen.refused.startswith(f"the base has imported pkg ({package}), pkg.train ({train}) from the candidate's")
    assert "it would be compared with itself" in seen.refused
    assert seen.refused.endswith("or install the project without --editable")


def test_an_import_hook_after_the_search_path_strays_only_where_the_checkout_is_not(project: Project) -> None:
    """As setuptools' own does, which is harmless for what the checkout has."""
    project.hook("append(Finder)")
    assert project.worker("pkg.train").strays == []
    assert [stray.partition(" ")[0] for stray in project.worker("pkg", paths=(project.checkout,)).strays] == ["pkg"]


def test_a_pth_file_serves_what_the_commit_does_not_have(project: Project) -> None:
    (project.packages / "editable.pth").write_text(f"{project.root}/src\n")
    (project.root / "src/new.py").touch()
    assert project.worker("pkg.train").strays == []
    assert project.worker("pkg", "new").strays == [f"new ({project.root}/src/new.py)"]


def test_links_to_the_working_tree_are_followed(project: Project) -> None:
    """A strict editable install puts links into site-packages."""
    (project.packages / "pkg").symlink_to(project.root / "src/pkg")
    seen = project.worker("pkg", paths=(project.code,))
    assert seen.file.is_relative_to(project.packages)
    assert seen.strays == [f"pkg ({project.root}/src/pkg/__init__.py)"]


def test_an_environment_inside_the_working_tree_is_fine(tmp_path: Path) -> None:
    project = Project(tmp_path, "candidate/.venv")
    (project.packages / "installed.py").touch()
    (project.packages / "pkg").mkdir()
    (project.packages / "pkg/__init__.py").touch()
    seen = project.worker("pkg", "installed", paths=(project.code,))
    assert seen.file.is_relative_to(project.root)
    assert seen.strays == []


def test_other_installed_packages_inside_the_working_tree_are_fine(project: Project) -> None:
    others = project.root / ".other" / "site-packages"
    others.mkdir(parents=True)
    (others / "tool.py").touch()
    assert project.worker("pkg", "tool", paths=(project.checkout / "src", others)).strays == []


def test_an_interpreter_inside_the_working_tree_is_fine() -> None:
    """A conda environment has its standard library inside."""
    around = os.path.dirname(sysconfig.get_paths()["stdlib"])
    assert os.path.realpath(json.__file__).startswith(os.path.realpath(around))
    assert not [stray for stray in purity.strays(around, []) if stray.startswith("json")]


def test_the_measuring_code_and_a_checkout_inside_are_allowed(project: Project) -> None:
    """As when this project measures itself, with temporary files in the working tree."""
    inside = project.checkout.rename(project.root / "temporary")
    assert len(project.worker("pkg.train", paths=(inside / "src",)).strays) == 2
    assert project.worker("pkg.train", paths=(inside / "src",), allowed=(inside,)).strays == []


def test_a_folder_whose_name_only_begins_alike_is_not_inside(project: Project) -> None:
    neighbour = project.root.with_name("candidate-2")
    project.checkout.rename(neighbour)
    assert project.worker("pkg", paths=(neighbour / "src",)).strays == []


def test_the_refusal_names_three_modules_and_counts_the_others(project: Project) -> None:
    names = [f"new{number}" for number in range(5)]
    for name in names:
        (project.root / f"{name}.py").touch()
    seen = project.worker("pkg", *names, paths=(project.checkout / "src", project.root))
    assert len(seen.strays) == 5
    assert "new2.py) and 2 more from the candidate's" in seen.refused


def test_objects_in_the_place_of_modules_do_not_matter(project: Project) -> None:
    """Packages put objects into sys.modules whose attributes may raise anything."""
    (project.checkout / "src/odd.py").write_text(
        "import sys\nclass Odd:\n    def __getattr__(self, name): raise RuntimeError(name)\n"
        "sys.modules['odd'] = Odd()\nsys.modules['none'] = None\n"
    )
    assert project.worker("pkg", "odd").strays == []
