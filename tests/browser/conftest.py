"""A headless Chromium, the pages it opens, and a record of what they request; skipped without a Chromium."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from suite.cli import compare
from suite.cli import render as render_command
from suite.records import files
from suite.records.record import Record
from suite.render import html, sweep
from suite.render.pages import write_index, write_run
from tests.browser import Watched
from tests.support import records, sweeps

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A sandbox needs user namespaces, which root and containers often do not have. The pages are our own.
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
AXE = "SCALING_NODE_MODULES"
REQUIRED = "SCALING_BROWSER_REQUIRED"  # when set, a missing browser fails the tests


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Playwright's own Chromium, or the system's."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed")
    with sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        path = own if own.exists() else next(filter(None, map(shutil.which, BROWSERS)), None)
        if path is None:
            _missing("there is no Chromium")
        launched = playwright.chromium.launch(executable_path=str(path), args=list(FLAGS))
        yield launched
        launched.close()


def _missing(what: str) -> NoReturn:
    if os.environ.get(REQUIRED):
        pytest.fail(f"{what}, and {REQUIRED} is set", pytrace=False)
    pytest.skip(f"{what}: tox -e browser installs what this needs")


@pytest.fixture
def watched(browser: Any) -> Iterator[Watched]:
    """A new page in a profile of its own, without network."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    yield Watched(context.new_page())
    context.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, from the folder that tox has npm install it into."""
    path = Path(os.environ.get(AXE, "node_modules")) / "axe-core" / "axe.min.js"
    if not path.is_file():
        _missing(f"there is no axe-core in {path.parent}")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def pages(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make a report, the machine's history and a comparison by the commands, and the page of a sweep."""
    reports = tmp_path_factory.mktemp("reports")
    before, after = (
        _run(run_id, seconds) for run_id, seconds in (("20260101T000000Z-a", 13.0), ("20260102T000000Z-b", 15.0))
    )
    folders = []
    for run in (before, after):
        folders.append(reports / run.machine.key / "runs" / run.run_id)
        files.write_atomically(folders[-1] / "record.json", run.model_dump_json())
    assert _command(render_command, str(reports)) == 0
    comparison = reports / "compare.html"
    assert _command(compare, str(folders[0]), str(folders[1]), "--html", str(comparison)) == 0
    machine = reports / before.machine.key
    trained = sweeps.sweep(lambda setting, seed: 0.8 + setting.lr * seed / 10)
    files.write_atomically(machine / "sweeps" / "sweep.json", trained.model_dump_json())
    files.write_atomically(
        machine / "sweeps" / "sweep.html",
        html.write(sweep.document(trained, [1, sweeps.EPOCHS]), (("sweep.json", "sweep.json"),)),
    )
    made = {"report": folders[1] / "report.html", "index": machine / "index.html", "compare": comparison}
    return {**made, "sweep": machine / "sweeps" / "sweep.html"}


@pytest.fixture(scope="session")
def many(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make the history of a thousand runs of twelve cells, and the report of a run of two hundred cells."""
    reports = tmp_path_factory.mktemp("many")
    cells = records.matrix(trainers=("ddp", "scratch", "data_parallel"))
    kept = []
    for number in range(1000):
        began = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=8 * number)
        environment = {"versions": {"torch": f"2.{number // 250}"}, "commit": f"{number:07x}", "dirty": False}
        run = {"run_id": f"{began:%Y%m%dT%H%M%SZ}-x", "started_utc": began.isoformat(), "environment": environment}
        kept.append(records.make(**run, cells=cells))
    machine = records.keep(reports, *kept)
    trainers = [f"trainer{number}" for number in range(50)]
    wide = records.matrix(trainers=trainers, slowdown=records.interval(1.0), waterfalls=[records.waterfall()])
    folder = machine / "runs" / kept[-1].run_id
    write_run(folder, records.make(cells=wide, against="main"), None)
    return {"index": write_index(machine), "report": folder / "report.html"}


def _run(run_id: str, one_device_s: float) -> Record:
    text = " <b>&amp; a name that is much longer than a telephone is wide </b>"
    machine = {**records.make().machine.model_dump(), "host": "host" + text, "cpu_model": "CPU" + text}
    cells = records.full().model_dump(mode="json")["cells"]
    cells += records.matrix(
        trainers=("package.module:WithALongName",), world_sizes=(1, 2, 4), one_device_s=one_device_s
    )
    return records.full(
        run_id=run_id, started_utc=f"{run_id[:4]}-01-{run_id[6:8]}T00:00:00+00:00", machine=machine, cells=cells
    )


def _command(module: ModuleType, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(arguments), []))
