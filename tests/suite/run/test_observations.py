"""The facts of a run only grow, and a cell has the arms of its own bases."""

from __future__ import annotations

import pytest

from suite.plan.base import Base
from suite.run.observations import Comparison, Facts
from tests.support.measurements import arm, cell, run_of


def test_known_fact_keeps_its_value() -> None:
    facts = Facts({"a": 1})
    facts |= {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="a is known as 1 and cannot become 3"):
        facts["a"] = 3
    with pytest.raises(ValueError, match="b is known as 2"):
        facts |= {"b": 3}
    assert facts == {"a": 1, "b": 2}


def test_a_cell_has_the_arms_of_the_bases_that_it_is_compared_with() -> None:
    other = cell(2, "scratch")
    bases = {"base": Base("trainer", "scratch", "scratch"), "pinned": Base("ref", "main")}
    run = run_of(cell(2), other, comparison=Comparison(bases, (cell(2), other), sides={other: ("pinned",)}))
    assert list(run.arms(cell(2)).values()) == [arm(2), arm(2, "scratch", "base"), arm(2, side="pinned")]
    assert list(run.arms(other).values()) == [arm(2, "scratch"), arm(2, "scratch", "pinned")]
