"""What a sweep trains: every rate and batch on every number of devices, each once a seed."""

from __future__ import annotations

import pytest

from suite.records.sweep import Setting, Sweep
from tests.support.sweeps import sweep

ALONE = Setting(1, 32, 0.1)


def test_k_devices_take_k_times_the_batch_and_every_rate() -> None:
    wide = sweep(batches=(16, 32), lrs=(0.1, 0.4), world_sizes=(1, 4))
    assert [setting for setting in wide.settings if setting.world_size == 4] == [
        Setting(4, 64, 0.1),
        Setting(4, 64, 0.4),
        Setting(4, 128, 0.1),
        Setting(4, 128, 0.4),
    ]
    assert len(wide.missing) == len(set(wide.missing)) == 2 * 8


@pytest.mark.parametrize(
    ("setting", "rules"),
    [
        (Setting(4, 128, 0.05), ["constant"]),
        (Setting(4, 128, 0.2), ["linear"]),
        (Setting(4, 128, 0.1125), ["book"]),
        (Setting(2, 64, 0.3), []),
        (Setting(1, 32, 0.05), []),
    ],
)
def test_a_rate_names_the_rules_that_make_it_of_the_recipes(setting: Setting, rules: list[str]) -> None:
    """LeNet's recipe has a rate of .05."""
    assert sweep().rules(setting) == rules


def test_all_nets_of_one_seed_come_before_those_of_the_next() -> None:
    seeds = [seed for _, seed in sweep(seeds=3).missing]
    assert seeds == sorted(seeds)
    assert set(seeds) == {1, 2, 3}


def test_nets_that_are_not_trained_are_missing() -> None:
    whole = sweep(lambda setting, seed: 0.9)
    assert whole.missing == []
    assert whole.model_copy(update={"trained": whole.trained[:-1]}).missing == [(Setting(2, 64, 0.2), 2)]
    assert [net.seed for net in whole.of(ALONE)] == [1, 2]


def test_a_file_gives_back_what_was_written() -> None:
    whole = sweep(lambda setting, seed: 0.9, failed=("2 device(s): gone",))
    assert Sweep.model_validate_json(whole.model_dump_json(indent=1)) == whole
