"""Around the sessions of a run: what workers are told, lines of progress, and what is kept where a run is cancelled."""

from __future__ import annotations

import errno
import fcntl
import io
import itertools
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suite.base.sides import SidePool
from suite.plan.cells import PLAIN, Side
from suite.plan.workloads import BUILT_IN
from suite.processes.group import START_TIMEOUT_S
from suite.processes.jobs import Prepared
from suite.properties.answers import About, Described
from suite.records import baselines
from suite.records.files import RecordError
from suite.room.devices import Devices
from suite.run import execute, results
from suite.run.execute import Keeper, RunResult
from suite.run.preparing import prepare
from suite.run.progress import Progress, fitted, phase
from tests.support.measurements import LENET, MACHINE, add_sessions, arm, calibrated, cell, job, run_of, settings


def sides_of(dataset: Prepared, processes: str = "one", deadlines: list[float] | None = None) -> Any:
    """Return the sides of a run whose workers prepare this dataset, and see another version with every trainer."""
    versions = itertools.count(1)

    def ask(side: Side, kind: type[Any], command: str, timeout_s: float, **told: object) -> Described | Prepared:
        if deadlines is not None:
            deadlines.append(timeout_s)
        if kind is Prepared:
            return dataset
        return Described(about=About(processes=processes), versions={"numpy": f"{next(versions)}.26"})

    return SimpleNamespace(
        ask=ask,
        locate=lambda side, name: name,
        apart=lambda side: None,
        dismiss=lambda: None,
        pools={"candidate": SidePool(SimpleNamespace(folder=Path()))},
    )


DIGITS = Prepared(name="digits", folder="", train_samples=256, test_samples=1)


@pytest.mark.parametrize(("mode", "batch", "lr"), [("strong", 256, 0.2), ("weak", 512, 0.3)])
def test_batch_and_rate_follow_the_mode(mode: str, batch: int, lr: float) -> None:
    told = job(arm(2, mode=mode))
    assert (told.global_batch, told.lr) == (batch, pytest.approx(lr, abs=5e-4))
    assert (told.workload.model, told.workload.precision) == (LENET.model, "float32")


def test_a_trainer_that_changes_what_versions_are_seen_costs_nothing() -> None:
    """Its import may put another version of a package in front of the interpreter's own."""
    deadlines = list[float]()
    run = run_of(cell(2), versions={}, clock=lambda: 1000.0, begun_s=0.0)
    prepare(run, sides_of(DIGITS, deadlines=deadlines), [arm(2), arm(2, trainer="scratch")], lambda line: None)
    assert run.versions == {"candidate": {"numpy": "1.26"}}
    assert not run.lost
    assert deadlines == [60.0] * 3, "of a budget that is spent"


def test_ranks_on_gpus_that_exchange_nothing_have_no_communicator() -> None:
    """NCCL takes seconds to make one, and memory on every GPU."""
    on_gpus = settings(devices=Devices("cuda", ("cuda:0", "cuda:1"), ()))
    run, wanted = run_of(cell(2), config=on_gpus, versions={}), [arm(2), arm(2, trainer=PLAIN)]
    prepare(run, sides_of(DIGITS, "per-device"), wanted, lambda line: None)
    assert [run.jobs[each].backend for each in wanted] == ["nccl", "gloo"]


@pytest.mark.parametrize(("trainer", "lost"), [("ddp", True), ("single", True), (PLAIN, True), ("mine.py:Mine", False)])
def test_targets_that_cross_entropy_cannot_take_are_not_tried_by_built_in_trainers(trainer: str, lost: bool) -> None:
    unfit = "its loss is the mean cross-entropy, and y is float32 (n,)"
    prices = replace(DIGITS, name="mine.py:prices", unfit=unfit)
    run, wanted = run_of(cell(2), versions={}, datasets={}), arm(1, trainer=trainer)
    prepare(run, sides_of(prices), [wanted], lambda line: None)
    assert [failure.cause for failure in run.lost.values()] == [
        f"{trainer} cannot train on mine.py:prices: {unfit}; a trainer of your own with a `loss` takes any targets "
        "(docs/your-trainer.md); class labels are int64, y.long()"
    ] * lost


