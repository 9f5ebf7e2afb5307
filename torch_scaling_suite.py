"""The module that pytest loads first: it refuses another package called `suite` or `reference`, then loads the plugin.

A project may have a package of either name, and Python imports the one it finds first. Pytest looks for this module by
a name that nothing else has. The packages are compared at three times, because pytest adds folders to `sys.path`: now,
when the first conftest.py files are loaded, and when a test module cannot be imported.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Generator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest

OURS = ("reference", "suite")
HOME = Path(__file__).resolve().parent


def conflict(name: str, spec: ModuleSpec | None) -> str:
    """Return a sentence about a package that is imported instead of ours; empty where it is ours, or there is none.

    Args:
        name: "reference" or "suite".
        spec: where Python finds a package of that name.
    """
    if spec is None:
        return ""
    folders = spec.submodule_search_locations
    place = Path(next(iter(folders), "a namespace package") if folders else spec.origin or "a built-in module")
    if place.resolve() == HOME / name:
        return ""
    return (
        f"torch-scaling-suite: 'import {name}' gives {place} instead of {HOME / name}, which the plugin needs; "
        "rename that package, or leave the plugin out with -p no:torch_scaling_suite"
    )


def _refuse(problem: str) -> None:
    if problem:
        raise pytest.UsageError(problem)


for _name in OURS:
    _refuse(conflict(_name, importlib.util.find_spec(_name)))

pytest_plugins = ["suite.plugin"]


def _hidden() -> str:
    """Return a sentence about a package on `sys.path` that comes before ours, and whose name is taken by now."""
    specs = ((name, PathFinder.find_spec(name)) for name in OURS)
    problems = (conflict(name, spec) for name, spec in specs if spec is not None and spec.origin is not None)
    return next(filter(None, problems), "")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests() -> Generator[None, object, object]:
    """Compare the packages where `pythonpath` and the first conftest.py files have changed `sys.path`."""
    try:
        return (yield)
    finally:
        _refuse(_hidden())


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Say why a test module cannot import a package whose name is taken, instead of showing its traceback."""
    report = yield
    if report.failed and re.search(f"'({'|'.join(OURS)})['.]", report.longreprtext):
        report.longrepr = _hidden() or report.longrepr
    return report
