"""The summary on a GitHub job's page: appended, never too long, never broken, never a reason to fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from suite.render import markdown
from suite.render.job_summary import LIMIT_BYTES, VARIABLE, fit, publish
from tests.support import records

WHOLE = Path("reports/machine/runs/now/summary.md")
CUT = "**Cut here: GitHub shows 1024 KiB of a step. All of it is in summary.md.**\n"
STACKS = "\n".join(f"## rank 0, line {number}: <details> and | are text here" for number in range(200))


@pytest.fixture(scope="module")
def summary() -> str:
    """A summary with every kind of block: tables, a fold with a fence in it, a fence, lists."""
    cells = [records.cell(id=f"ddp-lenet-strong-{k}", world_size=k) for k in range(1, 40)]
    return markdown.render(records.make(cells=[*cells, records.cell(id="broken", outcome="ERROR", details=STACKS)]))


def test_without_a_job_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert publish("# Scaling\n", WHOLE, {}) == publish("# Scaling\n", WHOLE, {VARIABLE: ""}) == ""
    assert not list(tmp_path.iterdir())


def test_a_summary_is_appended_to_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summary: str) -> None:
    job = tmp_path / "job.md"
    job.write_text("# Built\nin a minute")
    monkeypatch.setenv(VARIABLE, str(job))
    for text in (summary, "half \ud800 a pair\n"):
        assert publish(text, WHOLE) == ""
    assert job.read_text() == f"# Built\nin a minute\n{summary}\nhalf ? a pair\n"


def test_a_long_summary_is_cut_to_what_github_shows_and_says_so(tmp_path: Path, summary: str) -> None:
    job = tmp_path / "job.md"
    job.write_text("x" * (LIMIT_BYTES - 3000))
    assert publish(summary, WHOLE, {VARIABLE: str(job)}) == ""
    assert LIMIT_BYTES - 3000 < job.stat().st_size <= LIMIT_BYTES
    assert job.read_text().endswith(CUT)


def test_a_summary_is_cut_only_between_its_sections(summary: str) -> None:
    whole, kept = summary.encode(), set()
    for most_bytes in range(200, len(whole), 37):
        text = fit(summary, most_bytes, WHOLE)
        assert len(text) <= most_bytes
        if text:
            begun, _, _ = text.decode().partition(CUT)
            assert text.decode() == begun + CUT
            kept.add(begun)
    for begun in kept:  # the lines of the stacks look like headings and folds, and are none
        outside = re.sub("```.*?```", "", begun, flags=re.DOTALL)
        assert summary.startswith(begun)
        assert "```" not in outside
        assert outside.count("<details>") == outside.count("</details>")
    assert len(kept) >= 4
    assert fit(summary, len(whole), WHOLE) == whole


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("full.md", "1048576 of 1048576 bytes are used"),
        (".", "Is a directory"),
        ("none/job.md", "No such file or directory"),
        ("/dev/full", "No space left on device"),
    ],
)
def test_a_summary_that_cannot_be_written_is_a_sentence_and_no_failure(
    tmp_path: Path, summary: str, path: str, why: str
) -> None:
    (tmp_path / "full.md").write_text("x" * LIMIT_BYTES)
    job = tmp_path / path
    assert publish(summary, WHOLE, {VARIABLE: str(job)}) == f"{VARIABLE} {job}: {why}; the summary is only in {WHOLE}"
    assert (tmp_path / "full.md").stat().st_size == LIMIT_BYTES
