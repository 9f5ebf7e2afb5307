"""What the bench asks of its ranks, and when; what is a refusal, a hang, or a failure that only unequal shards show."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reference.trainers.ddp import DDPTrainer
from reference.trainers.single import Single
from suite.checks import draw, search
from suite.checks.bench import HANG_S, MOST_HANGS, Bench
from suite.checks.search import EMPTY_SHARD, EQUAL_ONLY
from suite.processes.failure import WorkerFailure
from suite.processes.folder import FOLDER
from suite.processes.group import START_TIMEOUT_S
from suite.processes.jobs import CaseJob
from suite.properties.answers import RIGHT, About, Described, Judgement, Observed
from suite.properties.case import Case, Net
from suite.rank import commands, kept
from suite.room import devices
from tests.support.trainers_under_test import MeanOfMeans

SCALED = """
from losses import FACTOR
from reference.trainers.single import Single

class Scaled(Single):
    def step(self, X, y, global_batch_size):
        return super().step(X, y, global_batch_size / FACTOR)
"""
SETS = """
import torch
from reference.trainers.scratch import Scratch

class Plain(Scratch):
    pass

class Sets(Scratch):
    def step(self, X, y, global_batch_size):
        loss = super().step(X, y, global_batch_size)
        if global_batch_size == 4:
            torch.{setting}
        return loss
