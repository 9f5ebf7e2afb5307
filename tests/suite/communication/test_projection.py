"""Expected and projected efficiency: the formulas by hand, the error bars, and what the field has published."""

from __future__ import annotations

from typing import Any

import pytest

from suite.communication.projection import Projection, project
from suite.communication.scaling_model import StepModel, propagated
from suite.records.record import Record
from suite.verdict.metrics import Interval
from tests.support import records

ONE_S = 0.056
FAILED = {"points": [], "alpha_s": None, "beta_s_per_byte": None, "error": "rank 1 hung"}
RESNET_101_BYTES, VGG_16_BYTES = 4 * 44_549_160, 4 * 138_357_544  # torchvision's parameters, float32


def bars(**seconds: float) -> list[dict[str, Any]]:
    """A waterfall's bars, `small_batch=...`, with intervals of a tenth."""
    return [
        {"causes": [cause.replace("_", " ")], "step_s": records.interval(value, 0.1)}
        for cause, value in seconds.items()
    ]


def waterfall(k: int, mode: str, found: list[dict[str, Any]], one_s: float = ONE_S) -> dict[str, Any]:
    """On k devices."""
    ideal = one_s / k if mode == "strong" else one_s
    measured = ideal + sum(bar["step_s"]["estimate"] for bar in found)
    ideal_s, measured_s = records.interval(ideal, 0.01), records.interval(measured, 0.01)
    return records.waterfall() | {"ideal_s": ideal_s, "measured_s": measured_s, "bars": found, "notes": []}


def measured(
    *,
    k: int = 2,
    mode: str = "strong",
    found: list[dict[str, Any]] | None = None,
    one_s: float = ONE_S,
    batch: int = 256,
    gradient_bytes: int = records.GRADIENT_BYTES,
    processes: str = "per-device",
    collectives: list[dict[str, Any]] | None = None,
    **changes: Any,
) -> Record:
    """A run of ddp on k devices and one sweep of gloo; `changes` replace fields of the cell."""
    found = bars(exchange=0.0) if found is None else found
    about = {"id": f"ddp-lenet-{mode}-{k}", "mode": mode, "world_size": k}
    figures = {"efficiency": records.interval(0.9), "waterfalls": [waterfall(k, mode, found, one_s)]}
    arm_id = f"candidate:ddp:lenet:{mode}:{k}"
    arm = records.arm(
        world_size=k,
        id=arm_id,
        mode=mode,
        global_batch=batch,
        gradient_bytes=gradient_bytes,
        processes=processes,
    )
    return records.make(
        cells=[records.cell(), records.cell(**(about | figures | changes))],
        arms=[arm],
        collectives=[records.collective(world_size=k)] if collectives is None else collectives,
    )


def only(record: Record, world_sizes: tuple[int, ...] = (4, 8, 16, 32, 64)) -> Projection:
    """The one projection, which has no reason not to be."""
    [found] = project(record, world_sizes)
    assert not found.reason
    return found


def efficiencies(found: Projection) -> dict[int, float]:
    return {each.world_size: each.efficiency.estimate for each in found.projected}


def test_at_the_measured_size_compute_and_bare_exchange_stand_beside_what_was_measured() -> None:
    """28 ideal + 1 contention + .616 ms of exchange: E = 28 / 29.616, whatever the exchange has really cost."""
    found = only(measured(found=bars(contention=0.001, exchange=0.005)))
    [expected] = found.expected
    exchange_s = 1e-4 + 1e-9 * records.GRADIENT_BYTES
    assert expected.exchange_s.estimate == pytest.approx(exchange_s)
    assert expected.step_s.estimate == pytest.approx(0.029 + exchange_s)
    assert expected.efficiency.estimate == pytest.approx(0.028 / (0.029 + exchange_s))
    assert expected.measured == Interval(0.9, pytest.approx(0.855), pytest.approx(0.945))
    assert (found.algorithm, found.gradient_bytes, expected.batch) == ("gloo", records.GRADIENT_BYTES, 128)


def test_the_rings_terms_carry_alpha_and_beta_to_other_world_sizes() -> None:
    """From 2 to 8 devices: 7 times the messages, 7 / 4 of the bytes."""
    found = only(measured(k=2, gradient_bytes=10**6), (8,))
    [at_eight] = found.projected
    assert at_eight.exchange_s.estimate == pytest.approx(7 * 1e-4 + 7 / 4 * 1e-3)


