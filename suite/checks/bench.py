"""Puts generated cases to a trainer in worker processes and shrinks what fails (controller's side).

A group of ranks is started once for each world size and serves all cases and checks, of all trainers that import the
same modules: those of one folder, or all that are not named by a file. A rank that dies or hangs ends its check without
shrinking, with every live rank's stack; the next case gets a fresh group.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, errors, given, settings

from suite.checks import draw
from suite.processes.channel import Message
from suite.processes.failure import WorkerFailure, harmless
from suite.processes.group import Group
from suite.processes.jobs import CaseJob
from suite.processes.pool import Pool
from suite.properties.answers import RIGHT, About, Described, Judgement
from suite.properties.case import LOW_PRECISION, MAY_REFUSE, Case
from suite.room.devices import Devices

MOST_REPLICAS = 8  # virtual devices of one process
MOST_RANKS = 4  # processes
HANG_S = 60.0  # a case takes milliseconds, but the first one may load FSDP, or compile for half a minute
SHARE = {"samples": 0.2, "tokens": 0.14}  # of hypothesis's examples, for each check; steps on texts take longer
FEW_VARIANTS, MANY_VARIANTS = 2, 8  # of a case that one device computes; many where k devices are off the few
# What a rank that died or hung looks like.
EMPTY_SHARD = "a rank without samples leaves the step, and the others wait in a collective (pytorch/pytorch#33148)"
UNUSED = (
    "a parameter that not every rank uses, so that ranks wait for each other's gradients: pass "
    "find_unused_parameters=True to DistributedDataParallel, or exchange zeros where there is no gradient"
)
CONFIRMATIONS = 3  # other variants in which k devices must be off as well


@dataclass(frozen=True)
class SearchResult:
    """The result of searching for a case that a trainer gets wrong.

    Attributes:
        failure: what is wrong in the smallest failing case, ready to be shown; empty when nothing is.
        notes: what a reader should know of a right trainer, each once.
        examples: the number of cases that were judged.
        crashed: whether the trainer raised, died or hung, as opposed to computing something wrong.
    """

    failure: str
    notes: list[str]
    examples: int
    crashed: bool = False


class _Wrong(Exception):
    """The trainer gets a case wrong; hypothesis searches for a smaller one."""


class _Ended(BaseException):
    """Ranks died or hung. It passes through hypothesis, which would repeat an Exception to shrink its case."""


@dataclass
class Bench:
    """The worker processes that cases are put to.

    Args:
        pool: starts them.
        devices: CPU workers stand for any number of devices; CUDA devices are used in turn, repeatedly if necessary.
        python_path: folders of pytest's setting `pythonpath`, for the command that shows a failure again.
    """

    pool: Pool
    devices: Devices
    python_path: Sequence[Path] = ()
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
        device on the numbers that one device draws for each sample.

        Raises:
            WorkerFailure: a rank died, hung, refused while others waited for it, or breaks the protocol; or the check
                itself raised.
        """
        judgement = self._with_own_draws(trainer, check, case)
        compared = not (check == "identity" and self.about(trainer).only_with_itself) and check in draw.WITH_ONE_DEVICE
        if not judgement.finding or judgement.crashed or not compared or trainer in self._without_draws:
            return judgement
        with suppress(WorkerFailure):
            # Replicas that drift apart by the draws of their ranks are wrong, and sharing the draws would hide it.
            if self._judged(trainer, "replicas", case).finding:
                return judgement
            again = self._judged(trainer, check, case, shares_draws=True)
            if again == judgement:
                self._without_draws.add(trainer)
            elif not again.crashed and again != RIGHT:  # else it drew nothing, and was wrong for once
                return again
        return judgement

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
        self, trainer: str, check: str, case: Case, variants: int = 0, *, shares_draws: bool = False
    ) -> Judgement:
        """Put one case to a trainer and apply one check, in low precision with so many variants on one device."""
        about = self.about(trainer)
        told: dict[str, Any] = {"check": check, "case": case.as_json(), "shares_draws": shares_draws}
        told |= {"variants": variants, "alone": []}
        if about.oracle == "self" and case.resumed is None:  # a resumed trainer is compared with itself on k devices
            one = case.alone()
            # Whether to skip a step is the trainer's affair, about which a plain reference knows nothing.
            how = {"plain": check != "not_a_number", "shares_draws": shares_draws}
            alone = [self._observe(trainer, one, check, **how)]
            [record] = alone[0][1]
            if check == "loss" and record["plain"] and not record["raised"] and None in record["losses"]:
                how["plain"] = False  # a `reference_step` need not return a loss
                alone = [self._observe(trainer, one, check, **how)]
            for number in range(1, variants + 1):
                alone.append(self._observe(trainer, replace(one, variant=number), check))
            told["alone"] = [records[0] for _, records in alone]
        group, ranks = self._observe(trainer, case, check, shares_draws=shares_draws)
        try:
            judgement = group.request_first(Judgement, "judge", **told, ranks=ranks)
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
        """Search for a case that a trainer gets wrong.

        Args:
            trainer: a table name, `module:Class` or `path.py:Class`.
            check: a name in `suite.properties.trainer.CHECKS`.
            examples: the number of cases; by default a share of the hypothesis profile's.
            fresh: draw other cases in every run; otherwise they are the same wherever the same modules are loaded,
                because hypothesis also draws constants that it reads there.
            shrink: report the smallest failing case; otherwise the first one.

        Raises:
            WorkerFailure: the trainer cannot be loaded, or breaks the protocol.
        """
        about = self.about(trainer)
        if about.trains == "tokens" and check in draw.WITHOUT_TEXTS:
            return SearchResult("", [draw.WITHOUT_TEXTS[check]], 0)
        if check == "resume" and not about.resumes:
            return SearchResult("", ["not checked: it has no state_dict and load_state_dict of its own"], 0)
        most = MOST_REPLICAS if about.processes == "one" else MOST_RANKS
        # Shrinking tries many cases, and each one that a trainer refuses may cost a fresh group.
        shrinks = shrink and check not in MAY_REFUSE
        search = _Search(self, trainer, check, shrinks)
        gpus = len(set(self.devices.names)) * self.devices.hosts
        if self.devices.kind != "cpu" and not about.shares_gpus and gpus < most:
            most = gpus
            search.notes[f"two of its ranks cannot share a GPU: checked on {gpus} device(s) at most"] = None
        cases = examples or max(1, round(settings().max_examples * SHARE[about.trains]))
        fixed = draw.fixed(check, most, about.oracle, about.trains)[: cases - 1]

        @settings(
            max_examples=cases - len(fixed),
            derandomize=not fresh,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,  # what hypothesis would print is about this function, which no user knows
        )
        @given(draw.cases(check, most, about.oracle, about.trains))
        def judge_all(case: Case) -> None:
            search.judge(case)

        try:
            judge_all()
            search.shrinks = False
            for case in fixed:
                search.judge(case)
        except _Wrong:
            search.tell_suspects_apart()
        except _Ended:
            pass
        except errors.Flaky:
            search.failure += "\n  not every time: the same case was right when it was put to the trainer again"
        return SearchResult(search.failure, list(search.notes), search.judged, search.crashed)

    def place(self, trainer: str, world_size: int) -> tuple[Group, CaseJob]:
        """Return the ranks of a trainer in a world, bound to their devices, and what they are told of their place."""
        names, backend = self.devices.spread(world_size)
        job = CaseJob(trainer=trainer, processes=self.about(trainer).processes, devices=names, backend=backend)
        group = self.group(job.size, trainer)
        if (group, trainer) not in self._bound:
            group.request(dict, "bind", arm=job)
            self._bound.add((group, trainer))
        return group, job

    def _observe(
        self, trainer: str, case: Case, check: str, *, plain: bool = False, shares_draws: bool = False
    ) -> tuple[Group, list[Message]]:
        group, job = self.place(trainer, case.world_size)
        told = {"arm": job, "case": case.as_json(), "evaluates": check == "evaluation"}
        return group, group.request(dict, "observe", HANG_S, **told, plain=plain, shares_draws=shares_draws)


