"""The scripts of docs/evidence: what they draw, keep, refuse and show."""

from __future__ import annotations

import importlib
import random
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from docs.evidence import causes, log, runs
from reference.load import load_object
from reference.trainers import TRAINERS
from suite.properties import contract
from suite.records.record import Record
from suite.verdict import diagnose
from tests.support import records
from tests.support.repositories import Repository

FOLDER = Path(runs.__file__).parent
SCRIPTS = sorted(".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_still_fits_the_suite(script: str) -> None:
    importlib.import_module(f"docs.evidence.{script}")


def line(kind: str, outcome: str, wall_s: float, **changes: Any) -> log.Line:
    code = {"commit": "c1", "trees": ["a", "b"], "dirty": False}
    about = {"cells": {"a": [outcome, None, ""]}, "neighbour": False, "window_sd": None}
    return {"kind": kind, "outcome": outcome, "wall_s": wall_s, **code, **about, **changes}


def run_record() -> Record:
    """Return a record of one cell beside its base, whose blocks visit candidate, base, base, candidate."""
    arm = {"workload": "lenet", "mode": "strong", "world_size": 2, "global_batch": 256, "lr": 0.1}
    arm |= {"processes": "per-device", "steps_per_window": 2, "seed": 1}
    arms = [{**arm, "id": side, "side": side, "trainer": "ddp"} for side in ("candidate", "base")]
    order = [("candidate", 0), ("base", 0), ("base", 0), ("candidate", 0), ("base", 1), ("candidate", 1)]
    windows = [
        {"arm": side, "block": block, "duration_ns": [1_000, 60_000_400 + 2_000_000 * number]}
        for number, (side, block) in enumerate(order)
    ]
    about = {"number": 0, "started_utc": "2026-01-01T00:00:00+00:00", "wall_s": 12.0, "left_out": [1]}
    ratio = {"estimate": 1.1, "low": 1.05, "high": 1.15}
    cell = records.cell(id="ddp-lenet-strong-2", world_size=2, outcome="FAIL", reason="slower", slowdown=ratio)
    return records.make(arms=arms, cells=[cell], sessions=[{**about, "windows": windows}], accuracies=[])


def test_a_rate_has_its_exact_interval() -> None:
    """0 of 30 bound a rate at 1 - 0.025 ** (1 / 30) = 11.6 %."""
    assert log.rate(0, 30) == "0.0% [0.0%, 11.6%]"
    assert log.rate(0, 0) == "-"


class TestLog:
    """A line a run."""

    def test_a_torn_line_is_named_and_loses_no_other(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.jsonl"
        assert log.read_log(path) == []
        log.append(path, {"run": 1})
        with path.open("a") as file:
            file.write('{"run": 2, "outc')
        log.append(path, {"run": 3})
        with pytest.raises(ValueError, match=r"line 2: not JSON .*; remove the line"):
            log.read_log(path)

    def test_runs_of_other_code_are_refused(self) -> None:
        here = {"commit": "c2", "trees": ["a", "b"], "dirty": False}
        log.check_same_code([line("10", "FAIL", 1.0)], here)  # another commit of the same code
        with pytest.raises(ValueError, match=r"uncommitted changes.*commit, or --mixed"):
            log.check_same_code([], here | {"dirty": True})
        for other in ({"trees": ["a", "x"]}, {"dirty": True}):
            with pytest.raises(ValueError, match=r"runs of other code \(commit c1\): name another --log"):
                log.check_same_code([line("10", "FAIL", 1.0, **other)], here)

    def test_the_state_of_the_code_is_that_of_its_folders(self, tmp_path: Path) -> None:
        repository = Repository(tmp_path / "project")
        files = {f"{folder}/file": "1" for folder in (*log.CODE, "docs")}
        repository.commit(files)
        first = log.code_state(repository.path)
        repository.commit({"docs/file": "2"})
        second = log.code_state(repository.path)
        assert (second["trees"], second["dirty"]) == (first["trees"], False)
        assert second["commit"] != first["commit"]
        (repository.path / "suite" / "new").write_text("untracked files can be imported")
        assert log.code_state(repository.path)["dirty"]
        repository.commit({})
        assert log.code_state(repository.path)["trees"] != first["trees"]


class TestRuns:
    """Real runs: what is kept of them, and what is still missing."""

    def test_runs_that_failed_to_run_are_missing(self) -> None:
        wanted = runs.parse_wanted("unchanged=3,10=1")
        assert wanted == {"unchanged": 3, "10": 1}
        done = [line("unchanged", "PASS", 50.0), line("10", "FAIL", 50.0), line("10", "ERROR", 5.0)]
        assert log.missing(done, wanted) == ["unchanged", "unchanged"]
        for wrong in ("7=3", "10", "10=many"):
            with pytest.raises(ValueError, match="KIND one of unchanged, checkout, matrix, matrix-10,"):
                runs.parse_wanted(wrong)

    def test_a_run_is_kept_with_all_its_cells(self) -> None:
        record = run_record()
        [session], [cell] = record.sessions, record.cells
        kept = runs.line_of(record, "10")
        assert (kept["outcome"], kept["planted"], kept["wall_s"]) == ("FAIL", 0.10, 100.0)
        assert (kept["session_s"], kept["window_sd"]) == ([12.0], 0.0624)
        assert (kept["counting_s"], kept["cautions"]) == (0.0, {})
        counted = session.model_copy(update={"counting_s": 2.26})
        other = cell.model_copy(update={"workload": "other", "cautions": ("slow",)})
        two = record.model_copy(update={"cells": (cell, other), "sessions": (counted,)})
        kept = runs.line_of(two, "matrix")
        assert kept["cells"] == {each.id: ["FAIL", [1.1, 1.05, 1.15], "slower"] for each in two.cells}
        assert (kept["counting_s"], kept["cautions"]) == (2.3, {other.id: ("slow",)})

    def test_the_table_counts_outcomes_and_times(self) -> None:
        kept = [
            line("unchanged", "PASS", 50.0),
            line("unchanged", "INCONCLUSIVE", 130.0),
            line("unchanged", "FAIL", 40.0),
        ]
        kept += [line("10", "FAIL", 50.0), line("10", "FAIL", 70.0), line("10", "ERROR", 10.0)]
        rows = runs.table(kept).splitlines()
        assert rows[2] == "| unchanged | 3 | 1 | 1 | 1 | 0 | 66.7% [9.4%, 99.2%] | 67% | 50 | 130 | - |"
        assert rows[3] == "| 10 % slower | 3 | 2 | 0 | 0 | 1 | 66.7% [9.4%, 99.2%] | 67% | 50 | 70 | - |"
        assert len({row.count("|") for row in rows}) == 1

    def test_runs_within_a_budget_of_their_own_say_it(self) -> None:
        rows = runs.table([line("10@30", "FAIL", 29.0), line("0@30", "INCONCLUSIVE", 29.0)]).splitlines()
        assert rows[2].startswith("| unchanged, within 30 s | 1 | 0 | 0 | 1 | 0 | 100.0%")
        assert rows[3].startswith("| 10 % slower, within 30 s | 1 | 1 | 0 | 0 | 0 | 100.0%")
        for kind in ("3@120", "0@120"):
            asked = runs.KINDS[kind].options
            assert asked == (*runs.ONE_CELL, "--scaling-tolerance=0.03", "--scaling-budget=120")

    @pytest.mark.parametrize(("outcome", "wanted"), [("PASS", "0.0%"), ("INCONCLUSIVE", "100.0%"), ("FAIL", "100.0%")])
    def test_steps_that_are_slower_on_average_alone_may_not_pass(self, outcome: str, wanted: str) -> None:
        assert f" | {wanted} [" in runs.table([line("intermittent", outcome, 180.0)])

    def test_runs_of_many_cells_and_those_with_a_neighbour_have_their_own_rows(self) -> None:
        cells = {"a": ["PASS", None], "b": ["PASS", None], "c": ["FAIL", None], "d": ["INCONCLUSIVE", None]}
        kept = [line("matrix", "FAIL", 50.0, cells=cells, neighbour=busy, window_sd=0.0512) for busy in (True, False)]
        rows = runs.table(kept).splitlines()
        assert rows[2] == "| matrix | 1 | 1 | 0 | 0 | 0 | 0.0% [0.0%, 97.5%] | 75% | 50 | 50 | 5.1% |"
        assert rows[3].startswith("| matrix, with a neighbour | 1 | 1 |")

    def test_of_several_cells_only_the_slower_ones_may_fail(self) -> None:
        cells = {"a": ["FAIL", None], "b": ["PASS", None]}
        kept = [line("matrix-10", "FAIL", 50.0, cells=cells, slower=slower) for slower in (["a"], ["b"])]
        assert "| matrix, one cell 10 % slower | 2 | 2 | 0 | 0 | 0 | 50.0%" in runs.table(kept)

    def test_a_script_is_made_slower_in_its_step(self, tmp_path: Path) -> None:
        script = tmp_path / "digits.py"
        script.write_text((log.ROOT / runs.SCRIPT).read_text())
        runs.plant_in_script(script, 0.1)
        step = script.read_text().partition("begun = clock()")[2]
        assert step.index(runs.FIRST) < step.index(runs.LAST) < step.index("until = clock() + 0.1 * (clock() - begun)")
        compile(script.read_text(), script, "exec")

    def test_the_net_of_the_script_is_a_workload_that_both_sides_have(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clone = Repository(tmp_path / "clone")
        clone.commit({"pyproject.toml": "[project]\n"})
        runs.add_workload(clone.path)
        assert clone.git("status", "--porcelain") == ""
        monkeypatch.chdir(clone.path)
        settings = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["scaling"]["workloads"]["net"]
        (X, y), _ = load_object(settings["dataset"])()
        assert load_object(settings["model"])()(X[:2]).shape == (2, 10)
        assert (len(X), y.shape) == (1500, (1500,))

    @pytest.mark.parametrize("ids", runs.plantable(), ids=lambda ids: ids[0])
    def test_a_cell_is_made_slower_and_no_other(
        self, ids: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A module with a right class in it, and a `slowed` that tells which of the two steps is taken."""
        (trainer, _, mode, size), asked = ids[0].rsplit("-", 3), []
        module, _, name = TRAINERS[trainer].partition(":")

        def slowed(spec: str, share: float, at: int) -> type:
            asked.append((spec, share, at))
            return type("Slow", (), {"step": lambda *_: "slow"})

        monkeypatch.setattr("suite.rank.planting.slowed", slowed)
        file = (tmp_path / module.replace(".", "/")).with_suffix(".py")
        file.parent.mkdir(parents=True)
        file.write_text(f"class {name}:\n    def step(self, *_): return 'right'\n")
        runs.plant_in_cell(tmp_path, ids, 0.1)
        made = runpy.run_path(str(file))[name]()
        of_mode = {"strong": ["slow", "slow", "right"], "weak": ["right", "right", "slow"]}[mode]
        assert [made.step(None, None, batch) for batch in (96, 256, 512)] == (["slow"] * 3 if size == "1" else of_mode)
        assert asked == [(f"{module}:{name}", 0.1, int(size))]

    def test_every_kind_is_a_trainer(self, tmp_path: Path) -> None:
        planted = tmp_path / "planted.py"
        planted.write_text(runs.PLANTED)
        for kind in runs.KINDS.values():
            if kind.in_clone:
                continue
            assert contract.describe(contract.load_trainer(f"{planted}:{kind.trainer}")).processes == "per-device"
        assert f'slowed("ddp", {runs.KINDS["10"].planted:.2f}, at=2)' in runs.PLANTED

    def test_a_run_without_a_record_says_what_pytest_said(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match=r"exit status 4 and 0 records(.|\n)*--scaling-mode 'sideways'"):
            runs.one_run("unchanged", tmp_path, options=("--scaling-mode", "sideways"))

    def test_the_script_goes_on_where_the_log_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path, kept, made = tmp_path / "runs.jsonl", tmp_path / "kept", []
        kept.mkdir()

        def one_run(name: str, folder: Path, *_: object, busy: bool) -> log.Line:
            if len(made) == 2:
                raise KeyboardInterrupt
            assert not busy, "only runs in a clone have a neighbour"
            made.append(name)
            record = folder / f"reports/KEY/runs/{len(made)}-{name}/record.json"
            record.parent.mkdir(parents=True)
            record.touch()
            return {"kind": name, "outcome": "PASS", "wall_s": 1.0}

        monkeypatch.setattr(runs, "one_run", one_run)
        monkeypatch.setattr(log, "code_state", lambda: {"commit": "c", "trees": [], "dirty": False})
        monkeypatch.setattr(
            sys, "argv", ["runs", "--log", str(path), "--records", str(kept), "--wanted", "unchanged=2,10=1"]
        )
        with pytest.raises(SystemExit, match="the run in progress is not kept"):
            runs.main()
        assert [entry["kind"] for entry in log.read_log(path)] == made
        assert sorted(path.name for path in kept.iterdir()) == [f"{n}-{name}.json" for n, name in enumerate(made, 1)]
        made.clear()
        runs.main()
        assert sorted(entry["kind"] for entry in log.read_log(path)) == ["10", "unchanged", "unchanged"]


OF_CODE = {"commit": "c", "trees": [], "dirty": False}


def cause_record(**changes: Any) -> Record:
    return records.make(cells=[records.cell(waterfalls=[records.waterfall(**changes)])])


def cause_line(planted: str, right: str, largest: str, named: str | None = None) -> log.Line:
    bars = {name: [0.0, -1.0, 1.0] for name in diagnose.CAUSES}
    said = {"kind": planted, "right": [right], "largest": [largest], "named": named and [named]}
    return {**said, "ideal_ms": 30.0, "measured_ms": 50.0, "bars_ms": bars, "wall_s": 110.0, **OF_CODE}


@pytest.mark.parametrize("name", causes.CAUSES)
def test_what_is_right_to_name_is_a_cause_and_the_largest_delay(name: str) -> None:
    cause, rng = causes.CAUSES[name], random.Random(1)
    seen = set()
    for _ in range(50):
        delays_s, right = causes.draw(cause, rng)
        seen |= set(right)
        assert set(delays_s) == set(cause.delayed)
        assert set(right) <= set(diagnose.CAUSES)
        if cause.delayed and not cause.own:
            largest, *others = sorted(delays_s.values(), reverse=True)
            assert delays_s[right[0]] == largest
            assert causes.DELAY_S[0] <= largest <= causes.DELAY_S[1]
            assert all(largest >= 1.49 * other for other in others)
    assert seen == {*cause.own, *cause.delayed}, "each of two is the larger one in some runs"


def test_a_run_is_kept_with_its_bars_and_what_it_names() -> None:
    kept = causes.line_of("delayed exchange", {"exchange": 0.0056}, ("exchange",), cause_record())
    assert (kept["largest"], kept["named"], kept["delays_ms"]) == (["exchange"], ["exchange"], {"exchange": 5.6})
    assert (kept["ideal_ms"], kept["measured_ms"], kept["taken_apart"]) == (28.0, 34.4, 4)
    assert kept["bars_ms"]["contention + imbalance"][0] == 0.2
    assert causes.is_right(kept, "largest")
    assert causes.is_right(kept, "named")
    assert not causes.is_right({**kept, "right": ["feed"]}, "named")
    assert not causes.is_right({**kept, "largest": ["exchange", "feed"]}, "largest"), "two that are not told apart"


def test_a_run_without_a_waterfall_says_why() -> None:
    with pytest.raises(RuntimeError, match="slow rank: no waterfall"):
        causes.line_of("slow rank", {}, ("imbalance",), records.make(cells=[records.cell()]))


def test_the_table_counts_by_what_was_planted_and_by_how_many() -> None:
    pair = "delayed exchange, slow rank"
    kept = [
        cause_line("slow rank", "imbalance", "imbalance", "imbalance"),
        cause_line("slow loader", "feed", "exchange", None),
    ]
    kept += [cause_line("nothing", "exchange", "exchange"), cause_line(pair, "imbalance", "imbalance", "exchange")]
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ")[1:6] for row in causes.table(kept).splitlines()[2:]}
    assert rows["**one cause**"] == ["2", "50% [1%, 99%]", "1", "0", "1"]
    assert rows["**two causes**"] == rows[pair] == ["1", "100% [3%, 100%]", "0", "1", "0"]
    assert causes.half_width(kept[0]) == 1.0 / 50.0


def test_the_script_goes_on_where_the_log_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = tmp_path / "causes.jsonl", 0

    def one_run(*_: object) -> Record:
        nonlocal made
        if made == 3:
            raise KeyboardInterrupt
        made += 1
        return cause_record()

    monkeypatch.setattr(causes, "one_run", one_run)
    monkeypatch.setattr(log, "code_state", lambda: OF_CODE)
    arguments = ["--log", str(path), "--each", "1"]
    with pytest.raises(SystemExit, match="the run in progress is not kept"):
        causes.main(arguments)
    made = -100
    causes.main(arguments)
    assert sorted(entry["kind"] for entry in log.read_log(path)) == sorted(causes.CAUSES)


EXCHANGE = "exchange takes 0.9 ms [0.2, 1.6] a step longer than the base's (11% longer), after 12 sessions; the cell"
SLOW_TAIL = "a slow tail grew: the slowest tenth of its rounds is 9.0% slower than the base's next to them"


def compared(**changes: Any) -> Record:
    falls = [records.waterfall(side=side) for side in ("candidate", "base")]
    content = {"waterfalls": falls, "slowdown": records.interval(1.02), "outcome": "PASS"}
    return records.make(cells=[records.cell(**content | changes)])


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, set()),
        ({"cautions": [EXCHANGE]}, {"exchange"}),
        ({"cautions": [EXCHANGE, SLOW_TAIL]}, {"exchange", causes.TAIL}),
        ({"cautions": ["efficiency is 3.0% below the base's: gap widened, nothing slower"]}, set()),
    ],
)
def test_what_is_said_to_have_grown_is_a_part_or_the_tail(changes: dict[str, Any], parts: set[str]) -> None:
    kept = causes.grown_line("exchange", compared(**changes))
    assert causes.said(kept) == parts
    assert (kept["outcome"], kept["ratio"], kept["taken_apart"]) == ("PASS", 1.02, 4)
    assert kept["sides_ms"]["candidate"]["exchange"] == kept["sides_ms"]["base"]["exchange"]


def test_only_a_failed_cells_sentence_says_what_grew() -> None:
    sentence = "Against the base, feed takes 1.0 ms [0.5, 1.5] a step longer; the whole takes 1.2 ms [0.9, 1.5] a step"
    falls = [records.waterfall(side="candidate", sentence=sentence)]
    assert causes.said(causes.grown_line("feed", compared(outcome="FAIL", waterfalls=falls))) == {"feed"}
    assert causes.said(causes.grown_line("feed", compared(waterfalls=falls))) == set()


def test_the_table_counts_what_was_said_alone_and_what_was_wrong() -> None:
    both = causes.grown_line("exchange", compared(cautions=[EXCHANGE, SLOW_TAIL]))
    kept = [
        both,
        causes.grown_line("exchange", compared(cautions=[EXCHANGE])),
        causes.grown_line("exchange", compared()),
    ]
    kept += [causes.grown_line("same feed", compared()), causes.grown_line("same feed", compared(cautions=[EXCHANGE]))]
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ")[1:6] for row in causes.grown_table(kept).splitlines()[2:]}
    assert rows == {
        "exchange": ["3", "33% [1%, 91%]", "1", "1", "3 PASS"],
        "same feed": ["2", "50% [1%, 99%]", "1", "1", "2 PASS"],
    }


@pytest.mark.parametrize("name", causes.GROWTHS)
def test_every_kind_runs_next_to_its_base(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[tuple[causes.Cause, tuple[str, ...]]]()

    def one_run(cause: causes.Cause, _: object, __: Path, options: tuple[str, ...]) -> Record:
        made.append((cause, options))
        return compared()

    monkeypatch.setattr(causes, "one_run", one_run)
    monkeypatch.setattr(log, "code_state", lambda: {"commit": "c", "trees": [], "dirty": False})
    causes.main(["--log", str(tmp_path / "log.jsonl"), "--each", "1", "--only", name])
    [(cause, options)] = made
    assert {f"--scaling-against=trainer:{causes.GROWTHS[name].base}", "--scaling-profile=full"} < set(options)
    assert (cause.trainer == causes.GROWTHS[name].base) == name.startswith("same")
    assert causes.GROWTHS[name].part in {*diagnose.CAUSES, causes.TAIL, ""}
    assert [kept["kind"] for kept in log.read_log(tmp_path / "log.jsonl")] == [name]