"""


class Asked:
    """Replaces a pool and its only group.

    Args:
        findings: of the judgements, in order; later ones are right.
    """

    def __init__(self, *findings: str) -> None:
        self.commands: list[tuple[str, str, float]] = []
        self.findings = list(findings)
        self.parts = [(0,)]
        self.judged: list[tuple[int, int]] = []  # the variant that k devices computed, and how many one device did

    def group(self, name: str, size: int, *, spread: bool) -> Asked:
        return self

    def request(self, kind: type, command: str, timeout_s: float = START_TIMEOUT_S, **told: Any) -> list[Any]:
        if command == "describe":
            return [
                Described(versions={}, about=About(processes="one", oracle="sgd", unsynced=False, shares_gpus=True))
            ]
        self.commands.append((command, told["arm"].trainer, timeout_s))
        return [Observed("file")] if command == "observe" else [{}]

    def request_first(self, kind: type, command: str, **told: Any) -> Judgement:
        self.judged.append((told["case"].get("variant", 0), told["variants"]))
        return Judgement(self.findings.pop(0) if self.findings else "")


def test_every_trainer_is_imported_before_its_first_case_and_its_deadline() -> None:
    asked: Any = Asked()
    bench = Bench(asked, devices.parse("cpu"))
    for trainer in ("one.py:A", "two.py:B", "one.py:A"):
        bench.judge(trainer, "gradient", Case(world_size=1, batches=(1,)))
    first, second = [
        [("bind", trainer, START_TIMEOUT_S), ("observe", trainer, HANG_S)] for trainer in ("one.py:A", "two.py:B")
    ]
    assert asked.commands == [*first, *second, ("observe", "one.py:A", HANG_S)]


@pytest.mark.parametrize(
    ("findings", "judged", "finding"),
    [
        ([], [(0, 2)], ""),
        (["off"], [(0, 2), (0, 8)], ""),
        (["off", "far off"], [(0, 2), (0, 8), (9, 8)], ""),
        # The last two: whether the draws of ranks part the replicas, and whether those of one device make it right.
        (
            ["off", "off", "off", "off", "still off", "", "still off"],
            [(0, 2), (0, 8), (9, 8), (10, 8), (11, 8), (0, 0), (0, 0)],
            "still off",
        ),
    ],
)
def test_in_low_precision_a_finding_must_be_there_in_every_variant(
    findings: list[str], judged: list[tuple[int, int]], finding: str
) -> None:
    asked: Any = Asked(*findings)
    judgement = Bench(asked, devices.parse("cpu")).judge("one.py:A", "low_precision", Case(2, (3,), dtype="bfloat16"))
    assert asked.judged == judged
    assert judgement.finding == finding


class OtherHost:
    """Replaces a group whose second rank is on another host, and sends its file in two parts."""

    parts = ((0,), (1,))

    def __init__(self, state: commands.State) -> None:
        self.state = state

    def request(self, kind: type, command: str, **told: Any) -> list[Any]:
        here = {"bytes": "", "more": False}
        return [here, commands.COMMANDS[command](self.state, **told)]


def test_what_a_rank_of_another_host_saw_is_copied_to_the_host_of_the_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.setenv(FOLDER, str(tmp_path / "there"))
    monkeypatch.setattr(commands, "PART_BYTES", 100)
    state = commands.State(1)
    told = [Observed("here"), Observed(state.keep({"losses": [0.5], "weights": torch.arange(20)}, "ranks"))]
    bench = Bench(SimpleNamespace(folder=tmp_path), devices.parse("cpu"))  # type: ignore[arg-type]
    here, copy = bench.files(OtherHost(state), told)  # type: ignore[arg-type]
    assert here == "here"
    assert torch.equal(kept.read(Path(copy))["weights"], torch.arange(20))
    assert not state.written.exists()
    bench.drop_files()
    assert not Path(copy).exists()


def test_ranks_that_cannot_import_a_trainer_say_so_when_they_are_bound(bench: Bench) -> None:
    job = CaseJob(trainer="nowhere:Nothing", processes="one", devices=("cpu:0",), backend="gloo")
    with pytest.raises(WorkerFailure, match=r"'nowhere:Nothing'.*No module named 'nowhere'"):
        bench.group(1).request(dict, "bind", arm=job)


def test_trainers_of_different_folders_import_their_own_modules(bench: Bench, tmp_path: Path) -> None:
    for name, factor in (("once", 1), ("twice", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "losses.py").write_text(f"FACTOR = {factor}\n")
        (tmp_path / name / "train.py").write_text(SCALED)
    once, twice = (f"{tmp_path / name / 'train.py'}:Scaled" for name in ("once", "twice"))
    case = Case(1, (3,))
    assert not bench.judge(once, "identity", case).finding
    ended, kept = bench.group(1, once), bench.group(1)
    assert bench.group(1, "ddp") is kept is bench.group(1, "tests.mutants.averaged_twice:Mutant")
    assert bench.group(1, f"{tmp_path}/once/other.py:Trainer") is ended
    assert "2 times" in "".join(bench.judge(twice, "identity", case).suspects)
    assert not ended.alive
    assert kept is bench.group(1)


@pytest.mark.parametrize(
    "setting", ["set_grad_enabled(False)", "set_default_dtype(torch.float64)", "set_default_device('meta')"]
)
def test_what_a_trainer_sets_for_its_whole_process_ends_with_its_case(
    bench: Bench, tmp_path: Path, setting: str
) -> None:
    (tmp_path / "sets.py").write_text(SETS.format(setting=setting))
    case = Case(2, (3, 4), net=Net(hidden=(2,), buffer=True))
    for trainer in ("Sets", "Plain"):
        assert bench.judge(f"{tmp_path / 'sets.py'}:{trainer}", "trajectory", case) == RIGHT


HERE = f"{__name__}:"
CASES = {
    "refusals": Case(2, (4, 4), net=Net(hidden=(2,), unused="nowhere")),
    "not_a_number": Case(2, (4, 4), spoiled=0),
    "batch_norm": Case(2, (4,), net=Net(hidden=(2,), norm="batch")),
}


class CallsWhatIsNotThere(DDPTrainer):
    """Wrong: a generated net has no such method, whatever the case."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.model.configure_optimizers()  # type: ignore[attr-defined]
        return super().step(X, y, global_batch_size)


class BreaksOnSeveralDevices(DDPTrainer):
    """Wrong: right on one device, and a name is missing on several."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_world_size() > 1:
            global_batch_size += missing  # type: ignore[name-defined]  # noqa: F821
        return super().step(X, y, global_batch_size)


class RaisesOnRankOne(DDPTrainer):
    """Wrong: one rank raises while the others wait for it."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_rank() == 1:
            raise KeyError("labels")
        return super().step(X, y, global_batch_size)


