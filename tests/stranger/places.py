"""Where commands run: a clone with README's environment, the project of docs/elsewhere.md, and projects of users.

The clone is of a repository whose branch `main` is what the working tree has now, with changes that are not committed.
Projects of users have torch-scaling-suite from a wheel: three layouts, each installed in four ways, and a runner's. All
are repositories of a few commits with an `origin`. Each has the trainer of docs/elsewhere.md, a wrong one, a workload
of its own, and a test that uses ranks. They share one environment, which has one project at a time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.stranger import rules
from tests.stranger.commands import Command, in_workflow, on_page
from tests.stranger.running import PERSON

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "tests" / "scripts" / "right" / "ddp.py"
SETS_UP_S = 1800.0  # of what this does itself
NAMED = re.compile(r"```(python|toml)\n(# (\S+\.\w+)\n.*?)```", re.DOTALL)  # a block that begins with a file's name

# What docs/ci.md lets the jobs install after the line that fixes torch: here that is what the environment has.
REQUIREMENTS = re.compile(r"^ +torch==.*\n((?: +\S.*\n)+)", re.MULTILINE)
PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "shop"
version = "1.0"

[tool.setuptools]
packages = ["shop"]

"""


@dataclass(frozen=True)
class Place:
    """A folder in which commands run, and what is met there.

    Attributes:
        name: as the table shows it.
        folder: the working directory.
        programs: the `bin` of the virtual environment; it need not exist yet.
        commands: in the order in which a reader meets them.
        code: the folder that imports begin in, relative to `folder`.
        trainer: the project's own, as `module:Class`, where mistakes are made with it.
        variables: further variables of the environment.
        depth: how many outputs commands may be taken from, one after the other.
    """

    name: str
    folder: Path
    programs: Path
    commands: list[Command] = field(default_factory=list)
    code: str = "."
    trainer: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    depth: int = 1


def git(folder: Path, *arguments: str) -> str:
    """Run git as the stranger, and return what it prints."""
    return quiet(["git", "-C", str(folder), "-c", f"user.name={PERSON['NAME']}", "-c",
                  f"user.email={PERSON['EMAIL']}", *arguments])  # fmt: skip


def quiet(command: list[str]) -> str:
    """Run a command of this set-up, and return what it prints; its error has its output."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SETS_UP_S)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}: {ended.stdout}{ended.stderr}")
    return ended.stdout


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def publish(project: Path, bare: Path) -> None:
    """Give a project's repository an origin, whose branch `main` is its HEAD."""
    git(project, "clone", "--quiet", "--bare", ".", str(bare))
    git(project, "remote", "add", "origin", str(bare))
    git(project, "fetch", "--quiet", "origin")
    git(project, "remote", "set-head", "origin", "main")


def upstream(folder: Path) -> Path:
    """Return a bare repository whose branch `main` is this working tree; made once in a folder."""
    bare, work = folder / "upstream.git", folder / "upstream"
    if bare.exists():
        return bare
    git(REPOSITORY, "clone", "--quiet", "--no-hardlinks", str(REPOSITORY), str(work))
    git(work, "checkout", "--quiet", "-B", "main")
    listed = git(REPOSITORY, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    here = {name for name in listed if (REPOSITORY / name).is_file()}
    for name in filter(None, set(git(work, "ls-files", "-z").split("\0")) - here):
        (work / name).unlink()
    for name in here:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, work / name)
    git(work, "add", "--all")
    if git(work, "status", "--porcelain"):
        git(work, "commit", "--quiet", "--message", "What the working tree has beside its commit")
    git(work, "clone", "--quiet", "--bare", ".", str(bare))
    shutil.rmtree(work)
    return bare


