"""Batch and learning rate against the number of devices."""

from __future__ import annotations

import pytest

from reference.closing_line import closing_line
from reference.schedule import LR_RULES, scale, warmup


@pytest.mark.parametrize("rule", LR_RULES)
def test_strong_scaling_and_one_device_keep_batch_and_learning_rate(rule: str) -> None:
    assert [scale("strong", k, 256, 0.2, rule) for k in (1, 2, 8)] == [(256, 0.2)] * 3
    assert scale("weak", 1, 256, 0.2, rule) == pytest.approx((256, 0.2))


@pytest.mark.parametrize(("rule", "lr"), [("constant", 0.2), ("linear", 0.8), ("book", 0.2 * 1.5**2)])
def test_weak_scaling_multiplies_the_batch_and_applies_the_rule(rule: str, lr: float) -> None:
    """The notebook's second run has (512, .3) on two devices where one has (256, .2)."""
    assert scale("weak", 4, 256, 0.2, rule) == pytest.approx((1024, lr))
    assert rule != "book" or scale("weak", 2, 256, 0.2, rule) == pytest.approx((512, 0.3))


def test_warmup_climbs_in_equal_steps_and_stays() -> None:
    """From 0, or as Goyal et al. from the rate of one device; a climb of no steps is at the rate at once."""
    assert [warmup(0.8, step, 4) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert [warmup(0.8, step, 4, start=0.1) for step in range(4)] == pytest.approx([0.275, 0.45, 0.625, 0.8])
    assert warmup(0.8, 0, 0) == 0.8
    with pytest.raises(ValueError, match="step is -1 and warmup_steps is 4: neither may be negative"):
        warmup(0.8, -1, 4)


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
    with pytest.raises(ValueError, match=message):
        scale(*args)


def test_closing_line_is_the_notebooks() -> None:
    line = "test acc 0.83, 2.6 sec/epoch on [cuda:0, cuda:1]"
    assert closing_line(0.8312, 2.61, ["cuda:0", "cuda:1"]) == line
    assert closing_line(0.8312, 2.61, ["cuda:0", "cuda:1"], 0.41239) == f"loss 0.412, {line}"
