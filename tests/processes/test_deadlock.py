"""One-process trainers do not freeze where the garbage collector could make them, and a frozen one is ended.

`tests.support.freezing` has the training that freezes, docs/upstream/get_rng_state_deadlock.md the reason, and
`tests/reference/test_per_device.py` the tests of the collector.
"""

from __future__ import annotations

import pytest

from reference.trainers import TRAINERS
from suite.checks.bench import Bench
from tests.support import on_ranks, trainers_under_test
from tests.support.freezing import ONE_PROCESS


def test_the_stress_covers_every_one_process_trainer_of_several_devices(bench: Bench) -> None:
    one = {name for name in TRAINERS if bench.about(name).processes == "one"}
    assert one - {"single"} == set(ONE_PROCESS)


@pytest.mark.parametrize("trainer", ONE_PROCESS)
def test_training_that_would_freeze_with_the_collector_on_goes_on(
    bench: Bench, trainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the collector on, 31 of 40 such runs froze."""
    monkeypatch.setattr(on_ranks, "CALL_S", 20.0)
    [steps] = on_ranks.run(bench, "tests.support.freezing:train", [1], trainer=trainer, seconds=0.5)[1]
    assert steps > 0


@pytest.mark.parametrize("trainer", ONE_PROCESS)
def test_threads_that_change_all_the_time_change_no_bit(bench: Bench, trainer: str) -> None:
    stressed = "tests.support.freezing:agrees_under_stress"
    assert on_ranks.run(bench, stressed, [1], trainer=trainer, steps=20)[1] == [True]


def test_a_frozen_trainer_ends_at_its_deadline_with_all_its_stacks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter runs no more Python, so faulthandler answers the signal in C."""
    for deadline in ("HANG_S", "HANG_AGAIN_S"):
        monkeypatch.setattr(f"suite.checks.bench.{deadline}", 2.0)
    failure = bench.search(f"{trainers_under_test.__name__}:Freezes", "gradient", examples=1).failure
    assert "rank 0: no answer to 'observe' within 2 s" in failure
    assert "in _freeze" in failure
    assert "in step" in failure
