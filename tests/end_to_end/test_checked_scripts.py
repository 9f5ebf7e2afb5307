"""Scripts of tests/scripts, most of them nightly, and `pytest -m correctness --scaling-script`."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from suite.checks.bench import Bench
from suite.checks.script import AS_CUDA, check
from suite.plan import scripts
from suite.script.items import ITEMS
from tests.scripts import FOLDER, GATE, Entry, entries, verify
from tests.scripts.test_scripts import BEGINNING
from tests.support.project import Project

EVERY = [pytest.param(each, id=each.name, marks=[] if each.name in GATE else pytest.mark.nightly) for each in entries()]


@pytest.mark.parametrize("entry", EVERY)
def test_a_script_is_red_in_what_its_file_names(entry: Entry, bench: Bench) -> None:
    verify(entry, entry.check(bench))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["iterable", "mean_of_means", "fully_sharded"])
def test_three_ranks_see_what_two_do(name: str, bench: Bench) -> None:
    [entry] = [entry for entry in entries() if entry.name == name]
    verify(entry, entry.check(bench, 3))


@pytest.mark.nightly
def test_passes_that_do_not_divide_by_the_ranks_are_not_compared(bench: Bench) -> None:
    """Three ranks make one pass each of the four that one device makes."""
    [entry] = [entry for entry in entries() if entry.name == "accumulation_by_ranks"]
    verdicts = entry.check(bench, 3).verdicts
    why = "on one device the script draws 4 time(s) an update, and each of 3 ranks 1: "
    assert verdicts["gradient"].unchecked.startswith(why)
    assert verdicts["schedule"].unchecked.startswith(why)


WHOLE_STEP = """
def train_step(X, y):
    net.zero_grad()
    ({factor} * nn.functional.cross_entropy(net(X), y)).backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
"""
BY_LOADER = """
for epoch in range(100):
    sampler.set_epoch(epoch)
    for X, y in loader:
        train_step(X, y)
"""
BY_HAND = """
X, y = data.tensors
for step in range(100):
    own = torch.arange(dist.get_rank() + step, len(X), dist.get_world_size())[step * parts.batch():][:parts.batch()]
    train_step(X[own], y[own])
"""


@pytest.mark.parametrize("loop", [BY_LOADER, BY_HAND], ids=["loader", "by_hand"])
@pytest.mark.parametrize(
    ("factor", "red"), [("1", set()), ("dist.get_world_size()", {"gradient"})], ids=["mean", "sum"]
)
def test_a_function_that_makes_the_whole_step_is_checked(
    loop: str, factor: str, red: set[str], bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(BEGINNING + WHOLE_STEP.format(factor=factor) + loop)
    script = scripts.named(f"{tmp_path}/train.py --batch_size {{batch}}", {}, 8)
    script = script.model_copy(update={"update": "train:train_step"})
    verdicts = check(bench.pool, bench.devices, script, 2, tmp_path).verdicts
    assert {item for item, verdict in verdicts.items() if verdict.finding} == red
    assert {item for item, verdict in verdicts.items() if verdict.unchecked} == {"random", "schedule"}


def test_a_rank_that_leaves_the_others_waiting_is_named(bench: Bench, tmp_path: Path) -> None:
    right = (FOLDER / "right" / "ddp.py").read_text(encoding="utf-8")
    leaves = "if dist.get_rank() and schedule.last_epoch: return"
    (tmp_path / "train.py").write_text(
        right.replace("optimizer.zero_grad()", f"{leaves}\n            optimizer.zero_grad()")
    )
    checked = check(bench.pool, bench.devices, scripts.named(str(tmp_path / "train.py"), {}, None), 2, tmp_path)
    said = "rank 1: the script: it ended after 1 step(s) of an optimizer; the other ranks wait for it"
    assert checked.failure.startswith(f"script 'train': {said}")


def test_a_script_that_asks_for_cuda_gets_the_cpu_and_a_note(bench: Bench) -> None:
    [entry] = [entry for entry in entries() if entry.name == "asks_for_cuda"]
    assert entry.check(bench).notes == (AS_CUDA,)


def test_a_wrong_script_is_a_failure_with_a_command_that_shows_it_again(project: Project) -> None:
    script = shlex.join([str(FOLDER / "wrong" / "schedule_once_a_process.py"), "--batch_size", "{batch}"])
    result = project.correctness(f"--scaling-script={script}", "--scaling-batch=16", "-rs")
    result.assert_outcomes(passed=len(ITEMS) - 2, failed=1, skipped=1)
    result.stdout.re_match_lines_random(
        [
            r"script 'schedule_once_a_process', schedule: update 1: the groups' rates are 0.003 on 2 ranks, .*",
            r" *looks like: the schedule advances 2 times an update",
            r"SKIPPED .* not checked: the model draws no random numbers",
        ]
    )
    [command] = [line.partition("again: ")[2] for line in result.outlines if line.startswith("  see it again: ")]
    again = project.typed(command)
    again.assert_outcomes(failed=1, deselected=len(ITEMS) - 1)


def test_a_script_that_cannot_be_run_is_one_failing_item(project: Project) -> None:
    Path("train.py").write_text("import no_such_module\n")
    result = project.correctness("--scaling-script=train.py", "-rs")
    result.assert_outcomes(failed=1, skipped=len(ITEMS) - 1)
    result.stdout.fnmatch_lines_random(
        [
            "script 'train': rank * ModuleNotFoundError: No module named 'no_such_module'; see that it trains under *",
            "  see it again: pytest -m correctness --pyargs suite.checks --scaling-script=train.py -k 'train-world]'",
            "SKIPPED *not checked: script 'train' could not be run, as the failure of another item says",
        ]
    )
