"""Expected and projected efficiency: the formulas by hand, the assumptions, and what the field has published."""

from __future__ import annotations

from typing import Any

import pytest

from suite.communication.projection import Expectation, Projection, project
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


def at(k: int, **changes: Any) -> Expectation:
    """What is projected at k devices."""
    [found] = only(measured(**changes), (k,)).projected
    return found


def efficiencies(found: Projection) -> dict[int, float]:
    return {each.world_size: each.efficiency for each in found.projected}


def test_a_measured_size_is_expected_to_take_its_compute_and_the_bare_exchange() -> None:
    """28 ideal + 1 contention + .616 ms of exchange: E = 28 / 29.616, whatever the exchange has really cost."""
    [expected] = only(measured(found=bars(contention=0.001, exchange=0.005))).expected
    exchange_s = 1e-4 + 1e-9 * records.GRADIENT_BYTES
    ends = [pytest.approx(exchange_s * factor) for factor in (1.0, 0.9, 1.1)]
    assert expected.exchange_s == Interval(*ends), "the ends of alpha and beta"
    assert expected.step_s == pytest.approx(0.029 + exchange_s)
    assert expected.efficiency == pytest.approx(0.028 / (0.029 + exchange_s))
    assert expected.measured == Interval(0.9, pytest.approx(0.855), pytest.approx(0.945))
    assert expected.batch == 128


def test_the_rings_terms_carry_alpha_and_beta_to_other_world_sizes() -> None:
    """From 2 to 8 devices: 7 times the messages, 7 / 4 of the bytes."""
    assert at(8, gradient_bytes=10**6).exchange_s.estimate == pytest.approx(7 * 1e-4 + 7 / 4 * 1e-3)


def test_an_exchange_that_costs_more_than_the_bare_one_keeps_its_surplus() -> None:
    """5 ms more at 2 devices are 5 ms more at 4."""
    bare, dear = (at(4, found=bars(exchange=cost), gradient_bytes=10**6) for cost in (0.0011, 0.0061))
    assert dear.step_s - bare.step_s == pytest.approx(0.005)


def test_an_exchange_hidden_behind_the_compute_comes_out_as_the_compute_shrinks() -> None:
    """All of 1.1 ms hides behind 28 ms. Weak keeps those 28 at 64 devices; strong has 0.9 left, and less hides."""
    weak = at(64, mode="weak", found=bars(exchange=0.0), gradient_bytes=10**6, one_s=0.028)
    strong = at(64, found=bars(exchange=0.0), gradient_bytes=10**6)
    exchange_s = 63 * 1e-4 + 2 * 63 / 64 * 1e-3
    assert weak.step_s == pytest.approx(0.028 + exchange_s - 0.0011)
    assert strong.step_s == pytest.approx(0.056 / 64 + exchange_s - 0.0011 / 32)


def test_small_batches_follow_a_line_through_the_two_that_were_timed() -> None:
    """Half the batch takes 30 of 56 ms, so 4 ms are there whatever the batch: 56 / 16 + 4 (1 - 1 / 16) at 16."""
    compute_s = 0.056 / 16 + 0.004 * 15 / 16
    hidden_s = 1e-4 * compute_s / 0.030
    step_s = at(16, found=bars(small_batch=0.002, exchange=0.0), gradient_bytes=4).step_s
    assert step_s == pytest.approx(compute_s + 15 * 1e-4 - hidden_s, rel=1e-5)


@pytest.mark.parametrize(("cause", "efficiency"), [("contention", 7 / 8), ("overhead", 7 / 11)])
def test_contention_grows_with_the_work_and_overhead_stays(cause: str, efficiency: float) -> None:
    """A seventh of 28 ms is a seventh of 7 ms; 4 ms of overhead are 4 ms."""
    alone = {"gradient_bytes": 4, "collectives": [records.collective(alpha_s=1e-9)]}
    assert at(8, found=bars(**{cause: 0.004}, exchange=0.0), **alone).efficiency == pytest.approx(efficiency, rel=1e-4)


def test_a_bar_of_overhead_and_exchange_together_is_projected_as_the_bare_exchange() -> None:
    merged = [{"causes": ["overhead", "exchange"], "step_s": records.interval(0.005)}]
    found = only(measured(found=merged, gradient_bytes=10**6), (4,))
    assert found.projected[0].step_s == pytest.approx(0.014 + 3e-4 + 1.5e-3)
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


