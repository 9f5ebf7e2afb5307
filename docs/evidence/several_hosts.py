"""Runs on two hosts: is a link that lost nine tenths of its rate told from a trainer that exchanges twice as much?

    sudo python -m docs.evidence.several_hosts > docs/evidence/several_hosts.md

Network namespaces stand for hosts, and `tc tbf` limits the cable in both directions. A project with one commit is
measured over the full link, and six runs are accepted, as in `docs.evidence.slower_machine`. Then the same commit is
measured as before and over a tenth of the link, and over that link a trainer that exchanges twice as much is compared
with the plain one. Needs root, iproute2, util-linux, git, a C compiler and two cores; about twenty minutes.
"""

from __future__ import annotations

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
MINE = ("--scaling-trainer=train.py:Mine",)
TWICE = ("--scaling-trainer=train.py:Twice", "--scaling-against=train.py:Mine", "--scaling-world-sizes=2")


def main() -> None:
    """Print a row for every accepted run, every link, and the trainer that exchanges more."""
    print(HEAD)
    with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
        project = Path(folder) / "project"
        project.mkdir()
        commit(project, TRAINER)
        for number in range(ACCEPTED):
            print(
                row(f"accepted run {number + 1}, {FULL}", measured(project, FULL, *MINE, "--scaling-accept")),
                flush=True,
            )
            move_apart(project)
        print(row(f"as before, {FULL}", measured(project, FULL, *MINE)), flush=True)
        print(row(f"a tenth, {TENTH}", measured(project, TENTH, *MINE)), flush=True)
        print(row(f"twice the exchange, {TENTH}", measured(project, TENTH, *TWICE)), flush=True)


def measured(project: Path, rate: str, *options: str) -> Record:
    """Run the gate on the hosts, and return its record."""
    gate = [sys.executable, "-m", "pytest", "-q", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling"]
    gate += ["-m", "scaling", f"--scaling-devices={HOSTS}xcpu:1", "--scaling-mode=strong", *options]
    with hosts(project.parent, HOSTS) as made:
        made.limit(rate)
        for number in range(1, HOSTS):
            made.join(number, cwd=project)
        shown = made.start(0, *gate, f"--scaling-budget={BUDGET_S}", cwd=project).communicate(timeout=1800)[0]
    print(shown, file=sys.stderr)
    return newest(project)


if __name__ == "__main__":
    main()
