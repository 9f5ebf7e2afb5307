"""The summary on a GitHub job's page: appended, never too long, never broken, never a reason to fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from suite.render import job_summary, markdown
from suite.render.job_summary import LIMIT_BYTES, VARIABLE, fit, publish
from tests.support import records

WHOLE = Path("reports/machine/runs/now/summary.md")
CUT = "Cut here: GitHub shows 1024 KiB of a step. All of it is in summary.md."
STACKS = "\n".join(f"rank 0, line {number}: <details> and | are text here" for number in range(200))


@pytest.fixture(scope="module")
def summary() -> str:
    """A summary with every kind of block: tables, a fold with a fence in it, a fence, lists."""
    cells = [records.cell(id=f"ddp-lenet-strong-{k}", world_size=k) for k in range(1, 40)]
    return markdown.render(records.make(cells=[*cells, records.cell(id="broken", outcome="ERROR", details=STACKS)]))


def broken(text: str) -> list[str]:
    """What is left open in a piece of Markdown, or was never begun."""
    fence, folds = False, 0
    for line in text.splitlines():
        if line.startswith("```"):
            fence = not fence
        elif not fence:
            folds += ("<details" in line) - ("</details" in line)
    tables = [table.splitlines() for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)]
    found = [f"half a row: {table[-1]}" for table in tables if not table[-1].endswith("|")]
    found += [f"no table: {table[0]}" for table in tables if len(table) < 2 or not re.fullmatch(r"[|-]+", table[1])]
    return found + ["an open fence"] * fence + [f"{folds} open folds"] * (folds != 0)


def test_outside_of_a_job_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert publish("# Scaling", WHOLE, {}) == ""
    assert publish("# Scaling", WHOLE, {VARIABLE: ""}) == ""
    assert list(tmp_path.iterdir()) == []


def test_the_jobs_own_variable_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "job.md"))
    assert publish("# Scaling", WHOLE) == ""
    assert (tmp_path / "job.md").read_text() == "# Scaling"


def test_a_summary_goes_below_what_a_step_has_said_before(tmp_path: Path, summary: str) -> None:
    job = tmp_path / "job.md"
    job.write_text("# Built\nin a minute")
    assert publish(summary, WHOLE, {VARIABLE: str(job)}) == ""
    assert publish(summary, WHOLE, {VARIABLE: str(job)}) == ""
    assert job.read_text() == f"# Built\nin a minute\n{summary}\n{summary}"


def test_a_long_summary_is_cut_to_what_github_shows_and_says_so(tmp_path: Path, summary: str) -> None:
    job = tmp_path / "job.md"
    job.write_text("x" * (LIMIT_BYTES - 3000))
    assert publish(summary, WHOLE, {VARIABLE: str(job)}) == ""
    assert LIMIT_BYTES - 300 < job.stat().st_size <= LIMIT_BYTES, "cut, and not by more than a line"
    assert job.read_text().endswith(f"|\n\n**{CUT}**\n"), "after a whole row"


def test_wherever_it_is_cut_nothing_is_broken(summary: str) -> None:
    assert broken(summary) == []
    whole = summary.encode()
    kept = set()
    for room in range(200, len(whole), 37):
        text = fit(summary, room, WHOLE)
        assert len(text) <= room
        if text:
            begun, _, note = text.decode().partition("\n**Cut here")
            assert note
            assert summary.startswith(begun)
            assert broken(begun) == [], begun[-300:]
            kept.add(begun)
    assert len(kept) > 20, "it is cut within tables too, not only between sections"
    assert any(broken(whole[:room].decode()) for room in range(200, len(whole), 37)), "cut anywhere it would be broken"


def test_a_summary_that_fits_is_not_touched(summary: str) -> None:
    size = len(summary.encode())
    assert fit(summary, size, WHOLE) == summary.encode()
    assert fit(summary, size - 1, WHOLE) != summary.encode()


def test_letters_of_several_bytes_are_counted_as_such() -> None:
    text = fit("# µ\n" + "é" * 1000 + "\n", 1000, WHOLE)
    assert len(text) <= 1000
    assert text.decode().startswith("# µ\n\n**Cut here")


def test_a_full_step_is_said_and_left_as_it_is(tmp_path: Path, summary: str) -> None:
    job = tmp_path / "job.md"
    job.write_text("x" * LIMIT_BYTES)
    said = publish(summary, WHOLE, {VARIABLE: str(job)})
    assert said == f"{VARIABLE} {job}: 1048576 of 1048576 bytes are used; the summary is in {WHOLE} alone"
    assert job.stat().st_size == LIMIT_BYTES


def test_a_file_that_cannot_be_written_is_said_and_no_failure(tmp_path: Path, summary: str) -> None:
    said = publish(summary, WHOLE, {VARIABLE: str(tmp_path)})
    assert said == f"{VARIABLE} {tmp_path}: Is a directory; the summary is in {WHOLE} alone"
    missing = tmp_path / "none" / "job.md"
    assert "No such file or directory" in publish(summary, WHOLE, {VARIABLE: str(missing)})


def test_a_full_disk_is_said(summary: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    assert "No space left on device" in publish(summary, WHOLE, {VARIABLE: "/dev/full"})


def test_what_utf_8_cannot_hold_is_replaced(tmp_path: Path) -> None:
    job = tmp_path / "job.md"
    assert job_summary.publish("a \ud800 b\n", WHOLE, {VARIABLE: str(job)}) == ""
    assert job.read_text() == "a ? b\n"
