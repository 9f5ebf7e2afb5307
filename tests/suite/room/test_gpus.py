"""What is read through NVML during a run, from scenes of GPUs: the tests that need a GPU run with `-m gpu`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from suite.room import gpus
from suite.room.conditions import PROTECTIVE, disturbed
from suite.room.devices import cuda_count, parse
from suite.room.gpus import GpuReading, Gpus
from suite.room.meter import Meter
from suite.run import confirming, machine
from tests.support.nvml import Scene


@pytest.fixture
def nvml(scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> Scene:
    return scene().load(monkeypatch)


def test_a_reading_has_what_the_card_reports(nvml: Scene) -> None:
    nvml.say("*", busy=97, celsius=61, reasons=4, thermal_ns=5, power_ns=7, corrected=3, uncorrected=1)
    nvml.say(1, processes=42)
    with Gpus(parse("cuda:0,cuda:1")) as opened:
        opened.worked(("cuda:0", "cuda:1"))
        readings = opened.read()
        assert opened.busy_percent() == {0: 97, 1: 97}
    known: dict[str, Any] = {"mhz": 1980, "celsius": 61, "reasons": 4, "thermal_ns": 5, "power_ns": 7}
    known |= {"millijoules": 1000, "ecc_errors": 4, "uncorrected": 1}
    assert readings == (GpuReading(0, **known), GpuReading(1, processes=((42, 3_000_000_000),), **known))


def test_only_the_cards_of_the_run_are_read_in_cudas_order(nvml: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    nvml.say(1, processes=42)
    with Gpus(parse("cuda:0,cuda:0")) as opened:
        [only] = opened.read()
    assert (only.index, only.pids) == (0, {42})


def test_a_card_that_refuses_one_query_answers_the_others(nvml: Scene) -> None:
    nvml.say("*", corrected="!3", thermal_ns="!3", busy="!4", processes="!4", millijoules="!3")
    with Gpus(parse("cuda:1")) as opened:
        opened.worked(("cuda:0",))
        [reading] = opened.read()
        assert opened.busy_percent() == {}
    assert (reading.mhz, reading.ecc_errors, reading.thermal_ns, reading.processes) == (1980, None, None, ())
    assert not reading.lost
    conditions = gpus.between(reading, reading, frozenset(), 1.0)
    assert (conditions.ecc_errors, conditions.watts) == (None, None)


def test_without_a_driver_nothing_is_read(nvml: Scene) -> None:
    nvml.say("library", init="!9")
    for devices in ("cuda:2", "cpu"):
        with Gpus(parse(devices)) as opened:
            assert opened.read() == ()
            assert opened.busy_percent() == {}


def test_a_card_that_falls_off_its_bus_disturbs_the_block(nvml: Scene) -> None:
    with Meter(parse("cuda")) as taken:
        before = taken.read()
        nvml.say(1, **dict.fromkeys(("mhz", "celsius", "reasons", "millijoules", "uncorrected", "processes"), "!15"))
        taken.worked(("cuda:0", "cuda:1"))
        conditions = quiet(taken.since(before))
    assert disturbed(conditions) == "GPU 1 has fallen off its bus"
    assert [(gpu.lost, gpu.mhz) for gpu in conditions.gpus] == [(False, 1980), (True, None)]


def test_an_xid_error_is_told_once_in_the_block_in_which_it_came(nvml: Scene) -> None:
    with Meter(parse("cuda")) as taken:
        blocks = []
        for errors in ("", "48 63", "48 63", "48 63 79"):
            before = taken.read()
            nvml.say(1, xids=errors)
            blocks.append([gpu.xids for gpu in taken.since(before).gpus])
    assert blocks == [[(), ()], [(), (48, 63)], [(), ()], [(), (79,)]]


def test_a_slice_has_its_own_processes_and_its_cards_clock(nvml: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.mig(1, (1, 1, 9856), (3, 3, 40448))
    nvml.say(1, processes=4_000_001, mhz=1200).say("1.0", mhz="!3").say("1.1", mhz="!3", processes=42)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-00010001-0000-0000-0000-000000000000")
    with Gpus(parse("auto")) as opened:
        opened.worked(("cuda:0",))
        [reading] = opened.read()
    assert (reading.pids, reading.mhz) == ({42}, 1200)


def test_the_clock_is_of_moments_when_a_card_had_just_worked(nvml: Scene) -> None:
    """Between windows, and while others work, a card lowers its clock; and what holds it down passes."""
    with Gpus(parse("cuda")) as opened:
        for mhz, reasons in ((1980, 0), (1935, 0x40), (1965, 0)):
            nvml.say(0, mhz=mhz, reasons=reasons)
            opened.worked(("cuda:0",))
        nvml.say(0, mhz=345, reasons=0x1)
        working, idle = opened.read()
        assert (working.mhz, idle.mhz) == (1965, None)
        assert (working.reasons, idle.reasons) == (0x41, 0x1)
        assert [reading.mhz for reading in opened.read()] == [None, None]


@pytest.mark.parametrize(
    ("before", "after", "name", "value"),
    [
        ({"reasons": 0x48}, {"reasons": 0x1}, "throttled", ("hw_slowdown", "hw_thermal_slowdown")),
        ({"reasons": 0x1}, {"reasons": 0x48}, "throttled", ("hw_slowdown", "hw_thermal_slowdown")),
        ({"thermal_ns": 5}, {"thermal_ns": 6}, "throttled", ("sw_thermal_slowdown",)),  # heat in between
        ({"power_ns": 5}, {"power_ns": 6}, "throttled", ("sw_power_cap",)),
        ({"reasons": 0x1, "thermal_ns": 5}, {"reasons": 0x1, "thermal_ns": 5}, "throttled", ()),
        ({"ecc_errors": 3}, {"ecc_errors": 7}, "ecc_errors", 4),
        ({"millijoules": 1_000}, {"millijoules": 151_000}, "watts", 300.0),
    ],
)
def test_what_two_readings_say_of_the_half_second_between_them(
    before: dict[str, Any], after: dict[str, Any], name: str, value: object
) -> None:
    assert getattr(gpus.between(GpuReading(0, **before), GpuReading(0, **after), frozenset(), 0.5), name) == value


def test_the_reasons_that_count_exist() -> None:
    assert set(gpus.REASONS.values()) >= PROTECTIVE


def test_the_bits_of_reasons_are_those_of_nvml() -> None:
    import pynvml

    names = {name.replace("_", "").lower(): bit for bit, name in gpus.REASONS.items()}
    theirs = {name.removeprefix("nvmlClocksThrottleReason").lower(): name for name in dir(pynvml)}
    assert {name: getattr(pynvml, theirs[name]) for name in names} == names


def test_a_process_that_comes_during_the_run_disturbs_every_block_from_then_on(nvml: Scene) -> None:
    nvml.say(0, processes=4_000_001)  # there before us: for the room check to name
    with Meter(parse("cuda:1")) as taken:
        nvml.say(0, processes=f"4000001 {os.getpid()}")
        taken.watch()
        before = taken.read()
        assert disturbed(quiet(taken.since(before))) == ""
        nvml.say(0, processes=f"4000001 {os.getpid()} 4000002")
        for _ in range(2):
            taken.watch()
            before = taken.read()
            assert disturbed(quiet(taken.since(before))) == "another process appeared on GPU 0 (pid 4000002)"


def test_in_a_container_the_processes_of_a_warm_session_are_known(nvml: Scene) -> None:
    with Meter(parse("cuda:1")) as taken:
        nvml.say(0, processes=4_000_001)  # a worker of ours, by a number that is not ours
        taken.watch()
        before = taken.read()
        assert disturbed(quiet(taken.since(before))) == ""
        nvml.say(0, processes="4000001 4000002")
        assert disturbed(quiet(taken.since(before))) == "another process appeared on GPU 0 (pid 4000002)"


def quiet(conditions: Any) -> Any:
    """The same block on a quiet CPU."""
    return conditions.model_copy(update={"foreign": None, "steal": None})


@pytest.mark.gpu
def test_a_real_card_reports_its_clock_and_temperature() -> None:
    assert cuda_count() > 0
    with Gpus(parse("cuda:1")) as opened:
        opened.worked(("cuda:0",))
        [reading] = opened.read()
    assert reading.mhz
    assert reading.celsius
    assert reading.reasons is not None


@pytest.mark.gpu
def test_a_real_card_has_facts_and_torch_shows_the_same_cards() -> None:
    [card, *_] = machine.describe(parse("cuda")).cards
    assert card.capability
    assert card.memory_bytes
    assert confirming.problem(cuda_count()) == ""
