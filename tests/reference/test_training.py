"""What training is made of: schedule, losses, update, closing line, and single steps of another library's loop."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reference.closing_line import closing_line
from reference.loss import why_unfit
from reference.nest import Nest
from reference.schedule import LR_RULES, scale, warmup
from reference.sgd import sgd_
from reference.stepped_loop import LENGTH, SteppedLoop
from reference.trainers.single import Single


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


WEIGHTS = torch.ones(4)
SOFT = torch.rand(4, 3, generator=torch.Generator().manual_seed(0)).softmax(1)


@pytest.mark.parametrize("y", [torch.tensor([0, 1, 2, 0]), SOFT, SOFT.double(), SOFT.bfloat16()], ids=str)
def test_single_trains_what_fits(y: Tensor) -> None:
    assert why_unfit(y) == ""
    trainer = Single(
        nn.Linear(2, 3).to(y.dtype if y.is_floating_point() else torch.float32), [torch.device("cpu")], lr=0.1
    )
    X = torch.rand(4, 2, dtype=next(trainer.net.parameters()).dtype)
    assert trainer.step(X, y, 4).isfinite()


@pytest.mark.parametrize(
    ("y", "described"),
    [
        (torch.rand(4), "float32 (n,)"),
        (torch.rand(4, 3), "float32 (n, 3)"),
        (torch.tensor([True, False] * 2), "bool (n,)"),
        (torch.arange(4, dtype=torch.int32), "int32 (n,)"),
        (torch.ones(4, 2, dtype=torch.complex64), "complex64 (n, 2)"),
        ({"mean": WEIGHTS, "scale": [WEIGHTS]}, "{'mean': float32 (n,), 'scale': [float32 (n,)]}"),
        ((torch.arange(4), WEIGHTS), "[int64 (n,), float32 (n,)]"),
    ],
)
def test_other_targets_are_described(y: Nest, described: str) -> None:
    assert why_unfit(y) == f"its loss is the mean cross-entropy, and y is {described}"


def test_texts_fit() -> None:
    assert why_unfit({"labels": torch.ones(4, 2, dtype=torch.int64), "weights": WEIGHTS}) == ""


def test_sgd_divides_the_summed_gradient_by_the_batch_and_clears_it() -> None:
    """1 - 0.5 * 8 / 4 = 0; a parameter without a gradient stays as it is."""
    param, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    param.grad = torch.full((2,), 8.0)
    sgd_([param, unused], lr=0.5, batch_size=4)
    assert (param.tolist(), unused.tolist()) == ([0.0, 0.0], [1.0, 1.0])
    assert param.grad is None


def test_sgd_reports_an_empty_batch() -> None:
    with pytest.raises(ValueError, match="batch_size is 0: a step needs at least one sample"):
        sgd_([], lr=0.1, batch_size=0)


def test_a_step_is_over_when_the_loop_has_done_it() -> None:
    done: list[Any] = ["set up"]
    loop = SteppedLoop(lambda minibatches: done.extend(str(minibatch) for minibatch in minibatches))
    assert done == ["set up"]
    loop.step(1)
    loop.step((2, None))
    assert done == ["set up", "1", "(2, None)"]
    loop.close()


def test_a_loop_that_is_closed_ends_its_thread() -> None:
    threads: list[threading.Thread] = []

    def run(minibatches: Iterable[Any]) -> None:
        threads.append(threading.current_thread())
        for _ in range(LENGTH):  # as a loop does that trains for a number of steps, whatever the iterator says
            for _ in minibatches:
                pass

    loop = SteppedLoop(run)
    loop.step(1)
    loop.close()
    assert not threads[0].is_alive()
    with pytest.raises(RuntimeError, match="the training loop has ended: let it train for more steps"):
        loop.step(2)


def test_an_error_of_the_loop_is_raised_by_the_step() -> None:
    def run(minibatches: Iterable[Any]) -> None:
        for minibatch in minibatches:
            print(1 / minibatch)

    loop = SteppedLoop(run)
    loop.step(1)
    with pytest.raises(ZeroDivisionError):
        loop.step(0)
    loop.close()


def test_an_error_before_the_first_minibatch_is_raised_at_once() -> None:
    def run(_: Iterable[Any]) -> None:
        raise ValueError("no such strategy")

    with pytest.raises(ValueError, match="no such strategy"):
        SteppedLoop(run)


def test_a_loop_that_ends_by_itself_says_so() -> None:
    def run(minibatches: Iterable[Any]) -> None:
        next(iter(minibatches))

    loop = SteppedLoop(run)
    with pytest.raises(RuntimeError, match="the training loop ended: let it train for more steps"):
        loop.step(1)


def test_it_has_a_length_so_that_loops_do_not_fetch_ahead() -> None:
    lengths: list[int] = []

    def run(minibatches: Any) -> None:
        lengths.append(len(minibatches))
        list(minibatches)

    SteppedLoop(run).close()
    assert lengths == [LENGTH]
