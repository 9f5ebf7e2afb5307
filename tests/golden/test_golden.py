"""What the judging code makes of real runs stays as it was. A commit that changes it says which, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import FIGURES, RUNS, judged, load


@pytest.mark.parametrize("path", sorted(RUNS.glob("*.json")), ids=lambda path: path.stem)
def test_a_real_run_is_judged_as_before(path: Path) -> None:
    golden = load(path)
    now = judged(golden)
    assert now.keys() == golden["expected"].keys()
    for name, expected in golden["expected"].items():
        cell = now[name]
        assert (cell["outcome"], cell["checks"]) == (expected["outcome"], expected["checks"])
        for figure in FIGURES:
            ends, expected_ends = ([end for end in each[figure] or [] if end is not None] for each in (cell, expected))
            assert ends == pytest.approx(expected_ends, rel=1e-9), figure


def test_runs_of_every_outcome_are_kept() -> None:
    outcomes = {cell["outcome"] for path in RUNS.glob("*.json") for cell in load(path)["expected"].values()}
    assert outcomes >= {"PASS", "FAIL"}
