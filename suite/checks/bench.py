"""Puts cases to a trainer in worker processes (controller's side); `suite.checks.search` draws and shrinks them.

A group of ranks is started once for each world size and serves all cases and checks, of all trainers that import the
same modules: those of one folder, or all that are not named by a file. A rank that dies or hangs ends its check without
shrinking, with every live rank's stack; the next case gets a fresh group.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from suite.checks import draw
from suite.checks.search import SearchResult, search
from suite.processes.channel import Message
from suite.processes.failure import WorkerFailure, harmless
from suite.processes.group import Group
from suite.processes.jobs import CaseJob
from suite.processes.pool import Pool
from suite.properties.answers import RIGHT, About, Described, Judgement, Records, unpacked
from suite.properties.case import LOW_PRECISION, MAY_REFUSE, Case
from suite.room.devices import Devices

MOST_REPLICAS = 8  # virtual devices of one process
MOST_RANKS = 4  # processes
HANG_S = 60.0  # a case takes milliseconds, but the first one may load FSDP, or compile for half a minute
HANG_AGAIN_S = 20.0  # for a trainer that has hung: its processes are warm
MOST_HANGS = 2  # of a trainer; none of its cases is tried after them
FEW_VARIANTS, MANY_VARIANTS = 2, 8  # of a case that one device computes; many where k devices are off the few
CONFIRMATIONS = 3  # other variants in which k devices must be off as well
ROUNDING = 2.0**-49  # 16 units of float64's roundoff, by which starts and minibatches are moved
MOVES = 8  # of one device, where k devices differ from it
REACTION = 1e-10  # by which they are moved to see whether a trainer computes in low precision: float32 has 6e-8


@dataclass
class Bench:
    """The worker processes that cases are put to.

    Args:
        pool: starts them.
        devices: CPU workers stand for any number of devices; CUDA devices are used in turn, repeatedly if necessary.
        python_path: folders of pytest's setting `pythonpath`, for the command that shows a failure again.
        hangs: how often each trainer has not answered.
    """

    pool: Pool
    devices: Devices
    python_path: Sequence[Path] = ()
    hangs: dict[str, int] = field(default_factory=dict)
    _about: dict[str, About] = field(default_factory=dict)
    _bound: set[tuple[Group, str]] = field(default_factory=set)
    _without_draws: set[str] = field(default_factory=set)  # trainers to which other random numbers make no difference
    _folder: str = ""  # whose ranks are alive, beside those of trainers that no file names
    _of_folder: dict[int, Group] = field(default_factory=dict)

    def group(self, size: int, trainer: str = "") -> Group:
        """Return the ranks of one world size for a trainer, started unless they are alive.

        Trainers from files in different folders get different ranks, because each may import a module of its own by
        the same name. Those of the last such folder end when the next one's start.
        """
        folder = _folder(trainer)
        if not folder:
            return self.pool.group(f"bench-{size}", size, spread=True)
        if folder != self._folder:
            for group in self._of_folder.values():
                if group.alive:
                    group.close()
            self._folder, self._of_folder = folder, {}
        name = f"bench-{hashlib.sha256(folder.encode()).hexdigest()[:8]}-{size}"
        self._of_folder[size] = self.pool.group(name, size, spread=True)
        return self._of_folder[size]

    def about(self, trainer: str) -> About:
        """Return a worker's description of a trainer.

        Raises:
            WorkerFailure: it cannot be loaded, or breaks the protocol.
        """
        if trainer not in self._about:
            try:
                [answer] = self.group(1, trainer).request(Described, "describe", trainer=trainer)
            except WorkerFailure as failure:
                failure.group = "loading it"  # instead of the name of our group
                raise
            self._about[trainer] = answer.about
        return self._about[trainer]

    def judge(self, trainer: str, check: str, case: Case) -> Judgement:
        """Put one case to a trainer and apply one check.

        In low precision, rounding alone can push one variant of a case beyond its bound, and an error pushes all of
        them, so that a finding is confirmed on more variants. A step that draws random numbers is compared with one
        device on the numbers that one device draws for each sample. Where rounding moves one device as far as k devices
        are off it, nothing is wrong. An exception is a refusal only where the case without what may be refused trains.

        Raises:
            WorkerFailure: a rank died, hung, raised while others waited for it, or breaks the protocol; or the check
                itself raised.
        """
        try:
            judgement = self._with_own_draws(trainer, check, case)
        except WorkerFailure as failure:
            if check not in MAY_REFUSE or not failure.refused:
                raise
            judgement = Judgement(note=f"refused: {failure.cause}", details="\n".join(failure.details), refused=True)
        if judgement.refused:
            return self._refused(trainer, check, case, judgement)
        compared = not (check == "identity" and self.about(trainer).only_with_itself) and check in draw.WITH_ONE_DEVICE
        if not judgement.finding or judgement.crashed or not compared:
            return judgement
        if self._with_itself(trainer, check) and check != LOW_PRECISION:
            moved = self._judged(trainer, check, case, moves=MOVES)
            if not moved.finding:
                return moved
        if trainer in self._without_draws:
            return judgement
        with suppress(WorkerFailure):
            # Replicas that drift apart by the draws of their ranks are wrong, and sharing the draws would hide it.
            if self._judged(trainer, "replicas", case).finding:
                return judgement
            again = self._judged(trainer, check, replace(case, shares_draws=True))
            if again == judgement:
                self._without_draws.add(trainer)
            elif not again.crashed and again != RIGHT:  # else it drew nothing, and was wrong for once
                return again
        return judgement

    def explained(self, trainer: str, check: str, case: Case) -> Judgement:
        """Judge, and compare a wrong gradient with what bugs would make of the ranks' parts, also under oracle "self".

        Raises:
            WorkerFailure: as `judge`.
        """
        judgement = self.judge(trainer, check, case)
        alone = case.world_size == 1 or not self._with_itself(trainer, check) or check == LOW_PRECISION
        if alone or judgement.step < 0 or judgement.crashed:
            return judgement
        explained = self._judged(trainer, check, case, parted=judgement.step)
        return explained if explained.finding else judgement

    def reacts(self, trainer: str, case: Case) -> bool:
        """Return whether what a trainer does changes a little where what it is given changes less than a float32 can.

        What a trainer computes in low precision does not change at all, or by a whole unit in the last place.

        Raises:
            WorkerFailure: as `judge`.
        """
        moved = replace(case, variant=1, moved_by=REACTION)
        here, there = (_used(unpacked(self._observe(trainer, each, "")[1][0])) for each in (case, moved))
        largest = max(map(abs, here), default=0.0)
        changes = [abs(a - b) / largest for a, b in zip(here, there, strict=True) if a or b]
        small = sum(REACTION * 1e-4 < change < REACTION * 1e3 for change in changes)
        return 2 * small >= len(changes)

    def _with_itself(self, trainer: str, check: str) -> bool:
        """Return whether a check compares k devices with the trainer on one."""
        return self.about(trainer).oracle == "self" or check == "state"

    def _refused(self, trainer: str, check: str, case: Case, judgement: Judgement) -> Judgement:
        """Judge a refusal: it is one where the same case without what may be refused trains."""
        try:
            _, records = self._observe(trainer, case.plain(), check)
        except WorkerFailure as failure:
            if not failure.refused:
                raise
            said, details = failure.cause, "\n".join(failure.details)
        else:
            raised = next((record["raised"] for record in records if record["raised"]), None)
            if raised is None:
                return judgement
            said, details = harmless(f"{raised['where']}: {raised['error']}"), harmless(raised["traceback"])
        return Judgement(
            f"the trainer raised: {said}; a case without unused layers, batch normalisation or NaN raises as well, so "
            "that this is no refusal",
            details=details,
            crashed=True,
        )

    def _with_own_draws(self, trainer: str, check: str, case: Case) -> Judgement:
        """Put one case to a trainer whose ranks have generators of their own, and apply one check."""
        if check != LOW_PRECISION:
            return self._judged(trainer, check, case)
        judgement = self._judged(trainer, check, case, FEW_VARIANTS)
        others = [replace(case, variant=MANY_VARIANTS + number) for number in range(1, CONFIRMATIONS + 1)]
        for variant in (case, *others):
            if not judgement.finding or judgement.crashed:
                break
            judgement = self._judged(trainer, check, variant, MANY_VARIANTS)
        return judgement

    def _judged(
        self, trainer: str, check: str, case: Case, variants: int = 0, *, moves: int = 0, parted: int = -1
    ) -> Judgement:
        """Put one case to a trainer and apply one check.

        Args:
            trainer: its name.
            check: its name.
            case: what k devices are given.
            variants: in low precision, of the case on one device.
            moves: how often one device begins at weights and minibatches that differ by rounding.
            parted: a step in which one device is also given each rank's samples alone.
        """
        told: dict[str, Any] = {"check": check, "case": case.as_json(), "variants": variants}
        alone: list[Message] = []
        parts: list[Message] = []
        moved: list[Case] = []
        plain = False
        # A resumed trainer is compared with itself on k devices.
        if self._with_itself(trainer, check) and case.resumed is None:
            one = case.alone()
            # Whether to skip a step is the trainer's affair, about which a plain reference knows nothing.
            plain = check not in ("not_a_number", "state")
            record = self._alone(trainer, one, check, plain=plain)
            if check == "loss" and record["plain"] and not record["raised"] and None in record["losses"]:
                plain = False  # a `reference_step` need not return a loss
                record = self._alone(trainer, one, check, plain=plain)
            others = [replace(one, variant=number) for number in range(1, variants + 1)]
            alone = [record, *(self._alone(trainer, other, check) for other in others)]
            moved = [replace(one, variant=number, moved_by=ROUNDING) for number in range(1, moves + 1)]
            shards = [replace(one, part=(parted, rank, case.world_size)) for rank in _with_samples(case, parted)]
            parts = [self._alone(trainer, shard, check, plain=plain) for shard in shards]
        group, ranks = self._observe(trainer, case, check)
        records = Records(ranks, alone, parts=parts)
        judgement = self._asked(group, {**told, "records": records})
        for other in moved:  # one by one, because a message has room for a few records of a large net
            if not judgement.finding:
                break
            record = self._alone(trainer, other, check, plain=plain)
            judgement = self._asked(group, {**told, "records": replace(records, moved=[record])})
        return judgement

    def _asked(self, group: Group, told: dict[str, Any]) -> Judgement:
        """Have rank 0 of a group judge."""
        try:
            judgement = group.request_first(Judgement, "judge", **told)
        except WorkerFailure as failure:
            if failure.details:  # a broken contract has none, and is no error of the check
                failure.cause = f"the check could not be applied: {failure.cause}"
            raise
        # The texts may quote the trainer's exception.
        texts: dict[str, Any] = {name: harmless(getattr(judgement, name)) for name in ("finding", "note", "details")}
        return replace(judgement, suspects=tuple(map(harmless, judgement.suspects)), **texts)

    def search(
        self, trainer: str, check: str, *, examples: int | None = None, fresh: bool = False, shrink: bool = True
    ) -> SearchResult:
        """Search for a case that a trainer gets wrong, as `suite.checks.search.search` does."""
        return search(self, trainer, check, examples=examples, fresh=fresh, shrink=shrink)

    def has_hung(self, trainer: str) -> bool:
        """Return whether a trainer has hung so often that no further case of it is tried."""
        return self.hangs.get(trainer, 0) >= MOST_HANGS

    def wanted(self, about: About) -> int:
        """Return the largest world size that a trainer is to be tried on."""
        return MOST_REPLICAS if about.processes == "one" else MOST_RANKS

    def most(self, about: About) -> int:
        """Return the largest world size that a trainer is tried on here."""
        return self.devices_for(about, self.wanted(about))

    def devices_for(self, about: About, wanted: int) -> int:
        """Return on how many of so many devices a trainer can be tried here: fewer where its ranks share no GPU."""
        return wanted if self.devices.kind == "cpu" or about.shares_gpus else min(wanted, self.devices.distinct)

    def unseen(self, about: About) -> str:
        """Return what checks of a trainer on several devices do not see of it, because there is one GPU; else ""."""
        if self.devices.kind == "cpu" or not self.devices.alone:
            return ""  # CPU workers stand for any number of devices
        if not about.shares_gpus:
            return "several devices are not checked: one GPU, which two of its ranks cannot share"
        if about.processes == "one":
            return "copies between GPUs are not checked: one GPU, which all its replicas share"
        return "NCCL is not checked: one GPU, which all its ranks share, so that they exchange through gloo"

    def place(self, trainer: str, world_size: int) -> tuple[Group, CaseJob]:
        """Return the ranks of a trainer in a world, bound to their devices, and what they are told of their place."""
        names, backend = self.devices.spread(world_size)
        job = CaseJob(trainer=trainer, processes=self.about(trainer).processes, devices=names, backend=backend)
        group = self.group(job.size, trainer)
        if (group, trainer) not in self._bound:
            group.request(dict, "bind", arm=job)
            self._bound.add((group, trainer))
        return group, job

    def _alone(self, trainer: str, case: Case, check: str, *, plain: bool = False) -> Message:
        """Return the record of a trainer on one device."""
        [record] = self._observe(trainer, case, check, plain=plain)[1]
        return record

    def _observe(self, trainer: str, case: Case, check: str, *, plain: bool = False) -> tuple[Group, list[Message]]:
        group, job = self.place(trainer, case.world_size)
        told = {"arm": job, "case": case.as_json(), "check": check, "plain": plain}
        deadline_s = HANG_AGAIN_S if self.hangs.get(trainer) else HANG_S
        try:
            return group, group.request(dict, "observe", deadline_s, **told)
        except WorkerFailure as failure:
            if failure.timed_out:
                self.hangs[trainer] = self.hangs.get(trainer, 0) + 1
            raise


def _folder(trainer: str) -> str:
    """Return the folder of a trainer's file, which it imports from first; "" for one that is named otherwise."""
    path = trainer.rpartition(":")[0]
    return os.path.dirname(os.path.realpath(path)) if path.endswith(".py") else ""


def _with_samples(case: Case, step: int) -> range:
    """Return the ranks that have samples in a step; none where the case has no such step."""
    if step < 0:
        return range(0)
    n = case.batches[step]
    return range(-(-n // -(-n // case.world_size)))


def _used(record: Message) -> list[float]:
    """Return what a rank's steps were made of: gradients where optimisers show them, else changes of parameters."""
    numbers: list[float] = []
    pairs = pairwise(record["parameters"])
    for gradients, others, (before, after) in zip(record["gradients"], record["others"], pairs, strict=True):
        given = [*gradients, *(gradient for _, of_others in others for gradient in of_others)]
        if not any(given):
            given = [[b - a for a, b in zip(old, new, strict=True)] for old, new in zip(before, after, strict=True)]
        numbers += [value for gradient in given for value in gradient or ()]
    return numbers
