"""What a sweep trains: the settings that rules make of a start, each trained once."""

from __future__ import annotations

import pytest

from reference.schedule import LR_RULES
from suite.records.sweep import LINEAR_WARMUP, RULES, Row, Setting, Start, Sweep, scaled
from tests.support.sweeps import grid, sweep

START = Start(32, 0.1)
ALONE = Setting(1, 32, 0.1, False)


def test_the_rules_are_those_of_the_reference_and_the_warm_up() -> None:
    assert set(RULES) == {*LR_RULES, LINEAR_WARMUP}


@pytest.mark.parametrize(
    ("rule", "lr", "warmup"),
    [("constant", 0.1, False), ("linear", 0.4, False), ("linear-warmup", 0.4, True), ("book", 0.225, False)],
)
def test_four_devices_take_four_times_the_batch_and_the_rules_rate(rule: str, lr: float, warmup: bool) -> None:
    assert scaled(rule, 4, START) == Setting(4, 128, lr, warmup)
    assert scaled(rule, 1, START) == ALONE


def test_one_device_has_one_row_and_several_have_one_for_each_rule() -> None:
    rows = grid(lrs=(0.1,)).rows()
    assert rows[0] == Row(START, "-", ALONE)
    assert [(row.rule, row.setting.world_size) for row in rows[1:]] == [(rule, 2) for rule in RULES]


def test_what_two_rules_come_to_is_trained_once() -> None:
    """Twice .1 is .2, and 1.5 times .1 is .15; a warm-up to the same rate is another net."""
    wanted = list(grid(lrs=(0.1, 0.15, 0.2), rules=("constant", "linear", "book"), seeds=1).wanted())
    assert len(wanted) == len(set(wanted))
    rates = sorted(setting.lr for setting, _ in wanted if setting.world_size == 2)
    assert rates == [0.1, 0.15, 0.2, 0.225, 0.3, 0.4]
    warm = {setting for setting, _ in grid(lrs=(0.1,), rules=("linear", "linear-warmup")).wanted()}
    assert warm == {ALONE, Setting(2, 64, 0.2, False), Setting(2, 64, 0.2, True)}


def test_all_nets_of_one_seed_come_before_those_of_the_next() -> None:
    seeds = [seed for _, seed in grid(seeds=3).wanted()]
    assert seeds == sorted(seeds)
    assert set(seeds) == {1, 2, 3}


def test_nets_that_are_not_trained_are_missing() -> None:
    whole = sweep(lambda setting, seed: 0.9)
    assert whole.missing() == 0
    assert whole.model_copy(update={"trained": whole.trained[:-1]}).missing() == 1
    assert whole.of(ALONE).keys() == {1, 2}


def test_a_file_gives_back_what_was_written() -> None:
    whole = sweep(lambda setting, seed: 0.9, failed=("2 device(s): gone",))
    assert Sweep.model_validate_json(whole.model_dump_json(indent=1)) == whole
