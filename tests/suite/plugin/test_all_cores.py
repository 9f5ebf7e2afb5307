"""When the tests are spread over the cores, and when they stay in one process."""

from __future__ import annotations

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


def test_all_tests_are_spread() -> None:
    assert spread() in range(1, conftest.MOST_PROCESSES + 1)


def test_a_process_of_xdist_starts_no_further_ones() -> None:
    assert spread(worker=True) is None


@pytest.mark.parametrize(
    "options",
    [
        {"source": SOURCE.ARGS},
        {"keyword": "gradient"},
        {"markexpr": "scaling"},
        {"markexpr": "end_to_end"},
        {"usepdb": True},
        {"collectonly": True},
    ],
    ids=str,
)
def test_a_smaller_selection_stays_in_one_process(options: dict[str, Any]) -> None:
    assert spread(**options) is None


def test_the_users_number_of_processes_counts() -> None:
    assert spread(numprocesses=0) == 0
