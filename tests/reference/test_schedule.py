"""Batch and learning rate against the number of devices."""

from __future__ import annotations

import pytest

from reference.closing_line import closing_line
from reference.schedule import LR_RULES, MODES, scale, warmup


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_strong_scaling_keeps_batch_and_learning_rate(world_size: int) -> None:
    """The optimisation stays the same one, whatever the rule."""
    for rule in LR_RULES:
        assert scale("strong", world_size, 256, 0.2, rule) == (256, 0.2)


@pytest.mark.parametrize(
    ("rule", "lr"), [("constant", 0.1), ("linear", 0.4), ("book", 0.1 * 1.5**2)], ids=["constant", "linear", "book"]
)
def test_weak_scaling_multiplies_the_batch_and_applies_the_rule(rule: str, lr: float) -> None:
    """Four devices: four times the batch, and each rule its own rate."""
    assert scale("weak", 4, 256, 0.1, rule) == pytest.approx((1024, lr))


def test_book_rule_is_the_notebooks_second_run() -> None:
    """(256, .2) on one device becomes (512, .3) on two."""
    assert scale("weak", 2, 256, 0.2, "book") == pytest.approx((512, 0.3))


def test_one_device_is_left_alone_by_every_rule() -> None:
    """World size 1 is the identity in every mode."""
    assert all(scale(mode, 1, 256, 0.1, rule) == pytest.approx((256, 0.1)) for mode in MODES for rule in LR_RULES)


def test_warmup_climbs_in_equal_steps_and_stays() -> None:
    """The rate is reached at the last step of the climb."""
    assert [warmup(0.8, step, 4) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_warmup_starts_from_the_one_device_rate_when_told() -> None:
    """Goyal et al. climb from lr to k lr, not from 0."""
    assert [warmup(0.8, step, 4, start=0.1) for step in range(4)] == pytest.approx([0.275, 0.45, 0.625, 0.8])


def test_warmup_of_no_steps_is_none() -> None:
    """Length 0 means the full rate from the first step."""
    assert warmup(0.8, 0, 0) == 0.8


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("loose", 2, 256, 0.1), "unknown mode 'loose': choose one of strong, weak"),
        (("weak", 2, 256, 0.1, "cubic"), "unknown lr_rule 'cubic': choose one of constant, linear, book"),
        (("weak", 0, 256, 0.1), "world_size is 0: it must be at least 1"),
        (("weak", 2, 0, 0.1), "batch is 0: it must be at least 1"),
    ],
)
def test_scale_reports_bad_values(args: tuple[str, int, int, float], message: str) -> None:
    """The message names the value and the valid ones."""
    with pytest.raises(ValueError, match=message):
        scale(*args)


def test_warmup_reports_negative_steps() -> None:
    """Neither the step nor the length may be negative."""
    with pytest.raises(ValueError, match="step is -1 and warmup_steps is 4: neither may be negative"):
        warmup(0.8, -1, 4)


def test_closing_line_is_the_notebooks() -> None:
    """Accuracy with two digits, seconds with one, and the devices."""
    line = "test acc 0.83, 2.6 sec/epoch on [cuda:0, cuda:1]"
    assert closing_line(0.8312, 2.61, ["cuda:0", "cuda:1"]) == line
    assert closing_line(0.8312, 2.61, ["cuda:0", "cuda:1"], 0.41239) == f"loss 0.412, {line}"
