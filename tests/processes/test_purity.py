"""A base that imports the candidate's code is refused: as installers leave it, in real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from psutil import _psutil_linux

import suite
from suite.processes.jobs import Apart
from suite.rank import purity

# As the import hooks of editable installs: one leads a package to the working tree, whatever the search path says.
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

def install():
    sys.meta_path.{how}
"""
APPENDED, FIRST = "append(Finder)", "insert(0, Finder)"

WORKER = """\
import json, sys
sys.path[:] = [path for path in sys.path if path]
from suite.processes.jobs import Apart
from suite.rank import purity
apart = Apart(candidate_root={root!r}, checkout={checkout!r}, allowed=({suite!r},))
purity.redirect(apart)
missing = []
for name in {imported!r}:
    try:
        __import__(name)
    except ModuleNotFoundError:
        missing.append(name)
try:
    purity.require_pure(apart)
except ImportError as error:
    refused = str(error)
else:
    refused = ""
first = sys.modules.get({imported!r}[0])
print(json.dumps([purity.strays(apart), refused, first and first.__file__, missing]))
"""

COPIED = {"pkg": "pkg/__init__.py", "pkg.train": "pkg/train.py"}  # by module


class Seen(NamedTuple):
    """A worker's strays (module, file), its refusal, the file of the first module, and the modules without one."""

    strays: list[list[str]]
    refused: str
    file: str | None
    missing: list[str]


