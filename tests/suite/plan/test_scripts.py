"""Commands of training scripts: what is filled in, and what is refused with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.plan import scripts
from suite.plan.scripts import Script, available, divided_twice, kept_as_they_are, named
from suite.plan.workloads import of_script
from tests.support.project import Project

FULL = "train.py --batch_size {batch} --global {global_batch} --world {world_size} --out {out} --json {{}}"


def test_each_cell_has_its_own_words() -> None:
    script = named(FULL, {}, 64)
    assert script.name == "train"
    strong = " ".join(script.arguments("strong", 2, "/tmp/out"))
    assert strong == "train.py --batch_size 32 --global 64 --world 2 --out /tmp/out --json {}"
    assert script.arguments("weak", 2, "o")[2:5:2] == ["64", "128"]


def test_a_batch_that_does_not_divide_is_an_error_that_names_the_world_size() -> None:
    with pytest.raises(ValueError, match=r"a batch of 64 does not divide by world size 3; choose a multiple of it"):
        named(FULL, {}, 64).arguments("strong", 3, "")


@pytest.mark.parametrize(
    ("mode", "own", "one", "said"),
    [
        ("strong", (16, 1), (64, 1), "rank of 2 has 16 rows and one device 64, and 32 were to be expected: "),
        ("weak", (32, 1), (64, 1), "rank of 2 has 32 rows and one device 64, and 64 were to be expected: "),
        ("strong", (640, 20), (2560, 40), "let the number of passes in the command grow with {world_size}"),
        ("strong", (0, 20), (0, 40), "rank of 2 has 20 passes and one device 40, and 40 were to be expected: "),
        ("strong", (32, 1), (64, 1), ""),
        ("strong", (31.2, 1), (64, 1), ""),
        ("weak", (64, 1), (64, 1), ""),
        ("strong", (0, 40), (0, 40), ""),
        ("weak", (0, 0), (0, 0), ""),
        ("weak", (0, 1), (64, 1), ""),
    ],
)
def test_a_script_that_divides_its_work_once_more_is_told_what_to_write(
    mode: str, own: tuple[float, float], one: tuple[float, float], said: str
) -> None:
    note = divided_twice(named("train.py --batch_size {batch}", {}, 64), mode, 2, own, one)
    assert said in note
    assert bool(note) == bool(said)
    assert ("write {global_batch} where the command has the batch" in note) == ("rows" in note and own[1] == one[1])


def test_a_script_leaves_its_repository_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").touch()
    (tmp_path / "trainer").mkdir()
    monkeypatch.chdir(tmp_path / "trainer")
    cache = str(Path.home() / ".cache")
    assert kept_as_they_are(tmp_path / "trainer") == (str(tmp_path / "trainer"), str(tmp_path), cache)


def test_a_module_is_a_script_too() -> None:
    script = named("-m package.train --steps 3", {}, None)
    assert (script.module, script.target, script.name) == (True, "package.train", "package.train")
    assert not script.takes_batch


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("torchrun --nproc-per-node 2 train.py", "begins with torchrun: the ranks are started with torchrun's environ"),
        ("accelerate launch train.py", "leave out accelerate launch and its own options"),
        ("python train.py", "begins with python: leave it out, and begin with the script"),
        ("/usr/bin/python3.11 train.py", "leave it out, and begin with the script"),
        ("-m", "expected a module after -m"),
        (" ", "expected the script's path and its arguments"),
        ("train.py 'open", "No closing quotation; quote it as for a shell"),
        ("train.py {bach}", r"has {bach}: valid placeholders are {batch}, {global_batch}, {world_size}, {out}"),
        ("train.py {batch", "double the braces that stand for themselves"),
        ("train.py {}", "double the braces that stand for themselves"),
        ("train.py {batch}", "say how many samples one device gets at world size 1"),
    ],
)
def test_a_command_that_cannot_run_is_refused_with_what_to_write(command: str, said: str) -> None:
    with pytest.raises(ValueError, match="command") as caught:
        named(command, {}, None)
    assert said in str(caught.value)


def test_a_missing_file_is_named_with_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file trian\.py in "):
        scripts.require([named("trian.py", {}, None)], tmp_path)
    with pytest.raises(ValueError, match=r"there is no file trian in .*; the command begins with the script's path"):
        scripts.require([named("trian", {}, None)], tmp_path)
    scripts.require([named("-m anything", {}, None)], tmp_path)


def test_strong_scaling_needs_a_place_for_the_batch() -> None:
    with pytest.raises(ValueError, match=r"the command has no {batch}; write it where the batch stands"):
        scripts.require([named("-m train", {}, None)], Path(), ["strong"])
    assert not of_script(named("train.py", {}, None)).scales("strong")
    assert of_script(named("train.py {batch}", {}, 8)).scales("strong")


def written(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def test_a_table_names_a_script_with_its_environment(tmp_path: Path) -> None:
    table = (
        "[tool.scaling.scripts.pretrain]\n"
        'command = "-m pack.train --batch {batch}"\nbatch = 64\nenvironment = { WANDB_MODE = "offline" }\n'
    )
    known = available(written(tmp_path, table))
    assert named("pretrain", known, None).environment == {"WANDB_MODE": "offline"}
    assert named("pretrain", known, 8).batch == 8


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[tool.scaling.scripts.a]\nbatch = 3", "script 'a' in pyproject.toml: command: Field required"),
        ('[tool.scaling.scripts.a]\ncommand = "a.py"\nbtach = 3', "btach: Extra inputs are not permitted"),
        ('[tool.scaling.scripts.a]\ncommand = "a.py"\nupdate = "x"', "expected module:function or module:Class.method"),
        ('[tool.scaling.scripts."a b"]\ncommand = "a.py"', "or digit, and after it letters, digits, or any of . _ + -"),
        ('[tool.scaling.scripts."../up"]\ncommand = "a.py"', "rename it"),
        ("[tool.scaling]\nscripts = 3", "expected a table, [tool.scaling.scripts]"),
        ("[tool.scaling.scripts]\na = 3", "expected a table, [tool.scaling.scripts.a]"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, table: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"pyproject\.toml") as caught:
        available(written(tmp_path, table))
    assert said in str(caught.value)


def test_an_accepted_run_is_a_scripts_by_its_command_environment_and_batch() -> None:
    first = Script(name="a", command="train.py {batch}", batch=8)
    same = first.model_copy(update={"name": "b"})
    others = [{"command": "train.py {batch} --lr 1"}, {"environment": {"A": "1"}}, {"batch": 16}]
    assert of_script(first).hash == of_script(same).hash
    assert len({of_script(first).hash, *(of_script(first.model_copy(update=other)).hash for other in others)}) == 4


def test_a_script_has_a_name_of_its_own(project: Project) -> None:
    for name in ("ddp.py", "train.py"):
        (project.path / name).write_text("")
    (project.path / "more").mkdir()
    (project.path / "more" / "train.py").write_text("")
    commands = ["ddp.py", "train.py", "train.py --lr 1", "more/train.py"]
    config = project.settings(*(f"--scaling-script={command}" for command in commands))
    assert config.trainers == ("ddp.py", "train", "train.py", "train.2")
    assert config.trainers == tuple(workload.name for workload in config.workloads)
    assert config.checked == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scaling-script=absent.py"], "there is no file absent.py in "),
        (["--scaling-script=torchrun data.py"], "leave out torchrun and its own options"),
        (["--scaling-script=python train.py"], "^--scaling-script: command 'python train.py' begins with python"),
        (
            ["--scaling-script=data.py", "--scaling-batch=8"],
            r"no --scaling-script has a place for it, such as \{batch\}",
        ),
        (["--scaling-batch=8"], r"no --scaling-script has a place for it"),
        (["--scaling-script=data.py", "--scaling-mode=strong"], r"the command has no \{batch\}"),
        (["--scaling-script=data.py", "--scaling-against=script:absent.py"], "there is no file absent.py"),
    ],
)
def test_a_wrong_script_is_a_usage_error(project: Project, arguments: list[str], said: str) -> None:
    with pytest.raises(pytest.UsageError, match=said):
        project.settings(*arguments)
