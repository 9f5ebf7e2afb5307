"""What the workers of an arm are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suite.base.sides import SidePool
from suite.plan.cells import PLAIN, Side
from suite.plan.workloads import BUILT_IN
from suite.processes.group import START_TIMEOUT_S
from suite.processes.jobs import Prepared
from suite.properties.answers import About, Described
from suite.room.devices import Devices
from suite.run.preparing import prepare
from tests.support.measurements import LENET, arm, cell, job, run_of, settings


def sides_of(ask: Callable[..., Described | Prepared]) -> Any:
    """Return the sides of a run whose workers answer as `ask` does."""
    return SimpleNamespace(
        ask=ask,
        locate=lambda side, name: name,
        apart=lambda side: None,
        dismiss=lambda: None,
        pools={"candidate": SidePool(SimpleNamespace(folder=Path()))},
    )


@pytest.mark.parametrize(("mode", "batch", "lr"), [("strong", 256, 0.2), ("weak", 512, 0.3)])
def test_batch_and_rate_follow_the_mode(mode: str, batch: int, lr: float) -> None:
    told = job(arm(2, mode=mode))
    assert (told.global_batch, told.lr) == (batch, pytest.approx(lr, abs=5e-4))
    assert (told.workload.model, told.workload.precision) == (LENET.model, "float32")


def test_a_trainer_that_changes_what_versions_are_seen_costs_nothing() -> None:
    """Its import may put another version of a package in front of the interpreter's own."""
    seen, deadlines = iter(["2.3", "1.26"]), list[float]()

    def ask(side: Side, kind: type[Any], command: str, timeout_s: float, **told: object) -> Described | Prepared:
        deadlines.append(timeout_s)
        if kind is Prepared:
            return Prepared(name="digits", folder="", train_samples=1, test_samples=1)
        return Described(about=About(processes="one"), versions={"numpy": next(seen)})

    run = run_of(cell(2), versions={}, clock=lambda: 1000.0, begun_s=0.0)
    prepare(run, sides_of(ask), [arm(2), arm(2, trainer="scratch")], lambda line: None)
    assert run.versions == {"candidate": {"numpy": "2.3"}}
    assert not run.lost
    assert deadlines == [60.0] * 3, "of a budget that is spent"


def test_ranks_on_gpus_that_exchange_nothing_have_no_communicator() -> None:
    """NCCL takes seconds to make one, and memory on every GPU."""

    def ask(side: Side, kind: type[Any], command: str, timeout_s: float, **told: object) -> Described | Prepared:
        if kind is Prepared:
            return Prepared(name="digits", folder="", train_samples=256, test_samples=1)
        return Described(about=About(processes="per-device"), versions={})

    on_gpus = settings(devices=Devices("cuda", ("cuda:0", "cuda:1"), ()))
    run, wanted = run_of(cell(2), config=on_gpus, versions={}), [arm(2), arm(2, trainer=PLAIN)]
    prepare(run, sides_of(ask), wanted, lambda line: None)
    assert [run.jobs[each].backend for each in wanted] == ["nccl", "gloo"]


@pytest.mark.parametrize(("trainer", "lost"), [("ddp", True), ("single", True), (PLAIN, True), ("mine.py:Mine", False)])
def test_targets_that_cross_entropy_cannot_take_are_not_tried_by_built_in_trainers(trainer: str, lost: bool) -> None:
    unfit = "its loss is the mean cross-entropy, and y is float32 (n,)"

    def ask(side: Side, kind: type[Any], command: str, timeout_s: float, **told: object) -> Described | Prepared:
        if kind is Prepared:
            return Prepared(name="mine.py:prices", folder="", train_samples=64, test_samples=1, unfit=unfit)
        return Described(about=About(processes="one"), versions={})

    run, wanted = run_of(cell(2), versions={}, datasets={}), arm(1, trainer=trainer)
    prepare(run, sides_of(ask), [wanted], lambda line: None)
    assert [failure.cause for failure in run.lost.values()] == [
        f"{trainer} cannot train on mine.py:prices: {unfit}; a trainer of your own with a `loss` takes any targets "
        "(docs/your-trainer.md); class labels are int64, y.long()"
    ] * lost


@pytest.mark.parametrize("trainer", ["mine.py:OfSamples", "single", PLAIN])
def test_a_trainer_of_samples_is_refused_for_texts_when_a_worker_has_read_it(trainer: str) -> None:
    """What a class of the user's own trains is not known before; the table's `single` trains both."""

    def ask(side: Side, kind: type[Any], command: str, timeout_s: float, **told: object) -> Described | Prepared:
        if kind is Prepared:
            return Prepared(name="texts-tiny", folder="", train_samples=64, test_samples=1, tokens=64)
        return Described(about=About(processes="one"), versions={})

    texts = BUILT_IN["gpt-tiny"]
    wanted = replace(arm(2, trainer=trainer), workload="gpt-tiny")
    run = run_of(replace(cell(2), workload="gpt-tiny"), config=settings(workloads=(texts,)), versions={})
    prepare(run, sides_of(ask), [wanted], lambda line: None)
    if ".py" not in trainer:
        assert run.jobs[wanted].dataset.tokens == 64
        return
    assert not run.jobs
    message = (
        "mine.py:OfSamples says trains = 'samples', and workload 'gpt-tiny' is made of tokens; "
        "choose another --scaling-workload, or set trains = 'tokens' in the trainer"
    )
    assert run.lost[wanted].cause == message


@pytest.mark.parametrize(
    ("elapsed_s", "longest_s", "deadline_s"), [(0, 900, 120), (0, 20, 20), (30, 900, 90), (110, 900, 60)]
)
def test_a_deadline_is_a_part_of_the_budget(elapsed_s: float, longest_s: float, deadline_s: float) -> None:
    run = run_of(cell(2), config=settings(budget_s=120.0), clock=lambda: elapsed_s, begun_s=0.0)
    assert run.plan.deadline_s(longest_s) == deadline_s


@pytest.mark.parametrize(
    "devices",
    [Devices("cuda", ("cuda:0", "cuda:1"), ()), Devices("cpu", ("cpu", "cpu"), (0, 0), hosts=2)],
    ids=["GPUs", "several hosts"],
)
def test_ranks_that_load_torch_themselves_have_as_long_to_start_when_the_budget_is_spent(devices: Devices) -> None:
    """A profile's sessions go on then; on eight GPUs each starts some forty processes."""
    config = settings(budget_s=120.0, devices=devices)
    run = run_of(cell(2), config=config, clock=lambda: 300.0, begun_s=0.0)
    assert run.plan.deadline_s(START_TIMEOUT_S) == START_TIMEOUT_S