def test_an_exchange_that_costs_more_than_the_bare_one_keeps_its_surplus() -> None:
    """5 ms more at 2 devices are 5 ms more at 4; and the error bar has them grow."""
    bare, dear = (
        only(measured(found=bars(exchange=exchange_s), gradient_bytes=10**6), (4,)).projected[0]
        for exchange_s in (0.0011, 0.0061)
    )
    assert dear.step_s.estimate - bare.step_s.estimate == pytest.approx(0.005)
    assert dear.step_s.low is not None
    assert dear.step_s.high is not None
    grown = (3e-4 + 1.5e-3) / 1.1e-3
    assert dear.step_s.high - dear.step_s.estimate > 0.8 * 0.005 * (grown - 1)
    assert dear.step_s.estimate - dear.step_s.low < 0.002


def test_an_exchange_hidden_behind_the_compute_comes_out_as_the_compute_shrinks() -> None:
    """All of 1.1 ms hides behind 28 ms. Weak keeps those 28 at 64 devices; strong has 0.9 left, and less hides."""
    weak = only(measured(mode="weak", found=bars(exchange=0.0), gradient_bytes=10**6, one_s=0.028), (64,))
    strong = only(measured(found=bars(exchange=0.0), gradient_bytes=10**6), (64,))
    exchange_s = 63 * 1e-4 + 2 * 63 / 64 * 1e-3
    assert weak.projected[0].step_s.estimate == pytest.approx(0.028 + exchange_s - 0.0011)
    assert strong.projected[0].step_s.estimate == pytest.approx(0.056 / 64 + exchange_s - 0.0011 / 32)


def test_small_batches_follow_a_line_through_the_two_that_were_timed() -> None:
    """Half the batch takes 30 of 56 ms, so 4 ms are there whatever the batch: 56 / 16 + 4 (1 - 1 / 16) at 16."""
    found = only(measured(found=bars(small_batch=0.002, exchange=0.0), gradient_bytes=4), (16,))
    compute_s = 0.056 / 16 + 0.004 * 15 / 16
    hidden_s = 1e-4 * compute_s / 0.030
    assert found.projected[0].step_s.estimate == pytest.approx(compute_s + 15 * 1e-4 - hidden_s, rel=1e-5)


def test_contention_grows_with_the_work_and_overhead_stays() -> None:
    """A seventh of 28 ms is a seventh of 7 ms; 4 ms of overhead are 4 ms."""
    alone = {"gradient_bytes": 4, "collectives": [records.collective(alpha_s=1e-9)]}
    crowded = only(measured(found=bars(contention=0.004, exchange=0.0), **alone), (8,))
    busy = only(measured(found=bars(overhead=0.004, exchange=0.0), **alone), (8,))
    assert efficiencies(crowded)[8] == pytest.approx(7 / 8, rel=1e-4)
    assert efficiencies(busy)[8] == pytest.approx(7 / 11, rel=1e-4)


def test_what_could_not_be_told_apart_from_the_exchange_is_taken_for_it() -> None:
    """One bar of overhead and exchange: the bare exchange stands in for all of it, and the assumptions say so."""
    merged = [{"causes": ["overhead", "exchange"], "step_s": records.interval(0.005)}]
    found = only(measured(found=merged, gradient_bytes=10**6), (4,))
    assert found.projected[0].step_s.estimate == pytest.approx(0.014 + 3e-4 + 1.5e-3)
    assert "Nothing of the exchange is hidden" in found.assumptions[-1]


def test_large_gradients_scale_worse_than_small_ones() -> None:
    """Horovod's 512 GPUs: 90 % with ResNet-101, 68 % with VGG-16. Same links and same compute here, other gradients.

    The links are such that ResNet-101 keeps 90 % at 64; VGG-16 has 3.1 times the bytes, so three times the loss.
    """
    byte_s = 0.2 / 9 / (2 * 63 / 64) / RESNET_101_BYTES
    sweep = records.collective(alpha_s=1e-6, beta_s_per_byte=byte_s)
    resnet, vgg = (
        only(
            measured(
                mode="weak",
                one_s=0.2,
                gradient_bytes=size,
                # Nothing is hidden at 2 devices, so that nothing is beyond.
                found=bars(exchange=1e-6 + byte_s * size),
                collectives=[sweep],
            )
        )
        for size in (RESNET_101_BYTES, VGG_16_BYTES)
    )
    assert efficiencies(resnet)[64] == pytest.approx(0.90, abs=0.005)
    assert efficiencies(vgg)[64] == pytest.approx(1 / (1 + VGG_16_BYTES / RESNET_101_BYTES / 9), abs=0.005)
    assert 0.65 < efficiencies(vgg)[64] < 0.78
    by_size = list(efficiencies(vgg).values())
    assert by_size == sorted(by_size, reverse=True)


