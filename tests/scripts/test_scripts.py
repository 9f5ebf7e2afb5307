"""Scripts are red in exactly the items that their files name; the others are in `tests/end_to_end`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from suite.checks.bench import Bench
from suite.checks.script import FEW_GPUS, Checked, check
from suite.plan import scripts
from suite.room.devices import Devices
from suite.script.items import ITEMS, RIGHT
from tests.scripts import FAST, FOLDER, Entry, entries, row, verify
from tests.support.project import REPOSITORY

BEGINNING = """
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts

dist.init_process_group("gloo")
data = parts.samples()
sampler = DistributedSampler(data)
loader = DataLoader(data, parts.batch(), sampler=sampler)
net = DistributedDataParallel(parts.net())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""
LOOP = "parts.train(net, optimizer, loader, sampler)\n"


@pytest.mark.parametrize("entry", [entry for entry in entries() if entry.name in FAST], ids=lambda entry: entry.name)
def test_a_script_is_red_in_what_its_file_names(entry: Entry, bench: Bench) -> None:
    verify(entry, entry.check(bench))


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_a_wrong_script_names_its_source_and_its_items(entry: Entry) -> None:
    assert bool(entry.source) == (entry.path.parent.name == "wrong")
    assert entry.red <= set(ITEMS)


def test_the_page_has_every_wrong_script() -> None:
    """`python -m tests.scripts` prints the rows."""
    page = (REPOSITORY / "docs" / "scripts.md").read_text(encoding="utf-8")
    rows = [row(entry) for entry in entries() if entry.source]
    assert [line for line in page.splitlines() if "tests/scripts/wrong/" in line and line.startswith("|")] == rows


def test_every_item_is_red_for_a_script() -> None:
    assert set().union(*(entry.red for entry in entries())) == set(ITEMS)


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("raise ValueError('no such thing')", r"rank \d: ValueError: no such thing; see that it trains under torchrun"),
        (
            "print('done')",
            r"rank \d: NoUpdate: the script ended and made no update, and it printed 'done': the step of a "
            "torch optimizer was not called; if something else makes its updates, name that",
        ),
        ("print('out of disk')\nraise SystemExit(3)", r"rank \d: NoUpdate: the script left with 3 .* 'out of disk'"),
    ],
    ids=["raises", "ends", "leaves"],
)
def test_a_script_that_does_not_train_says_why(code: str, failure: str, bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(code)
    checked = check(bench.pool, bench.devices, scripts.named(str(tmp_path / "train.py"), {}, None), 2, tmp_path)
    assert checked.verdicts == {}
    assert re.search(failure, checked.failure)


def run(bench: Bench, folder: Path, code: str) -> Checked:
    """Check a script that begins as tests/scripts/right/ddp.py does, and goes on otherwise."""
    (folder / "train.py").write_text(BEGINNING + code)
    return check(
        bench.pool, bench.devices, scripts.named(f"{folder}/train.py --batch_size {{batch}}", {}, 8), 2, folder
    )


def test_a_script_that_asserts_its_precision_is_compared_in_it(bench: Bench, tmp_path: Path) -> None:
    checked = run(bench, tmp_path, "assert next(net.parameters()).dtype == torch.float32, 'not float32'\n" + LOOP)
    assert checked.notes == (
        "it was compared in its own precision, since it does not run in float64 (AssertionError: not float32)",
    )
    assert not any(verdict.finding for verdict in checked.verdicts.values())
    assert not checked.verdicts["gradient"].unchecked


def test_a_script_that_does_not_run_on_one_device_has_no_gradient_to_compare(bench: Bench, tmp_path: Path) -> None:
    verdicts = run(bench, tmp_path, "assert dist.get_world_size() > 1, 'too few'\n" + LOOP).verdicts
    for item in ("gradient", "schedule"):
        assert "on one device the script does not run: rank 0: AssertionError: too few" in verdicts[item].unchecked
    assert verdicts["replicas"] == RIGHT


@pytest.mark.nightly
def test_a_rank_that_is_waited_for_ends_at_the_deadline(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.pool, "start_timeout_s", 15.0)
    monkeypatch.setattr("suite.checks.script.RECORD_S", 15.0)
    forwards = "for X, y in loader:\n    net(X).sum().backward()\n    if dist.get_rank():\n        time.sleep(1000)\n"
    checked = run(bench, tmp_path, "import time\n" + forwards + LOOP)
    said = r"ranks 0, 1: no answer to 'watch_script' within 15 s, ended; so far on rank 0: \d+ forward\(s\), \d+ backw"
    assert re.search(said + r"ard\(s\), and the step of a torch optimizer was not called", checked.failure)
    assert "time.sleep" not in checked.failure.splitlines()[0]


def test_what_a_script_writes_is_not_there_afterwards(bench: Bench, tmp_path: Path) -> None:
    checked = run(bench, tmp_path, f"open({str(tmp_path / 'log.txt')!r}, 'w').write('begun')\n" + LOOP)
    assert not any(verdict.finding for verdict in checked.verdicts.values())
    assert not (tmp_path / "log.txt").exists() or any("not kept apart" in note for note in checked.notes)


def test_a_script_of_more_ranks_than_gpus_is_not_checked(bench: Bench) -> None:
    one = Devices("cuda", ("cuda:0",), ())
    checked = check(bench.pool, one, scripts.named(str(FOLDER / "right" / "ddp.py"), {}, None), 2, FOLDER)
    said = {verdict.unchecked for verdict in checked.verdicts.values()}
    assert said == {FEW_GPUS.format(k=2, here=1)}