class Project:
    """A candidate's working tree with `src/pkg`, its checkout, and a virtual environment to install into."""

    def __init__(self, tmp_path: Path, venv: Path) -> None:
        self.root = tmp_path / "candidate"
        self.checkout = tmp_path / "checkout"
        for folder in (self.root, self.checkout):
            (folder / "src/pkg").mkdir(parents=True)
            (folder / "src/pkg/__init__.py").touch()
            (folder / "src/pkg/train.py").touch()
        self.python = venv / "bin/python"
        [self.packages] = venv.glob("lib/python*/site-packages")
        self.code = tmp_path / "code"  # our own code, as a pool of workers links to it
        self.code.mkdir()
        (self.code / "suite").symlink_to(Path(suite.__path__[0]))

    def install(self, files: dict[str, str], url: str | None = "", *, editable: bool = False) -> None:
        """Put files into the environment as an installer does that says where they are from, or one that does not."""
        about = self.packages / "pkg-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pkg\nVersion: 1\n")
        (about / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        if url is not None:
            told = {"url": url or self.root.as_uri(), "dir_info": {"editable": True} if editable else {}}
            (about / "direct_url.json").write_text(json.dumps(told))
        for name, text in files.items():
            (self.packages / name).parent.mkdir(exist_ok=True)
            (self.packages / name).write_text(text)

    def copy(self, url: str | None = "") -> None:
        self.install({file: (self.root / "src" / file).read_text() for file in COPIED.values()}, url)

    def hook(self, how: str, **more: str) -> None:
        """Install the working tree by a generated import hook, and more files of the same distribution."""
        finder = FINDER.format(folder=str(self.root / "src/pkg"), how=how)
        files = {"_made_up_by_a_tool.py": finder, "made.pth": "import _made_up_by_a_tool; _made_up_by_a_tool.install()"}
        self.install({**files, **more}, editable=True)

    def worker(self, *imported: str, path: Path | None = None) -> Seen:
        """Import modules as a base's worker does."""
        code = WORKER.format(
            imported=imported,
            root=str(self.root),
            checkout=str(self.checkout),
            suite=suite.__path__[0],
        )
        search = os.pathsep.join(map(str, (self.code, path or self.checkout / "src")))
        environment = {**os.environ, "PYTHONPATH": search}
        done = subprocess.run(
            [self.python, "-c", code], env=environment, cwd=self.root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return Seen(*json.loads(done.stdout))

    def assert_pure(self, seen: Seen) -> None:
        """The worker ran the checkout's code, and was told so."""
        assert (seen.strays, seen.refused, seen.missing) == ([], "", [])
        assert seen.file is not None
        assert Path(seen.file).is_relative_to(self.checkout)


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment for all tests, which are one after the other."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


@pytest.fixture
def project(tmp_path: Path, venv: Path) -> Iterator[Project]:
    made = Project(tmp_path, venv)
    yield made
    shutil.rmtree(made.packages)
    made.packages.mkdir()


def test_a_worker_with_the_checkout_first_is_pure(project: Project) -> None:
    project.assert_pure(project.worker("pkg", "pkg.train"))


@pytest.mark.parametrize("how", [APPENDED, FIRST], ids=["behind sys.path", "before sys.path"])
def test_an_import_hook_of_an_editable_install_leads_to_the_checkout(project: Project, how: str) -> None:
    """As setuptools, hatchling and pdm append it, and as meson-python and scikit-build-core put it first.

    The hook's own module, which a .pth file loads into every process, is nobody's code.
    """
    project.hook(how)
    project.assert_pure(project.worker("pkg", "pkg.train", path=project.checkout))  # whose src is not on sys.path
    project.assert_pure(project.worker("pkg.train"))


def test_a_folder_of_links_leads_to_the_checkout(project: Project) -> None:
    """A strict editable install of setuptools has a folder of links in the working tree, which no commit has."""
    links = project.root / "build/__editable__"
    (links / "pkg").mkdir(parents=True)
    for file in COPIED.values():
        (links / file).symlink_to(project.root / "src" / file)
    project.install({"links.pth": f"{links}\n"}, editable=True)
    project.assert_pure(project.worker("pkg", "pkg.train", path=project.checkout))


def test_a_pth_file_with_a_folder_leads_to_the_checkout(project: Project) -> None:
    project.install({"pkg.pth": f"{project.root}/src\n"}, editable=True)
    project.assert_pure(project.worker("pkg", "pkg.train", path=project.checkout))


@pytest.mark.parametrize("how", [None, APPENDED, FIRST], ids=["folder", "behind sys.path", "before sys.path"])
def test_a_module_that_the_commit_does_not_have_is_refused(project: Project, how: str | None) -> None:
    if how is None:
        project.install({"pkg.pth": f"{project.root}/src\n"}, editable=True)
        new, file = "new", project.root / "src/new.py"
    else:
        project.hook(how)
        new, file = "pkg", project.root / "src/pkg/__init__.py"
        shutil.rmtree(project.checkout / "src/pkg")
    file.touch()
    seen = project.worker(new)
    assert seen.strays == [[new, str(file)]]
    assert seen.refused.startswith(f"the base has imported {new} ({file}) from the candidate's working tree")
    assert "it would be compared with itself" in seen.refused
    assert seen.refused.endswith("the base's commit does not have it; compare with a commit that has it")


@pytest.mark.parametrize("where", ["in place", "in a folder of builds", "in site-packages"])
def test_a_compiled_module_that_was_built_for_the_candidate_is_refused(project: Project, where: str) -> None:
    """Also where the package itself comes from the checkout, and might do without."""
    built = Path(_psutil_linux.__file__)  # any that loads
    if where == "in a folder of builds":
        place, module = project.root / "build" / built.name, "_psutil_linux"
        project.install({"pkg.pth": f"{project.root}/src\n{place.parent}\n"}, editable=True)
    elif where == "in place":
        place, module = project.root / "src/pkg" / built.name, "pkg._psutil_linux"
    else:
        place, module = project.packages / built.name, "_psutil_linux"
        project.hook(FIRST, **{built.name: ""})
    place.parent.mkdir(exist_ok=True)
    shutil.copy(built, place)
    seen = project.worker("pkg.train", module)
    assert (seen.strays, seen.missing) == ([[module, str(place)]], [])
    assert seen.refused.endswith(
        "a compiled module is in no commit; install the base's commit in an environment of its own, and compare with "
        "its interpreter as docs/comparing.md describes"
    )


@pytest.mark.parametrize("own", ["at the top", "deeper"])
def test_a_module_of_the_project_that_its_own_pth_file_imports_is_refused(project: Project, own: str) -> None:
    """An editable install that puts a file of the project into site-packages, too."""
    at = project.checkout / ("autoload.py" if own == "at the top" else "tools/autoload.py")
    at.parent.mkdir(exist_ok=True)
    at.touch()
    project.install({"autoload.py": "", "own.pth": "import autoload\n"}, editable=True)
    seen = project.worker("pkg")
    assert seen.strays == [["autoload", str(project.packages / "autoload.py")]]


def test_a_module_of_the_working_tree_that_a_pth_file_imports_is_refused_and_the_pth_file_named(
    project: Project,
) -> None:
    """It is loaded before the worker can lead imports anywhere."""
    project.install({"pkg.pth": f"{project.root}/src\nimport pkg.train\n"}, editable=True)
    seen = project.worker("pkg", path=project.checkout)
    assert [name for name, _ in seen.strays] == ["pkg", "pkg.train"]
    assert seen.refused.endswith("remove the .pth file in site-packages that imports it when Python starts")


@pytest.mark.parametrize("origin", ["", "/dist/pkg-1-py3-none-any.whl"], ids=["folder", "archive"])
def test_a_copy_that_was_installed_from_the_working_tree_is_refused(project: Project, origin: str) -> None:
    """The base's checkout is on the search path, and its `src` is not: both sides would import the copy."""
    project.copy(f"{project.root.as_uri()}{origin}")
    seen = project.worker("pkg.train", path=project.checkout)
    assert seen.strays == [[name, str(project.packages / file)] for name, file in COPIED.items()]
    assert "or from a copy installed from there" in seen.refused
    assert seen.refused.endswith(
        "install the project with pip install -e, or put the folder of its packages, such as src, in pytest's setting "
        "pythonpath"
    )
    project.assert_pure(project.worker("pkg.train"))


@pytest.mark.parametrize("origin", ["{root}-2", "https://example.org{path}/pkg.whl", None])
def test_what_was_installed_from_elsewhere_is_pure(project: Project, origin: str | None) -> None:
    project.copy(origin and origin.format(root=project.root.as_uri(), path=project.root))
    seen = project.worker("pkg.train", path=project.checkout)
    assert (seen.strays, seen.refused) == ([], "")


def apart(root: Path, *allowed: Path) -> Apart:
    """Return what a worker is told of a candidate's working tree whose base has an empty checkout beside it."""
    checkout = root.parent / "checkout"
    return Apart(candidate_root=str(root), checkout=str(checkout), allowed=tuple(map(str, allowed)))


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
    assert purity.strays(apart(root, root / "allowed")) == ([("probe", str(tmp_path / file))] if strays else [])


def test_links_to_the_working_tree_are_followed(load: Callable[[str, Path], None], tmp_path: Path) -> None:
    """A strict editable install puts links into site-packages."""
    target, link = tmp_path / "candidate/probe.py", tmp_path / "site-packages/probe.py"
    link.parent.mkdir()
    target.parent.mkdir()
    link.symlink_to(target)
    load("probe", link)
    assert purity.strays(apart(tmp_path / "candidate")) == [("probe", str(target))]


def test_an_interpreter_inside_the_working_tree_is_fine() -> None:
    """A conda environment has its standard library inside."""
    around = os.path.dirname(sysconfig.get_paths()["stdlib"])
    assert os.path.realpath(json.__file__).startswith(os.path.realpath(around))
    assert not [name for name, _ in purity.strays(apart(Path(around))) if name.startswith("json")]


def test_the_refusal_names_three_modules_and_counts_the_others(
    load: Callable[[str, Path], None], tmp_path: Path
) -> None:
    for number in range(5):
        load(f"new{number}", tmp_path / f"new{number}.py")
    with pytest.raises(ImportError, match=r"new2\.py\) and 2 more from the candidate's"):
        purity.require_pure(apart(tmp_path))


def test_objects_in_the_place_of_modules_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages put objects into sys.modules whose attributes may raise anything."""

    class Odd:
        def __getattr__(self, name: str) -> None:
            raise RuntimeError(name)

    monkeypatch.setitem(sys.modules, "odd", Odd())
    monkeypatch.setitem(sys.modules, "none", None)
    assert purity.strays(apart(tmp_path)) == []
