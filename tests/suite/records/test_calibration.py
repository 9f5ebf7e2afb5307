"""Calibrations: estimates and promises against simulations, and files."""

from __future__ import annotations

import json
import math
import re
import statistics
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy
import pytest
from numpy.typing import NDArray

from suite.records import calibration
from suite.records.calibration import Calibration, Entry, Spread, promise, spread_of
from suite.records.files import RecordError
from suite.records.record import Environment
from suite.verdict import FIRST_LOOK, Learned, Outcome, Terms, Windows, paired
from suite.verdict.metrics import faster_half, faster_half_variance, location_variance
from tests.support.family import middles_of, windows_of

Floats = NDArray[numpy.float64]
CREATED = datetime(2026, 1, 1, tzinfo=UTC)


def windows(sessions: int, tau: float, within: float, seed: int, *, tails: bool = False, each: int = 14) -> Floats:
    """Windows of equal code, (2, sessions, each), of whose ratio a round shows `within`; `tails`: Student's t, 3 df."""
    rng = numpy.random.default_rng(seed)
    shape = (2, sessions, each)
    noise = rng.standard_t(3, shape) / math.sqrt(3) if tails else rng.standard_normal(shape)
    found = within / math.sqrt(2) * noise
    found[0] += tau * rng.standard_normal((sessions, 1))
    return found


def estimated(windows: Floats) -> Spread:
    found = spread_of(windows_of(windows))
    return found


def calibrations(count: int, tau: float, within: float, seed: int) -> list[Spread]:
    """So many calibrations, of twelve sessions each."""
    drawn = windows(count * 12, tau, within, seed).reshape(2, count, 12, 14)
    return [estimated(drawn[:, number]) for number in range(count)]


def make(**changes: Any) -> Spread:
    """A spread of twelve sessions: tau 0, 2 % a session."""
    locations = [0.02 * (-1) ** number for number in range(12)]
    content = {"locations": locations, "errors": [0.03] * 12, "rounds": [14] * 12}
    return Spread.model_validate(content | changes)


def entry(trainer: str = "ddp", world_size: int = 2, *, mode: str = "strong", **changes: Any) -> Entry:
    return Entry(
        trainer=trainer,
        workload="lenet",
        workload_hash="abc",
        mode=mode,
        world_size=world_size,
        spread=make(**changes),
    )


def calibrated(*entries: Entry, host: str = "host", torch: str = "2.15.0") -> Calibration:
    return Calibration(
        machine_key="cpu-2xtest-0",
        host=host,
        created_utc=CREATED,
        environment=Environment(versions={"torch": torch}, commit="abc", dirty=False),
        entries=entries,
    )


def test_the_standard_error_of_a_trimmed_mean_by_hand() -> None:
    """1 to 8: 3 to 6 are kept and 3 3 3 4 5 6 6 6 is winsorised, squares 14 around 4.5, so 14 / (4 * 3)."""
    assert location_variance([8, 1, 6, 3, 5, 4, 7, 2]) == (pytest.approx(14 / 12), 3)


def test_the_standard_error_of_the_faster_half_by_hand() -> None:
    """1 to 8: 1 to 4 are kept and 1 2 3 4 4 4 4 4 is winsorised, squares 9.5 around 3.25, so 9.5 / (4 * 3)."""
    assert faster_half([8, 1, 6, 3, 5, 4, 7, 2]) == 2.5
    assert faster_half_variance([8, 1, 6, 3, 5, 4, 7, 2]) == (pytest.approx(9.5 / 12), 3)


@pytest.mark.parametrize("tails", [False, True])
def test_the_standard_error_is_what_a_session_varies_by(tails: bool) -> None:
    """With heavy tails the plain formula, s / sqrt(J), is off by more than this allows."""
    found = estimated(windows(20_000, 0.0, 0.07, seed=1, tails=tails))
    # Tukey and McLaughlin matched a t distribution and not a variance: at 7 of 14 kept they are within a tenth.
    assert found.error_sd == pytest.approx(statistics.pstdev(found.locations), rel=0.1)


