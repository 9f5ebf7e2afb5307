"""Pools by interpreter and by checkout, and the clerks that answer for them; with pools that start nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

import reference
import suite
from suite.base import bases, sides
from suite.base.checkout import CheckoutError
from suite.base.sides import Clerk, Sides
from suite.plan.base import Base
from suite.processes.failure import WorkerFailure
from tests.support.repositories import Repository


class Answering:
    """A group that answers with what it was asked, unless it is to break."""

    def __init__(self, pool: Idle, name: str) -> None:
        self.pool, self.name, self.closed = pool, name, False

    def wait_connected(self) -> None:
        if self.pool.stillborn:
            raise WorkerFailure(self.name, "rank 0: no answer to 'start'")

    def request(self, command: str, timeout_s: float, **told: object) -> list[dict[str, Any]]:
        if command == "break":
            raise WorkerFailure(self.name, "rank 0: gone")
        return [{"by": self.name, "command": command, **told}]

    def close(self) -> None:
        self.closed = True


class Idle:
    """In the place of `suite.processes.pool.Pool`; keeps what it was made from."""

    made: list[Idle]
    stillborn = False

    def __init__(self, **told: Any) -> None:
        self.told, self.closed, self.groups = told, False, list[Answering]()
        self.folder = Path("scaling-1")
        self.made.append(self)

    def __enter__(self) -> Idle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True

    def launch(self, name: str, size: int) -> Answering:
        self.groups.append(Answering(self, name))
        return self.groups[-1]


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Idle]:
    """Every pool that is opened."""
    monkeypatch.setattr(Idle, "made", [], raising=False)
    monkeypatch.setattr(sides, "Pool", Idle)
    return Idle.made


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A project where the user stands: a trainer in two versions, and one that is new."""
    made = Repository(tmp_path / "project")
    made.commit({"mine.py": "version = 1\n"})
    made.commit({"mine.py": "version = 2\n", "new.py": ""})
    monkeypatch.chdir(made.path)
    return made


@pytest.fixture
def older(pools: list[Idle], repository: Repository) -> Iterator[Sides]:
    """With the older commit as base."""
    with Sides("cpu", repository.path) as made:
        made.add("base", bases.of_ref("HEAD~1", repository.path))
        yield made


