"""Correctness checks from the outside: a right trainer passes, wrong ones are named, broken ones end clearly."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings

from suite.checks import __main__ as again
from suite.checks import draw
from suite.checks.bench import MOST_REPLICAS, Bench
from suite.checks.draw import CHECKS
from suite.checks.search import EMPTY_SHARD, UNUSED, SearchResult, describe_failure, ended
from suite.options import CHECKED_TRAINERS
from suite.processes import pool
from suite.processes.failure import WorkerFailure
from suite.processes.group import Group
from suite.properties import trainer
from suite.properties.answers import RIGHT, About, Described, Judgement, Observed
from suite.properties.case import RULES, Case, Net, Text
from suite.rank import kept
from suite.room import devices
from suite.room.devices import Devices
from suite.run import confirming
from tests.support import failing_on_gpus, trainers_under_test
from tests.support.nvml import Scene
from tests.support.project import REPOSITORY, Project

HERE = f"{trainers_under_test.__file__}:"


def search(bench: Bench, name: str, check: str, examples: int = 20) -> SearchResult:
    return bench.search(HERE + name, check, examples=examples)


def test_every_check_has_cases_and_every_case_a_check() -> None:
    assert list(CHECKS) == list(trainer.CHECKS)


@pytest.mark.parametrize("check", [check for check in CHECKS if check not in ("refusals", "resume")])
def test_a_users_right_trainer_passes(bench: Bench, check: str) -> None:
    outcome = search(bench, "ByHand", check, examples=5)
    assert not outcome.failure
    assert outcome.examples > 0 or check in draw.WITH_STATE


def test_a_trainer_that_cannot_be_saved_passes_with_a_note(bench: Bench) -> None:
    note = "not checked: it has no state_dict and load_state_dict of its own"
    assert search(bench, "ByHand", "resume") == SearchResult("", [note], 0)


@pytest.mark.parametrize(
    ("name", "check", "cause"),
    [
        ("MeanOfMeans", "gradient", "mean of the shards' means"),
        ("NoExchange", "gradient", "no exchange: the gradient of one shard alone"),
        ("NoExchange", "replicas", "no exchange: the gradient of one shard alone"),
        ("AdamWithoutExchange", "gradient", "no exchange: the gradient of one shard alone"),
        ("NoExchange", "batch_norm", "fits neither kind of statistics"),
        ("AdamByTheClock", "identity", "two runs of one case on one device end in different weights"),
        ("NormalisesInPlace", "inputs", "step 0 changed its minibatch in place, .* on rank 0"),
        ("LeavesNaN", "inputs", "infinite or not a number"),
        ("LeavesNaN", "gradient", "not a number"),
        ("Raises", "trajectory", r"the trainer raised: rank 0, step 2: RuntimeError: the third step is too much"),
        (
            "RaisesUntold",
            "gradient",
            "the trainer raised: rank 0, step 0: Untold: its text cannot be made, .* raises KeyError",
        ),
        (
            "LeavesTheGroup",
            "gradient",
            "rank .: ContractError: `close` destroyed the process group, which it did not make",
        ),
        ("Diverges", "inputs", "infinite or not a number"),
        ("Diverges", "loss", "add up to nan"),
        ("ForeignReplicas", "gradient", "the model's have"),
        ("NoReplicas", "gradient", "`replicas` is missing"),
        ("RaisesUnreadably", "gradient", r"RuntimeError: caf\\udce9"),
    ],
)
def test_a_wrong_trainer_is_found_and_the_cause_named(bench: Bench, name: str, check: str, cause: str) -> None:
    failure = search(bench, name, check).failure
    assert re.search(cause, failure), failure
    assert failure.encode(), "it can be shown"


def test_a_failure_is_shrunk_and_can_be_pasted(bench: Bench) -> None:
    """13 = 7 + 6 is found as 3 = 2 + 1, the smallest minibatch that two devices share unevenly."""
    mutant = f"{REPOSITORY}/tests/mutants/mean_of_shard_means_one_process.py:Mutant"
    failure = bench.search(mutant, "gradient", examples=20).failure
    assert "smallest case found: 2 device(s), minibatches of [3], float64" in failure
    assert "net {'inputs': 1}" in failure
    command = shlex.split(failure.partition("see it again: ")[2].splitlines()[0])
    assert command[:3] == ["python", "-m", "suite.checks"]
    named, check, case = command[3:]
    right, said = again.put(bench, named, check, Case.from_json(json.loads(case)))
    assert not right
    assert failure.splitlines()[0] in said
    assert "\n  case: 2 device(s), minibatches of [3]" in said


class Answers:
    """A pool and its groups: every case is right, and its world size is noted."""

    parts = ((0,),)

    def __init__(self, **_: object) -> None:
        self.sizes: list[int] = []

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def group(self, name: str, size: int, *, spread: bool) -> Answers:
        return self

    def request(self, kind: type, command: str, timeout_s: float = 0, **told: Any) -> list[Any]:
        if command == "describe":
            processes: Any = "one" if told["trainer"] == "scratch" else "per-device"
            about = About(processes=processes, shares_gpus=told["trainer"] != "fsdp")
            return [Described(about=about, versions={})]
        if command != "observe":
            return [{}]
        self.sizes.append(told["case"]["world_size"])
        return [Observed("file")]

    def request_first(self, kind: type, command: str, **told: Any) -> Judgement:
        return RIGHT


@pytest.mark.parametrize(
    ("trainer", "gpus", "largest", "noted"),
    [("ddp", 1, 4, False), ("fsdp", 1, 1, False), ("fsdp", 2, 2, True), ("fsdp", 8, 4, False)],
)
def test_a_trainer_whose_ranks_need_a_gpu_each_is_checked_on_as_many(
    trainer: str, gpus: int, largest: int, noted: bool
) -> None:
    pool = Answers()
    shown = Devices("cuda", tuple(f"cuda:{index}" for index in range(gpus)), ())
    outcome = Bench(pool, shown).search(trainer, "gradient", examples=20)  # type: ignore[arg-type]
    assert max(pool.sizes) == largest
    assert outcome.notes == [f"two of its ranks cannot share a GPU: checked on {gpus} devices at most"] * noted


def on_gpus(
    project: Project, gpus: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, count: int, *arguments: str
) -> pytest.RunResult:
    """Run checks on so many GPUs, where every case is right."""
    gpus(count)
    monkeypatch.setattr(pool, "Pool", Answers)
    monkeypatch.setattr(confirming, "problem", lambda needed: "")
    return project.inline("-m", "correctness", "--scaling-devices=cuda", "-rs", *arguments, package="suite.checks")


def test_what_one_gpu_cannot_show_is_said_to_be_not_checked(
    project: Project, gpus: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that can share the GPU do; a check that needs several devices is skipped where they cannot."""
    trainers = "--scaling-trainer=fsdp,ddp,scratch"
    result = on_gpus(project, gpus, monkeypatch, 1, trainers, "-k", "gradient or identity")
    result.assert_outcomes(passed=5, skipped=1, deselected=result.parseoutcomes()["deselected"])
    fsdp = "several devices are not checked: one GPU, which two of its ranks cannot share"
    result.stdout.fnmatch_lines([f"SKIPPED * {fsdp}; on one device nothing is wrong"])
    notes = [line for line in result.outlines if "not checked" in line and not line.startswith(("SKIPPED", "scaling"))]
    assert notes == [
        "ddp: NCCL is not checked: one GPU, which all its ranks share, so that they exchange through gloo",
        "scratch: copies between GPUs are not checked: one GPU, which all its replicas share",
        f"fsdp: {fsdp}",
    ]


