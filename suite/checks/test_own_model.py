"""Every trainer on a user's own model: `pytest -m correctness --scaling-workload mine`; not collected without it."""

from __future__ import annotations

import pytest

from suite.checks import NOTE, workload
from suite.checks.bench import Bench
from suite.checks.search import NOT_RUN
from suite.plan.config import Config
from suite.plan.workloads import Workload
from suite.processes.failure import WorkerFailure
from suite.properties.answers import UNSEEN


@pytest.mark.correctness
def test_own_model(
    correctness_bench: Bench,
    correctness_trainer: str,
    correctness_workload: Workload,
    scaling_config: Config,
    request: pytest.FixtureRequest,
) -> None:
    """On a user's own model and first minibatches, k devices compute what one does, in every module."""
    if correctness_bench.has_hung(correctness_trainer):
        hangs = correctness_bench.hangs[correctness_trainer]
        pytest.skip(NOT_RUN.format(trainer=correctness_trainer, hangs=hangs))
    k = max((2, *scaling_config.world_sizes))
    try:
        about = correctness_bench.about(correctness_trainer)
        unseen = correctness_bench.unseen(about)
        if (most := correctness_bench.devices_for(about, k)) < k:
            pytest.skip(unseen or f"{k} devices are not checked: {most} GPUs, which two of its ranks cannot share")
        judgement = workload.check(
            correctness_bench, correctness_trainer, correctness_workload, k, scaling_config.data_root
        )
    except WorkerFailure as failure:
        said = f"{correctness_trainer}, workload {correctness_workload.name!r}: {failure}"
        raise pytest.fail.Exception(said, pytrace=False) from None
    for sentence in filter(None, [UNSEEN if about.only_with_itself else "", unseen]):
        request.node.user_properties.append((NOTE, f"{correctness_trainer}: {sentence}"))
    if judgement.note:
        note = f"{correctness_trainer}, {correctness_workload.name}: {judgement.note}"
        request.node.user_properties.append((NOTE, note))
    if judgement.finding:
        said = workload.explain(scaling_config, correctness_trainer, correctness_workload, k, judgement)
        pytest.fail(said, pytrace=False)
