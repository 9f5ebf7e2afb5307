"""What docs/sweep.md says of the fresh nets: batch, rate and start, each alone, paired by seed.

    python -m docs.evidence.fresh_net.contrasts

Reads the two sweeps that docs/sweep.md names. The mean accuracy of the second half of the epochs is shown next to
that of the last, because the accuracy of one epoch jumps by several points.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

from suite.records.files import read_model
from suite.records.sweep import Setting, Start, Sweep, Trained, scaled
from suite.verdict.metrics import from_values

SWEEPS = Path(__file__).parents[1] / "sweeps"
START = Start(32, 0.1)
ALONE, BOTH = scaled("linear", 1, START), scaled("linear", 2, START)

Measure = Callable[[Trained], float]


def last(net: Trained) -> float:
    """Accuracy after the last epoch."""
    return net.per_epoch[-1]


def second_half(net: Trained) -> float:
    """Mean accuracy of the later epochs."""
    return statistics.fmean(net.per_epoch[len(net.per_epoch) // 2 :])


def contrast(one: tuple[Sweep, Setting], other: tuple[Sweep, Setting], measure: Measure) -> str:
    """The mean of `one` minus `other` over seeds that both have, with its 95 % t-interval."""
    nets, others = (sweep.of(setting) for sweep, setting in (one, other))
    mean = from_values([measure(net) - measure(others[seed]) for seed, net in nets.items() if seed in others])
    return f"{mean.estimate:+.3f} [{mean.low:+.3f}, {mean.high:+.3f}]"


def main() -> None:
    """Print the table."""
    names = ("fresh-first-run", "fresh-all-normal")
    first, normal = (read_model(SWEEPS / name / "sweep.json", Sweep) for name in names)
    print("| what changes | after the last epoch | mean of the second half |\n|---|---|---|")
    for label, one, other in (
        ("two devices, batch and rate doubled; first run's start", (first, BOTH), (first, ALONE)),
        ("the same; all normal", (normal, BOTH), (normal, ALONE)),
        ("all normal instead of the first run's start; one device", (normal, ALONE), (first, ALONE)),
        ("the same; two devices, batch and rate doubled", (normal, BOTH), (first, BOTH)),
        ("both: the chapter's two ends, with fresh nets", (normal, BOTH), (first, ALONE)),
    ):
        print(f"| {label} | {contrast(one, other, last)} | {contrast(one, other, second_half)} |")


if __name__ == "__main__":
    main()
