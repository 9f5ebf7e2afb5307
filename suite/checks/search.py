"""Searches for a case that a trainer gets wrong, shrinks it, and says what it looks like (controller's side)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, Verbosity, errors, given, settings

from suite.checks import draw, failure_text
from suite.processes.failure import WorkerFailure
from suite.properties.answers import (
    FACTOR,
    NO_EXCHANGE,
    NONE_FITS,
    OF_PRECISION,
    OTHER_BUGS,
    RIGHT,
    SKIPPED_ALONE,
    Judgement,
)
from suite.properties.case import MAY_REFUSE, Case
from suite.room.devices import Devices

if TYPE_CHECKING:
    from suite.checks.bench import Bench

SHARE = {"samples": 0.2, "tokens": 0.14}  # of hypothesis's examples, for each check; steps on texts take longer
# What a rank that died or hung looks like.
EMPTY_SHARD = "a rank without samples leaves the step, and the others wait in a collective (pytorch/pytorch#33148)"
UNUSED = (
    "a parameter that not every rank uses, so that ranks wait for each other's gradients: pass "
    "find_unused_parameters=True to DistributedDataParallel, or exchange zeros where there is no gradient"
)
EQUAL_ONLY = "shards of unequal length, and those without samples, were not checked: the trainer says shards = {shards}"
ONLY_UNEQUAL = (
    "only with unequal shards: it is right with minibatches of {batches}; a trainer that is never given others says "
    'shards = "equal" (docs/your-trainer.md)'
)
LONGER = ("gradient", "trajectory", "identity", "loss")  # checks whose cases may have more steps than one
NOT_PLAIN = (
    "expected: plain SGD on mean cross-entropy; a trainer with another optimizer, weight decay, clipping, a schedule "
    'or a loss of its own says oracle = "self", or has its `loss`'
)
NOT_RUN = "not run: {trainer} has hung in {hangs} cases; the stacks in the first failure show where"


@dataclass(frozen=True)
class SearchResult:
    """The result of searching for a case that a trainer gets wrong.

    Attributes:
        failure: what is wrong in the smallest failing case, ready to be shown; empty when nothing is.
        notes: what a reader should know of a right trainer, each once.
        examples: the number of cases that were judged.
        crashed: whether the trainer raised, died or hung, as opposed to computing something wrong.
        not_run: why no case was tried; empty where some were.
        suspects: the known bugs that the failure looks like.
    """

    failure: str
    notes: list[str]
    examples: int
    crashed: bool = False
    not_run: str = ""
    suspects: tuple[str, ...] = field(default=(), compare=False)


class _Wrong(Exception):
    """The trainer gets a case wrong; hypothesis searches for a smaller one."""


class _Ended(BaseException):
    """Ranks died or hung. It passes through hypothesis, which would repeat an Exception to shrink its case."""


def search(
    bench: Bench, trainer: str, check: str, *, examples: int | None = None, fresh: bool = False, shrink: bool = True
) -> SearchResult:
    """Search for a case that a trainer gets wrong.

    Args:
        bench: the worker processes.
        trainer: a table name, `module:Class` or `path.py:Class`.
        check: a name in `suite.properties.trainer.CHECKS`.
        examples: the number of cases; by default a share of the hypothesis profile's.
        fresh: draw other cases in every run; otherwise they are the same wherever the same modules are loaded, because
            hypothesis also draws constants that it reads there.
        shrink: report the smallest failing case, and look at larger ones to tell what it looks like; otherwise report
            the first one as it is.

    Raises:
        WorkerFailure: the trainer cannot be loaded, or breaks the protocol.
    """
    about = bench.about(trainer)
    if about.trains == "tokens" and check in draw.WITHOUT_TEXTS:
        return SearchResult("", [draw.WITHOUT_TEXTS[check]], 0)
    if check in draw.WITH_STATE and not about.resumes:
        return SearchResult("", [draw.WITHOUT_STATE], 0)
    if bench.has_hung(trainer):
        return SearchResult("", [], 0, not_run=NOT_RUN.format(trainer=trainer, hangs=bench.hangs[trainer]))
    most = bench.most(about)
    # Shrinking tries many cases, and each one that a trainer refuses may cost a fresh group.
    shrinks = shrink and check not in MAY_REFUSE
    found = _Search(bench, trainer, check, shrinks, compares=shrink)
    if 1 < most < bench.wanted(about):
        found.notes[f"two of its ranks cannot share a GPU: checked on {most} devices at most"] = None
    if about.shards and most > 1:
        found.notes[EQUAL_ONLY.format(shards='"equal"' if about.shards == 1 else about.shards)] = None
    cases = examples or max(1, round(settings().max_examples * SHARE[about.trains]))
    fixed = draw.fixed(check, most, about.trains, about.shards)[: cases - 1]

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
    @given(draw.cases(check, most, about.oracle, about.trains, about.shards))
    def judge_all(case: Case) -> None:
        found.judge(case)

    try:
        judge_all()
        found.shrinks = False
        for case in fixed:
            found.judge(case)
    except (_Wrong, _Ended):
        found.explain()
    except errors.Flaky:
        found.explain("not every time: the same case was right when it was put to the trainer again")
    judgement = found.judgement
    return SearchResult(found.failure, list(found.notes), found.judged, judgement.crashed, suspects=judgement.suspects)


@dataclass
class _Search:
    """The state of one search."""

    bench: Bench
    trainer: str
    check: str
    shrinks: bool  # the cases that are judged now
    compares: bool = True  # a failure with other cases, to tell what it looks like
    failure: str = ""
    judgement: Judgement = RIGHT  # of the last wrong case
    smallest: Case | None = None  # the last wrong case, which at the end of a search is the smallest one
    notes: dict[str, None] = field(default_factory=dict)
    judged: int = 0
    refused: set[tuple[str, str]] = field(default_factory=set)

    def judge(self, case: Case) -> None:
        """Judge a case; raise `_Wrong` where the trainer gets it wrong, and `_Ended` where ranks died or hung."""
        kind = (case.net.unused, case.net.norm) if case.text is None else (case.text.unused, "")
        if kind in self.refused:
            return
        self.judged += 1
        try:
            judgement = self.bench.judge(self.trainer, self.check, case)
        except WorkerFailure as failure:
            self.shrinks = False
            self.smallest, self.judgement = case, ended(case, failure)
            raise _Ended from failure
        if judgement.refused:
            self.refused.add(kind)  # once is enough: the group may be gone
        if judgement.note:
            self.notes[_first_sentence(judgement.note)] = None
        if judgement.finding:
            self.smallest, self.judgement = case, judgement
            raise _Wrong

    def explain(self, *more: str) -> None:
        """Write the failure of the smallest wrong case, with what it looks like and where it is right."""
        assert self.smallest is not None
        if self.compares:
            suspects = self.judgement.suspects if self.judgement.crashed else self._fitting_all()
            equal = self.smallest.with_shards(1)
            only_unequal = equal != self.smallest and self._is_right_on(equal)
            if only_unequal:
                more = (ONLY_UNEQUAL.format(batches=list(equal.batches)), *more)
            # What a rank that ended is blamed on has to make the difference.
            if not only_unequal:
                suspects = tuple(line for line in suspects if line != EMPTY_SHARD)
            if UNUSED in suspects and not self._is_right_on(self.smallest.plain()):
                suspects = tuple(line for line in suspects if line != UNUSED)
            if self._may_be_another_step(suspects):
                more = (NOT_PLAIN, *more)
            self.judgement = replace(self.judgement, suspects=suspects)
        self.failure = describe_failure(
            self.bench, self.trainer, self.check, self.smallest, self.judgement, shrunk=self.shrinks, more=more
        )

    def _may_be_another_step(self, suspects: Sequence[str]) -> bool:
        """Return whether the trainer may take another step than oracle "sgd" expects, by what is known."""
        assert self.smallest is not None
        unknown = self.smallest.world_size == 1 or not suspects or suspects[0] == NONE_FITS
        of_step = self.check in ("gradient", "trajectory", "identity") and not self.judgement.crashed
        return of_step and unknown and self.bench.about(self.trainer).oracle == "sgd"

    def _fitting_all(self) -> tuple[str, ...]:
        """Return the bugs that fit the smallest wrong case and larger ones, which fewer bugs fit."""
        assert self.smallest is not None
        smallest, k, about = self.smallest, self.smallest.world_size, self.bench.about(self.trainer)
        # Three steps or more tell what is lost from what comes a step late.
        steps = max(3, len(smallest.batches)) if self.check in LONGER else len(smallest.batches)
        wider = smallest.wider()
        cases = [smallest, wider]
        # A factor of k has to be k on more devices as well.
        for case, devices in ((smallest, k), (wider, k), *([(wider, k + 1)] if 1 < k < self.bench.most(about) else [])):
            more = replace(case, world_size=devices, batches=(2 * devices + 1,) * steps)
            cases.append(more.with_shards(about.shards) if about.shards else more)
        fitting: list[tuple[str, ...]] = []
        every_rank_trained = False
        with suppress(WorkerFailure):
            for case in cases:
                judgement = self.bench.explained(self.trainer, self.check, case)
                if judgement.finding and not judgement.crashed:
                    fitting.append(judgement.suspects)
                    every_rank_trained |= min(case.batches, default=0) >= case.world_size
        if not fitting:
            return self.judgement.suspects
        first, *others = fitting
        lines = [line for line in first if all(line in other for other in others)]
        if not lines and self.check not in LONGER:
            lines = [line for line in fitting[-1] if FACTOR not in line]
        left_out = tuple(self._refuted(lines, every_rank_trained=every_rank_trained))
        lines = [line for line in lines if not line.startswith(left_out)]
        return tuple(lines or ([NONE_FITS] if first else []))

    def _refuted(self, lines: Sequence[str], *, every_rank_trained: bool) -> Iterator[str]:
        """Yield how those of the lines begin that what else is known of the trainer speaks against.

        `every_rank_trained` says whether it was also wrong in a case in which every rank has samples.
        """
        assert self.smallest is not None
        said = " ".join(lines)
        if not every_rank_trained:  # a rank without samples has no gradient, whatever is exchanged
            yield NO_EXCHANGE
        if SKIPPED_ALONE in lines:
            filled = (2 * self.smallest.world_size + 1,) * len(self.smallest.batches)
            if not self._is_right_on(replace(self.smallest.plain(), batches=filled), "trajectory"):
                yield SKIPPED_ALONE
        if OTHER_BUGS in lines and self._is_right_on(self.smallest.plain(), "trajectory"):
            yield OTHER_BUGS
        if OF_PRECISION in said:
            with suppress(WorkerFailure):
                if self.check not in LONGER or self.bench.reacts(self.trainer, self.smallest):
                    yield OF_PRECISION

    def _is_right_on(self, case: Case, check: str = "") -> bool:
        """Return whether the trainer is right in a case, also with a larger net, by this check or another one."""
        if self.bench.has_hung(self.trainer):
            return False
        try:
            judgements = (self.bench.judge(self.trainer, check or self.check, each) for each in (case, case.wider()))
            return not any(judgement.finding for judgement in judgements)
        except WorkerFailure:
            return False


def ended(case: Case, failure: WorkerFailure) -> Judgement:
    """Return what is shown of a case on which a rank raised, died or hung."""
    likely = []
    if not failure.refused and case.world_size > 1:
        likely += [EMPTY_SHARD] if min(case.batches, default=case.world_size) < case.world_size else []
        likely += [UNUSED] if (case.text or case.net).unused != "none" else []
    return Judgement(failure.cause, tuple(likely), details="\n".join(failure.details), crashed=True)


def describe_failure(
    bench: Bench,
    trainer: str,
    check: str,
    case: Case,
    judgement: Judgement,
    *,
    shrunk: bool = False,
    more: Sequence[str] = (),
) -> str:
    """Return what is shown of a failure: what is wrong, known bugs that it looks like, the case, how to see it again.

    Args:
        bench: whose devices and folders the command names.
        trainer, check, case: what was judged.
        judgement: what is wrong.
        shrunk: whether the case is the smallest one that was found.
        more: lines about the trainer in other cases.
    """
    found, what = "smallest case found" if shrunk else "case", "net" if case.text is None else "text"
    smallest = (
        f"{found}: {case.world_size} device(s), minibatches of {list(case.batches)}, {case.dtype}, "
        f"lr {case.lr}, seed {case.seed}, {what} {case.as_json()[what]}"
    )
    folders = os.pathsep.join(os.path.relpath(folder) for folder in bench.python_path)
    command = ["env", f"PYTHONPATH={folders}"] if folders else []
    command += ["python", "-m", "suite.checks", trainer, check, str(case), *_named(bench.devices)]
    finding = f"{trainer}, check {check!r}: {judgement.finding}"
    text = failure_text(finding, judgement.suspects, [*more, smallest], shlex.join(command))
    return "\n".join(filter(None, [text, judgement.details]))


def _named(devices: Devices) -> list[str]:
    """Return the arguments of `python -m suite.checks` that name these devices; none for CPU workers, its default."""
    if devices.kind == "cpu":
        return []
    several = len(devices.names) > 1  # "cuda:0" alone would mean no device, and "cuda:1" means the first one
    return ["--devices", ",".join(devices.names) if several else f"{devices.kind}:1"]


def _first_sentence(note: str) -> str:
    """Return the first sentence of the first line; torch's refusals are a page long."""
    return note.split(". ")[0].splitlines()[0]
