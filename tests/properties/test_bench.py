"""What the bench asks of its ranks, and when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from suite.checks.bench import HANG_S, Bench
from suite.processes.failure import WorkerFailure
from suite.processes.folder import FOLDER
from suite.processes.group import START_TIMEOUT_S
from suite.processes.jobs import CaseJob
from suite.properties.answers import RIGHT, About, Described, Judgement, Observed
from suite.properties.case import Case, Net
from suite.rank import commands, kept
from suite.room import devices

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
