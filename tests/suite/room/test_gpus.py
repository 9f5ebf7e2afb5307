"""What is read through NVML, from a stand-in for its library: the tests that need a GPU run with `-m gpu`."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from suite.room import gpus
from suite.room.conditions import PROTECTIVE, disturbed
from suite.room.devices import cuda_count, parse
from suite.room.gpus import GpuReading, Gpus
from suite.room.meter import Meter
from tests.support.fake_nvml import FakeNvml


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return FakeNvml.install(monkeypatch)


def test_a_reading_has_what_the_card_reports(nvml: FakeNvml) -> None:
    nvml.put(1, 42)
    with Gpus(parse("cuda:0,cuda:1")) as opened:
        readings = opened.read()
        assert opened.busy_percent() == {0: 97, 1: 97}
    known = {"mhz": 1980, "celsius": 61, "reasons": 4, "thermal_ns": 5, "ecc_errors": 4}
    assert readings == (GpuReading(0, **known), GpuReading(1, processes=((42, 3_000_000_000),), **known))
    assert nvml.open == 0


def test_only_the_cards_of_the_run_are_read_in_cudas_order(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    nvml.put(1, 42)
    with Gpus(parse("cuda:0,cuda:0")) as opened:
        [only] = opened.read()
    assert (only.index, only.pids) == (0, {42})


def test_a_card_that_refuses_one_query_answers_the_others(nvml: FakeNvml) -> None:
    for name in ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetViolationStatus", "nvmlDeviceGetUtilizationRates"):
        nvml.values[name] = nvml.NVMLError("not supported")
    with Gpus(parse("cuda:1")) as opened:
        [reading] = opened.read()
        assert opened.busy_percent() == {}
    assert (reading.mhz, reading.ecc_errors, reading.thermal_ns) == (1980, None, None)
    assert gpus.between(reading, reading, frozenset()).ecc_errors is None


def test_without_a_driver_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with Gpus(parse("cuda:2")) as opened:
        assert opened.read() == ()
        assert opened.busy_percent() == {}
    with Gpus(parse("cpu")) as opened:
        assert opened.read() == ()


@pytest.mark.parametrize(
    ("before", "after", "throttled"),
    [
        (GpuReading(0, reasons=0x48), GpuReading(0, reasons=0x1), ("hw_slowdown", "hw_thermal_slowdown")),
        (GpuReading(0, reasons=0x1), GpuReading(0, reasons=0x48), ("hw_slowdown", "hw_thermal_slowdown")),
        (GpuReading(0, thermal_ns=5), GpuReading(0, thermal_ns=6), ("sw_thermal_slowdown",)),  # heat in between
        (GpuReading(0, reasons=0x1, thermal_ns=5), GpuReading(0, reasons=0x1, thermal_ns=5), ()),
    ],
)
def test_throttling_at_either_end_or_in_between_is_named(
    before: GpuReading, after: GpuReading, throttled: tuple[str, ...]
) -> None:
    assert gpus.between(before, after, frozenset()).throttled == throttled


def test_the_reasons_that_count_exist() -> None:
    assert set(gpus.REASONS.values()) >= PROTECTIVE


def test_the_bits_of_reasons_are_those_of_nvml() -> None:
    import pynvml

    names = {name.replace("_", "").lower(): bit for bit, name in gpus.REASONS.items()}
    theirs = {name.removeprefix("nvmlClocksThrottleReason").lower(): name for name in dir(pynvml)}
    assert {name: getattr(pynvml, theirs[name]) for name in names} == names


def test_new_ecc_errors_are_counted() -> None:
    assert gpus.between(GpuReading(0, ecc_errors=3), GpuReading(0, ecc_errors=7), frozenset()).ecc_errors == 4


def test_a_process_that_comes_during_the_run_disturbs_every_block_from_then_on(nvml: FakeNvml) -> None:
    nvml.put(0, 4_000_001)  # there before us: for the room check to name
    with Meter(parse("cuda:1")) as taken:
        nvml.put(0, 4_000_001, os.getpid())
        taken.watch()
        before = taken.read()
        assert disturbed(quiet(taken.since(before))) == ""
        nvml.put(0, 4_000_001, os.getpid(), 4_000_002)
        for _ in range(2):
            taken.watch()
            before = taken.read()
            assert disturbed(quiet(taken.since(before))) == "another process appeared on GPU 0 (pid 4000002)"


def test_in_a_container_the_processes_of_a_warm_session_are_known(nvml: FakeNvml) -> None:
    with Meter(parse("cuda:1")) as taken:
        nvml.put(0, 4_000_001)  # a worker of ours, by a number that is not ours
        taken.watch()
        before = taken.read()
        assert disturbed(quiet(taken.since(before))) == ""
        nvml.put(0, 4_000_001, 4_000_002)
        assert disturbed(quiet(taken.since(before))) == "another process appeared on GPU 0 (pid 4000002)"


def quiet(conditions: Any) -> Any:
    """The same block on a quiet CPU."""
    return conditions.model_copy(update={"foreign": None, "steal": None})


@pytest.mark.gpu
def test_a_real_card_reports_its_clock_and_temperature() -> None:
    assert cuda_count() > 0
    with Gpus(parse("cuda:1")) as opened:
        [reading] = opened.read()
    assert reading.mhz
    assert reading.celsius
    assert reading.reasons is not None