class TestPools:
    """One for each interpreter and each checkout."""

    @pytest.mark.parametrize("base", [Base("self", "the same build"), Base("trainer", "ddp", trainer="ddp")])
    def test_the_same_code_and_interpreter_share_one(self, base: Base, pools: list[Idle], tmp_path: Path) -> None:
        with Sides("cpu", tmp_path) as made:
            assert made.add("base", base) == ()
            assert made.pools["base"] is made.pools["candidate"]
            assert made.clerk("base") is made.clerk("candidate")
            assert (made.apart("base"), made.locate("base", "mine.py:Mine")) == (None, "mine.py:Mine")
        assert [pool.closed for pool in pools] == [True]

    def test_another_interpreter_has_its_own_with_the_same_code(self, pools: list[Idle], tmp_path: Path) -> None:
        with Sides("cuda", tmp_path) as made:
            made.add("base", Base("python", "python3.12", python="/usr/bin/python3.12"))
            assert made.clerk("base") is not made.clerk("candidate")
            assert made.apart("base") is None
        candidate, base = pools
        assert base.told == {**candidate.told, "python": "/usr/bin/python3.12"}
        assert base.told["kind"] == "cuda"
        assert (candidate.closed, base.closed) == (True, True)

    def test_another_commit_has_its_own_files(self, older: Sides, pools: list[Idle], repository: Repository) -> None:
        candidate, base = pools
        [folder] = base.told["import_paths"]
        assert (folder / "mine.py").read_text() == "version = 1\n"
        assert candidate.told["import_paths"] == [repository.path, repository.path]
        assert (base.told["python"], base.told["kind"]) == (sys.executable, "cpu")
        assert base.told["reference_path"] == Path(reference.__path__[0]), "only this project's own is under test"

    def test_a_commit_names_trainers_by_its_own_files(self, older: Sides, pools: list[Idle]) -> None:
        [folder] = pools[1].told["import_paths"]
        assert older.locate("base", "mine.py:Mine") == f"{folder}/mine.py:Mine"
        assert older.locate("candidate", "mine.py:Mine") == "mine.py:Mine"
        assert older.locate("base", "ddp") == "ddp"
        with pytest.raises(CheckoutError, match=r"'new.py:New': HEAD~1 \(\w{7}\) has no file new.py"):
            older.locate("base", "new.py:New")

    def test_a_commits_workers_are_told_what_they_must_not_run(
        self, older: Sides, pools: list[Idle], repository: Repository
    ) -> None:
        [folder] = pools[1].told["import_paths"]
        found = older.apart("base")
        assert found is not None
        assert found["candidate_root"] == str(repository.path.resolve())
        assert {str(folder), suite.__path__[0]} <= set(found["allowed"])
        assert older.apart("candidate") is None

    def test_nothing_is_left_behind(self, pools: list[Idle], repository: Repository) -> None:
        """Neither where the campaign ends, nor where it breaks."""
        folders = []
        for error in (None, KeyboardInterrupt):
            pools.clear()
            try:
                with Sides("cpu", repository.path) as made:
                    made.add("base", bases.of_ref("HEAD~1", repository.path))
                    folders += pools[1].told["import_paths"]
                    assert folders[-1].is_dir()
                    if error is not None:
                        raise error
            except KeyboardInterrupt:
                pass
            assert all(pool.closed for pool in pools)
        assert len(folders) == 2
        assert not any(folder.exists() for folder in folders)

    def test_a_commit_that_is_gone(self, pools: list[Idle], repository: Repository) -> None:
        with Sides("cpu", repository.path) as made:
            with pytest.raises(CheckoutError, match="base v1: its commit ffffffffffff cannot be checked out"):
                made.add("base", Base("ref", "v1", commit="f" * 40))
            assert made.pools.keys() == {"candidate"}

    def test_datasets_lie_with_the_candidate(self, older: Sides, pools: list[Idle]) -> None:
        assert older.folder is pools[0].folder


class TestClerk:
    """One worker for questions, as long as it lives."""

    def test_one_worker_answers_all(self, pools: list[Idle]) -> None:
        clerk = Clerk(Idle())  # type: ignore[arg-type]
        assert clerk.start_s == 0.0
        assert clerk.ask("describe", trainer="ddp") == {"by": "clerk-1", "command": "describe", "trainer": "ddp"}
        assert clerk.ask("prepare")["by"] == "clerk-1"
        assert clerk.start_s > 0.0

    def test_a_question_that_ends_it_costs_that_question_alone(self, pools: list[Idle]) -> None:
        clerk = Clerk(Idle())  # type: ignore[arg-type]
        clerk.ask("describe")
        with pytest.raises(WorkerFailure, match="clerk-1: rank 0: gone"):
            clerk.ask("break")
        assert clerk.ask("describe")["by"] == "clerk-2"

    def test_one_that_does_not_start_is_replaced_too(self, pools: list[Idle], monkeypatch: pytest.MonkeyPatch) -> None:
        clerk = Clerk(Idle())  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(Idle, "stillborn", True)
            with pytest.raises(WorkerFailure, match="clerk-1: rank 0: no answer to 'start'"):
                clerk.ask("describe")
        assert clerk.ask("describe")["by"] == "clerk-2"

    def test_all_leave_before_anything_is_timed(self, older: Sides, pools: list[Idle]) -> None:
        older.clerk("candidate").ask("describe")
        older.clerk("base").ask("describe")
        groups = [pool.groups[0] for pool in pools]
        assert [group.closed for group in groups] == [False, False]
        older.dismiss_clerks()
        assert [group.closed for group in groups] == [True, True]
        assert older.clerk("base").ask("describe")["by"] == "clerk-2"
