"""Checks a trainer on a user's own model and first minibatches: k devices against one, module by module."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from suite.checks import bench as benches
from suite.checks import failure_text
from suite.checks.bench import Bench
from suite.plan.config import Config
from suite.plan.workloads import Workload
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import ModelJob
from suite.properties.answers import SHARED_DRAWS, Judgement, Observed

TIMEOUT_S = 300.0  # for a model of any size on one device; loading it and the data is a part of that
SLOWER = 4.0  # k devices that share the cores of one may take so many times k longer than it
SEED = 0
RANDOM = (
    "one device alone computes something else with another seed, and k devices do not agree with it even on the random "
    "numbers that it draws for each sample: leave randomness out, by a factory without dropout in "
    "[tool.scaling.workloads.NAME.correctness] model, or a trainer that keeps eval mode"
)
UNEQUAL = (
    "unequal shards, of {batch} samples: on equal ones it is right; a trainer that is never given others says "
    'shards = "equal", in its class or in [tool.scaling.workloads.NAME.correctness]'
)
IN_EVAL = (
    "compared in eval mode, where one device and {k} agree; in training mode, which the step sets, they do not, as "
    "where a module of your own computes statistics of its rank's samples, or draws: {finding}"
)
# Options that say on what, and where the other options come from.
REPEATED = ("--config-file=", "--override-ini=", "--scaling-data-root=", "--scaling-devices=", "--scaling-world-sizes=")


def check(bench: Bench, trainer: str, workload: Workload, world_size: int, data_root: Path) -> Judgement:
    """Train a workload's model on one device and on k, and compare what its modules did.

    Args:
        bench: the worker processes.
        trainer: a table name, `module:Class` or `path.py:Class`.
        workload: whose model, dataset and rate are used; its `correctness` says how much of them.
        world_size: k.
        data_root: the folder of the datasets.

    Returns:
        Right or wrong, or a note on what could not be compared.

    Raises:
        suite.processes.failure.WorkerFailure: trainer, model or dataset raised, or there is too little memory.
    """
    about = bench.about(trainer)
    shards = workload.correctness.shards
    multiple = about.shards if shards == "any" else 1 if shards == "equal" else shards
    try:
        return _Comparison(bench, trainer, workload, world_size, multiple, data_root).judge()
    finally:
        bench.drop_files()


@dataclass(frozen=True)
class _Trained:
    """What ranks wrote, whether a module was in training mode in a forward, and how long that took."""

    files: list[str]
    in_training: bool
    took_s: float


@dataclass(frozen=True)
class _Comparison:
    """One trainer and one workload, on one device and on k; the fields are the arguments of `check`."""

    bench: Bench
    trainer: str
    workload: Workload
    world_size: int
    multiple: int  # of which every rank's samples are one; 0 for shards of any length
    data_root: Path

    @property
    def batch(self) -> int:
        """The samples of a minibatch."""
        batch, each = min(self.workload.correctness.batch, self.workload.batch), self.world_size * self.multiple
        return -(-batch // each) * each if each else batch

    def judge(self) -> Judgement:
        """Return what is shown: a finding, with what makes the difference where equal shards or eval mode do."""
        judgement, in_training = self._judge(stays_in_eval=False)
        if judgement.finding and self.batch % self.world_size:
            equal, _ = replace(self, multiple=1)._judge(stays_in_eval=False)
            if not equal.finding:
                return replace(judgement, suspects=(*judgement.suspects, UNEQUAL.format(batch=self.batch)))
        if not (judgement.finding and in_training):
            return judgement
        try:
            in_eval, _ = self._judge(stays_in_eval=True)
        except WorkerFailure:  # the step needs what its model returns in training mode
            return judgement
        if in_eval.finding:
            return in_eval
        said = IN_EVAL.format(k=self.world_size, finding=judgement.finding)
        return Judgement(note="; ".join(filter(None, [said, in_eval.note])))

    def _judge(self, *, stays_in_eval: bool) -> tuple[Judgement, bool]:
        """Return what the comparison says, and whether a module was in training mode in a forward."""
        alone = self._train("alone", 1, stays_in_eval=stays_in_eval)
        # What one device takes tells a hang from a large model.
        until_s = min(TIMEOUT_S, benches.HANG_S + SLOWER * self.world_size * alone.took_s)
        together = self._train("together", self.world_size, until_s=until_s, stays_in_eval=stays_in_eval)
        judgement, in_training = self._compare(alone, together), alone.in_training or together.in_training
        if not judgement.finding:
            return judgement, in_training
        other_seed = self._train("again", 1, SEED + 1000, stays_in_eval=stays_in_eval)
        again = self._compare(alone, other_seed).finding
        # Where one device alone is broken, both comparisons say the same.
        if again in ("", judgement.finding):
            return judgement, in_training
        alone = self._train("alone", 1, stays_in_eval=stays_in_eval, shares_draws=True)
        together = self._train("together", self.world_size, stays_in_eval=stays_in_eval, shares_draws=True)
        if self._compare(alone, together).finding:
            return Judgement(f"{RANDOM} ({again})"), in_training
        return Judgement(note=SHARED_DRAWS), in_training

    def _train(
        self,
        name: str,
        k: int,
        generator_seed: int = SEED,
        *,
        stays_in_eval: bool,
        shares_draws: bool = False,
        until_s: float = TIMEOUT_S,
    ) -> _Trained:
        group, place = self.bench.place(self.trainer, k)
        workload = self.workload
        job = ModelJob(
            **asdict(place),
            world_size=k,
            model=workload.correctness.model or workload.model,
            init=workload.init,
            dataset=workload.dataset,
            data_root=str(self.data_root),
            batch=self.batch,
            steps=workload.correctness.steps,
            lr=workload.lr,
            seed=SEED,
            generator_seed=generator_seed,
            shares_draws=shares_draws,
            stays_in_eval=stays_in_eval,
        )
        began = time.monotonic()
        told = group.request(Observed, "train_model", until_s, arm=job, name=name)
        took_s = time.monotonic() - began
        return _Trained(self.bench.files(group, told), any(each.training for each in told), took_s)

    def _compare(self, alone: _Trained, ranks: _Trained) -> Judgement:
        group = self.bench.group(1, self.trainer)
        return group.request_first(Judgement, "compare_models", alone=alone.files[0], ranks=ranks.files)


def explain(config: Config, trainer: str, workload: Workload, world_size: int, judgement: Judgement) -> str:
    """Return a failure as it is shown: what is wrong, what it looks like, and how to see it again.

    The command repeats what the run was told of items, devices and data. The world size is not named: two are the
    least even where only one device is there.
    """
    finding = f"{trainer}, workload {workload.name!r}, {world_size} devices: {judgement.finding}"
    where = ["--pyargs", "suite.checks"] if "--pyargs" in config.repeat else []
    told = [argument for argument in config.repeat if argument.startswith(REPEATED)]
    chosen = [f"--scaling-workload={workload.name}", f"--scaling-trainer={trainer}", "-k", "own_model"]
    command = ["pytest", *where, *config.repeat[:2], *told, *chosen]  # the first two are -m and its value
    return failure_text(finding, judgement.suspects, [], shlex.join(command))