@pytest.mark.parametrize(("tau", "within"), [(0.02, 0.07), (0.02, 0.01), (0.0, 0.07)])
def test_the_spread_between_sessions_is_separated_from_the_noise_within(tau: float, within: float) -> None:
    found = estimated(windows(3000, tau, within, seed=2))
    # Four standard deviations of the estimate, and the tenth by which the error's own formula may be off.
    allowed = 4 * math.sqrt(found.tau2_var) + 0.2 * found.error_sd**2
    assert found.tau**2 == pytest.approx(tau**2, abs=allowed)
    if within > tau:  # where it matters, the SD of the locations in the place of tau would be far off
        assert statistics.variance(found.locations) - tau**2 > allowed


def test_the_variance_of_tau2_is_what_tau2_varies_by() -> None:
    many = calibrations(800, 0.03, 0.03, seed=3)
    varies = float(numpy.var([found.tau**2 for found in many]))
    said = float(numpy.mean([found.tau2_var for found in many]))
    # The mean of a squared variance on 11 degrees of freedom is 1 + 2/11 times its square; 800 draws leave a tenth.
    assert said == pytest.approx(varies, rel=2 / 11 + 0.1)


@pytest.mark.parametrize("sessions", [[[0.0, 0.1]], [[0.0, 0.1], [0.2]]])
def test_fewer_than_two_sessions_of_two_rounds_give_no_spread(sessions: list[list[float]]) -> None:
    assert spread_of([Windows(own, own) for own in sessions]) is None


@pytest.mark.parametrize(
    ("planned", "comparisons", "tau", "each", "power"),
    [
        (4, 1, 0.01, 14, 0.95),
        (6, 12, 0.01, 14, 0.95),
        (10, 1, 0.02, 14, 0.95),
        (6, 1, 0.01, 4, 0.95),
        (6, 1, 0.01, 40, 0.95),
        (6, 12, 0.02, 14, 0.8),
        (10, 1, 0.02, 14, 0.5),
    ],
)
def test_a_promised_slowdown_is_found_as_often_as_promised_and_half_of_it_is_not(
    planned: int, comparisons: int, tau: float, each: int, power: float
) -> None:
    """Whole runs through all their looks, each on a calibration of twelve sessions of its own.

    A run has `each` rounds a session, its calibration 14.
    """
    runs, within = 400, 0.05
    session_sd = estimated(windows(3000, tau, within, seed=6)).session_sd_of(each)
    promised = math.log1p(promise(session_sd, comparisons, planned, 0.05, power))
    machines = calibrations(runs, tau, within, seed=7)

    def found(delta: float) -> float:
        measured = windows(runs * planned, tau, within, seed=8, each=each).reshape(2, runs, planned, each)
        measured[0] += delta
        return float(
            numpy.mean(
                [
                    paired(
                        middles_of(measured[:, run]),
                        Terms(0.05, comparisons, planned, 12.0),
                        Learned(known.tau**2, known.tau2_var),
                    ).outcome
                    is Outcome.FAIL
                    for run, known in enumerate(machines)
                ]
            )
        )

    assert found(promised) >= power - 4 * math.sqrt(power * (1 - power) / runs)
    assert found(promised / 2) < 0.8


def test_a_promise_is_at_least_half_the_tolerance_and_needs_enough_sessions() -> None:
    """FAIL needs an estimate of that much, whatever the noise."""
    assert promise(0.0, 1, 10, tolerance=0.05) == pytest.approx(math.sqrt(1.05) - 1)
    assert promise(0.01, 1, 100, tolerance=0.05) > math.sqrt(1.05) - 1, "half of the runs would miss just that"
    assert promise(0.01, 1, FIRST_LOOK, tolerance=0.05) == math.inf
    assert promise(1e300, 1, FIRST_LOOK + 1, tolerance=0.05) < math.inf, "no noise overflows"


