"""From what was seen to a cell's figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from suite.plan.base import Base
from suite.plan.cells import SINGLE, Arm
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Prepared
from suite.properties.answers import About
from suite.run import results
from suite.run.observations import Facts
from tests.support.measurements import AGAINST, add_sessions, arm, cell, run_of, settings, trained

PLAIN = arm(1, trainer=SINGLE)


def test_texts_have_tokens_and_a_loss_and_gpus_their_flop() -> None:
    """256 samples of 64 tokens in half a second; a loss that is not finite is left out of the mean over seeds."""
    cells, own = (cell(2), cell(1)), arm(2)
    run = run_of(*cells)
    add_sessions(run, {own: 0.5, arm(1): 0.9})
    of_texts = replace(run.jobs[own], dataset=replace(run.jobs[own].dataset, tokens=64))
    run.jobs = Facts({**run.jobs, own: of_texts})
    run.sample_flop[own] = 10**6
    for seed, loss in ((1, 1.5), (2, 1.7), (3, None)):
        run.accuracies.append(trained(0.6, 2, seed).model_copy(update={"test_loss": (2.0, loss)}))
    texts, images = results.to_record(run).cells
    assert texts.samples_per_s is not None
    assert texts.tokens_per_s is not None
    assert texts.device_flop_per_s is not None
    assert texts.tokens_per_s.estimate == pytest.approx(64 * texts.samples_per_s.estimate)
    assert texts.tokens_per_s.low == pytest.approx(64 * (texts.samples_per_s.low or math.nan))
    assert texts.device_flop_per_s.estimate == pytest.approx(10**6 * texts.samples_per_s.estimate / 2)
    assert texts.test_loss == pytest.approx(1.6)
    assert (images.tokens_per_s, images.device_flop_per_s, images.test_loss) == (None, None, None)


def test_an_arm_has_its_trainers_oracle() -> None:
    run = run_of(cell(2))
    add_sessions(run, {arm(2): 0.5})
    assert [(kept.oracle, kept.has_reference) for kept in results.to_record(run).arms] == [(None, False)]
    run.trainers["candidate", arm(2).trainer] = About(processes="one", oracle="self", has_reference=True)
    assert [(kept.oracle, kept.has_reference) for kept in results.to_record(run).arms] == [("self", True)]


def test_an_arm_has_the_seed_of_its_weights_and_of_its_order() -> None:
    run = run_of(cell(2))
    add_sessions(run, {arm(2): 0.5})
    assert [kept.seed for kept in results.to_record(run).arms] == [run.jobs[arm(2)].seed]


@pytest.mark.parametrize(
    ("timed", "lost", "against", "note"),
    [
        ([PLAIN], False, None, ""),
        ([PLAIN], False, AGAINST, ""),
        ([PLAIN], True, None, ""),
        ([], False, AGAINST, "single is not timed in a run with a base: the budget is for the comparison"),
        ([], True, None, "single on one device failed: rank 0: gone"),
        ([], False, None, "needs single on one device in the same session"),
    ],
    ids=["there", "there beside a base", "lost later", "beside a base", "lost", "another session"],
)
def test_a_missing_speedup_has_its_reason(timed: list[Arm], lost: bool, against: Base | None, note: str) -> None:
    run = run_of(cell(2), config=settings(against=against))
    add_sessions(run, dict.fromkeys([arm(2), *timed], 0.5))
    if lost:
        run.lost[PLAIN] = WorkerFailure("group", "rank 0: gone")
    [found] = results.to_record(run).cells
    assert (found.speedup is None, found.why("speedup")) == (bool(note), note)


RAISED = ["Traceback (most recent call last):\n  ...\nKeyError: 'labels'"]


@pytest.mark.parametrize(
    ("unfit", "failure", "the_users", "why"),
    [
        ("its loss is one thing", WorkerFailure("group", "not tried"), True, "its loss is one thing. "),
        ("", WorkerFailure("group", "rank 0: KeyError: 'labels'", RAISED), True, "it calls net(X) and takes the mean"),
        ("", WorkerFailure("group", "rank 0: KeyError: 'labels'", RAISED), False, None),
        ("", WorkerFailure("group", "rank 0: CUDA out of memory", RAISED), True, None),
        ("", WorkerFailure("group", "rank 0: no answer", ["rank 0, stack:\n..."], timed_out=True), True, None),
    ],
    ids=["targets", "form", "built-in workload", "memory", "hang"],
)
def test_a_workload_that_the_plain_trainer_cannot_train_is_no_fault_of_the_users(
    unfit: str, failure: WorkerFailure, the_users: bool, why: str | None
) -> None:
    dataset = Prepared(name="synthetic", folder="", train_samples=256, test_samples=100, unfit=unfit)
    run = run_of(cell(2), datasets={"auto": dataset})
    add_sessions(run, {arm(2): 0.5})
    if the_users:
        own = run.plan.workload("lenet").model_copy(update={"model": "mine.py:net"})
        run.plan = replace(run.plan, config=replace(run.plan.config, workloads=(own,)))
    run.lost[PLAIN] = failure
    [found] = results.to_record(run).cells
    if why is None:
        assert found.why("speedup") == f"single on one device failed: {failure.cause}"
        return
    start = f"the plain trainer, single, cannot train lenet, whose form may need a loss of your own: {why}"
    assert found.why("speedup").startswith(start)
    assert found.why("speedup").endswith(
        "This is no fault of your trainer; efficiency compares it with itself on one device"
    )