def test_on_several_gpus_nothing_is_left_unchecked(
    project: Project, gpus: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = on_gpus(project, gpus, monkeypatch, 4, "--scaling-trainer=fsdp,ddp,scratch", "-k", "gradient or identity")
    result.assert_outcomes(passed=6, deselected=result.parseoutcomes()["deselected"])
    assert "not checked" not in result.stdout.str()


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ("cuda:1", "several devices are not checked: one GPU, which two of its ranks cannot share"),
        ("cuda:0,cuda:0,cuda:1", "3 devices are not checked: 2 GPUs, which two of its ranks cannot share"),
    ],
)
def test_a_model_is_not_checked_on_more_devices_than_there_are_gpus(
    project: Project, gpus: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, devices: str, why: str
) -> None:
    own = ("--scaling-trainer=fsdp", "--scaling-workload=tiny", "-k", "own_model")
    result = on_gpus(project, gpus, monkeypatch, 2, f"--scaling-devices={devices}", *own)
    result.assert_outcomes(skipped=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines([f"SKIPPED * {why}"])


@pytest.mark.parametrize(
    ("names", "arguments"),
    [
        (("cpu", "cpu"), []),
        (("cuda:0",), ["--devices", "cuda:1"]),
        (("cuda:0", "cuda:0"), ["--devices", "cuda:0,cuda:0"]),
        (("cuda:3", "cuda:1"), ["--devices", "cuda:3,cuda:1"]),
    ],
)
def test_the_command_that_shows_a_failure_again_names_its_devices(names: tuple[str, ...], arguments: list[str]) -> None:
    used = Devices(names[0].partition(":")[0], names, ())
    said = describe_failure(Bench(cast(Any, None), used), "ddp", "gradient", Case(2, (3,)), Judgement("wrong"))
    command = shlex.split(said.partition("see it again: ")[2])
    assert command[6:] == arguments
    if arguments:
        assert devices.parse(arguments[1]) == used


@pytest.mark.parametrize(
    ("trainer", "error"),
    [
        ("AssertsOnTheDevice", "AcceleratorError: CUDA error: device-side assert triggered"),
        ("AssertsWhenClosed", "AcceleratorError: CUDA error: device-side assert triggered"),
        ("LosesItsCommunicator", "RuntimeError: NCCL AllReduce failed: unhandled cuda error"),
        ("WrapsAnErrorOfNccl", "ValueError: the exchange failed"),
        ("EndedByNcclsWatchdog", "its process ended with signal 6 (SIGABRT)"),
    ],
)
def test_an_error_that_ends_a_process_for_its_gpu_ends_the_group_and_is_not_shrunk(
    bench: Bench, trainer: str, error: str
) -> None:
    """Which errors these are, tests/suite/room/test_accelerator.py has."""
    before = bench.group(1, HERE)
    file = HERE if hasattr(trainers_under_test, trainer) else f"{failing_on_gpus.__file__}:"  # one folder, one group
    outcome = bench.search(file + trainer, "gradient")
    assert error in outcome.failure
    assert outcome.crashed
    assert outcome.examples == 1
    assert not before.alive
    assert not search(bench, "ByHand", "identity", examples=2).failure


def test_only_bugs_that_also_fit_larger_cases_are_named(bench: Bench) -> None:
    """With one sample on two devices, a mean of means and an additional average are the same."""
    failure = search(bench, "MeanOfMeans", "gradient").failure
    assert "minibatches of [1]" in failure
    assert re.findall("looks like: (.*?):", failure) == ["mean of the shards' means"]


def test_a_failure_that_does_not_repeat_is_reported(bench: Bench) -> None:
    failure = search(bench, "WrongOnce", "gradient").failure
    assert "the gradient of" in failure
    assert "not every time: the same case was right when it was put to the trainer again" in failure


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            '{"world_size": 2, "batches": [3], "colour": 1}',
            r"Case has no \['colour'\]: its parts are world_size, batches",
        ),
        ('{"world_size": 2, "batches": [3], "net": {"depth": 2}}', r"Net has no \['depth'\]: its parts are inputs"),
        (
            '{"world_size": 1, "batches": [1], "text": {"depth": 3}}',
            r"Text has no \['depth'\]: its parts are vocabular",
        ),
        ("{", "JSONDecodeError"),
        ("[" * 10**5, "RecursionError"),
        ("[3]", r"ValueError: Case is \[3\]: expected an object of its parts, world_size, batches"),
        ("null", "Case is None: expected an object"),
        ('{"batches": [3]}', "Case has no world_size: expected a whole number from 1 to 64"),
        ('{"world_size": 2, "batches": 5}', "Case.batches is 5: expected a list of at most 100, each a whole number"),
        ('{"world_size": 2, "batches": "abc"}', "Case.batches is 'abc'"),
        ('{"world_size": 2, "batches": [0]}', r"Case.batches is \[0\]"),
        ('{"world_size": 2, "batches": [true]}', r"Case.batches is \[True\]"),
        ('{"world_size": "2", "batches": [3]}', "Case.world_size is '2'"),
        ('{"world_size": 1000000, "batches": [3]}', "Case.world_size is 1000000: expected a whole number from 1 to 64"),
        ('{"world_size": 2, "batches": [3], "seed": 1e400}', "Case.seed is inf"),
        ('{"world_size": 2, "batches": [3], "lr": 0}', "Case.lr is 0: expected a number above 0"),
        ('{"world_size": 2, "batches": [3], "lr": NaN}', "Case.lr is nan"),
        (
            '{"world_size": 2, "batches": [3], "dtype": "load"}',
            "Case.dtype is 'load': expected one of float64, float32",
        ),
        ('{"world_size": 2, "batches": [3], "dtype": []}', r"Case.dtype is \[\]"),
        (
            '{"world_size": 2, "batches": [3], "spoiled": 1}',
            "Case.spoiled is step 1 of 1: expected one of them, from 0",
        ),
        ('{"world_size": 2, "batches": [3], "net": [1]}', r"Case.net is \[1\]: expected an object"),
        ('{"world_size": 2, "batches": [3], "text": "ab"}', "Case.text is 'ab'"),
        ('{"world_size": 2, "batches": [3], "net": {"hidden": [0]}}', r"Net.hidden is \[0\]"),
        ('{"world_size": 2, "batches": [3], "net": {"norm": "rms"}}', "Net.norm is 'rms': expected one of none, layer"),
        ('{"world_size": 2, "batches": [3], "text": {"width": 3}}', "Text.width is 3: expected an even number"),
        ('{"world_size": 2, "batches": [3], "text": {"width": "x"}}', "Text.width is 'x'"),
        (
            '{"world_size": 2, "batches": [3], "net": {"hidden": [16384, 16384]}}',
            "the case has tensors of 268500992 numbers: expected 16777216 at most",
        ),
        ('{"world_size": 2, "batches": [4096], "net": {"classes": 1024}}', "the case has tensors of 1759"),
        (
            '{"world_size": 2, "batches": [4096], "text": {"positions": 1024, "vocabulary": 9999}}',
            "the case has tensors of 4193",
        ),
    ],
)
def test_a_case_that_cannot_be_read_is_refused(case: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        again.main(["scratch", "gradient", case])
    assert re.search(message, capsys.readouterr().err)


def test_a_check_of_an_unknown_name_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        again.main(["scratch", "gradiant", '{"world_size": 2, "batches": [3]}'])
    assert re.search(r"invalid choice: '?gradiant'? \(choose from .*gradient", capsys.readouterr().err)


def test_a_case_is_not_put_to_devices_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit, match="2"):
        again.main(["ddp", "gradient", '{"world_size": 2, "batches": [3]}', "--devices", "cuda"])
    assert "error: --devices cuda: no device found; " in capsys.readouterr().err


