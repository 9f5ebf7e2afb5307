"""The facts of a run only grow."""

from __future__ import annotations

import pytest

from suite.run.observations import Facts


def test_known_fact_keeps_its_value() -> None:
    facts = Facts({"a": 1})
    facts |= {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="a is known as 1 and cannot become 3"):
        facts["a"] = 3
    with pytest.raises(ValueError, match="b is known as 2"):
        facts |= {"b": 3}
    assert facts == {"a": 1, "b": 2}