@dataclass
class _Search:
    """The state of one search."""

    bench: Bench
    trainer: str
    check: str
    shrinks: bool  # the cases that are judged now
    failure: str = ""
    crashed: bool = False
    smallest: Case | None = None  # the last wrong case, which at the end of a search is the smallest one
    notes: dict[str, None] = field(default_factory=dict)
    judged: int = 0
    suspects: tuple[str, ...] = ()  # bugs that fit every wrong case
    refused: set[tuple[str, str]] = field(default_factory=set)

    def judge(self, case: Case) -> None:
        """Judge a case.

        Raises:
            _Wrong: the trainer gets it wrong.
            _Ended: ranks died or hung.
        """
        kind = (case.net.unused, case.net.norm) if case.text is None else (case.text.unused, "")
        if kind in self.refused:
            return
        self.judged += 1
        try:
            judgement = self.bench.judge(self.trainer, self.check, case)
        except WorkerFailure as failure:
            if self.check in MAY_REFUSE and failure.refused:
                self.notes[_first_sentence(f"refused: {failure.cause}")] = None
                self.refused.add(kind)  # once is enough: the group is gone
                return
            self.shrinks = False
            self.failure = self._explained(case, ended(case, failure))
            self.crashed = True
            raise _Ended from failure
        if judgement.note:
            self.notes[_first_sentence(judgement.note)] = None
        if judgement.finding:
            self._explain(case, judgement)
            self.crashed = judgement.crashed
            self.smallest = case
            raise _Wrong

    def tell_suspects_apart(self) -> None:
        """Where several bugs fit the smallest case, judge another one with 2 k + 1 samples a step on its k devices."""
        if self.smallest is None or len(self.suspects) < 2:
            return
        batches = tuple(2 * self.smallest.world_size + 1 for _ in self.smallest.batches)
        with suppress(WorkerFailure):
            cases = (replace(self.smallest, batches=batches), self.smallest)
            judgements = [self.bench.judge(self.trainer, self.check, case) for case in cases]
            for case, judgement in zip(cases, judgements, strict=True):
                self._explain(case, judgement)

    def _explain(self, case: Case, judgement: Judgement) -> None:
        """Keep a case as the failure, with the bugs that fit all wrong cases so far, or with its own."""
        fitting = tuple(line for line in judgement.suspects if not self.suspects or line in self.suspects)
        self.suspects = fitting or judgement.suspects
        self.failure = self._explained(case, replace(judgement, suspects=self.suspects))

    def _explained(self, case: Case, judgement: Judgement) -> str:
        bench = self.bench
        return explain(self.trainer, self.check, case, judgement, bench.devices, bench.python_path, shrunk=self.shrinks)