def test_the_parts_of_a_case_are_those_that_are_checked() -> None:
    parts = {kind.__name__: [part.name for part in dataclasses.fields(kind)] for kind in (Case, Net, Text)}
    assert {kind: list(rules) for kind, rules in RULES.items()} == parts


@pytest.mark.parametrize("trains", ["samples", "tokens"])
@pytest.mark.parametrize("oracle", ["sgd", "self"])
@pytest.mark.parametrize("check", CHECKS)
def test_every_case_that_is_put_to_trainers_can_be_read(check: str, oracle: str, trains: str) -> None:
    if trains == "tokens" and check in draw.WITHOUT_TEXTS:
        return

    @settings(max_examples=10)
    @given(draw.cases(check, MOST_REPLICAS, oracle, trains))
    def read(case: Case) -> None:
        assert Case.from_json(json.loads(str(case))) == case

    read()
    for case in draw.fixed(check, 2, trains):
        assert Case.from_json(json.loads(str(case))) == case


def test_a_missing_part_of_the_protocol_is_named(bench: Bench) -> None:
    with pytest.raises(WorkerFailure, match="`processes` is missing"):
        search(bench, "NoProcesses", "gradient")


@pytest.mark.nightly
def test_a_hang_ends_its_check_with_stacks_and_the_next_check_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suite.checks.bench.HANG_S", 2.0)
    failure = search(bench, "Hangs", "gradient").failure
    assert "no answer to 'observe' within 2 s" in failure
    assert "rank 1, stack" in failure
    assert "\n  case: " in failure
    assert "in step" in failure
    assert not search(bench, "Same", "gradient", 3).failure


