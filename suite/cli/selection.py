"""The cells that pytest would run with some arguments, without running any: for commands that measure nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from suite.cli.gate import SCALING
from suite.plan.cells import Cell
from suite.plan.config import Config
from suite.plugin import CONFIG, MissingDevices

# Nothing runs, so pytest has only its errors to show; those it prints however quiet it is.
_SILENT = ("-qq", "--disable-warnings")


@dataclass(frozen=True)
class Selection:
    """What pytest's arguments come to.

    Attributes:
        status: pytest's exit status; where there are cells it is 0.
        settings: of the run; None where pytest did not get as far.
        cells: in pytest's order; none where none was selected, or devices that were asked for are missing.
    """

    status: int
    settings: Config | None
    cells: tuple[Cell, ...]


def select(arguments: Sequence[str]) -> Selection:
    """Collect as `pytest -m scaling` would, in this process.

    Args:
        arguments: added to `suite.cli.gate.SCALING`, which they may override.
    """
    collecting = _Collecting()
    status = pytest.main([*SCALING, *_SILENT, *arguments], plugins=[collecting])
    return Selection(int(status), collecting.settings, tuple(collecting.cells))


class _Collecting:
    def __init__(self) -> None:
        self.settings: Config | None = None
        self.cells: list[Cell] = []

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        self.settings = config.stash[CONFIG]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run nothing but the item that fails in the place of all where devices are missing: it says what to do."""
        if session.testsfailed or any(isinstance(item, MissingDevices) for item in session.items):
            return None  # as pytest would: a file that could not be collected ends it too, in pytest's own words
        self.cells = [cell for item in session.items if (cell := _cell(item)) is not None]
        return True


def _cell(item: pytest.Item) -> Cell | None:
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    cell: Cell | None = parameters.get("scaling_cell")
    return cell
