"""One list of torch versions, held to everywhere; what is done with two of them; the table."""

from __future__ import annotations

import re
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from suite import options
from suite.cli import versions
from suite.cli.command import Step, Tried
from suite.cli.versions import VERSIONS, Alone
from suite.records.record import Record
from tests.support import records
from tests.support.project import REPOSITORY, Project

LOWEST = {"torch": "2.9", "torchvision": "0.24"}  # the bounds in pyproject.toml


def read(*parts: str) -> str:
    return REPOSITORY.joinpath(*parts).read_text(encoding="utf-8")


class TestTheList:
    """pyproject.toml, tox.ini, the workflow and the page have the versions of `VERSIONS`."""

    def test_it_goes_from_the_lowest_bound_to_the_newest_in_order(self) -> None:
        assert len(VERSIONS) >= 4
        numbers = [tuple(map(int, name.split("."))) for name in VERSIONS]
        assert numbers == sorted(numbers)
        assert next(iter(VERSIONS)) == LOWEST["torch"]
        for name, (torch, torchvision) in VERSIONS.items():
            assert torch.startswith(f"{name}.")
            # torchvision 0.24 goes with torch 2.9, and each later one with the next; 0.29 goes with 2.14 and 2.15.
            assert int(torchvision.split(".")[1]) in (int(name[2:]) + 15, int(name[2:]) + 14)

    def test_pyproject_allows_it(self) -> None:
        wanted = tomllib.loads(read("pyproject.toml"))["project"]["dependencies"]
        assert {f"{package}>={bound}" for package, bound in LOWEST.items()} <= set(wanted)

    def test_tox_has_an_environment_for_each(self) -> None:
        text = read("tox.ini")
        assert f"env_list = torch{{{','.join(VERSIONS)}}}, " in text
        for name, pair in VERSIONS.items():
            pinned = re.findall(rf"torch{re.escape(name)}: (\w+)==(\S+)", text)
            assert pinned == list(zip(("torch", "torchvision"), pair, strict=True))
        assert "uv_resolution = lowest-direct" in text
        assert set(re.findall(r"torch(2\.\d+):", text)) == set(VERSIONS)

    def test_the_workflow_runs_all_of_them(self) -> None:
        [matrix] = re.findall(r"environment: \[(.*)\]", read(".github", "workflows", "ci.yml"))
        environments = matrix.split(", ")
        assert [name for name in environments if name.startswith("torch")] == [f"torch{name}" for name in VERSIONS]
        assert "lowest" in environments

    def test_the_page_names_all_pairs(self) -> None:
        rows = re.findall(r"^\| `torch(\S+)` \| (\S+) \| (\S+) \|$", read("docs", "comparing.md"), re.MULTILINE)
        assert {name: (torch, torchvision) for name, torch, torchvision in rows} == VERSIONS

    @pytest.mark.parametrize("path", [("tox.ini",), ("docs", "ci.md")], ids="/".join)
    def test_no_other_pair_is_pinned(self, path: tuple[str, ...]) -> None:
        pinned = re.findall(r"torch==(\S+)\s+(?:torch[\d.]+: )?torchvision==([\d.]+\d)", read(*path))
        assert pinned
        assert set(pinned) <= set(VERSIONS.values())


def test_each_version_is_tried_alone_and_then_both_in_one_run(tmp_path: Path, project: Project) -> None:
    wanted = versions.steps(("2.9", "2.15"), tmp_path / "here", 60, ["--scaling-trainer=ddp"])
    assert [step.name for step in wanted] == [
        *("make torch2.9", "install torch 2.9.1", "gradients with 2.9", "accuracy with 2.9"),
        *("make torch2.15", "install torch 2.15.0", "gradients with 2.15", "accuracy with 2.15"),
        "2.15 against 2.9",
    ]
    for made in (wanted[0], wanted[4]):
        assert ("--python", sys.executable) in pairwise(made.command), "or uv takes another, even for each"
    last = wanted[-1].command
    assert last[0] == str(tmp_path / "torch2.15" / "bin" / "python")
    assert f"--scaling-against=python:{tmp_path}/torch2.9/bin/python" in last
    for step in wanted:
        if "pytest" in step.command:  # every option exists, and its value is right
            ours = [each for each in step.command if each.startswith("--scaling-") and "against" not in each]
            assert options.read(project.config(*ours)).trainers == ("ddp",)


