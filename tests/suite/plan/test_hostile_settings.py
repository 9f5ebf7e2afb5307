"""Whatever an option, a setting, a mark or a variable says: it is used, or refused as a usage error; nothing is run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from suite import options
from suite.options import OPTIONS
from suite.plan import workloads
from suite.plan.floors import Floor, available
from suite.processes.failure import harmless
from suite.records.record import Record
from suite.render import commands, markdown
from suite.room import nvml
from suite.room.devices import Devices
from suite.run import machine
from tests.support import records
from tests.support.project import Project
from tests.support.records import TEXTS
from tests.support.repositories import Repository

SHARE = 0.4  # of the profile's examples
hostile = settings(
    max_examples=int(settings().max_examples * SHARE), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# What a value is put into, so that it gets past the first look at it. No program is named.
SHAPES = (
    "{}",
    "{}:Mine",
    "{}.py:Mine",
    "ref:{}",
    "trainer:{}",
    "python:/nowhere/{}",
    "cpu:{}",
    "cuda:{}",
    "1,{}",
    "{},{}",
)
TOML = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), TEXTS, st.just([]), st.just([[1], ["a"]])
)
GPUS = Devices("cuda", ("cuda:0",), ())
BY_NAME = {option.name: option for option in OPTIONS if option.metavar}
SET = st.sampled_from(list(BY_NAME.values()))


@pytest.fixture
def here(project: Project) -> Project:
    Repository(project.path).commit({"train.py": "class Mine: ..."})
    return project


@pytest.fixture
def config(here: Project) -> pytest.Config:
    return here.config()


@hostile
@example(option=BY_NAME["trainer"], shape="{}.py:Mine", text="x" * 5_000, ini=False)
@example(option=BY_NAME["trainer"], shape="{}.py:Mine", text="caf\udce9", ini=True)
@example(option=BY_NAME["trainer"], shape="{}:Mine", text="\x1b[2J\x00", ini=True)
@example(option=BY_NAME["report-dir"], shape="{}", text="caf\udce9", ini=False)
@example(option=BY_NAME["data-root"], shape="{}", text="\x00", ini=True)
@example(option=BY_NAME["against"], shape="ref:{}", text="\x00", ini=True)
@example(option=BY_NAME["against"], shape="{}", text="x" * 5_000, ini=False)
@given(option=SET, shape=st.sampled_from(SHAPES), text=TEXTS, ini=st.booleans())
def test_an_options_value_is_used_or_refused_as_a_usage_error(
    here: Project, config: pytest.Config, option: options.Option, shape: str, text: str, ini: bool
) -> None:
    before = sorted(path for path in here.path.rglob("*") if ".git" not in path.parts)
    value = shape.format(*[text] * shape.count("{}"))
    values: Any = [value] if option.repeatable else value
    for other in OPTIONS:  # those of the example before
        setattr(config.option, other.dest, None)
        config._inicache[other.dest] = None
    if ini:
        config._inicache[option.dest] = values
    else:
        setattr(config.option, option.dest, values)
    try:
        read = options.read(config)
        said = json.dumps([read.header(), read.repeat, read.trainers], ensure_ascii=False)
        assert said.encode(), "a record can hold it"
    except pytest.UsageError as error:
        said = str(error)
    assert harmless(said, len(said)) == said
    assert sorted(path for path in here.path.rglob("*") if ".git" not in path.parts) == before


def toml(value: Any) -> str:
    """Return a value in TOML, whose strings, numbers and arrays are nearly JSON's."""
    text = json.dumps(value)
    return {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}.get(text, text)


@hostile
@given(
    name=TEXTS,
    key=st.sampled_from([*workloads.Workload.model_fields, *Floor.model_fields, "other"]),
    value=TOML,
    table=st.sampled_from(["workloads.{}", "workloads.{}.accuracy", "floors", "[floors]", "workloads", "{}"]),
)
def test_a_table_in_pyproject_is_used_or_refused(tmp_path: Path, name: str, key: str, value: Any, table: str) -> None:
    file = tmp_path / "pyproject.toml"
    heading = "tool.scaling." + table.strip("[]").format(json.dumps(name))
    heading = f"[[{heading}]]" if table.startswith("[") else f"[{heading}]"
    file.write_text(f'{heading}\nmodel = "toy"\n{key} = {toml(value)}\n', encoding="utf-8", errors="surrogatepass")
    try:
        known = workloads.available(file)
        available(file, known)
    except ValueError:  # `options.read` makes a usage error of it
        return
    assert all("/" not in workload and workload.isprintable() for workload in known)


@hostile
@given(expression=TEXTS, keyword=TEXTS)
def test_a_mark_or_a_keyword_is_quoted_in_the_commands_to_paste(
    config: pytest.Config, expression: str, keyword: str
) -> None:
    config.option.markexpr, config.option.keyword = expression, keyword
    read = options.read(config)
    content = records.make().model_dump(mode="json") | {"repeat": read.repeat}
    record = Record.model_validate_json(json.dumps(content))
    for command in (commands.accept(record), commands.correctness(record), commands.only(record, record.cells)):
        words = shlex.split(command)
        assert words[0] == "pytest"
        assert not re.search(r"[\x00-\x08\x1b]", command)


@hostile
@given(value=TEXTS.filter(lambda text: "\0" not in text))
def test_a_variable_of_the_environment_is_used_as_text(tmp_path: Path, value: str) -> None:
    """The kernel keeps bytes, so that a value may be no UTF-8."""
    assert re.fullmatch("[0-9a-f]{12}", machine.host_id((), {machine.HOST_ID: value or "x"}))
    told = machine.variables(GPUS, {"NCCL_ALGO": value})
    assert json.dumps(told, ensure_ascii=False).encode()
    assert nvml.visible(["GPU-a", "GPU-b"], value) in ([], ["GPU-a"], ["GPU-b"], ["GPU-a", "GPU-b"])
    said = markdown.publish("# Scaling\n", tmp_path / "summary.md", {markdown.VARIABLE: f"{tmp_path}/none/{value}"})
    assert "the summary is only in" in said
