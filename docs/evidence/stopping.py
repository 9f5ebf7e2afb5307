"""Stopping rules for one cell, vectorised over simulated runs: the one chosen, and those it was chosen from.

A session gives rounds delta + b_s + e_sj: b_s normal with SD `tau` between sessions, e_sj with SD `within`, normal,
Student t3, or as recorded (`RECORDED`). Session summaries (trimmed mean, its variance predicted from the rounds) are
drawn from a pool of 200,000 simulated sessions, so that a million sessions cost a second. The formulas are written here
a second time: suite/verdict/ is not imported, and is held to the same figures by its own tests. `designs` has the
tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.special import fdtri, ndtr, stdtrit
from scipy.stats import nct, t

MARGIN = math.log(1.05)  # m', the slowdown that must be found
ALPHA_FAIL, ALPHA_PASS = 0.01, 0.05  # of a run; of a cell
START_S, ROUND_S = 12.0, 0.24  # wall seconds of starting a session and of one round, two ranks on two shared cores
ROUNDS = 14
CALIBRATION = 40  # sessions
LONGEST = 40  # sessions; no plan is longer
INVERSE_DF = np.linspace(1 / 500, 2, 2000)

# |round - median of its session| in SDs, 420 rounds of identical code at two ranks (gloo), and their probabilities.
RECORDED = [0.0, 0.072, 0.154, 0.26, 0.391, 0.536, 0.692, 0.839, 1.187, 1.644, 2.039, 2.7, 3.5, 5.03]
RECORDED_AT = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99, 1.0]

Array = np.ndarray


@dataclass(frozen=True)
class Noise:
    """How a machine scatters. SDs are of ln t; `disturbed`: one session in twenty is five times noisier, or 5 % off."""

    within: float
    tau: float
    tails: str = "recorded"
    rounds: int = ROUNDS
    disturbed: str = ""
    drift: float = 0.0  # of a round, alternating in sign with the order A B B A, in units of `within`

    def scaled(self, factor: float) -> Noise:
        """The same machine, scattering `factor` times as much."""
        return replace(self, within=self.within * factor, tau=self.tau * factor)

    @property
    def session_s(self) -> float:
        """Wall seconds of one session."""
        return START_S + self.rounds * ROUND_S


@dataclass(frozen=True)
class Looks:
    """What is known after each session; arrays of shape (runs, sessions)."""

    mean: Array
    between: Array  # S2, the sessions' own variance
    predicted: Array  # W, what the rounds say a session's variance is
    predicted_df: Array
    n: Array  # (sessions,)


@dataclass(frozen=True)
class Calibration:
    """tau^2 as learned, and the variance of that estimate; arrays of shape (runs, 1)."""

    tau2: Array
    tau2_var: Array


@dataclass(frozen=True)
class Design:
    """A rule: where the variance comes from, how the error is spent, what FAIL and PASS need beyond their bounds."""

    variance: Callable[[Looks, Calibration], tuple[Array, Array]]
    levels: Callable[[int, int, float], Array]  # (planned, first look, alpha) -> nominal level of each look
    first: int = 2
    suspicion: str = (
        ""  # before FAIL, at an earlier look: "crossing", or "whole": the bound that spends all alpha at once
    )
    settled: float = 0.0  # an early PASS needs the bound at this level below m'/2; 0: no such rule
    kind: str = "bounds"  # "sprt": Wald's boundaries; "sequential t": of a standardised effect


# ---------------------------------------------------------------------------------------------------------- sessions

_POOL: dict[tuple[str, int, float], tuple[Array, Array]] = {}


def trimmed(rounds: Array) -> tuple[Array, Array]:
    """25 %-trimmed mean of each row and its Tukey-McLaughlin variance, which has J - 2 floor(J/4) - 1 df."""
    rounds = np.sort(rounds, axis=1)
    j = rounds.shape[1]
    g = j // 4
    h = j - 2 * g
    mean = rounds[:, g : j - g].mean(axis=1)
    winsorised = np.clip(rounds, rounds[:, [g]], rounds[:, [j - g - 1]])
    return mean, winsorised.var(axis=1) * j / (h * (h - 1))


def pool(noise: Noise, size: int = 200_000) -> tuple[Array, Array]:
    """Summaries of `size` sessions with within = 1 and tau = 0."""
    key = (noise.tails, noise.rounds, noise.drift)
    if key not in _POOL:
        rng, parts = np.random.default_rng([7, noise.rounds]), []
        for _ in range(20):
            shape = (size // 20, noise.rounds)
            if noise.tails == "normal":
                rounds = rng.standard_normal(shape)
            elif noise.tails == "t3":
                rounds = rng.standard_t(3, shape) / math.sqrt(3)
            else:
                rounds = np.interp(rng.random(shape), RECORDED_AT, RECORDED) * rng.choice([-1.0, 1.0], shape)
            parts.append(trimmed(rounds + noise.drift * (-1.0) ** np.arange(noise.rounds)))
        _POOL[key] = np.concatenate([y for y, _ in parts]), np.concatenate([w for _, w in parts])
    return _POOL[key]


def draw(rng: np.random.Generator, noise: Noise, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Deltas (true delta 0) and predicted variances of sessions, each of `shape`."""
    y, w = pool(noise)
    index = rng.integers(0, len(y), shape)
    hit = rng.random(shape) < 0.05
    scale = noise.within * np.where(hit & (noise.disturbed == "noisy"), 5.0, 1.0)
    bias = np.where(hit & (noise.disturbed == "biased"), MARGIN, 0.0)
    return y[index] * scale + noise.tau * rng.standard_normal(shape) + bias, w[index] * scale**2