def test_a_cell_has_its_own_spread_or_the_noisiest_of_its_world_size() -> None:
    noisy = {"errors": [0.2] * 12}
    known = calibrated(entry("ddp"), entry("fsdp", **noisy), entry("ddp", 1, mode="weak", errors=[0.5] * 12))
    assert known.find("ddp", "abc", "strong", 2) == entry("ddp")
    other = known.find("gluon", "abc", "strong", 2)
    assert other == entry("fsdp", **noisy), "the noisiest of two devices, and not that of one"
    assert known.find("ddp", "other", "strong", 2) == other, "another workload of the same name is another cell"
    assert known.find("ddp", "abc", "strong", 4) is None
    alone = known.find("ddp", "abc", "strong", 1)
    assert alone == known.entries[2], "at one device strong and weak are the same"
    few = {"locations": [0.0] * 9, "errors": [0.0] * 9, "rounds": [14] * 9}
    assert calibrated(entry(**few)).find("ddp", "abc", "strong", 2) is None, "too few sessions"


def test_a_new_calibration_keeps_the_other_cells_of_an_unchanged_machine() -> None:
    old = calibrated(entry("ddp"), entry("fsdp"))
    new = calibrated(entry("ddp", errors=[0.5] * 12))
    both = new.after(old)
    assert both.entries == (old.entries[1], new.entries[0])
    for elsewhere in (calibrated(entry("fsdp"), host="other"), calibrated(entry("fsdp"), torch="2.9.0"), None):
        assert new.after(elsewhere) == new


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    known = calibrated(entry())
    assert calibration.read(tmp_path, known.machine_key) is None
    path = known.write(tmp_path)
    assert path == tmp_path / known.machine_key / "calibration.json"
    assert calibration.read(tmp_path, known.machine_key) == known


def _spoilt(**changes: Any) -> str:
    content = json.loads(calibrated(entry()).model_dump_json())
    content["entries"][0]["spread"] |= changes
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (calibrated().model_dump_json().replace("2xtest", "9xelse"), "calibrated on machine cpu-9xelse-0, this one is"),
        (_spoilt(locations=[0.0]), "entries.0.spread.locations: "),
        (_spoilt(locations=[float("nan")] * 12), "entries.0.spread.locations.0: "),
        (_spoilt(errors=[-1.0] * 12), "entries.0.spread.errors.0: "),
        (_spoilt(rounds=[1] * 12), "entries.0.spread.rounds.0: "),
        (_spoilt(errors=[0.1]), re.escape("rounds have [1, 12] values: each needs one a session")),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_a_broken_or_foreign_file_is_refused_with_its_reason(tmp_path: Path, text: str, message: str) -> None:
    path = calibration.path_for(tmp_path, "cpu-2xtest-0")
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(RecordError, match=f"calibration.json: .*{message}"):
        calibration.read(tmp_path, "cpu-2xtest-0")


@pytest.mark.parametrize(
    ("host", "torch", "days", "why"),
    [
        ("host", "2.15.0", 30, ""),
        ("another", "2.15.0", 1, "the calibration is of another host"),
        ("host", "2.16.0", 1, "torch was 2.15.0 when calibrated and is 2.16.0"),
        ("host", "2.15.0", 31, f"the calibration is of {CREATED:%Y-%m-%d}, and counts for 30 days"),
        ("host", "2.15.0", -2, f"the calibration is of {CREATED:%Y-%m-%d}, and counts for 30 days"),
    ],
    ids=["month", "another host", "another version", "older", "from the future"],
)
def test_calibration_says_nothing_about_other_hosts_versions_and_times(
    host: str, torch: str, days: int, why: str
) -> None:
    now = CREATED + timedelta(days=days)
    assert calibrated(entry()).why_unused(host, {"torch": torch, "python": "3.12"}, now) == why
