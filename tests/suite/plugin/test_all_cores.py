"""When the tests are spread over the cores, and when they stay in one process."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import conftest

DEFAULT = "not gpu and not scaling and not end_to_end"
SOURCE = pytest.Config.ArgsSource


def spread(source: SOURCE = SOURCE.TESTPATHS, *, worker: bool = False, **options: Any) -> int | None:
    """The number of processes for these options."""
    given = {"numprocesses": None, "dist": "no", "keyword": "", "markexpr": DEFAULT, "usepdb": False}
    option = SimpleNamespace(**{**given, "collectonly": False, **options})
    config = SimpleNamespace(option=option, args_source=source, **({"workerinput": {}} if worker else {}))
    conftest.pytest_cmdline_main(config)
    number: int | None = option.numprocesses
    return number


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        ({}, range(1, conftest.MOST_PROCESSES + 1)),
        ({"numprocesses": 0}, [0]),
        *(
            (options, [None])
            for options in (
                {"worker": True},
                {"source": SOURCE.ARGS},
                {"keyword": "gradient"},
                {"markexpr": "scaling"},
                {"usepdb": True},
                {"collectonly": True},
            )
        ),
    ],
    ids=str,
)
def test_only_a_run_of_all_tests_uses_all_cores(options: dict[str, Any], processes: Sequence[int | None]) -> None:
    assert spread(**options) in processes
