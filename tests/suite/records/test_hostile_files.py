"""Whatever a record, a baseline or a calibration says, it is read and can be shown, or it is refused in one line.

Real files are changed at one place: another value, a missing field, an unknown one, or other bytes.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suite.records import baselines, calibration
from suite.records.baselines import Baseline
from suite.records.files import RecordError, read_model
from suite.records.record import CellRecord, Record
from suite.render import html, markdown, terminal
from suite.verdict import stored
from tests.suite.records.test_calibration import calibrated, entry
from tests.support import records
from tests.support.records import TEXTS

RECORD = json.loads(records.full().model_dump_json())
RUN = records.make()
BASELINE = json.loads(baselines.accept(Baseline(machine_key=RUN.machine.key), RUN, slower=False).model_dump_json())
CALIBRATION = json.loads(calibrated(entry()).model_dump_json())

VALUES = st.one_of(
    TEXTS,
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(([], {}, [0], {"a": 1}, [[]] * 50, 0, -1, 1e308, 5e-324, "1", "NaN")),
)
SHARE = 0.4  # of the profile's examples
hostile = settings(
    max_examples=int(settings().max_examples * SHARE), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a JSON value: what contains it, and its key or index."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(pairs):
        yield content, key
        yield from places(value)


@st.composite
def changed(draw: st.DrawFn, content: Any) -> bytes:
    """Draw a file that differs from this one at one place."""
    content = copy.deepcopy(content)
    where, key = draw(st.sampled_from(list(places(content))))
    how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add", "cut", "bytes"]))
    if how == "replace":
        where[key] = draw(VALUES)
    elif how == "remove":
        del where[key]
    elif how == "add" and isinstance(where, dict):
        where[draw(TEXTS)] = draw(VALUES)
    encoded = json.dumps(content).encode()
    at = draw(st.integers(0, len(encoded)))
    return {"cut": encoded[:at], "bytes": encoded[:at] + draw(st.binary(max_size=8)) + encoded[at:]}.get(how, encoded)


def read(path: Path, content: bytes, reader: Callable[[], Any]) -> Any:
    """Write a file and read it; None where it was refused, in one printable line that names it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    try:
        return reader()
    except RecordError as error:
        said = str(error)
    assert said.isprintable()
    assert said.startswith(str(path))
    return None


@hostile
@given(content=changed(RECORD))
def test_a_record_is_refused_or_can_be_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    record = read(path, content, lambda: read_model(path, Record))
    if record is not None:
        page = html.render(record)
        assert not re.search(r"<(img|b) ", page.partition("<body")[2].partition("<script")[0])
        for text in (terminal.render(record, 100, color=False), markdown.render(record)):
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", text)


def own(cell: CellRecord) -> stored.Run:
    assert cell.sec_per_epoch is not None
    return stored.Run(math.log(cell.sec_per_epoch.estimate), cell.sessions, RUN.machine.host)


@hostile
@given(content=changed(BASELINE))
def test_a_baseline_is_refused_or_can_be_compared_with(tmp_path: Path, content: bytes) -> None:
    path = baselines.path_for(tmp_path, RUN.machine.key)
    baseline = read(path, content, lambda: baselines.read(tmp_path, RUN.machine.key))
    if baseline is not None:
        for cell in RUN.cells:
            baseline.comparable(cell, RUN)
            baseline.rebuildable(cell, RUN)
        grown = baselines.accept(baseline, records.make(run_id="next"), slower=True)
        for cell in RUN.cells:
            runs = grown.comparable(cell, RUN)
            if runs and cell.sec_per_epoch is not None:
                stored.difference(own(cell), runs)


@pytest.mark.parametrize("sessions", [0, 1, 2, 9, 10**18])
@pytest.mark.parametrize("seconds", [[1e-9, 1e9], [1e-9, 1.0, 1e9], [1e9] * 4 + [1e-9]])
def test_the_most_absurd_figures_that_a_baseline_may_have_can_be_compared_with(
    seconds: list[float], sessions: int
) -> None:
    [kept] = BASELINE["runs"]
    figures = {"sessions": sessions}
    runs = [
        {
            **kept,
            "run_id": f"202001{day:02}T000000Z-a",
            "cells": [{**each, "sec_per_epoch": second, **figures} for each in kept["cells"]],
        }
        for day, second in enumerate(seconds, 1)
    ]
    baseline = Baseline.model_validate({**BASELINE, "runs": runs})
    compared = [baseline.comparable(cell, RUN) for cell in RUN.cells]
    assert any(len(of_cell) == len(seconds) for of_cell in compared)
    for cell, of_cell in zip(RUN.cells, compared, strict=True):
        if of_cell and cell.sec_per_epoch is not None:
            stored.difference(own(cell), of_cell)


@hostile
@given(content=changed(CALIBRATION))
def test_a_calibration_is_refused_or_can_be_used(tmp_path: Path, content: bytes) -> None:
    key = CALIBRATION["machine_key"]
    path = calibration.path_for(tmp_path, key)
    known = read(path, content, lambda: calibration.read(tmp_path, key))
    if known is not None:
        known.why_unused("host", {"torch": "2.15.0"}, datetime.now(UTC))
        for kept in known.entries:
            assert calibration.promise(kept.spread.session_sd_of(8), 4, 6, 0.05) > 0
            assert kept.spread.tau2_var >= 0


@pytest.mark.parametrize("content", [RECORD, BASELINE, CALIBRATION], ids=["record", "baseline", "calibration"])
def test_unchanged_files_are_read(tmp_path: Path, content: dict[str, Any]) -> None:
    """Otherwise the tests above would only see refusals."""
    path = tmp_path / "file.json"
    kinds = {"run_id": Record, "runs": Baseline}
    kind = next((kind for field, kind in kinds.items() if field in content and "entries" not in content), None)
    assert read(path, json.dumps(content).encode(), lambda: read_model(path, kind or calibration.Calibration))
