"""Runs on two hosts: is a link that lost nine tenths of its rate told from a trainer that exchanges twice as much?

    sudo python -m docs.evidence.several_hosts > docs/evidence/several_hosts.md

Network namespaces stand for hosts, and `tc tbf` limits the cable in both directions. A project with one commit is
measured over the full link, and six runs are accepted, as in `docs.evidence.slower_machine`. Then the same commit is
measured as before and over a tenth of the link, and over that link a trainer that exchanges twice as much is compared
with the plain one. Needs root, iproute2, util-linux, git, a C compiler and two cores; about twenty minutes. Where hosts
take long to start, `--budget 300` gives runs the sessions that a verdict needs. `--batch 64` has a quarter of LeNet's
usual samples in a step and the same gradients to exchange: the link is then more of the step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from docs.evidence.slower_machine import ACCEPTED, HEAD, commit, move_apart, newest, row
from suite.records.record import Record
from tests.support.several_hosts import hosts

TRAINER = """\
from torch import distributed

from reference.trainers.ddp import DDPTrainer


class Mine(DDPTrainer):
    pass


class Twice(DDPTrainer):
    def step(self, X, y, global_batch_size):
        for parameter in self.net.parameters():
            distributed.all_reduce(parameter.detach().clone())
        return super().step(X, y, global_batch_size)
"""
FULL, TENTH = "1gbit", "100mbit"
HOSTS, BUDGET_S = 2, 120
WORKLOAD = '\n[tool.scaling.workloads.lenet-{0}]\nmodel = "lenet"\nbatch = {0}\n'
MINE = ("--scaling-trainer=train.py:Mine",)
TWICE = ("--scaling-trainer=train.py:Twice", "--scaling-against=train.py:Mine", "--scaling-world-sizes=2")
ROWS = {
    "before": ("as before", FULL, MINE),
    "tenth": ("a tenth", TENTH, MINE),
    "twice": ("twice the exchange", TENTH, TWICE),
}


def main() -> None:
    """Print a row for every accepted run, every link, and the trainer that exchanges more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accepted", type=int, default=ACCEPTED, help="how many runs are accepted")
    parser.add_argument("--budget", type=int, default=BUDGET_S, help="seconds of each run")
    parser.add_argument("--accepted-budget", type=int, help="seconds of each run that is accepted, where it is another")
    parser.add_argument("--batch", type=int, default=256, help="samples a step of LeNet")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="what is measured then")
    asked = parser.parse_args()
    print(HEAD)
    with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
        project = Path(folder) / "project"
        project.mkdir()
        commit(project, TRAINER, WORKLOAD.format(asked.batch))
        workload = f"--scaling-workload=lenet-{asked.batch}"
        for number in range(asked.accepted):
            budget_s = asked.accepted_budget or asked.budget
            accepted = measured(project, FULL, workload, *MINE, "--scaling-accept", budget_s=budget_s)
            print(row(f"accepted run {number + 1}, {FULL}", accepted), flush=True)
            move_apart(project)
        for name in asked.rows:
            shown, rate, options = ROWS[name]
            record = measured(project, rate, workload, *options, budget_s=asked.budget)
            print(row(f"{shown}, {rate}", record), flush=True)


def measured(project: Path, rate: str, *options: str, budget_s: int) -> Record:
    """Run the gate on the hosts, and return its record."""
    gate = [sys.executable, "-m", "pytest", "-q", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling"]
    gate += ["-m", "scaling", f"--scaling-devices={HOSTS}xcpu:1", "--scaling-mode=strong", *options]
    with hosts(project.parent, HOSTS) as made:
        made.limit(rate)
        for number in range(1, HOSTS):
            made.join(number, cwd=project)
        shown = made.start(0, *gate, f"--scaling-budget={budget_s}", cwd=project).communicate(timeout=1800)[0]
    print(shown, file=sys.stderr)
    return newest(project)


if __name__ == "__main__":
    main()
