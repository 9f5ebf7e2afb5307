"""What `python -m tests.stranger` finds on pages and in outputs, how it ends commands, and that it can turn red."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tests.stranger import __main__ as stranger
from tests.stranger import commands, places, rules, running
from tests.stranger.commands import Command
from tests.stranger.places import Place
from tests.stranger.running import Journal, Row
from tests.support.processes import all_end
from tests.support.project import REPOSITORY

PAGE = """\
Some prose with `pytest -m scaling --scaling-budget=20 --pyargs
suite.benchmarks` over two lines, `--scaling-mode` and `pytest` alone.

```sh
pip install -e .
pytest -m scaling
```

    SCALING_VERSIONS="2.13 2.15" tox -e versions        # a comment
    no command
      see it again: python -m suite.checks lm.py:Mine gradient '{"batches": [1]}'

```yaml
  script:
    - .venv/bin/pytest -m gpu "$AGAINST"
    - run: |
        arguments=(-m scaling)
        pytest "${arguments[@]}"
    - run: python -m pip install x
```

```python
pytest.raises(ValueError)
```

`python -m suite calibrate`
"""

SCREEN = """\
FAILED
  see it again: pytest -m scaling -k a
  see it again: pytest -m scaling -k b

To check the gradients:
    pytest -m correctness
To compare with origin/main:
    pytest -m scaling --scaling-against=ref:origin/main
    pytest.fail(f"no command")
NO BASELINE: accept a run
ERROR a, again:
    pytest -m scaling -k c
"""

# Stands for every program: prints what is to be typed next, refuses a command, and says what helps.
PYTEST = """\
#!/bin/sh
case "$*" in
  *"-m scaling"*"ref:"*) echo "put the folder of it in pytest's setting pythonpath"; exit 1 ;;
  *"-m scaling"*) printf 'To compare:\\n    pytest -m scaling --scaling-against=ref:main\\n' ;;
