"""How far equal code differs on a machine, within a session and between sessions. Pure.

`suite.cli.calibrate` measures it and keeps the figures of every session. `promise` turns a spread into the smallest
slowdown that a run finds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, model_validator
from scipy.special import nctdtrinc, ndtri, stdtrit

from suite.plan.cells import measured_mode
from suite.records.files import RecordError, read_inside, write_inside
from suite.records.record import Environment, differences
from suite.room.part import Part
from suite.verdict import ALPHA_FAIL, FIRST_LOOK, spending
from suite.verdict.metrics import half_of, variance
from suite.verdict.spread import Middle, Windows

ENOUGH = 10  # sessions; a run uses no spread from fewer, whose tau2_var is itself a guess
MOST_AGE = timedelta(days=30)  # a machine changes; how far, the run's other cells show, and a cell alone does not
CLOCKS_DIFFER_BY = timedelta(days=1)
POWER = 0.95  # the probability that a promised slowdown is found
MOST = 1e2  # of a logarithm in a file that is believed: its exponential is still a number
Noise = Annotated[float, Field(ge=0, le=MOST)]
Log = Annotated[float, Field(ge=-MOST, le=MOST)]


class Spread(Part):
    """How much one cell varies. Everything is in logarithms of times, so 0.01 is one percent.

    The model is b_s + e_s for session s, with b_s of variance tau² and e_s, the noise of its windows, independent.

    Attributes:
        locations: the estimate of each session of two groups of workers of the same code, ln(t / t).
    """

    locations: tuple[Log, ...] = Field(min_length=2)
    errors: tuple[Noise, ...]  # the standard error of each of them, from its own windows
    rounds: tuple[Annotated[int, Field(ge=2)], ...]

    @model_validator(mode="after")
    def _one_of_each_a_session(self) -> Self:
        counts = {len(self.locations), len(self.errors), len(self.rounds)}
        if len(counts) > 1:
            raise ValueError(f"locations, errors and rounds have {sorted(counts)} values: each needs one a session")
        return self

    @property
    def sessions(self) -> int:
        """The number of sessions."""
        return len(self.locations)

    @property
    def error_sd(self) -> float:
        """The SD of a session's estimate that the noise of its windows explains: root mean square of `errors`."""
        return math.sqrt(statistics.fmean(error**2 for error in self.errors))

    @property
    def tau(self) -> float:
        """Between-session SD: the root of the variance of `locations` less that of their errors."""
        return math.sqrt(max(0.0, variance(self.locations) - self.error_sd**2))

    @property
    def tau2_var(self) -> float:
        """Variance of the estimate of tau², by Satterthwaite (1946); above 0 even where tau is estimated as 0.

        Both parts behave as scaled chi-squares: the variance of `locations` on one degree of freedom less than there
        are sessions, a session's squared error on one less than the windows that count, for each side.
        """
        dfs = [2 * (half_of(count) - 1) for count in self.rounds]
        noise = math.fsum(error**4 / df for error, df in zip(self.errors, dfs, strict=True)) / self.sessions**2
        return 2 * (variance(self.locations) ** 2 / (self.sessions - 1) + noise)

    @property
    def session_sd(self) -> float:
        """SD of a session's estimate, by both kinds of noise."""
        return math.hypot(self.tau, self.error_sd)

    def session_sd_of(self, rounds: int) -> float:
        """Return the same for so many rounds; more than were calibrated do not lower it: tau may be estimated as 0."""
        fewer = max(1.0, statistics.fmean(self.rounds) / rounds)
        return math.hypot(self.tau, self.error_sd * math.sqrt(fewer))


def spread_of(paired: Sequence[Windows]) -> Spread | None:
    """Return a cell's spread; None where fewer than two sessions have two rounds or more.

    `paired` has the windows of two groups of workers of the same code.
    """
    usable = [session for session in paired if len(session.own) > 1]
    if len(usable) < 2:
        return None
    middles = [*map(Middle.of, usable)]
    return Spread(
        locations=tuple(middle.value for middle in middles),
        errors=tuple(math.sqrt(middle.variance or 0.0) for middle in middles),
        rounds=tuple(len(session.log_ratios) for session in usable),
    )