@pytest.mark.parametrize(("slower", "misfit"), [(1, "1."), (2, "2.")])
def test_a_sweep_that_the_ring_does_not_carry_to_another_is_reported(slower: int, misfit: str) -> None:
    """At 4 devices as a ring predicts from 2, and twice as slow."""
    two = records.collective(world_size=2, alpha_s=1e-4, beta_s_per_byte=1e-9)
    four = records.collective(world_size=4, alpha_s=slower * 3e-4, beta_s_per_byte=slower * 1.5e-9)
    assert f"wrong by a factor of up to {misfit}" in only(measured(collectives=[two, four])).assumptions[-3]


def test_a_global_batch_ends_at_one_sample_a_device() -> None:
    strong = only(measured(batch=16))
    assert [(each.world_size, each.batch) for each in strong.projected] == [(4, 4), (8, 2), (16, 1)]
    weak = only(measured(mode="weak", batch=16))
    assert {each.batch for each in weak.projected} == {8}


def test_every_measured_size_is_expected_and_only_larger_ones_are_projected() -> None:
    """A size without a waterfall, here 8, is left out."""
    runs = [measured(k=k) for k in (2, 4)]
    lost = records.cell(id="ddp-lenet-strong-8", world_size=8, outcome="ERROR", reason="rank 3 died")
    record = records.make(
        cells=[*(cell for run in runs for cell in run.cells), lost],
        arms=[arm for run in runs for arm in run.arms],
        collectives=[sweep for run in runs for sweep in run.collectives],
    )
    found = only(record)
    assert [each.world_size for each in found.expected] == [2, 4]
    assert [each.world_size for each in found.projected] == [8, 16, 32, 64]
    assert found.assumptions[0].startswith("A projection from 4 devices, not a measurement.")


def test_the_assumptions_say_what_the_step_has_shown_of_its_exchange() -> None:
    dear, hidden = only(measured(found=bars(exchange=0.0056))), only(measured(mode="weak"))
    assert "spent 5 ms more on its exchange than the bare all_reduce takes" in dear.assumptions[-1]
    assert "0.62 ms of the exchange were hidden behind 56 ms" in hidden.assumptions[-1]
    assert "Every device keeps its batch of 128." in hidden.assumptions
    assert "2 devices of the gloo sweep: 50 µs a message and 1 GB/s" in dear.assumptions[-3]


@pytest.mark.parametrize(
    "found",
    [
        bars(contention=0.002, overhead=0.002, exchange=0.001),
        [*bars(contention=0.002), {"causes": ["overhead", "exchange"], "step_s": records.interval(0.003)}],
    ],
    ids=["apart", "not separable"],
)
def test_what_one_process_does_in_turn_grows_with_every_further_device(found: list[dict[str, Any]]) -> None:
    """3 ms for the second device are 9 ms for three; no link is asked.

    nn.DataParallel is such a trainer, and its overhead cannot be told from its exchange.
    """
    projected = only(measured(processes="one", found=found, collectives=[]), (4,))
    [at_four] = projected.projected
    assert at_four.exchange_s == Interval(pytest.approx(0.009))
    assert at_four.step_s == pytest.approx(0.014 + 0.001 + 0.009)
    assert not projected.expected
    assert "3 ms of the step (overhead and exchange)" in projected.assumptions[-1]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (measured(collectives=[]), "no all_reduce of torch.distributed was swept on 2 devices: select its items"),
        (measured(collectives=[records.collective("ring")]), "no all_reduce of torch.distributed was swept"),
        (measured(collectives=[records.collective() | FAILED]), "the sweep of all_reduce failed: rank 1 hung"),
        (measured(waterfalls=[], missing=[records.missing("waterfall", "no time")]), "has no waterfall: no time"),
        (measured(waterfalls=[]), "its step was not taken apart"),
        (measured(gradient_bytes=0), "how many bytes of gradients ddp-lenet-strong-2 exchanges is not known"),
        (records.make(cells=measured().cells, collectives=measured().collectives), "ddp-lenet-strong-2 was not timed"),
        (measured(one_s=-1.0), "the record's figures are no times that a step could have"),
    ],
)
def test_what_is_missing_is_named(record: Record, reason: str) -> None:
    [found] = project(record)
    assert reason in found.reason
    assert not found.expected
    assert not found.projected


def test_one_device_alone_has_nothing_to_project() -> None:
    assert project(records.make(cells=[records.cell()])) == ()


def test_one_session_and_one_round_give_a_projection_without_intervals() -> None:
    single = {"alpha_s": {"estimate": 1e-4}, "beta_s_per_byte": {"estimate": 1e-9}}
    found = at(
        4, found=[{"causes": ["exchange"], "step_s": {"estimate": 0.001}}], collectives=[records.collective() | single]
    )
    assert (found.exchange_s.low, found.exchange_s.high) == (None, None)


def test_records_with_any_text_or_number_are_projected() -> None:
    assert project(records.hostile("<script>"))
    assert project(records.full())