def test_a_ring_with_free_messages_stops_losing() -> None:
    """Bytes a device never exceed twice the gradient (weak scaling to 256 GPUs, near-linear in the DDP paper)."""
    free = [records.collective(alpha_s=1e-12, beta_s_per_byte=1e-9)]
    found = only(measured(mode="weak", found=bars(exchange=0.001), gradient_bytes=10**6, collectives=free), (64, 256))
    assert efficiencies(found)[64] - efficiencies(found)[256] < 0.001


def test_error_bars_carry_the_fit_the_compute_and_the_misfit() -> None:
    """Each of them alone makes them wider."""
    exact = {"collectives": [records.collective(alpha_s=1e-4) | {"alpha_s": records.interval(1e-4, 0.0)}]}
    exact["collectives"][0]["beta_s_per_byte"] = records.interval(1e-9, 0.0)
    sure = [{"causes": ["exchange"], "step_s": records.interval(0.000616272, 0.0)}]

    def width(record: Record) -> float:
        found = only(record, (16,)).projected[0].efficiency
        assert found.low is not None
        assert found.high is not None
        assert 0 < found.low < found.estimate < found.high
        return found.high - found.low

    narrow = width(measured(found=sure, **exact))
    bent = [dict(point) for point in exact["collectives"][0]["points"]]
    bent[0] |= {"time_s": records.interval(2 * bent[0]["time_s"]["estimate"])}
    assert width(measured(found=sure)) > 1.1 * narrow, "the fit's interval"
    assert width(measured(found=[*sure, *bars(overhead=0.002)], **exact)) > 1.1 * narrow, "the compute's interval"
    missed = measured(found=sure, collectives=[exact["collectives"][0] | {"points": bent}])
    assert only(missed).misfit == pytest.approx(2)
    assert width(missed) > 1.1 * narrow, "what the line misses"


def test_a_sweep_that_the_ring_does_not_carry_to_another_shows_as_misfit() -> None:
    """Twice as slow at 4 devices than a ring would be from 2: the model is off by 2 where it can be checked."""
    two = records.collective(world_size=2, alpha_s=1e-4, beta_s_per_byte=1e-9)
    right = records.collective(world_size=4, alpha_s=3e-4, beta_s_per_byte=1.5e-9)
    wrong = records.collective(world_size=4, alpha_s=6e-4, beta_s_per_byte=3e-9)
    assert only(measured(collectives=[two, right])).misfit == pytest.approx(1.0)
    assert only(measured(collectives=[two, wrong])).misfit == pytest.approx(2.0)


def test_a_global_batch_ends_at_one_sample_a_device() -> None:
    strong = only(measured(batch=16))
    assert [(each.world_size, each.batch) for each in strong.projected] == [(4, 4), (8, 2), (16, 1)]
    weak = only(measured(mode="weak", batch=16))
    assert {each.batch for each in weak.projected} == {8}


def test_every_measured_size_is_expected_and_only_larger_ones_are_projected() -> None:
    sizes = (2, 4)
    runs = [measured(k=k) for k in sizes]
    record = records.make(
        cells=[cell for run in runs for cell in run.cells],
        arms=[arm for run in runs for arm in run.arms],
        collectives=[sweep for run in runs for sweep in run.collectives],
    )
    found = only(record)
    assert [each.world_size for each in found.expected] == [2, 4]
    assert [each.world_size for each in found.projected] == [8, 16, 32, 64]
    assert found.assumptions[0] == "A projection from 4 devices, not a measurement."


def test_the_assumptions_say_what_the_step_has_shown_of_its_exchange() -> None:
    dear = only(measured(found=bars(exchange=0.0056)))
    assert any("spent 5 ms more on its exchange than the bare all_reduce" in line for line in dear.assumptions)
    hidden = only(measured(mode="weak"))
    assert any("0.62 ms of the exchange were hidden behind 56 ms" in line for line in hidden.assumptions)
    assert any("Every device keeps its batch of 128." in line for line in hidden.assumptions)
    assert any("2 devices of the gloo sweep: 50 µs a message and 1 GB/s" in line for line in dear.assumptions)