def test_a_killed_rank_is_named(bench: Bench) -> None:
    killed = "rank 1: its process ended with signal 9 (SIGKILL)"
    assert killed in search(bench, "KillsRankOne", "gradient").failure
    right, said = again.put(bench, HERE + "KillsRankOne", "gradient", Case(2, (4,)))
    assert not right
    assert said.startswith(f"{HERE}KillsRankOne, check 'gradient': {killed}")
    assert "\n  case: 2 device(s), minibatches of [4]" in said


@pytest.mark.parametrize(
    ("case", "refused", "looks_like"),
    [
        (Case(2, (4, 4)), False, ()),
        (Case(1, (4, 0)), False, ()),
        (Case(2, (4, 1)), False, (EMPTY_SHARD,)),
        (Case(2, (4, 4), net=Net(unused="somewhere")), False, (UNUSED,)),
        (Case(2, (4, 4), text=Text(unused="somewhere")), False, (UNUSED,)),
        (Case(2, (1, 4), net=Net(unused="somewhere")), True, ()),
    ],
)
def test_ranks_that_end_look_like_what_their_case_has(case: Case, refused: bool, looks_like: tuple[str, ...]) -> None:
    judgement = ended(case, WorkerFailure("ranks-1", "rank 1: no answer", ["its stack"], refused=refused))
    assert judgement == Judgement("rank 1: no answer", looks_like, details="its stack", crashed=True)


