"""Real worker processes: what they answer, how they fail, and that none is left."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from suite.checks.bench import Bench
from suite.processes import failure
from suite.processes.channel import Channel, Ended
from suite.processes.failure import LAST_CALL, WorkerFailure, behind, silent
from suite.processes.group import Group, dismiss
from suite.processes.jobs import Job, Prepared, SetUp, Timed
from suite.processes.pool import Pool
from suite.records.record import CellRecord
from tests.support import records, trainers_under_test
from tests.support.learners import job
from tests.support.processes import all_end, arrives

HERE = f"{trainers_under_test.__file__}:"


@pytest.fixture(scope="module")
def pool(bench: Bench) -> Pool:
    """Return the pool that all tests share; tests/end_to_end/test_processes.py has one that starts torch's agent."""
    dismiss([bench.pool])  # so that the processes of this module's groups can be counted
    return bench.pool


@contextlib.contextmanager
def one_worker(pool: Pool, name: str) -> Iterator[Group]:
    group = pool.launch(name, 1)
    try:
        yield group
    finally:
        group.close()


@pytest.fixture(scope="module")
def dataset(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    with one_worker(pool, "prepare") as group:
        folder = tmp_path_factory.mktemp("digits") / "kept"
        [kept] = group.request(Prepared, "prepare", dataset="digits", data_root="/nowhere", folder=str(folder))
    return kept


def arm(trainer: str, world_size: int, dataset: Prepared, **changes: Any) -> Job:
    """LeNet on digits; `changes` replace fields of the workload."""
    told = job(trainer, world_size, **{"model": "lenet", "init": "xavier", **changes})
    return replace(told, dataset=dataset, lr=0.01)


def workers_end(pool: Pool) -> bool:
    """Wait until all workers of this pool, and what they started, have ended; the launcher stays."""
    launcher, *orphans = sorted(psutil.Process(pool._process.pid).children(), key=psutil.Process.create_time)
    return all_end(child.pid for child in (*launcher.children(recursive=True), *orphans))


def test_one_worker_times_any_precision_and_layout_and_ends(pool: Pool, dataset: Prepared) -> None:
    with one_worker(pool, "fine") as group:
        for name, changes in {
            "plain": {},
            "double": {"precision": "float64"},
            "tf32": {"precision": "tf32", "memory_format": "channels_last"},
        }.items():
            group.request(SetUp, "setup", name=name, arm=arm("single", 1, dataset, **changes))
            assert group.request(Timed, "window", name=name, steps=1)[0].duration_ns > 0
        ours = psutil.Process(pool._process.pid).children(recursive=True)
        listening = [c for process in ours for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        addresses = {c.laddr.ip for c in listening}
        assert addresses == {"127.0.0.1"}, "the store listens on loopback only"
    assert group.ended == Ended("fine")
    assert workers_end(pool)


def torch_version() -> tuple[int, ...]:
    return tuple(map(int, metadata.version("torch").split(".")[:2]))


def test_two_ranks_time_windows_and_a_hang_ends_with_every_ranks_stack(pool: Pool, dataset: Prepared) -> None:
    group = pool.launch("hangs", 2)
    group.request(SetUp, "setup", name="fine", arm=arm("ddp", 2, dataset))
    answers = group.request(Timed, "window", name="fine", steps=2, keeps=True)
    assert [answer.duration_ns > 0 for answer in answers] == [True, True]
    group.request(SetUp, "setup", name="it", arm=arm(HERE + "Hangs", 2, dataset))
    with pytest.raises(WorkerFailure, match="ranks 0, 1: no answer to 'window' within 2 s") as caught:
        group.request(Timed, "window", timeout_s=2.0, name="it", steps=1)
    assert "rank 1, stack" in str(caught.value)
    assert "in step" in str(caught.value)
    pattern = r"collective (\d+) of group 0 \(gloo\), \w+ .*, was not begun by rank 1 \(its last is number (\d+)\)$"
    late = re.search(pattern, caught.value.cause)
    if torch_version() >= (2, 15):  # where its flight recorder is known to be on
        assert late is not None
        assert int(late[1]) > int(late[2])
    assert workers_end(pool)


def test_a_hang_of_a_trainer_that_uses_signals_itself_has_its_stacks(pool: Pool, dataset: Prepared) -> None:
    group = pool.launch("deaf", 2)
    group.request(SetUp, "setup", name="it", arm=arm(HERE + "HangsDeaf", 2, dataset))
    with pytest.raises(WorkerFailure, match="ranks 0, 1: no answer to 'window' within 2 s") as caught:
        group.request(Timed, "window", timeout_s=2.0, name="it", steps=1)
    assert "in step" in str(caught.value)
    if torch_version() >= (2, 15):
        assert "was not begun by rank 1" in caught.value.cause


def test_a_hang_without_stacks_says_why(pool: Pool, dataset: Prepared) -> None:
    group = pool.launch("mute", 2)
    group.request(SetUp, "setup", name="it", arm=arm(HERE + "HangsMute", 2, dataset))
    with pytest.raises(WorkerFailure, match="ranks 0, 1: no answer to 'window' within 2 s") as caught:
        group.request(Timed, "window", timeout_s=2.0, name="it", steps=1)
    says = "it printed no stack: .* or uses signal 40 itself; a trainer must leave that signal alone"
    assert re.fullmatch(f"rank 0: {says}\nrank 1: {says}", "\n".join(caught.value.details))


@pytest.mark.parametrize("trainer", ["KillsRankOne", "RaisesBeforeRankOneIsGone"])
def test_a_killed_rank_is_named_with_its_signal(pool: Pool, dataset: Prepared, trainer: str) -> None:
    group = pool.launch(trainer, 2)
    group.request(SetUp, "setup", name="it", arm=arm(HERE + trainer, 2, dataset))
    how = r"rank 1: its process ended with signal 9 \(SIGKILL\); if memory ran out, which dmesg tells, use a smaller"
    with pytest.raises(WorkerFailure, match=how):
        group.request(Timed, "window", name="it", steps=1)
    assert workers_end(pool)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_ranks_that_end_together_the_first_that_failed_is_named(
    pool: Pool, dataset: Prepared, order: tuple[int, ...]
) -> None:
    """Where the controller is late it sees all connections closed at once."""
    group = pool.launch("together", 2)
    group.request(SetUp, "setup", name="it", arm=arm(HERE + "KillsRankOne", 2, dataset))
    group.post("window", name="it", steps=1)
    assert all_end(group.pids.values())  # meanwhile the controller reads nothing
    group.lost += order
    with pytest.raises(WorkerFailure, match=r"rank 1: its process ended with signal 9"):
        group.collect(Timed, "window")


def test_a_rank_that_has_left_is_named_also_where_its_child_keeps_the_connection(pool: Pool, dataset: Prepared) -> None:
    group = pool.launch("left", 2)
    group.request(SetUp, "setup", name="it", arm=arm(HERE + "LeavesAChildBehind", 2, dataset))
    how = "rank 1: its process ended with exit code 0; a trainer must not end its process"
    with pytest.raises(WorkerFailure, match=how):
        group.request(Timed, "window", timeout_s=3.0, name="it", steps=1)
    assert workers_end(pool)


@pytest.mark.parametrize(
    ("trainer", "cause", "details"),
    [
        ("Warned", "ncclUnhandledCudaError", "init.cc:9 NCCL WARN no NVLS here$"),
        ("Raises", "^rank 0: RuntimeError: the third step is too much", "trainers_under_test.py"),
        ("RaisesUntold", "^rank 0: Untold: its text cannot be made, for its __.* raises KeyError$", "in step"),
        ("ReturnsAPair", r"ContractError: `step` returned tuple: expected .* as one number, or", "^$"),
        ("Diverges", r"the loss is nan after \d more steps; lower lr", "^$"),
    ],
)
def test_an_exception_comes_with_the_traceback_and_warnings_that_explain_it(
    pool: Pool, dataset: Prepared, trainer: str, cause: str, details: str
) -> None:
    with one_worker(pool, trainer) as group:
        group.request(SetUp, "setup", name="it", arm=arm(HERE + trainer, 1, dataset))
        with pytest.raises(WorkerFailure) as caught:
            group.request(Timed, "window", name="it", steps=5)
    assert re.search(cause, caught.value.cause)
    assert re.search(details, "\n".join(caught.value.details))


@pytest.mark.parametrize(
    ("trainer", "ranks", "cause"),
    [
        ("CannotClose", 1, "rank 0: RuntimeError: its feed is gone"),
        ("LeavesTheGroup", 2, "ContractError: `close` destroyed the process group, which it did not make"),
    ],
)
def test_a_trainer_that_cannot_be_closed_fails(
    pool: Pool, dataset: Prepared, trainer: str, ranks: int, cause: str
) -> None:
    group = pool.launch(trainer, ranks)
    group.request(SetUp, "setup", name="it", arm=arm(HERE + trainer, ranks, dataset))
    assert group.request(dict, "close", name="another") == [{}] * ranks
    with pytest.raises(WorkerFailure, match=cause):
        group.request(dict, "close", name="it")


def test_any_text_of_an_exception_can_be_stored_and_shown(pool: Pool) -> None:
    """It has a name that is not UTF-8 (a lone surrogate), control characters, and a megabyte."""
    with one_worker(pool, "says") as group, pytest.raises(WorkerFailure) as caught:
        group.request(dict, "call", function=HERE + "raise_anything", arguments={})
    cause = caught.value.cause
    assert cause.startswith(r"rank 0: RuntimeError: caf\udce9 \x1b[31m red")
    assert "characters left out" in cause
    assert len(str(caught.value)) < 2 * failure.LONGEST
    kept = CellRecord.model_validate(records.cell(reason=cause, details=str(caught.value)))
    assert CellRecord.model_validate_json(kept.model_dump_json()) == kept


def test_an_answer_that_cannot_be_read_is_a_failure_and_ends_its_group(pool: Pool) -> None:
    cause = r"garbled: an answer to 'call' cannot be read: Timed has no fields \['returned'\]"
    with one_worker(pool, "garbled") as group, pytest.raises(WorkerFailure, match=cause):
        group.request(Timed, "call", function="os:getpid", arguments={})
    assert not group.alive
    assert workers_end(pool)


def test_a_rank_that_comes_up_after_its_group_was_asked_to_leave_leaves_too(pool: Pool) -> None:
    late = pool.launch("late", 1)
    assert not late.channels
    dismiss([pool])
    assert late.ended == Ended("late"), "it was not killed"


def test_a_group_is_kept_under_its_name_until_it_fails(pool: Pool) -> None:
    kept = pool.group("kept", 1)
    assert pool.group("kept", 1) is kept
    other = pool.group("other", 1)
    with pytest.raises(WorkerFailure, match="No module named 'nowhere'"):
        kept.request(dict, "call", function="nowhere:nothing", arguments={})
    assert not kept.alive
    fresh = pool.group("kept", 1)
    assert fresh is not kept
    assert pool.group("other", 1) is other
    [answer] = fresh.request(dict, "call", function="os:getpid", arguments={})
    assert answer == {"returned": fresh.pids[0]}
    dismiss([pool, pool])
    assert (fresh.ended, other.ended) == (Ended(fresh.name), Ended(other.name)), "no rank failed"
    assert not fresh.alive
    assert workers_end(pool)


def test_the_first_command_has_time_to_load_torch(pool: Pool) -> None:
    with one_worker(pool, "first") as group:
        asked = {"function": HERE + "wait", "arguments": {"seconds": 1.0}}
        assert group.request(dict, "call", timeout_s=0.1, **asked) == [{"returned": 1.0}]
        with pytest.raises(WorkerFailure, match="no answer to 'call' within 0 s"):
            group.request(dict, "call", timeout_s=0.1, **asked)


def test_answers_that_arrived_before_the_controller_looked_count_although_the_deadline_is_over(pool: Pool) -> None:
    """The controller's process may have been stopped until then."""
    with contextlib.closing(pool.launch("unread", 2)) as group:
        group.request(dict, "call", function="os:getpid", arguments={})
        group.post("call", function="os:getpid", arguments={})
        assert all(arrives(channel) for channel in group.channels.values())
        answers = group.collect(dict, "call", timeout_s=0.0)
        assert answers == [{"returned": group.pids[rank]} for rank in (0, 1)]


def test_a_rank_that_was_up_before_the_controller_looked_counts_although_the_deadline_is_over(pool: Pool) -> None:
    group, deadline = pool.launch("unseen", 1), time.monotonic() + 30
    with contextlib.closing(group):
        before = list(pool._selector.get_map().values())
        while not (new := [key for key in pool._selector.get_map().values() if key not in before]):
            assert pool.wait(deadline)
        [connection] = [key.fileobj for key in new]
        assert isinstance(connection, Channel)
        assert arrives(connection)
        assert not group.channels
        group.start_timeout_s = 0.0
        group.wait_connected()
        assert list(group.channels) == [0]


def test_an_interrupt_while_ranks_are_asked_ends_their_group_and_goes_on(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the answers of those that were asked would be those of the next question."""

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with contextlib.closing(pool.launch("interrupted", 2)) as group:
        group.wait_connected()
        pids = list(group.pids.values())
        with monkeypatch.context() as patch:
            patch.setattr(group.channels[1], "send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                group.post("call", function="os:getpid", arguments={})
        assert not group.alive
        assert all_end(pids)


def test_a_sample_that_is_not_a_number_is_named_where_training_on_it_diverges(pool: Pool, tmp_path: Path) -> None:
    spoilt = "tests.support.learners:spoilt_blobs"
    with one_worker(pool, "spoilt") as group:
        [kept] = group.request(Prepared, "prepare", dataset=spoilt, data_root="", folder=str(tmp_path / "kept"))
        told = replace(job("single"), dataset=kept)
        group.request(SetUp, "setup", name="it", arm=told)
        remedy = f"; repair the data set '{spoilt}', which has nan in train_X, sample 3$"
        with pytest.raises(WorkerFailure, match=f"the loss is nan after 12 more steps{remedy}"):
            group.request(Timed, "window", name="it", steps=12)


def test_a_dataset_smaller_than_the_batch_is_refused(pool: Pool, dataset: Prepared) -> None:
    with one_worker(pool, "small") as group, pytest.raises(WorkerFailure, match="global batch 2000 is above the 1437"):
        group.request(SetUp, "setup", name="it", arm=replace(arm("single", 1, dataset), global_batch=2000))


def test_an_interpreter_without_torch_is_a_clear_error(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    with (
        Pool(kind="cpu", python=str(bare / "bin" / "python")) as pool,
        pytest.raises(WorkerFailure, match="the launcher did not start: ModuleNotFoundError: No module named 'torch'"),
    ):
        pool.launch("torchless", 1)


def test_an_interpreter_that_hangs_while_it_loads_is_ended_and_costs_one_time_out(tmp_path: Path) -> None:
    """And not one for each group."""
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\necho loading >&2\nexec sleep 600\n")
    hangs.chmod(0o755)
    with Pool(kind="cpu", python=str(hangs)) as pool:
        pool.start_timeout_s = 2.0
        first, begun = pool._process.pid, time.monotonic()
        for number in range(4):
            said = "it still loaded torch after 2 s, and said last: loading; run again where an image"
            with pytest.raises(WorkerFailure, match=f"the launcher did not start: {said}"):
                pool.launch(f"group {number}", 1)
        assert time.monotonic() - begun < 6.0
        assert all_end({first, pool._process.pid}, within_s=5)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("two\n\tlines, é, 漢字, 🚀", "two\n\tlines, é, 漢字, 🚀"),
        ("\udce9\x00\x1b\r\u202e", r"\udce9\x00\x1b\r\u202e"),
        ("0123456789" * 3, "01234 [20 characters left out] 56789"),
    ],
)
def test_a_strangers_text_is_made_harmless(text: str, kept: str) -> None:
    assert failure.harmless(text, 10 if len(text) == 30 else failure.LONGEST) == kept


def test_exit_statuses_are_described() -> None:
    assert failure.describe_exit(3) == "exit code 3"
    assert failure.describe_exit(-signal.SIGSEGV) == "signal 11 (SIGSEGV)"
    assert failure.describe_exit(-99) == "signal 99 (unknown)"


def test_a_folder_that_cannot_be_made_names_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"^TMPDIR: \S+: Not a directory; choose another TMPDIR$"):
        Pool(kind="cpu")


def said(number: int, group: str = "0 (gloo)") -> str:
    call = LAST_CALL.format(group=group, number=number, what="all_reduce Float [[10, 5]]")
    return f'Thread 0x1 (most recent call first):\n  File "a.py", line 3 in step\n{call}\n'


def test_the_ranks_that_have_begun_fewer_are_named_with_the_call() -> None:
    [late] = behind({0: said(57), 1: said(56), 2: said(57)})
    assert late == (
        "collective 57 of group 0 (gloo), all_reduce Float [[10, 5]], was not begun by rank 1 (its last is number 56)"
    )
    assert silent("g", [0, 1], "window", 20.0, {0: said(57), 1: said(56)}).cause.endswith(late)


@pytest.mark.parametrize("stacks", [{}, {0: "no recorder"}, {0: said(57)}, {0: said(57), 1: said(57)}])
def test_ranks_that_are_equally_far_add_nothing(stacks: dict[int, str]) -> None:
    assert behind(stacks) == []
    assert silent("g", [0], "window", 20.0, stacks).cause == "rank 0: no answer to 'window' within 20 s, ended"


def test_groups_are_compared_apart() -> None:
    both = said(9, "1 (nccl)") + said(4, "0 (gloo)")
    assert behind({0: both, 1: said(4, "0 (gloo)"), 2: said(8, "1 (nccl)")}) == [
        "collective 9 of group 1 (nccl), all_reduce Float [[10, 5]], was not begun by rank 2 (its last is number 8)"
    ]
