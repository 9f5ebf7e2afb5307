"""Why the concise chapter prints .91 on one device and .73 on two: its second run, taken apart on one core.

The chapter trains one network twice: (256, .1) on one device, then (512, .2) on two. Before both it draws the weights
of what is an nn.Linear or an nn.Conv2d from N(0, .01). In the first run its residual blocks are still lazy layers and
escape; in the second they do not, while biases and all of BatchNorm stay as the first run left them. So batch, learning
rate and start change at once. Here each changes alone, on a narrow ResNet of the same depth and block:

    python -m docs.evidence.book_mechanism                                    # scikit-learn's digits
    python -m docs.evidence.book_mechanism --data-root ROOT                   # Fashion-MNIST's files under ROOT as well

What N(0, .01) does depends on the width: a convolution before BatchNorm is blind to the scale of its weights, but not
the step it takes, which goes with 1 / (fan-in x variance). An eighth of the channels therefore gets N(0, .01 sqrt(8)),
the chapter's norm of every filter; the stem sees one channel in both and keeps .01. `--std 0.01` draws all from
N(0, .01).

Each seed is written to the JSON file when it is done and not run again; without new seeds the tables are printed from
the file. Not covered: two devices (the 2B runs normalise over 2B samples, nn.DataParallel over two halves), the book's
width, and its 2,350 and 1,180 steps (digits: 450 and 230).
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from reference.data import Dataset, feed, load
from reference.evaluate import accuracy
from reference.models.resnet import Residual
from reference.trainers.single import Single
from suite.verdict.metrics import t_quantile

WIDTHS = (8, 16, 32, 64)  # the chapter's are 64, 128, 256, 512, two blocks each, at four times the pixels
EPOCHS = 10
STEM_STD = 0.01
MATCHED_STD = 0.01 * math.sqrt(8)
RUNS = {"B": (32, 0.1), "2B": (64, 0.2)}  # the chapter's are (256, .1) and (512, .2)
CPU = torch.device("cpu")

Seeds = dict[str, dict[str, dict[str, list[float]]]]  # seed -> start -> run -> test accuracy after each epoch


def resnet() -> nn.Sequential:
    """Return the chapter's network, an eighth as wide, with torch's default start; images (n, 1, 14, 14)."""
    blocks: list[nn.Module] = []
    channels = WIDTHS[0]
    for width in WIDTHS:
        blocks += [Residual(channels, width, downsample=channels != width), Residual(width, width)]
        channels = width
    stem = (nn.Conv2d(1, WIDTHS[0], 3, padding=1), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def normal_weights_(net: nn.Sequential, std: float, layers: Sequence[nn.Module] | None = None) -> nn.Sequential:
    """Draw the weights of all linear layers and convolutions, or of those in `layers`, anew; biases stay."""
    for module in net.modules() if layers is None else layers:
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=STEM_STD if module is net[0] else std)
    return net


def first_run(_: nn.Sequential | None, std: float) -> nn.Sequential:
    """Fresh, normal on stem and head alone: the chapter's first run, whose lazy layers escape."""
    net = resnet()
    return normal_weights_(net, std, (net[0], net[-1]))


def fresh_default(_: nn.Sequential | None, std: float) -> nn.Sequential:
    """Fresh, torch's default start."""
    return resnet()


def fresh_normal(_: nn.Sequential | None, std: float) -> nn.Sequential:
    """Fresh, normal on every weight."""
    return normal_weights_(resnet(), std)


def rewritten(trained: nn.Sequential, std: float) -> nn.Sequential:
    """A trained net, normal on every weight, biases and BatchNorm kept: the chapter's second run."""
    return normal_weights_(copy.deepcopy(trained), std)


def rewritten_bn_reset(trained: nn.Sequential, std: float) -> nn.Sequential:
    """As `rewritten`, with BatchNorm's weights, biases and running statistics as in a new one."""
    net = rewritten(trained, std)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
    return net


def reused(trained: nn.Sequential, std: float) -> nn.Sequential:
    """A trained net, trained on."""
    return copy.deepcopy(trained)


STARTS: dict[str, Callable[[nn.Sequential, float], nn.Sequential]] = {
    "fresh, stem and head normal (the first run)": first_run,
    "fresh, default": fresh_default,
    "fresh, all normal": fresh_normal,
    "reused, all normal (the second run)": rewritten,
    "reused, all normal, BatchNorm reset": rewritten_bn_reset,
    "reused as it is": reused,
}

FIRST, FRESH, SECOND, RESET = (list(STARTS)[number] for number in (0, 2, 3, 4))
CONTRASTS = (
    ("the chapter's two runs", (SECOND, "2B"), (FIRST, "B")),
    ("batch and learning rate alone", (FIRST, "2B"), (FIRST, "B")),
    ("start alone, at B", (SECOND, "B"), (FIRST, "B")),
    ("start alone, at 2B", (SECOND, "2B"), (FIRST, "2B")),
    ("start alone, at 2B, fresh net", (FRESH, "2B"), (FIRST, "2B")),
    ("reused instead of fresh, at 2B", (SECOND, "2B"), (FRESH, "2B")),
    ("BatchNorm kept instead of reset, at 2B", (SECOND, "2B"), (RESET, "2B")),
)