class RefusesAll(Single):
    """Right: raises on what the checks allow it to refuse, on one device as on several."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        kinds = {type(layer).__name__ for layer in self.net.modules()}
        if bool(X.isnan().any()) or "BatchNorm1d" in kinds or getattr(self.net, "unused", "none") != "none":
            raise ValueError("not trained")
        return super().step(X, y, global_batch_size)


@pytest.mark.parametrize(
    ("trainer", "says", "check"),
    [
        *(("CallsWhatIsNotThere", "has no attribute", check) for check in CASES),
        ("BreaksOnSeveralDevices", "NameError", "refusals"),
        ("RaisesOnRankOne", "KeyError: 'labels'", "refusals"),
    ],
)
def test_a_programming_error_is_no_refusal(bench: Bench, trainer: str, says: str, check: str) -> None:
    judgement = bench.judge(HERE + trainer, check, CASES[check])
    assert says in judgement.finding
    assert "so that this is no refusal" in judgement.finding
    assert judgement.crashed


@pytest.mark.parametrize("check", CASES)
def test_a_trainer_that_raises_on_what_it_may_refuse_passes_with_its_words(bench: Bench, check: str) -> None:
    judgement = bench.judge(HERE + "RefusesAll", check, CASES[check])
    assert judgement.refused
    assert judgement.note.endswith("step 0: ValueError: not trained")


class AlwaysHangs(DDPTrainer):
    """Wrong: rank 0 waits for a collective that no other rank begins."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if dist.get_world_size() > 1 and dist.get_rank() == 0:
            dist.barrier()
        return super().step(X, y, global_batch_size)


def test_the_checks_of_a_trainer_that_always_hangs_end_and_say_that_they_were_not_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default the two deadlines are 60 and 20 s."""
    deadlines: list[float] = []
    for name, seconds in (("HANG_S", 2.0), ("HANG_AGAIN_S", 1.0)):
        monkeypatch.setattr(f"suite.checks.bench.{name}", seconds)
    place = bench.place

    def counted(*arguments: Any) -> Any:
        group, job = place(*arguments)
        request = group.request

        def noted(kind: Any, command: str, timeout_s: float = 0.0, **told: Any) -> Any:
            deadlines.append(timeout_s)
            return request(kind, command, timeout_s, **told)

        monkeypatch.setattr(group, "request", noted)
        return group, job

    monkeypatch.setattr(bench, "place", counted)
    results = [bench.search(HERE + "AlwaysHangs", check) for check in ("gradient", "trajectory", "replicas")]
    assert "no answer to 'observe' within 2 s" in results[0].failure
    assert EMPTY_SHARD not in results[0].suspects  # it hangs on equal shards as well
    assert [bool(result.failure) for result in results[1:]].count(True) <= 1
    assert results[2].not_run == search.NOT_RUN.format(trainer=HERE + "AlwaysHangs", hangs=MOST_HANGS)
    assert sum(deadlines) <= 2.0 + 1.0


UNEQUAL = "only with unequal shards: it is right with minibatches of [2]; a trainer that is never given others says"


class OnEqualShards(MeanOfMeans):
    """Right on the shards that it says it gets."""

    shards: ClassVar[Any] = "equal"


class OnEvenShards(MeanOfMeans):
    """Refuses what it says it does not get."""

    shards: ClassVar[Any] = 2

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        if len(X) % 2 or not len(X):
            raise ValueError(f"{len(X)} samples")
        return super().step(X, y, global_batch_size)


def test_a_failure_of_unequal_shards_names_the_setting(bench: Bench) -> None:
    result = bench.search("tests.support.trainers_under_test:MeanOfMeans", "gradient")
    assert UNEQUAL in result.failure
    assert result.suspects[0].startswith("mean of the shards' means")


def test_a_failure_of_any_shards_does_not(bench: Bench) -> None:
    failure = bench.search("tests.support.trainers_under_test:NoExchange", "trajectory").failure
    assert failure
    assert "unequal shards" not in failure


@pytest.mark.parametrize(("trainer", "said"), [("OnEqualShards", '"equal"'), ("OnEvenShards", "2")])
@pytest.mark.parametrize("check", ["trajectory", "refusals"])
def test_what_a_trainer_says_is_what_it_gets(bench: Bench, trainer: str, said: str, check: str) -> None:
    """In what is drawn and in what is not; the cases of all checks are looked at below."""
    result = bench.search(HERE + trainer, check, examples=6)
    assert not result.failure
    assert EQUAL_ONLY.format(shards=said) in result.notes


@given(st.data(), st.sampled_from(list(draw.CHECKS)), st.sampled_from([1, 2, 5]))
def test_every_case_has_such_shards(data: st.DataObject, check: str, multiple: int) -> None:
    drawn = data.draw(draw.cases(check, 4, "sgd", shards=multiple))
    for case in (drawn, *draw.fixed(check, 4, "samples", multiple)):
        assert all(n and n % (case.world_size * multiple) == 0 for n in case.batches)


def test_minibatches_are_rounded_up() -> None:
    assert Case(3, (1, 3, 7)).with_shards(1).batches == (3, 3, 9)
    assert Case(2, (5,)).with_shards(4).batches == (8,)
