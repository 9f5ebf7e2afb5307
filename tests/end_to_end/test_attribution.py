"""Where the time went, with real ranks: the largest bar of each trainer is the cause that was planted in it."""

from __future__ import annotations

import json

import pytest

from docs.evidence.causes import WORKLOADS
from suite.plan import cells
from tests.support.planted_causes import VARIABLE
from tests.support.project import REPOSITORY, Project, needs_two_cores


@needs_two_cores
def test_planted_causes_have_the_largest_bars_and_bars_sum_to_the_gap(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions of real ranks: a delayed exchange, a late rank, and replicas whose work is dispatched late.

    Each cause is a sleep of several steps, so that no other process on the machine costs as much.
    """
    delay_s = 0.3
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    (project.path / "pyproject.toml").write_text(WORKLOADS)
    planted = {"DelayedExchange": "exchange", "SlowRank": "imbalance", "LateDispatch": "overhead"}
    monkeypatch.setenv(VARIABLE, json.dumps(dict.fromkeys(planted.values(), delay_s)))
    trainers = [f"--scaling-trainer=tests.support.planted_causes:{name}" for name in planted]
    result = project.pytest(
        "-m", "scaling", "-k", "test_scaling", "--scaling-devices", "cpu:2", "--scaling-world-sizes", "2",
        "--scaling-mode", "strong", "--scaling-workload", "images", "--scaling-budget", "60", *trainers,
    )  # fmt: skip
    assert result.ret == 0
    [record] = project.records()
    falls = {cells.short(each.trainer): each.waterfalls[0] for each in record.cells}
    named = {name: max(fall.bars, key=lambda bar: bar.step_s.estimate).causes for name, fall in falls.items()}
    assert named == {name: (cause,) for name, cause in planted.items()}
    for fall in falls.values():
        gap = fall.measured_s.estimate - fall.ideal_s.estimate
        assert sum(bar.step_s.estimate for bar in fall.bars) == pytest.approx(gap, rel=1e-9)
        assert fall.measured_s.estimate > delay_s, "a step is never shorter than the sleep in it"