def test_one_rank_that_raises_is_a_refusal_although_the_others_hang(bench: Bench) -> None:
    """DistributedDataParallel with a layer that only rank 0 uses: rank 1 raises a step later, rank 0 waits for ever."""
    case = Case(2, (4, 4), net=Net(unused="somewhere"))
    judgement = bench.judge("ddp", "refusals", case)
    assert judgement.refused
    assert re.search(r"(?s)rank 1: step 1: .*finished reduction.*wait for it", judgement.note)


@pytest.mark.parametrize(
    ("name", "check", "says"),
    [
        (
            "LossOfABatch",
            "refusals",
            r"ContractError: .*`loss` takes \(batch: .*: expected def loss\(self, output, y\)",
        ),
        ("LossOfOtherLabels", "batch_norm", r"ContractError: `loss` called with output .* raised IndexError"),
    ],
)
def test_a_loss_that_cannot_be_called_breaks_the_protocol_and_is_no_refusal(
    bench: Bench, name: str, check: str, says: str
) -> None:
    outcome = search(bench, name, check, 10)
    assert re.search(says, outcome.failure), outcome
    assert outcome.crashed


def test_an_exception_of_a_check_itself_is_a_failure_and_no_refusal(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judge without the ranks' parameters raises an exception of its own."""
    files = bench.files

    def forget(group: Group, observed: Sequence[Observed]) -> list[str]:
        for path in map(Path, files(group, observed)):
            kept.write({**kept.read(path), "parameters": []}, path)
        return files(group, observed)

    monkeypatch.setattr(bench, "files", forget)
    outcome = search(bench, "ByHand", "refusals", 3)
    assert "the check could not be applied: rank 0: IndexError" in outcome.failure
    assert outcome.crashed


def test_the_marker_selects_every_check_of_every_trainer_and_nothing_else(project: Project) -> None:
    everything = project.inline("-m", "correctness", "--collect-only", "-q", package="suite.checks")
    everything.stdout.fnmatch_lines([f"*{len(CHECKED_TRAINERS) * len(CHECKS)} tests collected*"])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--scaling-devices=cuda:2", "CUDA: 0 device(s) found, 2 needed*"),
        ("--scaling-require-devices=99999", "CPU: * device(s) found, 99999 needed; lower --scaling-require-devices"),
    ],
)
def test_missing_devices_are_one_failing_item(
    project: Project, monkeypatch: pytest.MonkeyPatch, option: str, said: str
) -> None:
    """A GPU runner without its driver falls back to CPU workers."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = project.inline("-m", "correctness", option, package="suite.checks")
    assert result.ret == 1
    result.assert_outcomes(failed=1, deselected=len(CHECKED_TRAINERS) * len(CHECKS) - 1)
    result.stdout.fnmatch_lines([said])
