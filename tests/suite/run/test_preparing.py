"""What the workers of an arm are told."""

from __future__ import annotations

import pytest

from suite.processes.jobs import Job
from suite.processes.messages import as_json, read
from tests.support.measurements import LENET, arm, job


@pytest.mark.parametrize(("mode", "batch", "lr"), [("strong", 256, 0.2), ("weak", 512, 0.3)])
def test_batch_and_rate_follow_the_mode(mode: str, batch: int, lr: float) -> None:
    told = job(arm(2, mode=mode))
    assert (told.global_batch, told.lr) == (batch, pytest.approx(lr, abs=5e-4))
    assert (told.workload.model, told.workload.precision) == (LENET.model, "float32")


def test_a_worker_reads_the_job_that_was_sent() -> None:
    assert read(Job, as_json(job(arm(2)))) == job(arm(2))
