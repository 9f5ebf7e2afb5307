"""What a decision about one cell costs and how often it is wrong, design by design: seeded simulation.

    python -m docs.evidence.designs > docs/evidence/designs.json   (about two minutes on one core)

The rules are in `stopping`. Not covered: dependence between the cells of a run (the union bound needs none), and real
machines. Names of tables as arguments print these tables only.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit
from scipy.stats import nct

from docs.evidence.stopping import (
    ALPHA_FAIL,
    ALPHA_PASS,
    CHOSEN,
    DESIGNS,
    FIRST_USE,
    LONGEST,
    MARGIN,
    Array,
    Calibration,
    Design,
    Noise,
    calibrate,
    decide,
    degrees,
    draw,
    looks,
    pool,
)


def sigma_of(noise: Noise) -> float:
    """True SD of a session's delta."""
    return math.sqrt(noise.tau**2 + float(pool(noise)[0].var()) * noise.within**2)


def fixed(noise: Noise, cells: int) -> int:
    """Sessions of the smallest fixed-size t test with both errors, and .95 to FAIL at m' and to PASS at 0."""
    for n in range(2, 200):
        effect = MARGIN / sigma_of(noise) * math.sqrt(n)
        powers = [1 - nct.cdf(-stdtrit(n - 1, alpha), n - 1, effect) for alpha in (ALPHA_FAIL / cells, ALPHA_PASS)]
        if min(powers) >= 0.95:
            return n
    raise ValueError(f"{noise}: no fixed-size design of fewer than 200 sessions reaches .95")


@dataclass(frozen=True)
class Runs:
    """Simulated runs of one machine, to be judged by several designs."""

    noise: Noise
    y: Array
    w: Array
    learned: Calibration

    @classmethod
    def of(cls, noise: Noise, runs: int, planned: int, seed: int, calibrated_on: Noise | None = None) -> Runs:
        """Draw them; `calibrated_on` is the machine as it was when it was calibrated."""
        rng = np.random.default_rng([seed, runs, planned])
        learned = calibrate(rng, calibrated_on or replace(noise, disturbed=""), runs)
        return cls(noise, *draw(rng, noise, (runs, planned)), learned)

    def judge(
        self, design: Design, delta: float, cells: int, planned: int, part: int = 1
    ) -> tuple[float, float, float]:
        """P(FAIL), P(PASS) and mean sessions of the first 1/part of the runs, at `delta`."""
        rows = len(self.y) // part
        learned = Calibration(self.learned.tau2[:rows], self.learned.tau2_var[:rows])
        seen = looks(self.y[:rows, :planned] + delta, self.w[:rows, :planned], degrees(self.noise))
        fails, passes, sessions = decide(design, seen, learned, cells, sigma_of(self.noise))
        return float(fails.mean()), float(passes.mean()), float(sessions.mean())


def smallest_plan(design: Design, runs: Runs, cells: int) -> int:
    """Fewest planned sessions with .95 to FAIL at m' and to PASS at 0; LONGEST where that is not enough."""
    for planned in range(design.first, LONGEST):
        if runs.judge(design, MARGIN, cells, planned, 5)[0] >= 0.95 <= runs.judge(design, 0.0, cells, planned, 5)[1]:
            return planned
    return LONGEST


def costs(cells: int, noises: list[Noise]) -> list[dict[str, object]]:
    """Mean wall seconds of every design, each with its own smallest plan, beside the best fixed-size design."""
    rows: list[dict[str, object]] = []
    for noise in noises:
        runs = Runs.of(noise, 12_000, LONGEST, seed=1)
        reference = fixed(noise, cells) * noise.session_s
        rows.append(
            row("f fixed size, own variance", noise, cells, planned=fixed(noise, cells), seconds=[reference] * 3)
        )
        for name, design in DESIGNS.items():
            planned = smallest_plan(design, runs, cells)
            at = [runs.judge(design, delta, cells, planned) for delta in (0.0, MARGIN, 2 * MARGIN)]
            seconds = [sessions * noise.session_s for _, _, sessions in at]
            figures = {"any_fail": at[0][0] * cells, "power": at[1][0], "pass_at_margin": at[1][1]}
            ratios = [round(s / reference, 2) for s in seconds]
            rows.append(row(name, noise, cells, planned=planned, seconds=seconds, of_fixed=ratios, **figures))
    return rows


def errors(runs: int, planned: int = 10) -> list[dict[str, object]]:
    """Worst error rates over the whole grid of noise, right calibration: CHOSEN and FIRST_USE."""
    worst: dict[tuple[str, int, str, str], tuple[float, str]] = {}
    for tails in ("normal", "t3", "recorded"):
        for within in (0.01, 0.03, 0.05, 0.07, 0.10):
            for tau in (0.0, 0.005, 0.01, 0.02, 0.03):
                noise = Noise(within, tau, tails)
                drawn = Runs.of(noise, runs, planned, seed=2)
                for name, design in (("CHOSEN", CHOSEN), ("FIRST USE", FIRST_USE)):
                    for cells in (1, 4, 12, 24):
                        fail = runs_rate(drawn, design, cells, planned)
                        for what, value in fail.items():
                            key, where = (name, cells, tails, what), f"within {within} tau {tau}"
                            worst[key] = max(worst.get(key, (-1.0, "")), (value, where))
    return [
        {"design": name, "cells": cells, "tails": tails, "what": what, "worst": round(value, 4), "at": where}
        for (name, cells, tails, what), (value, where) in worst.items()
    ]