@pytest.mark.parametrize("trainer", ["mine.py:OfSamples", "single", PLAIN])
def test_a_trainer_of_samples_is_refused_for_texts_when_a_worker_has_read_it(trainer: str) -> None:
    """What a class of the user's own trains is not known before; the table's `single` trains both."""
    texts = BUILT_IN["gpt-tiny"]
    wanted = replace(arm(2, trainer=trainer), workload="gpt-tiny")
    run = run_of(replace(cell(2), workload="gpt-tiny"), config=settings(workloads=(texts,)), versions={})
    prepare(run, sides_of(replace(DIGITS, name="texts-tiny", tokens=64)), [wanted], lambda line: None)
    if ".py" not in trainer:
        assert run.jobs[wanted].dataset.tokens == 64
        return
    assert not run.jobs
    message = (
        "mine.py:OfSamples says trains = 'samples', and workload 'gpt-tiny' is made of tokens; "
        "choose another --scaling-workload, or set trains = 'tokens' in the trainer"
    )
    assert run.lost[wanted].cause == message


@pytest.mark.parametrize(
    ("elapsed_s", "longest_s", "deadline_s"), [(0, 900, 120), (0, 20, 20), (30, 900, 90), (110, 900, 60)]
)
def test_a_deadline_is_a_part_of_the_budget(elapsed_s: float, longest_s: float, deadline_s: float) -> None:
    run = run_of(cell(2), config=settings(budget_s=120.0), clock=lambda: elapsed_s, begun_s=0.0)
    assert run.plan.deadline_s(longest_s) == deadline_s


@pytest.mark.parametrize(
    "devices",
    [Devices("cuda", ("cuda:0", "cuda:1"), ()), Devices("cpu", ("cpu", "cpu"), (0, 0), hosts=2)],
    ids=["GPUs", "several hosts"],
)
def test_ranks_that_load_torch_themselves_have_as_long_to_start_when_the_budget_is_spent(devices: Devices) -> None:
    """A profile's sessions go on then; on eight GPUs each starts some forty processes."""
    config = settings(budget_s=120.0, devices=devices)
    run = run_of(cell(2), config=config, clock=lambda: 300.0, begun_s=0.0)
    assert run.plan.deadline_s(START_TIMEOUT_S) == START_TIMEOUT_S


def test_a_folder_that_turns_read_only_while_the_first_record_is_written_is_refused(tmp_path: Path) -> None:
    """The file that was begun cannot be removed, and with it the folder of the run."""

    def begin(folder: Path) -> None:
        (folder / ".record.json.abcd1234").touch()
        raise OSError(errno.EROFS, "Read-only file system")

    with pytest.raises(RecordError, match="Read-only file system; choose another --scaling-report-dir"):
        Keeper(tmp_path / "runs" / "one", begin, print)


