"""What the plan of a run on GPUs says, and what the run takes, by a stub whose costs the suite cannot read.

    python -m docs.evidence.gpu_time [--draws 40]

Three machines, as docs/gpu.md names them. Each run is a whole campaign over workers that only answer, by a clock of
their own (tests/support/stub_gpus.py): once with what everything was reasoned to cost, and in `--draws` runs with costs
between 0.3 and 3 times that, each with a factor of its own. A minute of one core for forty draws.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from suite.plan.base import Base
from tests.support.measurements import AGAINST
from tests.support.stub_gpus import SCENES, Costs, Machine

ROW = "| {} |"
LIMITS_MIN = {None: 5.0, AGAINST: 8.0}  # in which four sessions of eight GPUs are timed


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=40, help="runs with costs that are drawn")
    draws = parser.parse_args(arguments).draws
    for line in table(draws):
        print(line, flush=True)


def table(draws: int) -> Iterator[str]:
    """Yield the lines of the table; times are minutes."""
    heads = ("run", "first plan", "plan after a session", "wall", "four sessions timed", "waterfalls")
    yield ROW.format(" | ".join((*heads, "drawn: plan / wall", "wall", "timed in 5, beside a base in 8")))
    yield "|---|---|---|---|---|---|---|---|---|"
    for scene, made in SCENES.items():
        for base in (None, AGAINST):
            yield ROW.format(" | ".join(_row(scene, base, [made(Costs()), *map(made, map(Costs.drawn, range(draws)))])))


def _row(scene: str, base: Base | None, machines: Sequence[Machine]) -> Iterator[str]:
    runs = [here.measure(against=base) for here in machines]
    reasoned, *drawn = machines
    several = sum(cell.world_size > 1 for cell in runs[0].plan.cells)
    apart = {cell for session in runs[0].sessions for cell in session.probes}
    yield f"{scene}, {f'first run, {len(runs[0].plan.cells)} cells' if base is None else 'beside a base'}"
    yield from (f"{seconds / 60:.1f}" for seconds in (reasoned.plans[0].total_s, _said_s(reasoned), reasoned.now))
    yield f"{reasoned.windows_s[3] / 60:.1f}"
    yield f"{len(apart)} of {several}"
    yield _range([_said_s(here) / here.now for here in drawn], ".2f")
    yield _range([here.now / 60 for here in drawn], ".1f")
    yield f"{sum(here.windows_s[3] <= 60 * LIMITS_MIN[base] for here in drawn)} of {len(drawn)}"


def _said_s(here: Machine) -> float:
    """Return what the plan says that a reader has after the first session."""
    return [plan for plan in here.plans if plan.at_s <= here.ended_s(0)][-1].total_s


def _range(values: Sequence[float], spec: str) -> str:
    return f"{min(values):{spec}} to {max(values):{spec}}" if values else "-"


if __name__ == "__main__":
    main()