def page(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def files_of(text: str) -> dict[str, str]:
    """Return the files that a page shows, by name; parts of one file are joined."""
    files: dict[str, str] = {}
    for _, content, name in NAMED.findall(text):
        files[name] = files.get(name, "") + content
    return files


def trainer() -> str:
    """Return the module with the trainer of docs/elsewhere.md, a class `Trainer`."""
    return files_of(page("docs/elsewhere.md"))["shop/train.py"]


def clone(folder: Path, *, depth: int) -> Place:
    """Return a new clone: README, and the environment that it asks for, made by `python -m venv`.

    The modules that README's commands name are written when its first block has run, and are in `origin/main` then.
    """
    place = Place("clone", folder / "clone", folder / "environment" / "bin", depth=depth)
    if not place.folder.exists():
        quiet(["git", "clone", "--quiet", str(upstream(folder)), str(place.folder)])
    if not place.programs.exists():
        quiet([sys.executable, "-m", "venv", str(place.programs.parent)])
    found = on_page("README.md", page("README.md"))
    blocks = [each for each in found if "\n" in each.text]
    mentioned = {line for block in blocks for line in block.text.splitlines()}
    found = [each for each in found if each.text not in mentioned]
    first = found.index(blocks[0]) + 1
    write(folder / "mine", own_modules())
    mine = "cp ../mine/*.py . && git add *.py && git commit --quiet --message Mine && git push --quiet origin main"
    place.commands.extend([*found[:first], Command(mine, "a reader with trainers", prepares=True), *found[first:]])
    return place


def own_modules() -> dict[str, str]:
    base = trainer()
    mine = base.replace("class Trainer", "class Mine")
    return {
        "a.py": base.replace("class Trainer", "class Old") + "\n\nclass New(Old):\n    pass\n",
        "mine.py": mine,
        "train.py": mine + SCRIPT.read_text(encoding="utf-8"),  # a trainer to import, and a script to run
    }


def users_environment(folder: Path) -> Path:
    """Return the `bin` of an environment in which a user has torch, made by uv with hard links."""
    made = folder / "users"
    python = made / "bin" / "python"
    if not (made / "complete").exists():
        quiet(["uv", "venv", "--quiet", "--clear", "--seed", "--python", sys.executable, str(made)])
        packages = ["torch>=2.9", "torchvision", "pip"]
        compiled = "--compile-bytecode"  # or every process that loads torch compiles its Python files again
        quiet(["uv", "pip", "install", "--quiet", compiled, "--python", str(python), *packages])
        (made / "bin" / "uv").symlink_to(shutil.which("uv") or "uv")  # where only this environment's programs are found
        (made / "complete").touch()
    return made / "bin"


def elsewhere(folder: Path) -> Place:
    """Return the project of docs/elsewhere.md, made as the page says, and what docs/ci.md prints for it."""
    text = page("docs/elsewhere.md")
    project = folder / "elsewhere"
    place = Place("elsewhere.md", project, users_environment(folder), depth=2)
    if not project.exists():
        write(project, files_of(text))
        quiet(["git", "clone", "--quiet", str(upstream(folder)), str(project / "path/to/torch-scaling-suite")])
        write(project, {".gitignore": "__pycache__/\n/path/\n/wheels/\n*.egg-info/\nbuild/\n"})
        write(project, {"pyproject.toml": PROJECT + (project / "pyproject.toml").read_text(encoding="utf-8")})
        git(project, "init", "--quiet", "--initial-branch", "main")
        git(project, "add", "--all")
        git(project, "commit", "--quiet", "--message", "A shop")
        write(project, {"requirements-cpu.txt": requirements()})
        git(project, "add", "--all")
        git(project, "commit", "--quiet", "--message", "What its jobs install")
        publish(project, folder / "elsewhere.git")
    place.commands.extend(on_page("docs/elsewhere.md", text))
    return place


def requirements() -> str:
    found = REQUIREMENTS.search(page("docs/ci.md"))
    return textwrap.dedent(found[1]) if found else ""


def needs_uv() -> None:
    """End unless uv is there, which everything but the first half uses."""
    if shutil.which("uv", path=os.environ["PATH"]) is None:
        raise SystemExit("uv is not on PATH; pip install uv")


WRONG = """

class Wrong(Trainer):
    def step(self, X, y, global_batch_size):
        return super().step(X, y, max(1, len(y)) * torch.distributed.get_world_size())
"""
# The module with the trainer uses another of the project's packages, so that both sides of a comparison import it.
USES = "from stock.rates import factor\n"
RATES = "def factor():\n    return 1.0\n"
TEST = """\
import torch
from torch import distributed as dist

from {module} import Trainer


def total(value):
    mine = torch.tensor(value * (dist.get_rank() + 1))
    dist.all_reduce(mine)
    return mine.item()


def test_ranks(on_ranks):
    assert on_ranks(total, 2, value=2.0) == [6.0, 6.0]


def test_a_trainer_says_what_it_is():
    assert Trainer.processes == "per-device"
"""
SETTINGS = """
[tool.pytest.ini_options]
scaling_workload = ["clicks"]
{pythonpath}
[tool.scaling.workloads.clicks]
model = "{module}:make"
dataset = "{module}:load"
batch = 256
lr = 0.05
"""
IGNORED = """\
__pycache__/
*.egg-info/
build/
dist/
/reports/*/runs/
/reports/*/traces/
/reports/*/sweeps/
/reports/*/index.html
"""


@dataclass(frozen=True)
class Shape:
    """A layout of a project.

    Attributes:
        code: the folder that imports begin in.
        trainer: the module with `Trainer` and `Wrong`; it is "shop" where that is the only one.
        data: the module with the workload's functions.
        setuptools: its table in pyproject.toml.
    """

    code: str
    trainer: str
    data: str
    setuptools: str


SHAPES = {
    "flat": Shape(".", "shop.train", "stock.clicks", 'packages = ["shop", "stock"]'),
    "src": Shape("src", "shop.train", "shop.clicks", 'package-dir = {"" = "src"}\npackages = ["shop"]'),
    "module": Shape(".", "shop", "shop", 'py-modules = ["shop"]'),
}
INSTALLS = {
    "pip-e": "pip install --editable .",
    "uv-e": "uv pip install --editable .",
    "wheel": "pip wheel --no-deps --wheel-dir dist .\npip install --force-reinstall --no-deps dist/shop-*.whl",
    "none": "",
}
MISTAKE = "a mistake"
MISTAKEN = ("flat-pip-e", "src-none", "module-wheel")  # one of each shape: what these say depends on no installation
LAYOUTS = tuple(f"{shape}-{install}" for shape in SHAPES for install in INSTALLS)


def files(shape: Shape, install: str) -> dict[str, str]:
    both, clicks = trainer() + WRONG, files_of(page("docs/elsewhere.md"))["shop/clicks.py"]
    root = "" if shape.code == "." else f"{shape.code}/"
    if shape.trainer == shape.data:
        modules = {"shop.py": both + clicks}
    else:
        uses = USES if shape.data.startswith("stock") else ""
        modules = {
            f"{root}{shape.trainer.replace('.', '/')}.py": uses + both,
            f"{root}{shape.data.replace('.', '/')}.py": clicks,
            f"{root}shop/__init__.py": "",
        }
        modules |= {"stock/__init__.py": "", "stock/rates.py": RATES} if uses else {}
    # A project that is not installed tells pytest where its code is.
    pythonpath = f'pythonpath = ["{shape.code}"]\n' if install == "none" else ""
    settings = SETTINGS.format(module=shape.data, pythonpath=pythonpath)
    head = PROJECT.replace('packages = ["shop"]\n', f"{shape.setuptools}\n")
    return modules | {
        "pyproject.toml": head + settings,
        "tests/test_shop.py": TEST.format(module=shape.trainer),
        ".gitignore": IGNORED,
    }


def layout(folder: Path, name: str) -> Place:
    """Return a project with what its owner does there: install it, check, measure, compare, and make mistakes."""
    shape_name, _, install = name.partition("-")
    shape, project = SHAPES[shape_name], folder / name
    place = Place(name, project, with_suite(folder), code=shape.code, trainer=f"{shape.trainer}:Trainer")
    if not project.exists():
        write(project, files(shape, install))
        git(project, "init", "--quiet", "--initial-branch", "main")
        module = project / shape.code / f"{shape.trainer.replace('.', '/')}.py"
        for message, more in (("A shop", ""), ("Two workers", "\nWORKERS = 2\n"), ("Four", "\nWORKERS = 4\n")):
            with module.open("a", encoding="utf-8") as file:
                file.write(more)
            git(project, "add", "--all")
            git(project, "commit", "--quiet", "--message", message)
        publish(project, folder / f"{name}.git")
    place.commands.extend(_commands(shape, INSTALLS[install]))
    for mistake in rules.MISTAKES if name in MISTAKEN else ():
        place.commands.append(Command(mistake.typed(place.trainer), MISTAKE, mistake.status))
    return place


def _commands(shape: Shape, install: str) -> Iterator[Command]:
    measure = f"{rules.MEASURE} --scaling-trainer={shape.trainer}:Trainer"
    yield Command("pip uninstall --quiet --yes shop", "between two projects", prepares=True)
    if install:
        yield Command(install, "how a project is installed", prepares=True)
    for text in (
        "pytest tests",
        f"{rules.CHECK} --scaling-trainer={shape.trainer}:Trainer",
        f"{rules.CHECK} --scaling-trainer={shape.trainer}:Wrong",
        measure,
    ):
        yield Command(text, "docs/elsewhere.md, for this project")
    accepted = "git add reports && { git diff --cached --quiet || git commit --quiet --message 'An accepted run'; }"
    yield Command(accepted, "docs/ci.md, after an accepted run", prepares=True)
    yield Command(measure, "docs/elsewhere.md, next to an accepted run", repeat=True)


def with_suite(folder: Path) -> Path:
    """Return the `bin` of the users' environment, with the suite from a wheel of the upstream repository."""
    programs = users_environment(folder)
    if not (programs / "pytest").exists():
        python = str(programs / "python")
        quiet(["uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", python, str(wheel(folder))])
    return programs


def wheel(folder: Path) -> Path:
    """Return the wheel of the upstream repository; built once in a folder."""
    sources, wheels = folder / "sources", folder / "wheels"
    if not wheels.exists():
        quiet(["git", "clone", "--quiet", str(upstream(folder)), str(sources)])
        quiet(["uv", "build", "--quiet", "--wheel", "--out-dir", str(wheels), str(sources)])
    [built] = wheels.glob("*.whl")
    return built


def jobs(folder: Path) -> Place:
    """Return the project of docs/elsewhere.md as a runner of jobs has it: docs/ci.md, and its two workflows.

    The pull request of `docs/ci/cpu.yml` is the last commit.
    """
    project = elsewhere(folder).folder
    if not (project / "wheels").exists():
        write(project, {"wheels/.gitignore": "*\n"})
        shutil.copy(wheel(folder), project / "wheels")
    base = git(project, "rev-parse", "HEAD~1").strip()
    place = Place("ci.md", project, with_suite(folder), variables={"BASE": base})
    found = on_page("docs/ci.md", page("docs/ci.md"))
    at = next(at for at, each in enumerate(found) if each.text.startswith("pytest-benchmark"))
    made = [f"{rules.MEASURE} {rules.ONE_CELL} --benchmark-json={name}.json" for name in ("before", "now")]
    found[at:at] = [Command(text, "a reader with two runs", prepares=True) for text in made]
    place.commands.extend(found)
    for name in ("docs/ci/cpu.yml", "docs/ci/gpu.yml"):
        place.commands.extend(Command(text, f"{name}:{line}") for line, text in in_workflow(page(name)))
    return place
