"""Which arms are timed for which cells; and what is one cell, and not checked, where there is a single device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from suite.plan import cells
from suite.plan.cells import Arm, Cell
from suite.run import forecast
from tests.support.measurements import cell, run_of
from tests.support.nvml import Scene
from tests.support.project import Project

STRONG1, STRONG2 = Cell("ddp", "lenet", "strong", 1), Cell("ddp", "lenet", "strong", 2)
WEAK1, WEAK2 = Cell("ddp", "lenet", "weak", 1), Cell("ddp", "lenet", "weak", 2)


def test_one_device_is_measured_once_for_both_modes() -> None:
    assert cells.arm("candidate", "ddp", WEAK1) == cells.arm("candidate", "ddp", STRONG1)


def test_efficiency_needs_one_device_and_speedup_the_plain_trainer() -> None:
    found = {(arm.trainer, arm.mode, arm.world_size) for [arm] in cells.one_device_arms([STRONG2, WEAK2], speedup=True)}
    assert found == {("ddp", "strong", 1), ("single", "strong", 1)}
    assert cells.one_device_arms([STRONG2, WEAK2], speedup=False) == [(Arm("candidate", "ddp", "lenet", "strong", 1),)]


def test_ids_have_the_class_name_of_a_users_trainer() -> None:
    assert Cell("some/path.py:Mine", "lenet", "weak", 4).id == "Mine-lenet-weak-4"
    assert Cell("some/path.py:Mine", "lenet", "weak", 4, "path.Mine").id == "path.Mine-lenet-weak-4"


@pytest.mark.parametrize(
    ("trainers", "names"),
    [
        (["ddp", "some/path.py:Mine", "package.module:Other"], ["ddp", "Mine", "Other"]),
        (["a.py:Mine", "some/b.py:Mine", "c.py:Other"], ["a.Mine", "b.Mine", "Other"]),
        (["a/x.py:Mine", "b/x.py:Mine", "y.py:Mine"], ["a/x.Mine", "b/x.Mine", "y.Mine"]),
        (["a.x:Mine", "b.x:Mine", "x:Mine"], ["a.x.Mine", "b.x.Mine", "x.Mine"]),
        (["ddp", "a.py:ddp"], ["ddp", "a.ddp"]),
        (["a.py:Mine", "a:Mine"], ["a.py:Mine", "a:Mine"]),
        (["b.py:Mine", "a.b:Mine", "a.b.py:Mine"], ["b.Mine", "a.b:Mine", "a.b.Mine"]),
        (["a.py:Mine", "a.py:Mine"], ["Mine", "Mine"]),
    ],
)
def test_names_tell_trainers_apart_and_are_short_where_they_can_be(trainers: list[str], names: list[str]) -> None:
    found = cells.names(trainers)
    assert [found[trainer] for trainer in trainers] == names


def test_trainers_that_differ_in_the_first_of_very_many_folders_have_their_whole_names() -> None:
    trainers = [first + "/folder" * 100_000 + ".py:Mine" for first in "ab"]
    found = cells.names(trainers)
    assert len(found) == 2
    assert all(found.get(trainer) == trainer for trainer in trainers)  # compared as a whole, CI would print 17 MB


AS_SINGLE = "scratch, data_parallel, ddp: as single on one device"
AS_STRONG = "weak: as strong on one device"


def items(project: Project, *arguments: str) -> list[str]:
    names = project.collected("-m", "scaling", *arguments)
    return [name.removeprefix("test_scaling[").removesuffix("]") for name in names]


@pytest.mark.parametrize(
    ("setting", "id"), [("cpu:1", "single-lenet-strong-1"), ("cuda:1", "single-resnet18-bf16-strong-1")]
)
def test_trainers_and_modes_that_do_the_same_are_one_cell(
    project: Project, gpus: Callable[..., Scene], setting: str, id: str
) -> None:
    gpus(2)
    assert items(project, f"--scaling-devices={setting}") == [id]


def test_a_machine_with_one_gpu_has_one_cell_by_default(project: Project, gpus: Callable[..., Scene]) -> None:
    gpus(1)
    assert items(project, "--scaling-workload=lenet") == ["single-lenet-strong-1"]
    tokens = items(project, "--scaling-workload=lenet,gpt")
    assert tokens == ["single-lenet-strong-1", "single-gpt-strong-1"]


def test_what_is_named_is_measured_as_it_is_named(project: Project) -> None:
    """Also by an ini file: accepted runs have its cells."""
    named = ("--scaling-devices=cpu:1", "--scaling-trainer=ddp,scratch", "--scaling-mode=weak")
    assert items(project, *named) == ["ddp-lenet-weak-1", "scratch-lenet-weak-1"]
    project.ini(scaling_trainer="ddp")
    assert items(project, "--scaling-devices=cpu:1") == ["ddp-lenet-strong-1", "ddp-lenet-weak-1"]


@pytest.mark.parametrize("shared", ["cuda:0,cuda:0", "cuda:2"])
def test_two_ranks_exchange_wherever_they_are_and_so_differ_by_trainer(
    project: Project, gpus: Callable[..., Scene], shared: str
) -> None:
    gpus(2)
    cells = items(project, f"--scaling-devices={shared}", "--scaling-world-sizes=1")
    assert len(cells) == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cuda:1"], [AS_SINGLE, AS_STRONG, "one GPU"]),
        (["cpu:1"], [AS_SINGLE, AS_STRONG, "one core"]),
        (["cpu:1", "--scaling-mode=weak"], [AS_SINGLE, "one core"]),
        (["cpu:1", "--scaling-trainer=ddp"], ["one core"]),
        (["cuda:0,cuda:0"], ["one GPU"]),
        (["cuda:2"], []),
    ],
)
def test_header_and_plan_say_it(
    project: Project, gpus: Callable[..., Scene], arguments: list[str], said: list[str]
) -> None:
    gpus(2)
    devices, *others = arguments
    config = project.settings("--scaling-workload=lenet", f"--scaling-devices={devices}", *others)
    rest = "efficiency, the exchange, what holds several devices back"
    lines = [f"not checked: {each}: {rest}" if each.startswith("one ") else each for each in said]
    assert config.header()[2:] == [f"scaling: {line}" for line in lines]
    plan = forecast.lines(run_of(cell(1), config=config), 4, forecast.Length(1.0, 2))
    assert plan[1 : 1 + len(lines)] == [f"plan: {line}" for line in lines]
    assert not any("not checked" in line for line in plan[1 + len(lines) :])