def compared(**changes: Any) -> Record:
    cells = records.matrix(world_sizes=(1, 2), modes=("strong",))
    cells[0] |= {"slowdown": records.interval(1.01), "sec_per_epoch": records.interval(10.1)}
    cells[1] |= {
        "slowdown": records.interval(1.10),
        "sec_per_epoch": records.interval(6.6),
        "outcome": "FAIL",
        "reason": "10.0% slower",
        "counters": {"candidate": records.counters(2), "base": records.counters(1)},
    }
    return records.make(cells=cells, **changes)


def rows(lines: list[str]) -> dict[str, list[str]]:
    fields = [[field.strip() for field in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {name: others for name, *others in fields}


class TestThePage:
    """What a person decides on."""

    def test_every_figure_has_a_row_and_every_version_a_column(self) -> None:
        trained = records.make(cells=records.matrix(world_sizes=(1, 2), modes=("strong",), accuracy=0.97))
        base, candidate = Alone("2.9", "11 of 11 right", [trained]), Alone("2.15", "10 of 11 right", [trained])
        lines = versions.page(base, candidate, [compared()], [])
        shown = rows(lines)
        assert lines[0] == "# torch 2.15.0 against 2.9.1"
        assert shown["gradients"][:2] == ["11 of 11 right", "10 of 11 right"]
        assert shown["ddp-lenet-strong-2: accuracy"][:2] == ["0.970", "0.970"]
        before, after, ratio = shown["ddp-lenet-strong-2: sec/epoch"]
        assert (before, after.split()[0]) == ("6", "6.6")
        assert ratio.startswith("1.100 [")
        assert ratio.endswith("FAIL")
        before, after, _ = shown["ddp-lenet-strong-2: efficiency"]
        assert before == after
        assert before.startswith("0.90 [")
        assert "all_reduce" in shown["ddp-lenet-strong-2: a step does"][2]
        assert "- FAIL: ddp-lenet-strong-2: 10.0% slower" in lines

    def test_what_is_missing_is_a_dash_and_what_failed_has_its_command_and_its_log(self, tmp_path: Path) -> None:
        (log := tmp_path / "3.log").write_text("before\nE   off by 0.5\n")
        failed = Tried(Step("gradients with 2.9", ("pytest", "-k", "a b"), 1), "exit status 1", log)
        lines = versions.page(Alone("2.9", "-", []), Alone("2.15", "-", []), [], [failed])
        assert rows(lines)["gradients"] == ["-", "-", ""]
        said, _, *shown = lines[-6:]
        assert said == "gradients with 2.9: exit status 1."
        assert shown == ["    $ pytest -k 'a b'", "    before", "    E   off by 0.5", f"    all of it: {log}"]


def test_figures_of_an_earlier_comparison_do_not_stand_in_for_missing_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "2.9-2.15" / "compared" / "machine" / "runs" / "earlier"
    kept.mkdir(parents=True)
    (kept / "record.json").write_text(compared().model_dump_json())
    monkeypatch.setattr(versions, "try_all", lambda wanted, *rest, **more: [])
    versions.main(["2.9", "2.15", "--folder", str(tmp_path)])
    assert "ddp-lenet-strong-2" not in capsys.readouterr().out
    monkeypatch.setattr(versions, "try_all", _measuring)
    versions.main(["2.9", "2.15", "--folder", str(tmp_path)])
    assert "ddp-lenet-strong-2" in capsys.readouterr().out, "and a record of its own does"


def _measuring(wanted: list[Step], folder: Path, *rest: object, **more: object) -> list[Tried]:
    """Leave what the last step would leave."""
    kept = folder / "compared" / "machine" / "runs" / "now"
    kept.mkdir(parents=True)
    (kept / "record.json").write_text(compared().model_dump_json())
    return []


def test_checks_are_counted_from_junit(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text('<testsuites><testsuite tests="11" failures="2" errors="1"/></testsuites>')
    assert versions.checks(tmp_path / "junit.xml") == "8 of 11 right"
    assert versions.checks(tmp_path / "missing.xml") == "-"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["2.9"], "required: candidate"),
        (["2.9", "1.0"], "invalid choice: '1.0'"),
        (["2.9", "2.15", "--budget=0"], "above 0"),
    ],
)
def test_a_wrong_argument_is_a_usage_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        versions.main(arguments)
    assert message in capsys.readouterr().err
