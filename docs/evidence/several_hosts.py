"""Runs on two hosts: over a link, over a tenth of it, and with a trainer that exchanges twice as much.

    sudo python -m docs.evidence.several_hosts > docs/evidence/several_hosts.md

Network namespaces stand for hosts, and `tc tbf` limits the cable in both directions. Needs root,
iproute2, util-linux, a C compiler and two cores; a few minutes for each line.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from suite.records.record import Record, read_model
from tests.support.several_hosts import hosts

TRAINER = """\
from torch import distributed

from reference.trainers.ddp import DDPTrainer


class Twice(DDPTrainer):
    def step(self, X, y, global_batch_size):
        for parameter in self.net.parameters():
            distributed.all_reduce(parameter.detach().clone())
        return super().step(X, y, global_batch_size)
"""
FULL, TENTH = "1gbit", "100mbit"
BUDGET_S = 90
TWICE = ("--scaling-trainer=train.py:Twice", "--scaling-against=ddp", "--scaling-world-sizes=2")
RUNS = (
    (2, FULL, ("--scaling-trainer=ddp",)),
    (2, TENTH, ("--scaling-trainer=ddp",)),
    (2, TENTH, TWICE),
)


def main() -> None:
    """Measure, and print a line for each cell."""
    print("| hosts | link | cell | outcome | efficiency | s an epoch | what was said |\n|---|---|---|---|---|---|---|")
    for count, rate, options in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            record = measured(Path(folder), count, rate, options)
        for cell in record.cells:
            efficiency = f"{cell.efficiency.estimate:.2f}" if cell.efficiency else "-"
            epoch = f"{cell.sec_per_epoch.estimate:.1f}" if cell.sec_per_epoch else "-"
            said = "; ".join(filter(None, (cell.reason, cell.warning))) or "-"
            print(f"| {count} | {rate} | {cell.id} | {cell.outcome} | {efficiency} | {epoch} | {said} |", flush=True)


def measured(folder: Path, count: int, rate: str, options: tuple[str, ...]) -> Record:
    """Run the gate on `count` hosts, and return its record."""
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAINER)
    (project / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    gate = [sys.executable, "-m", "pytest", "-q", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling"]
    gate += ["-m", "scaling", f"--scaling-devices={count}xcpu:1", "--scaling-mode=strong", *options]
    with hosts(folder, count) as made:
        made.limit(rate)
        for number in range(1, count):
            made.join(number, cwd=project)
        shown = made.start(0, *gate, f"--scaling-budget={BUDGET_S}", cwd=project).communicate(timeout=1800)[0]
        print(shown, file=sys.stderr)
    [path] = project.glob("reports/*/runs/*/record.json")
    return read_model(path, Record)


if __name__ == "__main__":
    main()
