"""Where to stop, by the intervals; and projected efficiency: by hand, what is missing, what the field has published."""

from __future__ import annotations

from typing import Any

import pytest

from suite.records.record import Record
from suite.render.sections.exchange import Projected, project
from suite.render.sections.scaling import Stop, device_s, stops
from tests.support import records

ONE_S = 0.056
FAILED = {"points": [], "alpha_s": None, "beta_s_per_byte": None, "error": "rank 1 hung"}
FREE = records.collective(alpha_s=1e-9, beta_s_per_byte=1e-18)
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


def at(k: int, **changes: Any) -> Projected:
    """What is projected at k devices."""
    [found] = project(measured(**changes), (k,))
    assert not found.reason
    [point] = found.points
    return point


def efficiencies(record: Record) -> dict[int, float]:
    [found] = project(record)
    return {point.world_size: point.efficiency for point in found.points}


def test_the_rings_terms_carry_alpha_and_beta_to_other_world_sizes() -> None:
    """From 2 to 8 devices: 7 times the messages, 7 / 4 of the bytes, on top of what was measured (all of it hidden)."""
    assert at(8, gradient_bytes=10**6).exchange_s == pytest.approx(6 * 1e-4 + 3 / 4 * 1e-3)
    assert at(8, gradient_bytes=10**6, found=bars(exchange=0.005)).exchange_s == pytest.approx(0.005 + 6e-4 + 7.5e-4)


def test_a_step_is_its_share_and_its_exchange() -> None:
    """56 ms on one device are 14 on four; weak scaling keeps them."""
    strong, weak = (at(4, gradient_bytes=10**6, mode=mode) for mode in ("strong", "weak"))
    exchange_s = 2 * 1e-4 + 0.5 * 1e-3
    assert strong.step_s == pytest.approx(0.014 + exchange_s)
    assert strong.efficiency == pytest.approx(0.014 / (0.014 + exchange_s))
    assert weak.step_s == pytest.approx(0.056 + exchange_s)


def test_an_exchange_is_never_shorter_than_nothing() -> None:
    """A record's bar may be negative by noise."""
    assert at(4, found=bars(exchange=-0.01)).exchange_s == 0


def test_small_batches_follow_a_line_through_the_two_that_were_timed() -> None:
    """Half the batch takes 30 of 56 ms, so 4 ms are there whatever the batch: 56 / 16 + 4 (1 - 1 / 16) at 16."""
    step_s = at(16, found=bars(small_batch=0.002, exchange=0.0), collectives=[FREE]).step_s
    assert step_s == pytest.approx(0.056 / 16 + 0.004 * 15 / 16, rel=1e-5)


@pytest.mark.parametrize(("cause", "efficiency"), [("contention", 7 / 8), ("overhead", 7 / 11)])
def test_contention_grows_with_the_work_and_overhead_stays(cause: str, efficiency: float) -> None:
    """A seventh of 28 ms is a seventh of 7 ms; 4 ms of overhead are 4 ms."""
    found = at(8, found=bars(**{cause: 0.004}, exchange=0.0), collectives=[FREE])
    assert found.efficiency == pytest.approx(efficiency, rel=1e-4)


def test_a_bar_of_overhead_and_exchange_together_stays_and_the_ring_is_added() -> None:
    merged = [{"causes": ["overhead", "exchange"], "step_s": records.interval(0.005)}]
    assert at(4, found=merged, gradient_bytes=10**6).step_s == pytest.approx(0.014 + 0.005 + 2e-4 + 0.5e-3)


def test_large_gradients_scale_worse_than_small_ones() -> None:
    """Horovod's 512 GPUs: 90 % with ResNet-101, 68 % with VGG-16. Same links and same compute here, other gradients.

    The links are such that ResNet-101 keeps 90 % at 64; VGG-16 has 3.1 times the bytes, so three times the loss.
    """
    byte_s = 0.2 / 9 / (2 * 63 / 64) / RESNET_101_BYTES
    sweep = records.collective(alpha_s=1e-6, beta_s_per_byte=byte_s)
    resnet, vgg = (
        efficiencies(
            measured(
                mode="weak",
                one_s=0.2,
                gradient_bytes=size,
                found=bars(exchange=1e-6 + byte_s * size),  # nothing is hidden at 2 devices
                collectives=[sweep],
            )
        )
        for size in (RESNET_101_BYTES, VGG_16_BYTES)
    )
    assert resnet[64] == pytest.approx(0.90, abs=0.005)
    assert vgg[64] == pytest.approx(1 / (1 + VGG_16_BYTES / RESNET_101_BYTES / 9), abs=0.005)
    assert 0.65 < vgg[64] < 0.78
    assert list(vgg.values()) == sorted(vgg.values(), reverse=True)


def test_a_ring_with_free_messages_stops_losing() -> None:
    """Bytes a device never exceed twice the gradient (weak scaling to 256 GPUs, near-linear in the DDP paper)."""
    free = [records.collective(alpha_s=1e-12, beta_s_per_byte=1e-9)]
    record = measured(mode="weak", found=bars(exchange=0.001), gradient_bytes=10**6, collectives=free)
    [found] = project(record, (64, 256))
    assert found.points[0].efficiency - found.points[1].efficiency < 0.001


def test_a_global_batch_ends_at_one_sample_a_device() -> None:
    assert list(efficiencies(measured(batch=16))) == [4, 8, 16]
    assert list(efficiencies(measured(mode="weak", batch=16))) == [4, 8, 16, 32, 64]