esac
echo "$PYTEST_ADDOPTS"
"""


def test_commands_of_a_page_are_met_in_its_order() -> None:
    assert [(each.met, each.text) for each in commands.on_page("p", PAGE)] == [
        ("p:1", "pytest -m scaling --scaling-budget=20 --pyargs suite.benchmarks"),
        ("p:5", "pip install -e .\npytest -m scaling"),
        ("p:9", 'SCALING_VERSIONS="2.13 2.15" tox -e versions        # a comment'),
        ("p:11", "python -m suite.checks lm.py:Mine gradient '{\"batches\": [1]}'"),
        ("p:15", '.venv/bin/pytest -m gpu "$AGAINST"'),
        ("p:17", 'arguments=(-m scaling)\npytest "${arguments[@]}"'),
        ("p:19", "python -m pip install x"),
        ("p:26", "python -m suite calibrate"),
    ]


def test_commands_of_an_output_have_the_words_above_them() -> None:
    found = commands.in_output(SCREEN, "x", 1, status=1)
    assert [(each.label, each.text, each.expected) for each in found] == [
        ("see it again", "pytest -m scaling -k a", 1),
        ("see it again", "pytest -m scaling -k b", 1),
        ("To check the gradients", "pytest -m correctness", 0),
        ("To compare with origin/main", "pytest -m scaling --scaling-against=ref:origin/main", 0),
        ("ERROR a, again", "pytest -m scaling -k c", 1),
    ]


def test_readme_has_two_blocks_of_shell_and_both_are_in_quick_start() -> None:
    readme = places.page("README.md")
    start = readme.partition("\n## Quick start\n")[2].partition("\n## ")[0]
    blocks = [each.text for each in commands.on_page("README.md", readme) if "\n" in each.text]
    assert blocks == re.findall(r"```sh\n(.*?)\n```", start, re.DOTALL)
    assert [block.splitlines()[-1].partition(" --scaling")[0] for block in blocks] == ["pytest -m scaling", "pytest"]


@pytest.mark.parametrize("pattern", rules.SKIPS | rules.LATER)
def test_every_rule_that_skips_has_a_command_on_a_page(pattern: str) -> None:
    texts = [each.text for name in ("README.md", "docs/elsewhere.md", "docs/ci.md", "docs/several-machines.md")
             for each in commands.on_page(name, places.page(name))]  # fmt: skip
    assert any(re.search(pattern, text, re.MULTILINE) for text in texts)


@pytest.mark.parametrize("name", places.LAYOUTS)
def test_every_layout_has_the_modules_that_its_commands_name(name: str) -> None:
    shape_name, _, install = name.partition("-")
    shape = places.SHAPES[shape_name]
    files = places.files(shape, install)
    for module, names in ((shape.trainer, {"Trainer", "Wrong"}), (shape.data, {"make", "load"})):
        text = files[(Path(shape.code) / f"{module.replace('.', '/')}.py").as_posix()]
        tree = ast.parse(text)
        assert names <= {each.name for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef)}
    settings = tomllib.loads(files["pyproject.toml"])
    assert settings["tool"]["scaling"]["workloads"]["clicks"]["model"] == f"{shape.data}:make"
    assert ("pythonpath" in settings["tool"]["pytest"]["ini_options"]) == (install == "none")


def stand_in(folder: Path, *found: str, depth: int = 1) -> Place:
    """Return a place in which `pytest` is a script of this module."""
    places.write(folder, {"bin/pytest": PYTEST})
    (folder / "bin" / "pytest").chmod(0o755)
    return Place("here", folder, folder / "bin", [Command(text, "p:1") for text in found], depth=depth)


def read(folder: Path, place: Place, *, first_half: bool = False) -> list[Row]:
    journal = Journal(folder / "journal.jsonl")
    stranger.Reader(place, journal, folder, first_half=first_half).read()
    return journal.rows


def test_what_a_command_prints_is_run_once_and_what_its_error_advises_is_done(tmp_path: Path) -> None:
    rows = read(tmp_path, stand_in(tmp_path, "pytest -m scaling", "pytest -m gpu", "pytest -m scaling"))
    against = "pytest -m scaling --scaling-against=ref:main"
    assert [(row.command, row.status, row.outcome) for row in rows] == [
        ("pytest -m scaling", 0, "as expected"),
        (against, 1, "UNEXPECTED"),
        (f"{against} --override-ini=pythonpath=.", 1, "UNEXPECTED"),
        ("pytest -m gpu", None, "skipped"),
    ]
    assert rows[0].last == f"--scaling-budget={rules.BUDGET_S}"
    assert rows[3].last == "needs a GPU"
    assert "2 of them UNEXPECTED; 1 skipped" in running.summary(rows)
    assert "| **1**, expected 0 |" in "\n".join(running.table(rows))


def test_where_an_error_is_expected_its_advice_has_to_be_known() -> None:
    against = "pytest -m scaling --scaling-against=ref:main"
    assert rules.remedies("an error; do this", against, "src-wheel", "src") == [
        "false  # this error's advice is not in REMEDIES"
    ]
    assert rules.remedies("an error; do this", against, "flat-wheel", ".") == []


@pytest.mark.parametrize("mistake", rules.MISTAKES, ids=lambda mistake: mistake.said)
def test_the_message_of_a_mistake_has_to_say_what_helps(mistake: rules.Mistake) -> None:
    assert mistake.advice("an error; nothing of use", "shop:Trainer") == ""


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    place = stand_in(tmp_path, "pytest -m scaling", "touch more && pytest tests")
    place.commands.insert(1, Command("pytest  # first_minutes", "p:1"))
    first = read(tmp_path, place, first_half=True)
    (tmp_path / "more").unlink()
    again = read(tmp_path, place, first_half=False)
    assert [row for row in again if row.status is None] == []
    assert [row for row in again if row in first] == [row for row in first if row.status is not None]
    assert not (tmp_path / "more").exists()
    lines = (tmp_path / "journal.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if "touch more" not in line]
    (tmp_path / "journal.jsonl").write_text("".join(kept))
    assert [row.command for row in read(tmp_path, place)] == [row.command for row in first]
    assert (tmp_path / "more").exists()


@pytest.mark.parametrize("found", ["pytest tests", "false"])
def test_its_own_status_is_1_where_a_command_did_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: str
) -> None:
    monkeypatch.setattr(stranger, "place_of", lambda *_, **__: stand_in(tmp_path, found))
    assert stranger.main(["--first-half", "--folder", str(tmp_path)]) == (found == "false")
    assert f"| 1 | here | `{found}` | p:1 |" in capsys.readouterr().out


def test_a_deadline_ends_a_command_and_what_it_started(tmp_path: Path) -> None:
    script = f"sleep 300 & echo $! >{tmp_path}/pid; sleep 300"
    variables = running.environment(None, {})
    started = time.monotonic()
    status, _ = running.run(script, tmp_path, variables, tmp_path / "log", deadline_s=2.0)
    assert status == running.TIMED_OUT
    assert time.monotonic() - started < 30
    assert running.last_line((tmp_path / "log").read_text()) == "ended after 2 s"
    assert all_end([int((tmp_path / "pid").read_text())])


def test_a_command_has_nothing_of_the_environment_that_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "ours")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    variables = running.environment(tmp_path / "environment" / "bin", {"BASE": "a"})
    assert not {"PYTHONPATH", "PYTEST_ADDOPTS"} & variables.keys()
    assert variables["PATH"].startswith(f"{tmp_path}/environment/bin:")
    assert (variables["BASE"], variables["VIRTUAL_ENV"]) == ("a", f"{tmp_path}/environment")


def test_it_needs_no_more_than_python_and_git() -> None:
    """The gate starts it before anything is installed."""
    asked = "import sys; import tests.stranger.__main__; print(*sys.modules)"
    bare = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); {asked}"]
    subprocess.run(bare, check=True, capture_output=True, timeout=60)


WAITS = """
import sys
from pathlib import Path
from tests.stranger import __main__ as stranger
from tests.stranger.commands import Command
from tests.stranger.places import Place

folder = Path(sys.argv[1])
place = Place("here", folder, folder / "bin", [Command("echo $$ >pid && sleep 300", "p:1")])
stranger.place_of = lambda *_, **__: place
stranger.main(["--first-half", "--folder", str(folder)])
"""


def test_a_signal_ends_it_with_what_it_runs(tmp_path: Path) -> None:
    asked = [sys.executable, "-c", WAITS, str(tmp_path)]
    with subprocess.Popen(asked, cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
        ends = time.monotonic() + 30
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < ends
            time.sleep(0.05)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert all_end([int((tmp_path / "pid").read_text())])
