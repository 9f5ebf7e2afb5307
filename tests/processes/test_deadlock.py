"""What can freeze a one-process trainer for good, and that a frozen one is ended from outside.

`tests.support.freezing` has the training that freezes, docs/upstream/get_rng_state_deadlock.md the reason.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from reference.replicas import PerDevice
from reference.trainers import TRAINERS
from suite.checks.bench import Bench
from tests.support import on_ranks, trainers_under_test
from tests.support.freezing import ONE_PROCESS
from tests.support.project import REPOSITORY

CPU = torch.device("cpu")
PATIENCE_S = 10


@pytest.fixture(params=[True, False], ids=["on", "off"])
def was_on(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The collector as the user has it."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def collects(_: int = 0) -> bool:
    return gc.isenabled()


# The collector is off while replicas compute.


def test_the_collector_is_off_in_the_threads_and_as_it_was_afterwards(was_on: bool) -> None:
    devices = PerDevice([CPU] * 2)
    assert devices.map(collects, range(2)) == [False, False]
    assert gc.isenabled() is was_on
    devices.close()


def test_the_collector_is_as_it_was_after_an_error(was_on: bool) -> None:
    devices = PerDevice([CPU] * 2)
    with pytest.raises(ZeroDivisionError):
        devices.map(lambda n: 1 / n, [1, 0])
    assert gc.isenabled() is was_on
    devices.close()


def test_a_single_device_leaves_the_collector_alone(was_on: bool) -> None:
    """It works in the caller's thread, and beside no other."""
    assert PerDevice([CPU]).map(collects, [0]) == [was_on]


def test_a_device_of_another_kind_beside_a_cpu_has_the_collector_off() -> None:
    """The caller's thread serves it while the CPU's thread works."""
    devices = PerDevice([torch.device("meta"), CPU])
    assert devices.map(collects, range(2)) == [False, False]
    devices.close()


def test_the_collector_stays_off_until_the_last_of_several_maps_has_ended(was_on: bool) -> None:
    """Two trainers, used by two threads at once."""
    first, second = PerDevice([CPU] * 2), PerDevice([CPU] * 2)
    begun, go_on, seen = threading.Event(), threading.Event(), []

    def wait(_: int) -> bool:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return gc.isenabled()

    longer = threading.Thread(target=lambda: seen.extend(first.map(wait, range(2))))
    longer.start()
    assert begun.wait(PATIENCE_S)
    assert second.map(collects, range(2)) == [False, False]
    assert not gc.isenabled()
    go_on.set()
    longer.join(PATIENCE_S)
    assert seen == [False, False]
    assert gc.isenabled() is was_on
    first.close()
    second.close()


# So they do not freeze.


def test_every_one_process_trainer_of_several_devices_is_put_under_stress(bench: Bench) -> None:
    one = {name for name in TRAINERS if bench.about(name)["processes"] == "one"}
    assert one - {"single"} == set(ONE_PROCESS)


@pytest.mark.parametrize("trainer", ONE_PROCESS)
def test_training_that_invites_the_freeze_goes_on(bench: Bench, trainer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the collector on, 31 of 40 such runs froze."""
    monkeypatch.setattr(on_ranks, "CALL_S", 20.0)
    [steps] = on_ranks.run(bench, "tests.support.freezing:train", [1], trainer=trainer, seconds=0.5)[1]
    assert steps > 0


@pytest.mark.end_to_end
@pytest.mark.parametrize(("collect", "seconds", "status"), [([], "6", 0), (["--collect"], "50", 1)], ids=["off", "on"])
def test_trainers_freeze_with_the_collector_on_and_never_with_it_off(
    collect: list[str], seconds: str, status: int
) -> None:
    """Half a minute without a freeze; or each freezes, and faulthandler's watchdog prints its stacks and ends it."""
    command = [sys.executable, "-m", "tests.support.freezing", seconds, *collect]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240)
    said = done.stdout.splitlines()
    assert [line for line in said if "status" in line] == [
        f"{name}: ended with status {status}" for name in ONE_PROCESS
    ]
    assert done.stderr.count("Timeout") == done.stderr.count("in map") == status * len(ONE_PROCESS)
    assert ("in get_rng_state" in done.stderr) is bool(status)


# A stranger's trainer that freezes ends at its deadline.


def test_a_frozen_trainer_ends_at_its_deadline_with_all_its_stacks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its interpreter runs no Python any more, so the signal is answered in C."""
    monkeypatch.setattr("suite.checks.bench.HANG_S", 2.0)
    found = bench.search(f"{trainers_under_test.__file__}:Freezes", "gradient", examples=1)
    assert "rank 0: no answer to 'observe' within 2 s" in found.failure
    assert "in _freeze" in found.failure
    assert "in step" in found.failure
