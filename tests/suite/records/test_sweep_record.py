"""What a sweep trains, and its file: nothing twice, nothing mixed, nothing half."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reference.schedule import LR_RULES
from suite.plan.workloads import BUILT_IN
from suite.records import sweep as sweep_record
from suite.records.record import Environment, RecordError
from suite.records.sweep import LINEAR_WARMUP, RULES, Row, Setting, Start, Sweep, scaled
from tests.support.measurements import COMMIT, MACHINE, VERSIONS
from tests.support.sweeps import grid, net, sweep

START = Start(32, 0.1)
ALONE = Setting(1, 32, 0.1, False)


def test_every_rule_of_the_reference_is_there_and_the_warm_up() -> None:
    assert set(RULES) == {*LR_RULES, LINEAR_WARMUP}


@pytest.mark.parametrize(
    ("rule", "lr", "warmup"),
    [("constant", 0.1, False), ("linear", 0.4, False), ("linear-warmup", 0.4, True), ("book", 0.225, False)],
)
def test_four_devices_take_four_times_the_batch_and_the_rules_rate(rule: str, lr: float, warmup: bool) -> None:
    assert scaled(rule, 4, START) == Setting(4, 128, lr, warmup)


@pytest.mark.parametrize("rule", RULES)
def test_on_one_device_all_rules_agree(rule: str) -> None:
    assert scaled(rule, 1, START) == ALONE


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown lr_rule 'square'"):
        scaled("square", 2, START)


def test_a_row_for_each_rule_and_one_for_one_device() -> None:
    rows = grid(lrs=(0.1,)).rows()
    assert rows[0] == Row(START, "-", ALONE)
    assert [(row.rule, row.setting.world_size) for row in rows[1:]] == [(rule, 2) for rule in RULES]


def test_what_two_rules_come_to_is_trained_once() -> None:
    """Twice .1 is .2, and 1.5 times .1 is .15: the same nets, whoever asks for them."""
    wanted = list(grid(lrs=(0.1, 0.15, 0.2), rules=("constant", "linear", "book"), seeds=1).wanted())
    assert len(wanted) == len(set(wanted))
    rates = sorted(setting.lr for setting, _ in wanted if setting.world_size == 2)
    assert rates == [0.1, 0.15, 0.2, 0.225, 0.3, 0.4]


def test_a_warm_up_is_another_net_at_the_same_rate() -> None:
    wanted = {setting for setting, _ in grid(lrs=(0.1,), rules=("linear", "linear-warmup")).wanted()}
    assert wanted == {ALONE, Setting(2, 64, 0.2, False), Setting(2, 64, 0.2, True)}


def test_all_of_one_seed_come_before_the_next() -> None:
    """So that what is cut short has fewer seeds and no holes."""
    seeds = [seed for _, seed in grid(seeds=3).wanted()]
    assert seeds == sorted(seeds)
    assert set(seeds) == {1, 2, 3}


def test_what_is_there_is_not_missing() -> None:
    whole = sweep(lambda setting, seed: 0.9)
    assert whole.missing() == []
    assert len(whole.shown()) == len(set(whole.shown()))
    shorter = whole.model_copy(update={"trained": whole.trained[:-1]})
    assert shorter.missing() == [(whole.trained[-1].setting, 2)]


def test_a_smaller_grid_shows_less_and_forgets_nothing() -> None:
    whole = sweep(lambda setting, seed: 0.9)
    smaller = whole.model_copy(update={"grid": grid(seeds=1, rules=("constant",))})
    assert smaller.missing() == []
    assert {found.seed for found in smaller.shown()} == {1}
    assert smaller.of(ALONE).keys() == {1}
    assert len(smaller.trained) == len(whole.trained)


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    assert sweep_record.read(path) is None
    whole = sweep(lambda setting, seed: 0.9)
    path.write_text(sweep_record.text(whole))
    assert sweep_record.read(path) == whole


def drop_a_comma(text: str) -> str:
    return text[: len(text) // 2]


def change(**values: Any) -> Callable[[str], str]:
    def changed(text: str) -> str:
        content = json.loads(text)
        content["trained"][0] |= values
        return json.dumps(content)

    return changed


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (drop_a_comma, "not a whole JSON file"),
        (lambda text: "{}", "Field required"),
        (lambda text: text.replace('"schema_version": 1', '"schema_version": 99'), "schema version 99 is newer"),
        (change(seed=0), r"trained\.0\.seed: Input should be greater than 0"),
        (change(lr=float("nan")), r"trained\.0\.lr"),
        (change(per_epoch=[0.5, 1.5, 0.5]), r"trained\.0\.per_epoch\.1: Input should be less than or equal to 1"),
        (change(per_epoch=[0.5, 0.5]), "a net of seed 1 has 2 of 3 epochs"),
        (change(extra=1), "Extra inputs are not permitted"),
    ],
)
def test_a_broken_or_foreign_file_is_refused(tmp_path: Path, spoil: Callable[[str], str], says: str) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(spoil(sweep_record.text(sweep(lambda setting, seed: 0.9))))
    with pytest.raises(RecordError, match=says):
        sweep_record.read(path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trainer": "scratch"}, "trainer ddp and not scratch"),
        ({"epochs": 5, "trained": ()}, "epochs 3 and not 5"),
        ({"warmup_epochs": 1}, "warm-up epochs 2 and not 1"),
        ({"dataset": "fashion-mnist"}, r"data digits \(1437 \+ 360\) and not fashion-mnist \(1437 \+ 360\)"),
        ({"train_samples": 700}, r"data .* and not digits \(700 \+ 360\)"),
        ({"workload": BUILT_IN["resnet18"]}, r"workload lenet \(\w+\) and not resnet18 \(\w+\)"),
        ({"machine": MACHINE.model_copy(update={"host": "other"})}, r"machine .*\(abcdef\) and not .*\(other\)"),
        (
            {"environment": Environment(versions=VERSIONS, commit="2" * 40, dirty=False)},
            "commit 111111111111 and not 2",
        ),
        ({"environment": Environment(versions={"torch": "2.9"}, commit=COMMIT, dirty=False)}, "torch 2.15.0 and not t"),
    ],
)
def test_nets_that_must_not_stand_in_one_figure_are_told_apart(changes: dict[str, Any], says: str) -> None:
    mine: Sweep = sweep()
    [difference] = mine.differences(sweep(**changes))
    assert re.search(says, difference)


def test_another_grid_or_uncommitted_changes_are_no_difference() -> None:
    dirty = Environment(versions=VERSIONS, commit=COMMIT, dirty=True)
    other = sweep(grid=grid(lrs=(0.4,), seeds=9), environment=dirty, trained=(net(ALONE, 1),))
    assert sweep().differences(other) == []