def test_the_largest_size_with_a_waterfall_is_projected() -> None:
    """A size without one, here 8, is left out."""
    runs = [measured(k=k) for k in (2, 4)]
    lost = records.cell(id="ddp-lenet-strong-8", world_size=8, outcome="ERROR", reason="rank 3 died")
    record = records.make(
        cells=[*(cell for run in runs for cell in run.cells), lost],
        arms=[arm for run in runs for arm in run.arms],
        collectives=[sweep for run in runs for sweep in run.collectives],
    )
    assert list(efficiencies(record)) == [8, 16, 32, 64]


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
    at_four = at(4, processes="one", found=found, collectives=[])
    assert at_four.exchange_s == pytest.approx(0.009)
    assert at_four.step_s == pytest.approx(0.014 + 0.001 + 0.009)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (measured(collectives=[]), "no all_reduce was swept on 2 devices: select the items of test_all_reduce as well"),
        (measured(collectives=[records.collective("ring")]), "no all_reduce was swept on 2 devices"),
        (measured(collectives=[records.collective() | FAILED]), "no all_reduce was swept on 2 devices: rank 1 hung"),
        (measured(waterfalls=[], missing=[records.missing("waterfall", "no time")]), "no waterfall: no time"),
        (measured(waterfalls=[]), "no waterfall: its step was not taken apart"),
        (measured(gradient_bytes=0), "how many bytes of gradients it exchanges is not known"),
        (records.make(cells=measured().cells, collectives=measured().collectives), "no waterfall"),
        (measured(one_s=-1.0), "the record's figures are no times that a step could have"),
    ],
)
def test_what_is_missing_is_named(record: Record, reason: str) -> None:
    [found] = project(record)
    assert reason in found.reason
    assert not found.points


def test_one_device_alone_has_nothing_to_project() -> None:
    assert project(records.make(cells=[records.cell()])) == ()


def test_records_with_any_text_or_number_are_projected() -> None:
    assert project(records.hostile("<script>"))
    assert project(records.full())


def stop(**efficiencies: Any) -> Stop:
    """Return that of one trainer at strong scaling; `k2=(0.84, 0.81, 0.87)` is E_2 with its interval."""
    cells = records.matrix(modes=("strong",), world_sizes=(1, *(int(name[1:]) for name in efficiencies)))
    for cell, value in zip(cells[1:], efficiencies.values(), strict=True):
        names = ("estimate", "low", "high")
        cell["efficiency"] = None if value is None else dict(zip(names, value, strict=False))
    [found] = stops(records.make(cells=cells))
    return found


HIGH, BELOW, ASTRIDE = (0.95, 0.93, 0.97), (0.7, 0.6, 0.79), (0.7, 0.6, 0.81)


@pytest.mark.parametrize(
    ("efficiencies", "begin", "end"),
    [
        (
            {"k2": HIGH, "k4": (0.85, 0.80, 0.90), "k8": BELOW},
            "Stop at k = 4: the whole interval of its efficiency, 0.85 [0.80, 0.90], is",
            "More devices do not pay: 0.70 [0.60, 0.79] at k = 8.",
        ),
        ({"k2": HIGH, "k4": ASTRIDE}, "Stop at k = 2:", "Whether more pay is not known: 0.70 [0.60, 0.81] at k = 4."),
        ({"k2": HIGH}, "k = 2, the largest measured, still pays: the whole", "More devices may pay as well."),
        ({"k2": BELOW}, "Stay with one device: 0.70 [0.60, 0.79] at k = 2", "the whole interval below 0.80."),
        ({"k2": ASTRIDE}, "Whether more than one device pays is not known: 0.70", "More sessions narrow it."),
        ({"k2": (0.9,)}, "Where to stop is not known, because one session shows no interval: 0.90", "would pay."),
        ({"k2": None}, "Where to stop is not known: efficiency was not", "measured."),
    ],
    ids=["stop", "unknown beyond", "largest", "below", "astride", "single", "unmeasured"],
)  # fmt: skip
def test_it_says_no_more_than_was_shown(efficiencies: dict[str, Any], begin: str, end: str) -> None:
    sentence = stop(**efficiencies).sentence
    assert sentence.startswith(begin)
    assert sentence.endswith(end)


def test_shared_devices_are_the_reason_why_it_is_not_known() -> None:
    shared = [records.cell(), records.cell(world_size=2, oversubscribed=True)]
    [found] = stops(records.make(cells=shared))
    assert found.sentence == "Where to stop is not known: devices were oversubscribed."


def test_devices_that_were_shared_do_not_show_whether_more_pay() -> None:
    own = records.matrix(modes=("strong",), world_sizes=(1, 2, 4))
    own[1]["efficiency"] = dict(zip(("estimate", "low", "high"), HIGH, strict=True))
    own[2] |= {"efficiency": None, "oversubscribed": True}
    [found] = stops(records.make(cells=own))
    assert found.sentence.startswith("k = 2, the largest measured without sharing devices, still pays: ")


def test_an_epoch_costs_k_times_its_seconds() -> None:
    found = stop(k2=(0.9, 0.85, 0.95))
    assert [device_s(cell) for cell in found.cells] == [pytest.approx(13.0), pytest.approx(13.0 / 0.9)]
    assert found.alone_s == 13.0
    assert "An epoch takes 7.22 s and costs 14.4 device-seconds (13 on one device)." in found.sentence


def test_each_trainer_and_mode_with_several_devices_has_a_sentence() -> None:
    assert stops(records.make(cells=[records.cell()])) == []
    cells = records.matrix(trainers=("ddp", "pkg.mod:Mine"))
    titles = [found.title for found in stops(records.make(cells=cells))]
    assert titles == ["ddp lenet strong", "ddp lenet weak", "Mine lenet strong", "Mine lenet weak"]