def runs_rate(drawn: Runs, design: Design, cells: int, planned: int) -> dict[str, float]:
    """P(any FAIL of `cells` unchanged ones), by the union bound, and P(PASS) at m'."""
    return {
        "any_fail": drawn.judge(design, 0.0, cells, planned)[0] * cells,
        "pass_at_margin": drawn.judge(design, MARGIN, cells, planned, 4)[1],
    }


def attacks(runs: int, planned: int = 10) -> list[dict[str, object]]:
    """Wrong calibrations, disturbed sessions: the worst [any_fail, pass_at_margin] over two or three noises."""
    cases: list[tuple[str, Noise, Noise | None]] = []
    for noise in (Noise(0.01, 0.03), Noise(0.03, 0.02), Noise(0.07, 0.01)):
        cases += [(f"x{factor}", noise, noise.scaled(1 / factor)) for factor in (1.0, 1.5, 2.0, 3.0)]
    for within in (0.03, 0.07):
        cases.append(("tau 0 -> 2 %", Noise(within, 0.02), Noise(within, 0.0)))
        cases += [(how, Noise(within, 0.01, disturbed=how), None) for how in ("noisy", "biased")]
        cases.append(("drift", Noise(within, 0.01, drift=0.5), None))
    worst: dict[tuple[str, int], dict[str, list[float]]] = {}
    for case, noise, before in cases:
        drawn = Runs.of(noise, runs, planned, seed=13, calibrated_on=before)
        for name, design in DESIGNS.items():
            if name[0] in "bCF" or name.startswith(("chosen", "c mixed", "d SPRT, pooled")):
                for cells in (1, 24):
                    rates = runs_rate(drawn, design, cells, planned).values()
                    so_far = worst.setdefault((name, cells), {}).get(case, [0.0, 0.0])
                    worst[name, cells][case] = [round(max(pair), 4) for pair in zip(so_far, rates, strict=True)]
    return [{"design": name, "cells": cells, **by_case} for (name, cells), by_case in worst.items()]


def session_length() -> list[dict[str, object]]:
    """Rounds of a session against mean wall seconds, within budgets of two and five minutes."""
    rows = []
    for within, tau in ((0.07, 0.0), (0.07, 0.005), (0.07, 0.01), (0.07, 0.02), (0.03, 0.005)):
        for rounds in (8, 14, 24, 30, 40, 60):
            noise = Noise(within, tau, rounds=rounds)
            for budget in (120, 300):
                planned = int(budget // noise.session_s)
                drawn = Runs.of(noise, 8000, planned, seed=4)
                at = {f"{d:.0%}": drawn.judge(CHOSEN, math.log1p(d), 1, planned) for d in (0.0, 0.03, 0.05, 0.10)}
                found = {slower: round(fails, 3) for slower, (fails, _, _) in at.items()}
                seconds = [n * noise.session_s for _, _, n in at.values()]
                rows.append(row("CHOSEN", noise, 1, rounds=rounds, budget_s=budget, found=found, seconds=seconds))
    return rows


def row(design: str, noise: Noise, cells: int, **figures: object) -> dict[str, object]:
    """One line of a table, rounded to what the simulation can tell."""

    def short(value: object) -> object:
        if isinstance(value, list):
            return [round(v, 2 if v < 10 else 0) for v in value]
        return round(value, 4) if isinstance(value, float) else value

    return {
        "design": design, "within": noise.within, "tau": noise.tau, "tails": noise.tails, "cells": cells,
        **{name: short(value) for name, value in figures.items()},
    }  # fmt: skip


def main() -> None:
    """Print all tables as JSON, one row a line."""
    noises = [Noise(0.01, 0.005), Noise(0.07, 0.0), Noise(0.07, 0.01), Noise(0.03, 0.02)]
    hard = [Noise(0.10, 0.02), Noise(0.01, 0.03)]
    tables = {
        "costs_1_cell": lambda: costs(1, noises + hard),
        "costs_24_cells": lambda: costs(24, noises[2:]),
        "errors": lambda: errors(40_000),
        "attacks": lambda: attacks(60_000),
        "session_length": session_length,
    }
    lines = []
    for name, table in tables.items():
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            with np.errstate(
                divide="ignore", invalid="ignore"
            ):  # one session has no variance; its look decides nothing
                rows = table()
            lines.append(f' "{name}": [\n  ' + ",\n  ".join(json.dumps(each) for each in rows) + "\n ]")
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
