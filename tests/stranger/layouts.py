"""Projects of users, with torch-scaling-suite from a wheel: three layouts, each installed in four ways, and a runner's.

Each is a repository of a few commits with an `origin`. It has the trainer of docs/elsewhere.md, a wrong one, a workload
of its own, and a test that uses ranks. All share one environment, which has one project at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.stranger import places, rules
from tests.stranger.commands import Command, in_workflow, on_page
from tests.stranger.places import Place, files_of, git, page, publish, quiet, trainer, write

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
    """Return the files of a project."""
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
    head = places.PROJECT.replace('packages = ["shop"]\n', f"{shape.setuptools}\n")
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
    programs = places.users_environment(folder)
    if not (programs / "pytest").exists():
        python = str(programs / "python")
        quiet(["uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", python, str(wheel(folder))])
    return programs


def wheel(folder: Path) -> Path:
    """Return the wheel of the upstream repository; built once in a folder."""
    sources, wheels = folder / "sources", folder / "wheels"
    if not wheels.exists():
        quiet(["git", "clone", "--quiet", str(places.upstream(folder)), str(sources)])
        quiet(["uv", "build", "--quiet", "--wheel", "--out-dir", str(wheels), str(sources)])
    [built] = wheels.glob("*.whl")
    return built


def jobs(folder: Path) -> Place:
    """Return the project of docs/elsewhere.md as a runner of jobs has it: docs/ci.md, and its two workflows.

    The pull request of `docs/ci/cpu.yml` is the last commit.
    """
    project = places.elsewhere(folder).folder
    if not (project / "wheels").exists():
        places.write(project, {"wheels/.gitignore": "*\n"})
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