def promise(session_sd: float, comparisons: int, planned: int, tolerance: float, power: float = POWER) -> float:
    """Return the smallest slowdown that a run finds with probability `power` on a calibrated machine, as a share.

    A run can miss it in two ways, and each has half of what `power` leaves. The last look fails a cell when the mean of
    n deltas exceeds t(1 - alpha; n - 1) SD / sqrt(n), with alpha that look's share, so the slowdown must put the
    non-central t distribution above that quantile. And the estimate may stay below half the tolerance, where nothing
    fails. Degrees of freedom that the calibration adds make up for the second look that a FAIL needs.

    Args:
        session_sd: SD of a session's delta.
        comparisons: how many checks of the run can fail and so share alpha.
        planned: sessions.
        tolerance: m of the run; nothing fails below half of it.
        power: the probability.

    Returns:
        A share, 0.04 is 4 %; infinite where there are too few sessions for any FAIL.
    """
    if planned <= FIRST_LOOK:  # a FAIL of a cell alone in its world size takes one more
        return math.inf
    miss = (1 - power) / 2
    df, error = planned - 1, session_sd / math.sqrt(planned)
    alpha = ALPHA_FAIL / comparisons * spending(planned, planned)
    of_noise = float(nctdtrinc(df, miss, stdtrit(df, 1 - alpha))) * error
    of_tolerance = math.log1p(tolerance) / 2 + float(ndtri(1 - miss)) * error
    return math.expm1(min(max(of_noise, of_tolerance), 700.0))  # exp of more overflows


class Entry(Part):
    """The spread of one cell."""

    trainer: str
    workload: str
    workload_hash: str
    mode: str
    world_size: int
    spread: Spread

    @property
    def identity(self) -> tuple[str, str, str, int]:
        """What it is looked up by."""
        return self.trainer, self.workload_hash, measured_mode(self.mode, self.world_size), self.world_size


class Calibration(Part):
    """The result of `calibrate`: one file a machine key, of one host and one set of versions."""

    schema_version: Literal[1] = 1
    machine_key: str
    host: str
    created_utc: AwareDatetime
    environment: Environment
    entries: tuple[Entry, ...]

    def find(self, trainer: str, workload_hash: str, mode: str, world_size: int) -> Entry | None:
        """Return a cell's own entry, else the noisiest one of its world size, else None.

        Entries of fewer than `ENOUGH` sessions do not count.
        """
        wanted = (trainer, workload_hash, measured_mode(mode, world_size), world_size)
        alike = [e for e in self.entries if e.world_size == world_size and e.spread.sessions >= ENOUGH]
        noisiest = max(alike, key=lambda entry: entry.spread.session_sd, default=None)
        return next((entry for entry in alike if entry.identity == wanted), noisiest)

    def why_unused(self, host: str, versions: Mapping[str, str], now: datetime) -> str:
        """Return why the calibration says nothing about a run that begins now, in words; "" where it does.

        Versions of the candidate that either side does not know are not compared.
        """
        if self.host != host:
            return "the calibration is of another host"
        if not -CLOCKS_DIFFER_BY <= now - self.created_utc <= MOST_AGE:
            return f"the calibration is of {self.created_utc:%Y-%m-%d}, and counts for {MOST_AGE.days} days"
        changed = differences(self.environment.versions, dict(versions), common=True)
        return ", ".join(f"{name} was {then} when calibrated and is {today}" for name, then, today in changed)

    def after(self, older: Calibration | None) -> Calibration:
        """Return this calibration with the older one's other cells, if host and versions are the same."""
        if older is None:
            return self
        then, now = older.environment.versions, self.environment.versions
        if (older.machine_key, older.host, then) != (self.machine_key, self.host, now):
            return self
        new = {entry.identity for entry in self.entries}
        kept = tuple(entry for entry in older.entries if entry.identity not in new)
        return self.model_copy(update={"entries": (*kept, *self.entries)})

    def write(self, report_dir: Path) -> Path:
        """Write it atomically, and return its path; raises as `suite.records.files.write_inside`."""
        path = path_for(report_dir, self.machine_key)
        write_inside(report_dir, path, self.model_dump_json(indent=1) + "\n")
        return path


def path_for(report_dir: Path, machine_key: str) -> Path:
    """Return the path of a machine's calibration."""
    return report_dir / machine_key / "calibration.json"


def read(report_dir: Path, machine_key: str) -> Calibration | None:
    """Return the calibration of a machine; None where it was never calibrated.

    A RecordError says that the file is there and cannot be read, is another machine's, or lies elsewhere.
    """
    path = path_for(report_dir, machine_key)
    if not path.exists():
        return None
    calibration = read_inside(report_dir, path, Calibration)
    if calibration.machine_key != machine_key:
        other = f"calibrated on machine {calibration.machine_key}, this one is {machine_key}"
        raise RecordError(f"{path}: {other}; python -m suite calibrate replaces it")
    return calibration
