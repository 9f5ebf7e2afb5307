"""What `--scaling-against` may say: every kind of base from real programs and repositories, and every refusal."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suite.base import bases
from suite.base.bases import parse
from suite.plan.base import Base
from tests.support.processes import all_end
from tests.support.project import REPOSITORY
from tests.support.repositories import Repository

INTERPRETER = sys.executable  # these tests need torch, so it is there


def is_table_name(name: str) -> bool:
    return name in ("ddp", "scratch")


def program(path: Path, *lines: str) -> Path:
    """An executable shell script."""
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
    """The folder of a virtual environment without a single package."""
    folder = tmp_path_factory.mktemp("venv") / "bare"
    subprocess.run([INTERPRETER, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


class TestTrainer:
    """A trainer: a ':' or a name from the table."""

    @pytest.mark.parametrize("setting", ["ddp", "trainer:ddp"])
    def test_a_built_in_name_comes_before_a_branch(self, setting: str, repository: Repository) -> None:
        assert parse(setting, repository.path, is_table_name) == Base("trainer", "ddp", trainer="ddp")

    @pytest.mark.parametrize("spec", ["mine.train:Old", "bench/old.py:Old", "refs:Old", "python3:Old"])
    def test_a_colon_makes_a_trainer(self, spec: str, repository: Repository) -> None:
        assert parse(spec, repository.path, is_table_name).trainer == spec

    def test_a_module_may_be_called_as_a_prefix(self, repository: Repository) -> None:
        assert parse("trainer:python:Old", repository.path, is_table_name).trainer == "python:Old"

    def test_an_unknown_name(self, repository: Repository) -> None:
        match = r"--scaling-against 'trainer:dpd': 'dpd' is no built-in trainer; one of your own is module:Class"
        with pytest.raises(ValueError, match=match):
            parse("trainer:dpd", repository.path, is_table_name)


class TestPython:
    """An interpreter, by path or by name."""

    @pytest.mark.parametrize("prefix", ["", "python:"])
    def test_a_path(self, prefix: str, repository: Repository) -> None:
        version = ".".join(map(str, sys.version_info[:3]))
        base = parse(prefix + INTERPRETER, repository.path, is_table_name)
        assert base == Base("python", f"{INTERPRETER} (Python {version})", python=INTERPRETER)
        assert (base.trainer, base.commit) == (None, None)

    def test_a_name_on_the_path_comes_before_a_branch(
        self, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program(tmp_path / "python3.12", f'exec {INTERPRETER} "$@"')
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        base = parse("python3.12", repository.path, is_table_name)
        assert base.python == str(tmp_path / "python3.12")
        assert base.label.startswith("python3.12 (Python ")
        assert parse("ref:python3.12", repository.path, is_table_name).kind == "ref"

    def test_a_virtual_environment_is_not_lost_with_its_link(self, bare_python: Path) -> None:
        """Its interpreter is a link to the one it was made from, which has other packages."""
        with pytest.raises(ValueError, match=rf"lacks torch and numpy; {bare_python}/bin/python -m pip install torch"):
            bases.of_python(str(bare_python / "bin" / "python"))

    def test_a_relative_path(self, bare_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program(tmp_path / "python", f'exec {INTERPRETER} "$@"')
        monkeypatch.chdir(tmp_path)
        assert parse("./python", tmp_path, is_table_name).python == str(tmp_path / "python")

    def test_torch_is_found_where_workers_find_it(
        self, bare_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On PYTHONPATH, but not because a file of that name lies in the working directory."""
        for folder in (tmp_path / "here", tmp_path / "installed"):
            folder.mkdir()
            for name in ("torch", "numpy"):
                (folder / f"{name}.py").write_text("raise RuntimeError('this is not to be imported')\n")
        monkeypatch.chdir(tmp_path / "here")
        with pytest.raises(ValueError, match="lacks torch and numpy"):
            bases.of_python(str(bare_python / "bin" / "python"))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
        assert bases.of_python(str(bare_python / "bin" / "python")).kind == "python"

    def test_a_data_folder_called_torch_is_not_torch(
        self, bare_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "torch").mkdir()
        (tmp_path / "numpy.py").touch()
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(ValueError, match=r"lacks torch; "):
            bases.of_python(str(bare_python / "bin" / "python"))

    def test_an_old_python(self, tmp_path: Path) -> None:
        old = program(tmp_path / "python3.8", "echo 'Python 3.8.20 lacks []'")
        with pytest.raises(ValueError, match=r"is Python 3\.8\.20; workers need 3\.10 or newer, so name a newer"):
            bases.of_python(str(old))

    def test_noise_before_the_answer(self, tmp_path: Path) -> None:
        noisy = program(tmp_path / "python", "echo welcome", f'exec {INTERPRETER} "$@"')
        assert bases.of_python(str(noisy)).python == str(noisy)

    @pytest.mark.parametrize("lines", [["echo 3.12"], ["exit 3"], ["echo 'Python 3.12.1 lacks [] or not'"]])
    def test_another_program(self, lines: list[str], tmp_path: Path) -> None:
        other = program(tmp_path / "python", *lines)
        with pytest.raises(ValueError, match=r"does not answer as a Python interpreter, but with '.+'; expected a Pyt"):
            bases.of_python(str(other))

    def test_a_shell_executes_nothing_of_the_question(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`import` is a program too, which takes pictures of the screen."""
        program(tmp_path / "import", f"touch {tmp_path}/ran")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with pytest.raises(ValueError, match="does not answer as a Python interpreter"):
            bases.of_python("/bin/sh")
        assert not (tmp_path / "ran").exists()

    def test_no_program_at_all(self, tmp_path: Path) -> None:
        text = tmp_path / "python"
        text.write_bytes(b"\x7fELF, but no more\n")
        text.chmod(0o755)
        with pytest.raises(ValueError, match=r"cannot be run \(Exec format error\); expected a Python interpreter"):
            bases.of_python(str(text))

    def test_one_that_never_answers_is_ended_with_its_children(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bases, "PROBE_TIMEOUT_S", 0.5)
        hanging = program(tmp_path / "python", f"sleep 300 & echo $! >{tmp_path}/pid; wait")
        start = time.monotonic()
        with pytest.raises(ValueError, match=r"did not tell its version within 0\.5 s"):
            bases.of_python(str(hanging))
        assert time.monotonic() - start < 100
        pid = (tmp_path / "pid").read_text().strip()
        assert all_end([int(pid)])

    def test_a_directory_names_its_interpreter(self, bare_python: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=rf"is a directory; its interpreter is {bare_python}/bin/python"):
            bases.of_python(str(bare_python))
        with pytest.raises(ValueError, match=r"is a directory$"):
            bases.of_python(str(tmp_path))

    def test_a_dead_link(self, tmp_path: Path) -> None:
        (tmp_path / "python").symlink_to(tmp_path / "gone")
        with pytest.raises(ValueError, match=r"is a link to .*/gone, which is not there"):
            bases.of_python(str(tmp_path / "python"))

    def test_not_executable(self, tmp_path: Path) -> None:
        (tmp_path / "python").write_text("#!/bin/sh\n")
        with pytest.raises(ValueError, match=r"is not executable; chmod \+x .*/python if it is an interpreter"):
            bases.of_python(str(tmp_path / "python"))

    @pytest.mark.parametrize(
        ("name", "match"), [("python9", "no such program on PATH"), ("/no/python", "no such file")]
    )
    def test_nothing_of_that_name(self, name: str, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            bases.of_python(name)


class TestRef:
    """A commit of the repository."""

    @pytest.mark.parametrize("ref", ["v1.0", "test", "HEAD~1", "feature/quick", "ref:test"])
    def test_what_git_understands(self, ref: str, repository: Repository) -> None:
        commit = repository.git("rev-parse", "v1.0")
        base = parse(ref, repository.path / "src", is_table_name)
        assert base == Base("ref", f"{ref.removeprefix('ref:')} ({commit[:7]})", commit=commit)
        assert base.python == sys.executable

    def test_an_annotated_tag_is_its_commit(self, repository: Repository) -> None:
        repository.git("tag", "--annotate", "--message=two", "v2.0")
        assert bases.of_ref("v2.0", repository.path).commit == repository.git("rev-parse", "HEAD")

    @pytest.mark.parametrize("length", [5, 12, 40])
    def test_an_object_name_is_not_said_twice(self, length: int, repository: Repository) -> None:
        commit = repository.git("rev-parse", "v1.0")
        assert bases.of_ref(commit[:length], repository.path) == Base("ref", commit[:7], commit=commit)

    def test_sha256(self, tmp_path: Path) -> None:
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
        assert parse("test", repository.path, is_table_name).kind == "ref"
        assert parse("feature/quick", repository.path, is_table_name).kind == "ref"
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        "ref",
        [
            "--upload-pack=touch ran",
            "-h",
            "--help",
            "--",
            "a b",
            "@{-1}",
            "main..test",
            "v1.0^{tree}",
            "*",
            "$(touch ran)",
        ],
    )
    def test_hostile_names(self, ref: str, repository: Repository) -> None:
        before = repository.state()
        for setting in (ref, f"ref:{ref}"):
            with pytest.raises(ValueError, match="names no commit of the repository"):
                parse(setting, repository.path, is_table_name)
        assert repository.state() == before

    def test_the_branch_before_is_a_ref_where_there_was_one(self, tmp_path: Path) -> None:
        made = Repository(tmp_path / "project")
        commit = made.commit()
        made.git("checkout", "--quiet", "-b", "next")
        made.commit()
        assert parse("@{-1}", made.path, is_table_name).commit == commit

    def test_close_names_are_told(self, repository: Repository) -> None:
        with pytest.raises(ValueError, match=r"'v1\.1' names no commit of the repository .*; close to it are v1\.0$"):
            parse("ref:v1.1", repository.path, is_table_name)

    def test_a_branch_of_the_remote_is_close(self, repository: Repository, tmp_path: Path) -> None:
        repository.git("clone", "--quiet", str(repository.path), str(tmp_path / "clone"))
        with pytest.raises(ValueError, match="close to it are origin/test"):
            bases.of_ref("test", tmp_path / "clone")

    def test_a_shallow_clone(self, repository: Repository, tmp_path: Path) -> None:
        repository.git("clone", "--quiet", "--depth=1", f"file://{repository.path}", str(tmp_path / "clone"))
        with pytest.raises(ValueError, match="the clone is shallow: git fetch --unshallow --tags brings the rest"):
            bases.of_ref("HEAD~1", tmp_path / "clone")

    def test_before_the_first_commit(self, tmp_path: Path) -> None:
        Repository(tmp_path / "empty")
        with pytest.raises(ValueError, match="'HEAD' names no commit"):
            bases.of_ref("HEAD", tmp_path / "empty")

    def test_outside_of_a_repository(self, tmp_path: Path) -> None:
        with pytest.raises(
            ValueError, match=r"is not inside the working tree of a git repository .*; a git ref needs one"
        ):
            bases.of_ref("main", tmp_path)


class TestNothing:
    """What is none of the three."""

    @pytest.mark.parametrize("setting", ["", "trainer:", "python:", "ref:", "ref: "])
    def test_nothing_is_named(self, setting: str, repository: Repository) -> None:
        with pytest.raises(ValueError, match="expected a trainer, a Python interpreter or a git ref"):
            parse(setting, repository.path, is_table_name)

    def test_all_three_were_tried(self, repository: Repository) -> None:
        match = (
            r"^--scaling-against 'mian': neither a trainer \(a built-in name, module:Class or path\.py:Class\), nor a "
            r"Python interpreter \('mian': there is no such program on PATH\), nor a git ref \('mian' names no commit "
            r"of the repository .*; close to it are main\)$"
        )
        with pytest.raises(ValueError, match=match):
            parse("mian", repository.path, is_table_name)

    def test_a_program_by_another_name_needs_to_be_called_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program(tmp_path / "wrapper", f'exec {INTERPRETER} "$@"')
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        match = "'wrapper' is a program, but not called like one; python:wrapper if it is"
        with pytest.raises(ValueError, match=match):
            parse("wrapper", tmp_path, is_table_name)
        assert parse("python:wrapper", tmp_path, is_table_name).kind == "python"

    def test_a_directory_is_nothing_but_says_where_its_interpreter_is(
        self, bare_python: Path, repository: Repository
    ) -> None:
        with pytest.raises(ValueError, match=r"neither a trainer .* is a directory; its interpreter is .*/bin/python"):
            parse(str(bare_python), repository.path, is_table_name)


def test_a_base_is_a_value() -> None:
    base = Base("self", "itself")
    assert (base.trainer, base.python, base.commit) == (None, sys.executable, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        base.python = "python"  # type: ignore[misc]


def test_torch_is_not_loaded_to_find_a_base() -> None:
    imports = "import sys, suite.base.bases, suite.base.checkout, suite.rank.purity"
    code = f"{imports}; assert 'torch' not in sys.modules"
    subprocess.run([INTERPRETER, "-c", code], check=True, cwd=REPOSITORY)