def looks(y: Array, w: Array, df: int) -> Looks:
    """Running summaries over sessions."""
    n = np.arange(1, y.shape[1] + 1)
    mean = y.cumsum(axis=1) / n
    between = np.maximum((y * y).cumsum(axis=1) - n * mean**2, 0) / np.maximum(n - 1, 1)
    return Looks(mean, between, w.cumsum(axis=1) / n, df * w.cumsum(axis=1) ** 2 / (w * w).cumsum(axis=1), n)


def calibrate(rng: np.random.Generator, noise: Noise, runs: int, sessions: int = CALIBRATION) -> Calibration:
    """One calibration a run; four runs share one to save time."""
    y, w = draw(rng, noise, (-(-runs // 4), sessions))
    final = looks(y, w, degrees(noise))
    s2, w2, w_df = final.between[:, -1], final.predicted[:, -1], final.predicted_df[:, -1]
    tau2, var = np.maximum(s2 - w2, 0), 2 * s2**2 / (sessions - 1) + 2 * w2**2 / w_df
    return Calibration(np.tile(tau2, 4)[:runs, None], np.tile(var, 4)[:runs, None])


def degrees(noise: Noise) -> int:
    """Degrees of freedom of the variance that one session's rounds predict."""
    return noise.rounds - 2 * (noise.rounds // 4) - 1


# ---------------------------------------------------------------------------------------------------------- variances


def own(seen: Looks, _: Calibration) -> tuple[Array, Array]:
    """The t test over sessions."""
    return seen.between, np.broadcast_to(np.maximum(seen.n - 1.0, 0.5), seen.between.shape)


def reml(seen: Looks, _: Calibration) -> tuple[Array, Array]:
    """Balanced mixed model: S2 with n - 1 df; at the boundary tau = 0 the pooled variance and df (Kenward-Roger)."""
    df = seen.n - 1 + seen.predicted_df
    pooled = ((seen.n - 1) * seen.between + seen.predicted_df * seen.predicted) / df
    inside = (seen.between > seen.predicted) & (seen.n > 1)
    return np.where(inside, seen.between, pooled), np.where(inside, seen.n - 1.0, df)


def calibrated(
    kappa: float = math.inf, cap: float = math.inf, floor: bool = True, f_test: float = 0.0
) -> Callable[[Looks, Calibration], tuple[Array, Array]]:
    """tau^2 of the calibration plus what today's rounds predict, pooled with the run's own variance.

    Args:
        kappa: df that tau^2 can have at most: machines change between a calibration and a run.
        cap: the same for the whole prediction.
        floor: never below the run's own variance.
        f_test: level at which a run's own variance that is too large replaces the pooled one.
    """

    def rule(seen: Looks, learned: Calibration) -> tuple[Array, Array]:
        v0 = learned.tau2 + seen.predicted
        df0 = 2 * v0**2 / (learned.tau2_var + 2 * learned.tau2**2 / kappa + 2 * seen.predicted**2 / seen.predicted_df)
        df0 = np.minimum(df0, cap)
        variance, df = (df0 * v0 + (seen.n - 1) * seen.between) / (df0 + seen.n - 1), df0 + seen.n - 1
        if floor:
            variance = np.maximum(variance, seen.between)
        if f_test:
            alarm = (seen.n > 1) & (seen.between > v0 * fdtri(np.maximum(seen.n - 1, 1), df0, 1 - f_test))
            variance, df = np.where(alarm, seen.between, variance), np.where(alarm, seen.n - 1.0, df)
        return variance, df

    return rule


# -------------------------------------------------------------------------------------------------------------- levels


def union(rho: float) -> Callable[[int, int, float], Array]:
    """Spending alpha (n / planned)^rho by the union bound."""

    def levels(planned: int, first: int, alpha: float) -> Array:
        n = np.arange(planned + 1)
        spent = np.where(n < min(first, planned), 0.0, (n / planned) ** rho)
        return alpha * np.diff(spent)

    return levels


def lan_demets(spent_at: Callable[[Array, float], Array]) -> Callable[[int, int, float], Array]:
    """Nominal levels that spend exactly `spent_at(fraction, alpha)` for a normal mean of known variance."""

    @cache
    def levels(planned: int, first: int, alpha: float) -> Array:
        n = np.arange(planned + 1)
        spend = np.diff(np.where(n < min(first, planned), 0.0, spent_at(n / planned, alpha)))
        x = np.linspace(-9 * math.sqrt(planned), 9 * math.sqrt(planned), 1601)
        step = x[1] - x[0]
        kernel = np.exp(-((x[:, None] - x) ** 2) / 2) * step / math.sqrt(2 * math.pi)
        density, nominal = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi), np.zeros(planned)
        for i in range(planned):
            density = density if i == 0 else kernel @ density
            if spend[i] > 0:
                tail = (density[::-1].cumsum() * step)[::-1]
                bound = np.interp(-spend[i], -tail, x) - step / 2
                nominal[i], density = ndtr(-bound / math.sqrt(i + 1)), np.where(x > bound, 0.0, density)
        return nominal

    return levels


def obrien_fleming(fraction: Array, alpha: float) -> Array:
    """The spending function that Lan and DeMets fitted to O'Brien and Fleming's boundary, one-sided."""
    z = -stdtrit(1e9, alpha / 2)
    return 2 * ndtr(-z / np.sqrt(np.maximum(fraction, 1e-9)))


def pocock(fraction: Array, alpha: float) -> Array:
    """The same for Pocock's."""
    return alpha * np.log1p((math.e - 1) * fraction)


# --------------------------------------------------------------------------------------------------------------- rules


def quantile(df: Array, level: float) -> Array:
    """Upper quantile of Student's t, interpolated in 1/df; infinite where nothing may be spent."""
    if level <= 0:
        return np.full(df.shape, math.inf)
    return np.interp(1 / np.clip(df, 0.5, 500), INVERSE_DF, quantiles(float(level)))


@cache
def quantiles(level: float) -> Array:
    """The same at 1 / `INVERSE_DF`."""
    return -stdtrit(1 / INVERSE_DF, level)


def decide(design: Design, seen: Looks, learned: Calibration, cells: int, sigma: float) -> tuple[Array, Array, Array]:
    """Whether each run fails, whether it passes, and after how many sessions. `sigma` is for the sequential t only."""
    planned = len(seen.n)
    variance, df = design.variance(seen, learned)
    error = np.sqrt(variance / seen.n)
    columns = range(planned)
    if design.kind == "bounds":
        fail_at, pass_at = (design.levels(planned, design.first, a) for a in (ALPHA_FAIL / cells, ALPHA_PASS))
        low = np.stack([seen.mean[:, i] - quantile(df[:, i], fail_at[i]) * error[:, i] for i in columns], 1)
        high = np.stack([seen.mean[:, i] + quantile(df[:, i], pass_at[i]) * error[:, i] for i in columns], 1)
        crossing, passing = low > 0, high < MARGIN
    else:
        if design.kind == "sprt":
            ratio = (seen.mean - MARGIN / 2) * seen.n * MARGIN / variance
        else:
            ratio = sequential_t(seen, sigma)
        crossing, passing = ratio >= math.log(0.95 * cells / ALPHA_FAIL), ratio <= math.log(ALPHA_PASS)
        crossing[:, : design.first - 1] = passing[:, : design.first - 1] = False
    crossing &= seen.mean >= MARGIN / 2
    if design.settled:
        bound = np.stack([seen.mean[:, i] + quantile(df[:, i], design.settled) * error[:, i] for i in columns], 1)
        bound[:, -1] = seen.mean[:, -1]
        passing &= bound < MARGIN / 2
    failing = crossing.copy()
    if design.suspicion:
        suspicious = crossing
        if design.suspicion == "whole":
            whole = ALPHA_FAIL / cells
            low = np.stack([seen.mean[:, i] - quantile(df[:, i], whole) * error[:, i] for i in columns], 1)
            suspicious = (low > 0) & (seen.mean >= MARGIN / 2) & (seen.n > 1)
        failing[:, 1:] &= np.maximum.accumulate(suspicious, axis=1)[:, :-1]
        failing[:, 0] = False
    stops = failing | passing
    decided = stops.any(axis=1)
    last = np.where(decided, stops.argmax(axis=1), planned - 1)
    fails = decided & failing[np.arange(len(last)), last]
    return fails, decided & ~fails, last + 1


def sequential_t(seen: Looks, sigma: float) -> Array:
    """Logarithm of Hajnal's likelihood ratio: effect MARGIN / sigma against 0, with sigma known, the best case."""
    ratio = np.zeros_like(seen.mean)
    grid = np.sinh(np.linspace(-6, 6, 241))
    for i, n in enumerate(seen.n[1:], 1):
        with np.errstate(divide="ignore", invalid="ignore"):
            value = nct.logpdf(grid, n - 1, math.sqrt(n) * MARGIN / sigma) - t.logpdf(grid, n - 1)
        good = np.isfinite(value)
        statistic = seen.mean[:, i] / np.sqrt(np.maximum(seen.between[:, i], 1e-12) / n)
        ratio[:, i] = np.interp(statistic, grid[good], value[good])
    return ratio


OWN = Design(own, union(3), first=3)
CHOSEN = Design(calibrated(kappa=4, cap=6), union(3), suspicion="crossing", settled=0.10)
FIRST_USE = replace(OWN, suspicion="whole", settled=0.10)  # the same before a calibration
DESIGNS = {
    "a own t, cubic, from 3": OWN,
    "FIRST USE: own t, suspicion, early PASS settled": FIRST_USE,
    "a own t, second crossing": replace(OWN, suspicion="crossing"),
    "b pooled, no guard": Design(calibrated(floor=False), union(3)),
    "b pooled, F-test guard .10": Design(calibrated(floor=False, f_test=0.10), union(3)),
    "b larger of pooled and own": Design(calibrated(), union(3)),
    "b larger, df <= 6": Design(calibrated(cap=6), union(3)),
    "b larger, kappa 4": Design(calibrated(kappa=4), union(3)),
    "b larger, kappa 4, df <= 6": Design(calibrated(kappa=4, cap=6), union(3)),
    "b larger, kappa 4, df <= 6, second crossing": replace(CHOSEN, settled=0.0),
    "CHOSEN: that, and early PASS settled": CHOSEN,
    "chosen, no cap on all df": replace(CHOSEN, variance=calibrated(kappa=4)),
    "chosen, df <= 8": replace(CHOSEN, variance=calibrated(kappa=4, cap=8)),
    "chosen, from 3": replace(CHOSEN, first=3),
    "chosen, rho 2": replace(CHOSEN, levels=union(2)),
    "chosen, Lan-DeMets rho 3": replace(CHOSEN, levels=lan_demets(lambda f, a: a * f**3)),
    "c mixed model (REML)": Design(reml, union(3)),
    "d SPRT, own variance, from 3": Design(own, union(3), first=3, kind="sprt"),
    "d SPRT, pooled variance": Design(calibrated(kappa=4), union(3), kind="sprt"),
    "d sequential t (Hajnal), from 3": Design(own, union(3), first=3, kind="sequential t"),
    "e own t, O'Brien-Fleming, from 3": Design(own, lan_demets(obrien_fleming), first=3),
    "e own t, Pocock, from 3": Design(own, lan_demets(pocock), first=3),
    "e own t, rho 1, from 3": Design(own, lan_demets(lambda f, a: a * f), first=3),
    "e own t, rho 2, from 3": Design(own, lan_demets(lambda f, a: a * f**2), first=3),
    "e own t, rho 3, from 3": Design(own, lan_demets(lambda f, a: a * f**3), first=3),
}
