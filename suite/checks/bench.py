"""Puts cases to a trainer in worker processes (controller's side); `suite.checks.search` draws and shrinks them.

A group of ranks is started once for each world size and serves all cases and checks, of all trainers that import the
same modules: those of one folder, or all that are not named by a file. A rank that dies or hangs ends its check without
shrinking, with every live rank's stack; the next case gets a fresh group.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from suite.checks import draw
from suite.checks.search import SearchResult, search
from suite.processes.failure import WorkerFailure, harmless
from suite.processes.group import Group
from suite.processes.jobs import CaseJob
from suite.processes.pool import Pool
from suite.properties.answers import REACTION, RIGHT, About, Described, Judgement, Observed
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
        given = {"here": case, "there": replace(case, variant=1, moved_by=REACTION)}
        told = [self._observe(trainer, each, "", name) for name, each in given.items()]
        files = [observed[0].file for _, observed in told]
        return bool(told[-1][0].request_first(dict, "reacts", files=files)["reacts"])

    def _with_itself(self, trainer: str, check: str) -> bool:
        """Return whether a check compares k devices with the trainer on one."""
        return self.about(trainer).oracle == "self" or check == "state"

    def _refused(self, trainer: str, check: str, case: Case, judgement: Judgement) -> Judgement:
        """Judge a refusal: it is one where the same case without what may be refused trains."""
        try:
            _, observed = self._observe(trainer, case.plain(), check, "plain")
        except WorkerFailure as failure:
            if not failure.refused:
                raise
            said, details = failure.cause, "\n".join(failure.details)
        else:
            raised = next((rank.raised for rank in observed if rank.raised), None)
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
        """Put one case to a trainer, on one device and on k, and apply one check.

        Args:
            trainer, check, case: what is put to k devices, and how it is judged.
            variants: in low precision, of the case on one device.
            moves: how often one device begins at weights and minibatches that differ by rounding.
            parted: a step in which one device is also given each rank's samples alone.
        """
        alone: dict[str, tuple[bool, list[Case]]] = {}  # of one device: by `reference_step` or not, and the cases
        # A resumed trainer is compared with itself on k devices.
        if self._with_itself(trainer, check) and case.resumed is None:
            one = case.alone()
            # Whether to skip a step is the trainer's affair, about which a plain reference knows nothing.
            plain = check not in ("not_a_number", "state")
            if check == "loss" and self.about(trainer).has_reference:  # which need not return a loss
                [told] = self._observe(trainer, one, check, "alone", plain=True)[1]
                plain = bool(told.raised) or told.returned
            moved = [replace(one, variant=number, moved_by=ROUNDING) for number in range(1, moves + 1)]
            parts = [replace(one, part=(parted, rank, case.world_size)) for rank in _with_samples(case, parted)]
            alone = {
                "alone": (plain, [one]),
                "disturbed": (False, [replace(one, variant=number) for number in range(1, variants + 1)]),
                "moved": (plain, moved),
                "parts": (plain, parts),
            }
        files: dict[str, list[str]] = {name: [] for name in alone}
        for name, (plain, cases) in alone.items():
            for number, each in enumerate(cases):
                [observed] = self._observe(trainer, each, check, f"{name}-{number}", plain=plain)[1]
                files[name].append(observed.file)
        group, ranks = self._observe(trainer, case, check, "ranks")
        files["ranks"] = self.files(group, ranks)
        return self._asked(group, check, case, variants, files)

    def _asked(self, group: Group, check: str, case: Case, variants: int, files: dict[str, list[str]]) -> Judgement:
        """Have rank 0 of a group judge what was written."""
        told: dict[str, Any] = {"check": check, "case": case.as_json(), "variants": variants, "files": files}
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

    def files(self, group: Group, observed: Sequence[Observed]) -> list[str]:
        """Return the files of what ranks saw, after those of other hosts were copied to this one, where rank 0 is."""
        files = [each.file for each in observed]
        elsewhere = [rank for part in group.parts[1:] for rank in part]
        start, more = 0, bool(elsewhere)
        while more:
            parts = group.request(dict, "send", start=start, ranks=elsewhere)
            for rank in elsewhere:
                copy = self.pool.folder / Path(observed[rank].file).name
                with copy.open("ab" if start else "wb") as file:
                    file.write(b64decode(parts[rank]["bytes"]))
                files[rank] = str(copy)
            start = max(Path(files[rank]).stat().st_size for rank in elsewhere)
            more = any(part["more"] for part in parts)
        return files

    def drop_files(self) -> None:
        """Remove the files of what ranks saw; those of a large model take as much room as its outputs."""
        for path in self.pool.folder.glob("seen-*"):
            path.unlink()

    def _observe(
        self, trainer: str, case: Case, check: str, name: str, *, plain: bool = False
    ) -> tuple[Group, list[Observed]]:
        """Have a trainer train on a case; each rank writes what it saw to a file of this name, or writes it again."""
        group, job = self.place(trainer, case.world_size)
        told = {"arm": job, "case": case.as_json(), "check": check, "plain": plain, "name": name}
        deadline_s = HANG_AGAIN_S if self.hangs.get(trainer) else HANG_S
        try:
            return group, group.request(Observed, "observe", deadline_s, **told)
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
