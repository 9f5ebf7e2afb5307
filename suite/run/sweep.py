"""Train the nets of a sweep on real workers: one group of processes for each world size, kept from net to net.

Deadlines come from a trial: one step and a small evaluation, trained with the same command. A group that breaks is
started again for the next net; at a world size whose nets fail one after the other no more are tried.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from suite.base.sides import Sides
from suite.plan.cells import short
from suite.processes.answers import Epoch
from suite.processes.failure import WorkerFailure
from suite.processes.group import Group
from suite.processes.jobs import Job, TrainingRecipe, WarmUp
from suite.records.sweep import Setting, Trained
from suite.run import preparing
from suite.run.learning import NotScored, learn
from suite.run.observations import Observations
from suite.run.plan import FIRST_STEP_TIMEOUT_S
from suite.run.session import Say
from suite.run.timer import hang_timeout_s

GIVEN_UP_AFTER = 3  # failures in a row


class Trainings:
    """The trainings of a sweep."""

    def __init__(self, run: Observations, sides: Sides, epochs: int, warmup_epochs: int) -> None:
        """Keep what every training needs.

        Args:
            run: with the one trainer and workload; its cells are the world sizes.
            sides: have the workers.
            epochs: of a training.
            warmup_epochs: in which the rate climbs, where a setting wants that.
        """
        self._run, self._epochs, self._warmup_epochs = run, epochs, warmup_epochs
        self._arms = {cell.world_size: run.plan.own(cell) for cell in run.plan.cells}
        self._sides = sides
        self._step_s: dict[tuple[int, int], float] = {}
        self._in_a_row: Counter[int] = Counter()

    def prepare(self, say: Say) -> None:
        """Ask a worker what the trainer is and have it load the dataset; `run` has both afterwards.

        Raises:
            WorkerFailure: the trainer or the dataset cannot be used.
        """
        preparing.prepare(self._run, self._sides, list(self._arms.values()), say)
        for failure in self._run.lost.values():
            raise failure

    def train(self, wanted: Setting, seed: int, say: Say) -> Trained:
        """Train one net, on workers that may have trained others.

        Raises:
            WorkerFailure: a rank died, raised or was silent, and the next net gets fresh workers; or too many nets of
                this world size have failed one after the other.
        """
        size = wanted.world_size
        if self._in_a_row[size] >= GIVEN_UP_AFTER:
            failed = f"{GIVEN_UP_AFTER} nets in a row failed on {size} device(s)"
            raise WorkerFailure("sweep", f"not tried: {failed}; the first of them says why")
        try:
            job, recipe = replace(self._run.jobs[self._arms[size]], seed=seed), self._recipe(wanted)
            group = self._sides.pools["candidate"].group(f"sweep-{size}", job.size)
            epoch_s = self._epoch_s(group, job, recipe)
            what = f"{short(self._run.plan.config.trainers[0])} on {wanted}, seed {seed}"
            curve = learn(group.request, job, recipe, epoch_s, what, say)
        except WorkerFailure:
            self._in_a_row[size] += 1
            raise
        except NotScored as error:
            self._in_a_row[size] += 1
            raise WorkerFailure("sweep", f"no accuracy: {error}") from error
        self._in_a_row[size] = 0
        assert curve is not None, "a group raises where it cannot answer"
        return Trained(
            **wanted._asdict(),
            seed=seed,
            per_epoch=curve.per_epoch,
            train_s=curve.train_s,
            oversubscribed=self._run.plan.config.devices.oversubscribed(size),
        )

    def _recipe(self, wanted: Setting) -> TrainingRecipe:
        recipe = self._run.plan.config.workloads[0].accuracy
        assert recipe is not None, "a workload without a recipe is refused before"
        climb = WarmUp(start=wanted.lr / wanted.world_size, epochs=self._warmup_epochs)
        return TrainingRecipe(
            dataset=self._run.datasets[recipe.dataset],
            batch=wanted.batch,
            lr=wanted.lr,
            epochs=self._epochs,
            init=recipe.init,
            warmup=climb if wanted.warmup else None,
        )

    def _epoch_s(self, group: Group, job: Job, recipe: TrainingRecipe) -> float:
        """Return how long an epoch may take: many times what a trial of one step did, once everything was warm."""
        known = (job.world_size, recipe.batch)
        if known not in self._step_s:
            trial = replace(recipe, samples=recipe.batch, epochs=1, warmup=None)
            for _ in range(2):
                begun = time.monotonic()
                group.request(Epoch, "train", FIRST_STEP_TIMEOUT_S, arm=job, recipe=trial, epoch=0)
                self._step_s[known] = time.monotonic() - begun
        return hang_timeout_s(recipe.minibatches * self._step_s[known])
