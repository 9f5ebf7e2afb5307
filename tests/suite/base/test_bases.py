"""What `--scaling-against` may name: every kind of base from real programs and repositories, and every refusal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suite.base import bases
from suite.plan import scripts
from suite.plan.config import Base
from tests.support.processes import all_end
from tests.support.project import REPOSITORY
from tests.support.repositories import Repository

INTERPRETER = sys.executable  # these tests need torch, so it is there


def parse(setting: str, root: Path) -> Base:
    return bases.parse(setting, root, ("ddp", "scratch").__contains__, lambda value: scripts.named(value, {}, None))


def program(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Branches main, test, feature/quick, ddp and python3.12; a tag v1.0."""
    made = Repository(tmp_path_factory.mktemp("repository") / "project")
    made.commit({"src/a.py": "x = 1\n"})
    made.git("tag", "v1.0")
    for branch in ("test", "feature/quick", "ddp", "python3.12"):
        made.git("branch", branch)
    made.commit({"src/a.py": "x = 2\n"})
    return made


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv") / "bare"
    subprocess.run([INTERPRETER, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


class TestTrainer:
    """A trainer: a ':' or a name from the table."""

    @pytest.mark.parametrize(
        ("setting", "trainer"),
        [
            ("ddp", "ddp"),  # although there is a branch of that name
            ("trainer:ddp", "ddp"),
            ("mine.train:Old", "mine.train:Old"),
            ("bench/old.py:Old", "bench/old.py:Old"),
            ("refs:Old", "refs:Old"),
            ("trainer:python:Old", "python:Old"),
        ],
    )
    def test_a_table_name_or_a_colon_names_a_trainer(self, setting: str, trainer: str, repository: Repository) -> None:
        assert parse(setting, repository.path) == Base("trainer", trainer, trainer=trainer)

    def test_an_unknown_name_is_refused(self, repository: Repository) -> None:
        match = r"--scaling-against 'trainer:dpd': 'dpd' is not a built-in trainer; one of your own is module:Class"
        with pytest.raises(ValueError, match=match):
            parse("trainer:dpd", repository.path)


class TestPython:
    """An interpreter, by path or by name."""

    @pytest.mark.parametrize("prefix", ["", "python:"])
    def test_a_path_names_an_interpreter(self, prefix: str, repository: Repository) -> None:
        version = ".".join(map(str, sys.version_info[:3]))
        base = parse(prefix + INTERPRETER, repository.path)
        assert base == Base("python", f"{INTERPRETER} (Python {version})", python=INTERPRETER)

    def test_an_interpreter_on_path_comes_before_a_branch(
        self, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program(tmp_path / "python3.12", "echo welcome", f'exec {INTERPRETER} "$@"')
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        base = parse("python3.12", repository.path)
        assert base.python == str(tmp_path / "python3.12")
        assert base.label.startswith("python3.12 (Python ")
        assert parse("ref:python3.12", repository.path).kind == "ref"

    def test_a_relative_path_is_made_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program(tmp_path / "python", f'exec {INTERPRETER} "$@"')
        monkeypatch.chdir(tmp_path)
        assert parse("./python", tmp_path).python == str(tmp_path / "python")

    def test_torch_is_searched_where_workers_find_it(
        self, bare_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On PYTHONPATH, but neither in the working directory nor in a data folder of that name."""
        python = str(bare_python / "bin" / "python")
        for folder in (tmp_path / "here", tmp_path / "installed"):
            folder.mkdir()
            for name in ("torch", "numpy"):
                (folder / f"{name}.py").write_text("raise RuntimeError('this is not to be imported')\n")
        (tmp_path / "data" / "torch").mkdir(parents=True)
        (tmp_path / "data" / "numpy.py").touch()
        monkeypatch.chdir(tmp_path / "here")
        with pytest.raises(ValueError, match=rf"lacks torch and numpy; {python} -m pip install torch"):
            bases.of_python(python)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "data"))
        with pytest.raises(ValueError, match="lacks torch; "):
            bases.of_python(python)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
        assert bases.of_python(python).kind == "python"

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            (
                "#!/bin/sh\necho 'Python 3.8.20 lacks []'",
                r"is Python 3\.8\.20; workers need 3\.10 or newer, so name a newer",
            ),
            ("#!/bin/sh\necho 3.12", "does not answer as a Python interpreter, but with '3.12'; expected a"),
            ("#!/bin/sh\nexit 3", "does not answer as a Python interpreter, but with 'exit code 3'"),
            ("#!/bin/sh\necho 'Python 3.12.1 lacks [] or not'", "does not answer as a Python interpreter"),
            ("\x7fELF, but no more\n", r"cannot be run \(Exec format error\); expected a Python interpreter"),
        ],
    )
    def test_an_old_interpreter_or_another_program_is_refused(self, text: str, match: str, tmp_path: Path) -> None:
        (tmp_path / "python").write_text(text)
        (tmp_path / "python").chmod(0o755)
        with pytest.raises(ValueError, match=match):
            bases.of_python(str(tmp_path / "python"))

    def test_a_shell_runs_nothing_of_the_probe(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`import` is also a program, which takes screenshots."""
        program(tmp_path / "import", f"touch {tmp_path}/ran")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with pytest.raises(ValueError, match="does not answer as a Python interpreter"):
            bases.of_python("/bin/sh")
        assert not (tmp_path / "ran").exists()

    def test_a_program_that_never_answers_is_ended_with_its_children(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bases, "PROBE_TIMEOUT_S", 0.5)
        hanging = program(tmp_path / "python", f"sleep 300 & echo $! >{tmp_path}/pid; wait")
        start = time.monotonic()
        with pytest.raises(ValueError, match=r"did not report its version within 0\.5 s"):
            bases.of_python(str(hanging))
        assert time.monotonic() - start < 100
        assert all_end([int((tmp_path / "pid").read_text())])

    @pytest.mark.parametrize(
        ("name", "match"),
        [
            ("python9", "there is no such program on PATH"),
            ("/no/python", "there is no executable file of that name"),
            ("{tmp_path}/plain", "there is no executable file of that name"),
            ("{tmp_path}", "is a directory; name a program in it$"),
            ("{bare}", r"is a directory; its interpreter is {bare}/bin/python"),
        ],
    )
    def test_a_name_without_an_executable_is_refused(
        self, name: str, match: str, tmp_path: Path, bare_python: Path
    ) -> None:
        (tmp_path / "plain").touch()
        with pytest.raises(ValueError, match=match.format(bare=bare_python)):
            bases.of_python(name.format(tmp_path=tmp_path, bare=bare_python))


class TestRef:
    """A commit of the repository."""

    @pytest.mark.parametrize("ref", ["v1.0", "test", "HEAD~1", "feature/quick", "ref:test"])
    def test_whatever_git_resolves_is_a_commit(self, ref: str, repository: Repository) -> None:
        commit = repository.git("rev-parse", "v1.0")
        base = parse(ref, repository.path / "src")
        assert base == Base("ref", f"{ref.removeprefix('ref:')} ({commit[:7]})", commit=commit)
        assert base.python == sys.executable
        assert bases.of_ref(commit[:12], repository.path) == Base("ref", commit[:7], commit=commit)

    def test_an_annotated_tag_is_its_commit(self, repository: Repository) -> None:
        repository.git("tag", "--annotate", "--message=two", "v2.0")
        assert bases.of_ref("v2.0", repository.path).commit == repository.git("rev-parse", "HEAD")

    def test_names_in_sha256_are_understood(self, tmp_path: Path) -> None:
        commit = Repository(tmp_path / "new", "--object-format=sha256").commit()
        assert len(commit) == 64
        assert bases.of_ref("main", tmp_path / "new").commit == commit

    def test_a_branch_is_not_executed_because_a_program_has_its_name(
        self, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program(tmp_path / "test", f"touch {tmp_path}/ran")
        (tmp_path / "feature").mkdir()
        program(tmp_path / "feature" / "quick", f"touch {tmp_path}/ran")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.chdir(tmp_path)
        assert parse("test", repository.path).kind == "ref"
        assert parse("feature/quick", repository.path).kind == "ref"
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        "ref", ["--upload-pack=touch ran", "--help", "--", "a b", "main..test", "v1.0^{tree}", "*", "$(touch ran)"]
    )
    def test_hostile_names_are_no_commits_and_change_nothing(self, ref: str, repository: Repository) -> None:
        before = repository.state()
        for setting in (ref, f"ref:{ref}"):
            with pytest.raises(ValueError, match="names no commit of the repository"):
                parse(setting, repository.path)
        assert repository.state() == before

    def test_similar_names_are_listed(self, repository: Repository, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"'v1\.1' names no commit of the repository .*; similar names are v1\.0$"):
            parse("ref:v1.1", repository.path)
        repository.git("clone", "--quiet", str(repository.path), str(tmp_path / "clone"))
        with pytest.raises(ValueError, match="similar names are origin/test"):
            bases.of_ref("test", tmp_path / "clone")

    def test_without_a_similar_name_branches_and_tags_are_listed(self, tmp_path: Path) -> None:
        repository = Repository(tmp_path / "new", "--initial-branch=trunk")
        repository.commit()
        repository.git("checkout", "--quiet", "--detach")
        repository.git("branch", "--delete", "--force", "trunk")
        with pytest.raises(ValueError, match=r"'main' names no commit of the repository .*; git log --all shows what"):
            bases.of_ref("main", repository.path)
        repository.git("checkout", "--quiet", "-b", "trunk")
        repository.git("tag", "v1.0")
        with pytest.raises(ValueError, match=r"'main' names no .*; its branches and tags are trunk, v1\.0$"):
            bases.of_ref("main", repository.path)
        for number in range(9):
            repository.git("branch", f"branch-{number}")
        with pytest.raises(ValueError, match=r"are branch-0, .*, branch-7, \.\.\.$"):
            bases.of_ref("main", repository.path)

    def test_a_shallow_clone_is_named_as_the_cause(self, repository: Repository, tmp_path: Path) -> None:
        repository.git("clone", "--quiet", "--depth=1", f"file://{repository.path}", str(tmp_path / "clone"))
        with pytest.raises(ValueError, match=r"are main, .*; the clone is shallow: git fetch --unshallow"):
            bases.of_ref("HEAD~1", tmp_path / "clone")

    def test_a_ref_needs_a_repository_with_a_commit(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"is not inside the working tree of a git .*; a git ref needs one"):
            bases.of_ref("main", tmp_path)
        Repository(tmp_path / "empty")
        with pytest.raises(ValueError, match="'HEAD' names no commit"):
            bases.of_ref("HEAD", tmp_path / "empty")


class TestNothing:
    """What is none of the three."""

    @pytest.mark.parametrize("setting", ["", "trainer:", "python:", "ref:", "ref: "])
    def test_an_empty_name_is_refused(self, setting: str, repository: Repository) -> None:
        with pytest.raises(ValueError, match="expected a trainer, a Python interpreter or a git ref"):
            parse(setting, repository.path)

    def test_a_name_that_is_none_of_the_three_is_refused_with_all_reasons(self, repository: Repository) -> None:
        match = (
            r"^--scaling-against 'mian': neither a trainer \(a built-in name, module:Class or path\.py:Class\), nor a "
            r"Python interpreter \('mian': there is no such program on PATH; name its path\), nor a git ref "
            r"\('mian' names no commit of the repository .*; similar names are main\); trainer:, python: or ref: before"
        )
        with pytest.raises(ValueError, match=match):
            parse("mian", repository.path)

    def test_a_program_of_another_name_has_to_be_forced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program(tmp_path / "wrapper", f'exec {INTERPRETER} "$@"')
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        match = "'wrapper' is a program whose name is not an interpreter's; python:wrapper forces it"
        with pytest.raises(ValueError, match=match):
            parse("wrapper", tmp_path)
        assert parse("python:wrapper", tmp_path).kind == "python"


def test_workers_import_nothing_but_what_a_base_is_asked_for() -> None:
    """Of what the suite depends on; and the standard library."""
    others = ("pydantic", "psutil", "rich", "jinja2", "scipy", "hypothesis", "pytest", "matplotlib", "pynvml")
    refused = f"import sys; sys.modules.update(dict.fromkeys({others}))"
    code = f"{refused}; import suite.launch, suite.rank.commands, suite.template, suite.worker"
    subprocess.run([INTERPRETER, "-c", code], check=True, cwd=REPOSITORY)