def test_ctrl_c_while_the_first_record_is_written_leaves_no_folder(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Keeper(tmp_path / "runs" / "one", interrupted, print)
    assert not list((tmp_path / "runs").iterdir())


def test_a_run_removes_what_killed_runs_had_not_finished_writing(tmp_path: Path) -> None:
    """A file that another process still writes stays, and so does one of the user's."""
    killed, living = tmp_path / "runs" / "killed", tmp_path / "runs" / "living"
    for folder in (killed, living):
        folder.mkdir(parents=True)
        (folder / ".record.json.abcd1234").touch()
    (living / ".notes").touch()
    with (living / ".record.json.abcd1234").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        Keeper(tmp_path / "runs" / "own", lambda folder: (folder / "record.json").touch(), print)
    kept = {str(path.relative_to(tmp_path / "runs")) for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {"own/record.json", "living/.record.json.abcd1234", "living/.notes"}
    assert not killed.exists()


def test_where_no_folder_can_be_written_the_run_says_that_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    keeper = Keeper(tmp_path / "runs" / "one", lambda folder: None, said.append)
    keeper.keep(full)
    assert said == [keeper.problem]
    assert f"neither can {tmp_path} (No space left on device): nothing more is kept; free space" in keeper.problem


def test_a_baseline_is_not_written_through_a_link(tmp_path: Path) -> None:
    """The machine's folder has become a link while the run measured."""
    run = run_of(cell(1), config=settings(report_dir=tmp_path / "reports", accept="yes"))
    add_sessions(run, {arm(1): 0.01})
    result = RunResult(results.to_record(run), tmp_path, run)
    for name in ("reports", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "reports" / MACHINE.key).symlink_to(tmp_path / "elsewhere")
    execute.accept(run.plan.config, result, [], complete=True)
    assert "a link leads out of the report folder" in result.accepted
    with pytest.raises(RecordError, match="a link leads out of the report folder"):
        calibrated(0.01, cell(1)).write(tmp_path / "reports")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_baseline_that_cannot_be_written_is_said_and_is_no_success(tmp_path: Path) -> None:
    """The machine's folder has become a file while the run measured."""
    run = run_of(cell(1), config=settings(report_dir=tmp_path, accept="yes"))
    add_sessions(run, {arm(1): 0.01})
    result = RunResult(results.to_record(run), tmp_path, run)
    (tmp_path / MACHINE.key).touch()
    execute.accept(run.plan.config, result, [], complete=True)
    assert result.accepted == f"not accepted: {tmp_path / MACHINE.key}: File exists; run again when it can be written"
    assert result.problem == result.accepted


def test_a_run_that_was_to_be_accepted_and_is_not_has_a_problem(tmp_path: Path) -> None:
    """Pytest then ends with a status that is not 0."""
    run = run_of(config=settings(report_dir=tmp_path, accept="yes"))
    result = RunResult(results.to_record(run), tmp_path, run)
    execute.accept(run.plan.config, result, [], complete=True)
    assert result.problem == result.accepted == f"not accepted: {baselines.NOTHING_SELECTED}"


EPOCHS = [
    "training ddp, seed 1: epoch 1 of 2; at most 1.0 min left",
    "training ddp, seed 1: epoch 1 of 2, accuracy 0.50 ▅; at most 0.9 min left",
    "training ddp, seed 1: epoch 2 of 2, accuracy 0.90 ▅█; at most 0.8 min left",
]
SEEDS = [*EPOCHS, *(line.replace("seed 1", "seed 2") for line in EPOCHS)]


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("session 2: block 3 of 4; at most 1.0 min left", "session 2"),
        ("training ddp, seed 1: epoch 3 of 4, accuracy 0.9; at most 1 min left", "training ddp, seed 1"),
        ("loading the dataset digits", "loading the dataset digits"),
    ],
)
def test_phase_leaves_out_block_epoch_and_time(line: str, about: str) -> None:
    assert phase(line) == about


@pytest.mark.parametrize(("length", "shown"), [(79, "x" * 79), (80, "x" * 78 + "…"), (200, "x" * 78 + "…")])
def test_line_never_fills_the_last_column_of_a_terminal(length: int, shown: str) -> None:
    assert fitted("x" * length, 80) == shown


def through_pytest(*, isatty: bool, lines: list[str]) -> list[str]:
    """Return what `Progress` writes to a reporter."""
    heard: list[str] = []
    plugins: dict[str, Any] = {
        "terminalreporter": SimpleNamespace(
            isatty=isatty,
            rewrite=lambda text, erase: heard.append(text),
            write=heard.append,
            write_line=heard.append,
            flush=lambda: None,
        ),
        "capturemanager": SimpleNamespace(global_and_fixture_disabled=io.StringIO),
    }
    config: Any = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin=plugins.get),
        get_terminal_writer=lambda: SimpleNamespace(fullwidth=40),
    )
    show = Progress(config)
    for line in lines:
        show(line)
    return heard


def test_a_log_has_one_line_per_training() -> None:
    assert through_pytest(isatty=False, lines=SEEDS) == [f"scaling: {SEEDS[0]}", f"scaling: {SEEDS[3]}"]


def test_terminal_of_pytest_shows_every_epoch_in_one_row() -> None:
    assert [len(line) < 40 for line in through_pytest(isatty=True, lines=EPOCHS)] == [True] * 3


def test_terminal_of_pytest_keeps_a_line_without_the_time_left_whole() -> None:
    plan = "plan: 12 cell(s), each with one base of another commit, at most 3.0 min"
    assert through_pytest(isatty=True, lines=[EPOCHS[0], plan]) == [
        "scaling: training ddp, seed 1: epoch 1…",
        f"scaling: {plan}",
        "\n",
    ]