@pytest.mark.parametrize(
    "found",
    [
        bars(contention=0.002, overhead=0.002, exchange=0.001),
        [*bars(contention=0.002), {"causes": ["overhead", "exchange"], "step_s": records.interval(0.003)}],
    ],
    ids=["apart", "not separable"],
)
def test_what_one_process_does_in_turn_grows_with_every_further_device(found: list[dict[str, Any]]) -> None:
    """3 ms for the second device are 9 ms for three; at the better end of the error bar they stay 3. No link is asked.

    nn.DataParallel is such a trainer, and its overhead cannot be told from its exchange.
    """
    projected = only(measured(processes="one", found=found, collectives=[]), (4,))
    [at_four] = projected.projected
    compute_s = 0.014 + 0.001
    assert at_four.exchange_s.estimate == pytest.approx(0.009)
    assert at_four.step_s.estimate == pytest.approx(compute_s + 0.009)
    assert at_four.step_s.low is not None
    assert at_four.step_s.low == pytest.approx(compute_s + 0.003, rel=0.05)
    assert not projected.expected
    assert any("3 ms of the step (overhead and exchange)" in line for line in projected.assumptions)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (measured(collectives=[]), "no all_reduce of torch.distributed was swept"),
        (measured(collectives=[records.collective("ring")]), "no all_reduce of torch.distributed was swept"),
        (measured(collectives=[records.collective() | FAILED]), "the sweep of all_reduce failed: rank 1 hung"),
        (measured(waterfalls=[], waterfall_note="no time"), "ddp-lenet-strong-2 has no waterfall: no time"),
        (measured(waterfalls=[]), "its step was not taken apart"),
        (measured(gradient_bytes=0), "how many bytes of gradients ddp-lenet-strong-2 exchanges is not known"),
        (
            measured(found=[{"causes": ["exchange"], "step_s": {"estimate": 0.001}}]),
            "the waterfall has no interval: a single session shows no spread",
        ),
        (
            measured(collectives=[records.collective() | {"alpha_s": {"estimate": 1e-4}}]),
            "the sweep of all_reduce has no interval",
        ),
        (records.make(cells=measured().cells, collectives=measured().collectives), "ddp-lenet-strong-2 was not timed"),
        (measured(one_s=-1.0), "the record's figures are no times that a step could have"),
        (measured(one_s=1e308, found=bars(exchange=5e307, feed=5e307)), "no times that a step could have"),
    ],
)
def test_what_is_missing_is_said(record: Record, reason: str) -> None:
    [found] = project(record)
    assert reason in found.reason
    assert not found.expected
    assert not found.projected


def test_one_device_alone_has_nothing_to_project() -> None:
    assert project(records.make(cells=[records.cell()])) == ()


def test_a_cell_without_a_waterfall_does_not_cost_the_others_theirs() -> None:
    lost = records.cell(id="ddp-lenet-strong-4", world_size=4, outcome="ERROR", reason="rank 3 died")
    run = measured()
    record = records.make(cells=[*run.cells, lost], arms=run.arms, collectives=run.collectives)
    found = only(record)
    assert [each.world_size for each in found.expected] == [2]
    assert found.projected[0].world_size == 4


def test_hostile_records_are_answered() -> None:
    """Whatever text or number stands in them."""
    assert project(records.hostile("<script>"))
    assert project(records.full())


def test_ten_thousand_cells_take_no_longer_than_a_hundred() -> None:
    run = measured()
    many = [cell.model_copy(update={"trainer": f"t{number}"}) for number in range(10_000) for cell in run.cells[1:]]
    arms = [run.arms[0].model_copy(update={"id": f"candidate:t{number}:lenet:strong:2"}) for number in range(10_000)]
    found = project(run.model_copy(update={"cells": many, "arms": arms}))
    assert [bool(each.projected) for each in found] == [True] * 100 + [False] * 9_900
    assert found[-1].reason == "one of 10000, and only the first 100 are projected"


def test_independent_errors_add_in_quadrature_and_one_sided_ones_stay_so() -> None:
    inputs = {"a": Interval(1.0, 0.7, 1.3), "b": Interval(2.0, 1.6, 2.4), "c": Interval(0.0, 0.0, 1.0)}
    found = propagated(lambda at: at["a"] + at["b"], inputs)
    assert found == Interval(3.0, pytest.approx(2.5), pytest.approx(3.5))
    found = propagated(lambda at: at["a"] + at["c"], inputs)
    assert found == Interval(1.0, pytest.approx(0.7), pytest.approx(1 + (0.3**2 + 1) ** 0.5))


def test_a_step_that_is_no_time_is_refused() -> None:
    inputs = {"one": Interval(1.0, 1.0, float("inf"))}
    names = ("message", "byte", "misfit", "growing")
    inputs |= {name: Interval(1.0, 1.0, 1.0) for name in names}
    model = StepModel("weak", 2, 256, 4, (), inputs)
    with pytest.raises(ValueError, match="a step comes out as inf: the inputs must be finite times"):
        model.expect(4, calibrated=False)
