"""One pool for each interpreter, and a helper for each side; with pools that start nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import reference
import suite
from suite.base import bases, sides
from suite.base.checkout import CheckoutError
from suite.base.sides import Helper, Sides
from suite.plan.base import Base
from suite.processes.failure import WorkerFailure
from tests.support.repositories import Repository


class Answering:
    """A group that repeats what it was asked; "break" and a `stillborn` pool fail."""

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
    """Replaces `suite.processes.pool.Pool` and keeps its arguments."""

    made: list[Idle]
    stillborn = False

    def __init__(self, **told: Any) -> None:
        self.told, self.closed, self.groups = told, False, list[Answering]()
        self.asked, self.renewed = list[tuple[Any, ...]](), 0
        self.folder = Path("scaling-1")
        self.made.append(self)

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def launch(self, name: str, size: int, paths: tuple[str, ...] = ()) -> Answering:
        self.groups.append(Answering(self, name))
        return self.groups[-1]

    def paths(self, *asked: Any) -> tuple[str, ...]:
        self.asked.append(asked)
        return tuple(map(str, asked[0]))

    def renew(self) -> None:
        self.renewed += 1


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
    def test_the_same_code_and_interpreter_share_a_pool(self, base: Base, pools: list[Idle], tmp_path: Path) -> None:
        with Sides("cpu", tmp_path) as made:
            assert made.add("base", base) == ()
            assert made.pools["base"] == made.pools["candidate"]
            assert made.helper("base") is made.helper("candidate")
            assert (made.apart("base"), made.locate("base", "mine.py:Mine")) == (None, "mine.py:Mine")
        assert [pool.closed for pool in pools] == [True]

    def test_another_interpreter_has_a_pool_with_the_same_code(self, pools: list[Idle], tmp_path: Path) -> None:
        with Sides("cuda", tmp_path) as made:
            made.add("base", Base("python", "python3.12", python="/usr/bin/python3.12"))
            assert made.helper("base") is not made.helper("candidate")
            assert made.apart("base") is None
        candidate, base = pools
        assert base.told == {**candidate.told, "python": "/usr/bin/python3.12"}
        assert base.told["kind"] == "cuda"
        assert (candidate.closed, base.closed) == (True, True)

    def test_another_commit_has_its_own_files_in_the_same_pool(
        self, older: Sides, pools: list[Idle], repository: Repository
    ) -> None:
        [pool] = pools
        assert pool.told == {"kind": "cpu", "python": sys.executable, "import_paths": [repository.path] * 2}
        [([folder], reference_path, _)] = pool.asked
        assert (folder / "mine.py").read_text() == "version = 1\n"
        assert older.pools["base"].paths == (str(folder),)
        assert older.pools["candidate"].paths == ()
        assert older.folder is pool.folder
        assert reference_path == Path(reference.__path__[0]), "only this project's own is under test"

    def test_every_interpreter_gets_a_new_template_for_a_session(self, pools: list[Idle], tmp_path: Path) -> None:
        with Sides("cpu", tmp_path) as made:
            made.add("base", Base("python", "python3.12", python="/usr/bin/python3.12"))
            made.renew()
        assert [pool.renewed for pool in pools] == [1, 1]

    def test_a_commit_names_trainers_by_its_own_files(self, older: Sides, pools: list[Idle]) -> None:
        [folder] = pools[0].asked[0][0]
        assert older.locate("base", "mine.py:Mine") == f"{folder}/mine.py:Mine"
        assert older.locate("candidate", "mine.py:Mine") == "mine.py:Mine"
        assert older.locate("base", "ddp") == "ddp"
        with pytest.raises(CheckoutError, match=r"'new.py:New': HEAD~1 \(\w{7}\) has no file new.py"):
            older.locate("base", "new.py:New")

    def test_a_commits_workers_are_told_what_they_must_not_run(
        self, older: Sides, pools: list[Idle], repository: Repository
    ) -> None:
        [folder] = pools[0].asked[0][0]
        found = older.apart("base")
        assert found is not None
        assert found.candidate_root == str(repository.path.resolve())
        assert {str(folder), suite.__path__[0]} <= set(found.allowed)
        assert older.apart("candidate") is None

    @pytest.mark.parametrize("error", [None, KeyboardInterrupt])
    def test_nothing_is_left_behind(
        self, error: type[BaseException] | None, pools: list[Idle], repository: Repository
    ) -> None:
        with contextlib.suppress(KeyboardInterrupt), Sides("cpu", repository.path) as made:
            made.add("base", bases.of_ref("HEAD~1", repository.path))
            [folder] = pools[0].asked[0][0]
            assert folder.is_dir()
            if error is not None:
                raise error
        assert all(pool.closed for pool in pools)
        assert not folder.exists()

    def test_a_commit_that_is_gone_is_an_error(self, pools: list[Idle], repository: Repository) -> None:
        with Sides("cpu", repository.path) as made:
            with pytest.raises(CheckoutError, match="base v1: its commit ffffffffffff cannot be checked out"):
                made.add("base", Base("ref", "v1", commit="f" * 40))
            assert made.pools.keys() == {"candidate"}


class TestHelper:
    """One worker for questions, as long as it lives."""

    def test_one_worker_answers_all_questions(self, pools: list[Idle]) -> None:
        helper = Helper(Idle(), "helper")
        assert helper.start_s == 0.0
        assert helper.ask("describe", trainer="ddp") == {"by": "helper-1", "command": "describe", "trainer": "ddp"}
        assert helper.ask("prepare")["by"] == "helper-1"
        assert helper.start_s > 0.0

    def test_a_worker_that_fails_or_does_not_start_is_replaced(self, pools: list[Idle]) -> None:
        pool = Idle()
        helper = Helper(pool, "helper")
        helper.ask("describe")
        with pytest.raises(WorkerFailure, match="helper-1: rank 0: gone"):
            helper.ask("break")
        pool.stillborn = True
        with pytest.raises(WorkerFailure, match="helper-2: rank 0: no answer to 'start'"):
            helper.ask("describe")
        pool.stillborn = False
        assert helper.ask("describe")["by"] == "helper-3"

    def test_all_helpers_end_before_anything_is_timed(self, older: Sides, pools: list[Idle]) -> None:
        older.helper("candidate").ask("describe")
        older.helper("base").ask("describe")
        groups = pools[0].groups
        assert [group.closed for group in groups] == [False, False]
        older.dismiss_helpers()
        assert [group.closed for group in groups] == [True, True]
        assert [group.name for group in groups] == ["helper-candidate-1", "helper-base-1"]
        assert older.helper("base").ask("describe")["by"] == "helper-base-2"
