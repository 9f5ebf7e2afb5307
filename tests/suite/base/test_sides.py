"""One pool for each interpreter, and a helper for each side; with pools that start nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import reference
import suite
from suite.base import bases, sides
from suite.base.git import CheckoutError
from suite.base.sides import Sides
from suite.plan.config import Base
from tests.support.repositories import Repository


class Answering:
    """A group that repeats what it was asked."""

    def __init__(self, name: str) -> None:
        self.name, self.closed = name, False

    def request(self, kind: type[Any], command: str, timeout_s: float, **told: object) -> list[dict[str, Any]]:
        return [{"by": self.name, "kind": kind, "command": command, **told}]

    def leave(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class Idle:
    """Replaces `suite.processes.pool.Pool` and keeps its arguments and its groups."""

    made: list[Idle]
    hosts = 1

    def __init__(self, **told: Any) -> None:
        self.told, self.closed, self.groups = told, False, dict[str, Answering]()
        self.asked, self.renewed = list[tuple[Any, ...]](), 0
        self.launchers = SimpleNamespace(loading_s=2.0 * len(self.made), next_load_s=4.0 * len(self.made))
        self.folder = Path("scaling-1")
        self.made.append(self)

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def group(self, name: str, size: int, paths: tuple[str, ...], *, spread: bool) -> Answering:
        assert (size, spread) == (1, True)
        name = "-".join([name, *(Path(path).name for path in paths)])
        return self.groups.setdefault(name, Answering(name))

    def paths(self, *asked: Any) -> tuple[str, ...]:
        self.asked.append(asked)
        return tuple(map(str, asked[0]))

    def renew(self) -> None:
        self.renewed += 1


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Idle]:
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
            assert (made.apart("base"), made.locate("base", "mine.py:Mine")) == (None, "mine.py:Mine")
        assert [pool.closed for pool in pools] == [True]

    def test_another_interpreter_has_a_pool_with_the_same_code(self, pools: list[Idle], tmp_path: Path) -> None:
        with Sides("cuda", tmp_path) as made:
            made.add("base", Base("python", "python3.12", python="/usr/bin/python3.12"))
            assert made.pools["base"] is not made.pools["candidate"]
            assert made.apart("base") is None
            made.renew()
        candidate, base = pools
        assert base.told == {**candidate.told, "python": "/usr/bin/python3.12"}
        assert base.told["kind"] == "cuda"
        assert (candidate.closed, base.closed) == (True, True)
        assert (candidate.renewed, base.renewed) == (1, 1), "a new template for a session"
        assert (made.loading_s, made.next_load_s) == (2.0, 4.0), "of both at the same time"

    def test_another_commit_has_its_own_files_in_the_same_pool(
        self, older: Sides, pools: list[Idle], repository: Repository
    ) -> None:
        [pool] = pools
        told = {"kind": "cpu", "python": sys.executable, "import_paths": [repository.path] * 2}
        assert pool.told == told | {"templates": "renewed", "hosts": None}
        [([folder], reference_path, _)] = pool.asked
        assert (folder / "mine.py").read_text() == "version = 1\n"
        assert older.pools["base"].paths == (str(folder),)
        assert older.pools["candidate"].paths == ()
        assert reference_path == Path(reference.__path__[0]), "only this project's own is under test"

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
        apart = older.apart("base")
        assert apart is not None
        assert apart.candidate_root == str(repository.path.resolve())
        assert apart.checkout == str(folder)
        assert suite.__path__[0] in apart.allowed
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
    """One worker of a side for questions."""

    def test_one_worker_answers_all_questions(self, older: Sides, pools: list[Idle]) -> None:
        assert older.start_s == 0.0
        helper = f"helper-{Path(older.pools['base'].paths[0]).name}"
        answer = older.ask("base", dict, "describe", trainer="ddp")
        assert answer == {"by": helper, "kind": dict, "command": "describe", "trainer": "ddp"}
        start_s = older.start_s
        assert start_s > 0.0
        older.ask("base", dict, "prepare")
        assert older.start_s == start_s, "the first answer's"
        assert [list(pool.groups) for pool in pools] == [[helper]]

    def test_all_helpers_end_before_anything_is_timed(self, older: Sides, pools: list[Idle]) -> None:
        older.ask("candidate", dict, "describe")
        older.ask("base", dict, "describe")
        helpers = list(pools[0].groups.values())
        assert [helper.closed for helper in helpers] == [False, False]
        older.dismiss()
        assert [helper.closed for helper in helpers] == [True, True]

    @pytest.mark.parametrize("error", [None, KeyboardInterrupt])
    def test_workers_may_leave_at_the_end_unless_it_is_an_error(
        self, error: type[BaseException] | None, pools: list[Idle], tmp_path: Path
    ) -> None:
        with contextlib.suppress(KeyboardInterrupt), Sides("cpu", tmp_path) as made:
            made.ask("candidate", dict, "describe")
            if error is not None:
                raise error
        [pool] = pools
        assert (pool.groups["helper"].closed, pool.closed) == (error is None, True)