def fit(net: nn.Sequential, data: Dataset, batch: int, lr: float, seed: int) -> tuple[nn.Sequential, list[float]]:
    """Train a copy of `net` for `EPOCHS` epochs; return it with its test accuracy after each."""
    trainer = Single(net, [CPU], lr=lr)
    per_epoch = []
    for epoch in range(EPOCHS):
        trainer.net.train()
        for X, y in feed(data, "resident", batch, seed=seed, epoch=epoch):
            trainer.step(X, y, len(X))
        per_epoch.append(round(accuracy(trainer.replicas, [CPU], data.test_X, data.test_y), 4))
    trained = trainer.net
    assert isinstance(trained, nn.Sequential)
    return trained, per_epoch


def one_seed(data: Dataset, seed: int, std: float) -> dict[str, dict[str, list[float]]]:
    """All starts at both batches; those that reuse a net reuse this seed's first run at B."""
    torch.manual_seed(seed)
    blank = first_run(None, std)
    trained, per_epoch = fit(blank, data, *RUNS["B"], seed)
    found: dict[str, dict[str, list[float]]] = {}
    for name, start in STARTS.items():
        # One draw for both batches: they differ in batch and learning rate alone. Another order than the first run's
        # where a net is trained a second time.
        net = blank if start is first_run else start(trained, std)
        order = seed + 1000 if name.startswith("reused") else seed
        found[name] = {
            run: per_epoch if start is first_run and run == "B" else fit(net, data, batch, lr, order)[1]
            for run, (batch, lr) in RUNS.items()
        }
    return found


def table(seeds: Seeds) -> str:
    """Start by start: the last epoch's accuracy, mean and spread over seeds; in brackets the mean of epochs 6 to 10."""
    lines = [
        f"| start | {' | '.join(f'{run}: {batch}, {lr:g}' for run, (batch, lr) in RUNS.items())} |",
        "|---|---|---|",
    ]
    for name in STARTS:
        shown = []
        for run in RUNS:
            curves = [seed[name][run] for seed in seeds.values()]
            last = [curve[-1] for curve in curves]
            spread = f" ± {statistics.stdev(last):.3f}" if len(last) > 1 else ""
            shown.append(f"{statistics.fmean(last):.3f}{spread} ({statistics.fmean(map(second_half, curves)):.3f})")
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def contrasts(seeds: Seeds) -> str:
    """What each change does to the mean accuracy of epochs 6 to 10, paired by seed, with 95 % t-intervals."""
    lines = []
    for label, (start, run), (other_start, other_run) in CONTRASTS:
        gains = [second_half(seed[start][run]) - second_half(seed[other_start][other_run]) for seed in seeds.values()]
        if len(gains) > 1:
            error = statistics.stdev(gains) / math.sqrt(len(gains))
            half = t_quantile(len(gains) - 1, 0.975) * error
            mean = statistics.fmean(gains)
            lines.append(f"{label}: {mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]")
    return "\n".join(lines)


def second_half(curve: Sequence[float]) -> float:
    """The mean accuracy of the later epochs: one epoch's jumps by several points."""
    return statistics.fmean(curve[EPOCHS // 2 :])


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file whole, so that an interrupted run leaves the seeds before it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps(content).replace('"fresh', '\n"fresh').replace('"reused', '\n"reused') + "\n")
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


def main() -> None:
    """Run what the file lacks, and print the tables."""
    parser = argparse.ArgumentParser(description="Why the concise chapter's second run ends at .73.")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 1 to SEEDS (default: 5)")
    parser.add_argument("--std", type=float, default=MATCHED_STD, help="of normal weights (default: .01 x sqrt(8))")
    parser.add_argument("--data-root", type=Path, help="folder with Fashion-MNIST's files: run on them as well")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"), help="the result file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = {run: list(pair) for run, pair in RUNS.items()}
    settings = {"widths": list(WIDTHS), "epochs": EPOCHS, "runs": runs, "std": options.std}
    result: dict[str, Any] = {"settings": settings, "accuracies": {}}
    if options.out.exists():
        result = json.loads(options.out.read_text(encoding="utf-8"))
        if result["settings"] != settings:
            raise SystemExit(f"{options.out} has other settings, {result['settings']}: name another file with --out")
    for name in ("digits", *(["fashion-mnist"] if options.data_root else [])):
        whole = load(name, options.data_root or Path("data"))
        small = [F.avg_pool2d(X, 2) for X in (whole.train_X, whole.test_X)]
        data = dataclasses.replace(whole, train_X=small[0], test_X=small[1])
        done = result["accuracies"].setdefault(name, {})
        for seed in range(1, options.seeds + 1):
            if str(seed) not in done:
                done[str(seed)] = one_seed(data, seed, options.std)
                write(options.out, result)
                print(f"{name}: seed {seed} done", flush=True)
    for name, seeds in result["accuracies"].items():
        print(f"\n{name}, accuracy after {EPOCHS} epochs, {len(seeds)} seeds\n\n{table(seeds)}\n\n{contrasts(seeds)}")


if __name__ == "__main__":
    main()