def ended(case: Case, failure: WorkerFailure) -> Judgement:
    """Return what is shown of a case on which a rank raised, died or hung."""
    likely = []
    if not failure.refused and case.world_size > 1:
        likely += [EMPTY_SHARD] if min(case.batches, default=case.world_size) < case.world_size else []
        likely += [UNUSED] if (case.text or case.net).unused != "none" else []
    return Judgement(failure.cause, tuple(likely), details="\n".join(failure.details), crashed=True)


def explain(
    trainer: str,
    check: str,
    case: Case,
    judgement: Judgement,
    devices: Devices,
    python_path: Sequence[Path] = (),
    *,
    shrunk: bool = False,
) -> str:
    """Return a failure as it is shown: what is wrong, known bugs that it looks like, the case, how to see it again."""
    what, found = "net" if case.text is None else "text", "smallest case found" if shrunk else "case"
    lines = [f"{trainer}, check {check!r}: {judgement.finding}"]
    lines += [f"  looks like: {suspect}" for suspect in judgement.suspects]
    lines.append(
        f"  {found}: {case.world_size} device(s), minibatches of {list(case.batches)}, {case.dtype}, "
        f"lr {case.lr}, seed {case.seed}, {what} {case.as_json()[what]}"
    )
    folders = os.pathsep.join(os.path.relpath(folder) for folder in python_path)
    command = ["env", f"PYTHONPATH={folders}"] if folders else []
    command += ["python", "-m", "suite.checks", trainer, check, str(case), *_named(devices)]
    lines.append(f"  see it again: {shlex.join(command)}")
    return "\n".join(filter(None, [*lines, judgement.details]))


def _folder(trainer: str) -> str:
    """Return the folder of a trainer's file, which it imports from first; "" for one that is named otherwise."""
    path = trainer.rpartition(":")[0]
    return os.path.dirname(os.path.realpath(path)) if path.endswith(".py") else ""


def _named(devices: Devices) -> list[str]:
    """Return the arguments of `python -m suite.checks` that name these devices; none for CPU workers, its default."""
    if devices.kind == "cpu":
        return []
    several = len(devices.names) > 1  # "cuda:0" alone would mean no device, and "cuda:1" means the first one
    return ["--devices", ",".join(devices.names) if several else f"{devices.kind}:1"]


def _first_sentence(note: str) -> str:
    """Return the first sentence of the first line; torch's refusals are a page long."""
    return note.split(". ")[0].splitlines()[0]
