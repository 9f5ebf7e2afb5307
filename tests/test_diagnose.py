"""Waterfalls of known times: every cause gets its own bar, the bars sum to the gap, what is missing merges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.diagnose import CAUSES, NEEDED, Point, Rounds, Waterfall, waterfall

# Seconds a step of every rank: two devices, strong scaling, nothing lost but what a test adds.
PERFECT: dict[Point, tuple[float, ...]] = {
    "one": (0.100,),
    "one_resident": (0.100,),
    "part": (0.050,),
    "plain_alone": (0.050,),
    "plain": (0.050, 0.050),
    "unsynced": (0.050, 0.050),
    "resident": (0.050, 0.050),
    "step": (0.050, 0.050),
}


def session(without: tuple[Point, ...] = (), **changes: tuple[float, ...]) -> Rounds:
    """A round forwards and one backwards."""
    return {point: [ranks, ranks] for point, ranks in {**PERFECT, **changes}.items() if point not in without}


def found(*sessions: Rounds, mode: str = "strong") -> Waterfall:
    made = waterfall(sessions, mode=mode, world_size=2)
    assert made is not None
    return made


def bars(made: Waterfall) -> dict[str, float]:
    return {"+".join(bar.causes): bar.step_s.estimate for bar in made.bars}


def later(ms: float, *points: Point) -> dict[str, tuple[float, ...]]:
    """These variants take so much longer."""
    return {point: tuple(rank + ms / 1e3 for rank in PERFECT[point]) for point in points}


PLANTED = {
    "small batch": later(10, "part", "plain_alone", "plain", "unsynced", "resident", "step"),
    "contention": later(10, "plain", "unsynced", "resident", "step"),
    "overhead": later(10, "unsynced", "resident", "step"),
    "exchange": later(10, "resident", "step"),
    "feed": later(10, "step"),
    "imbalance": {"unsynced": (0.050, 0.060), **later(10, "resident", "step")},
}


@pytest.mark.parametrize("cause", CAUSES)
def test_what_is_added_at_one_variant_is_that_causes_bar(cause: str) -> None:
    made = found(session(**PLANTED[cause]))
    assert bars(made)[cause] == pytest.approx(0.010)
    assert made.largest.causes == (cause,)
    assert sum(map(abs, bars(made).values())) == pytest.approx(0.010)


def test_without_anything_lost_all_bars_are_zero() -> None:
    assert bars(found(session())) == pytest.approx(dict.fromkeys(bars(found(session())), 0.0))


def test_ranks_of_one_process_have_the_plain_steps_imbalance() -> None:
    slower = {"plain": (0.050, 0.060), "unsynced": (0.060,), "resident": (0.060,), "step": (0.060,)}
    made = found(session(**slower))
    assert bars(made)["contention"] == pytest.approx(0.0)
    assert bars(made)["imbalance"] == pytest.approx(0.010)
    assert bars(made)["overhead"] == pytest.approx(0.0)
    assert made.slow_rank == 1


def test_weak_scaling_starts_at_one_devices_whole_step_and_knows_no_small_batch() -> None:
    weak = {point: (0.100,) * len(ranks) for point, ranks in PERFECT.items()}
    made = found(
        session(without=("part",), **{**weak, "resident": (0.110, 0.110), "step": (0.110, 0.110)}), mode="weak"
    )
    assert made.ideal_s.estimate == pytest.approx(0.100)
    assert "small batch" not in bars(made)
    assert bars(made)["exchange"] == pytest.approx(0.010)


@pytest.mark.parametrize(
    ("missing", "merged"),
    [
        (("unsynced",), "overhead+exchange"),
        (("part",), "small batch+contention+imbalance+overhead"),
        (("plain",), "contention+imbalance+overhead"),
        (("plain_alone",), "contention+imbalance+overhead"),
        (("plain", "unsynced"), "contention+imbalance+overhead+exchange"),
    ],
)
def test_a_missing_variant_merges_its_neighbours(missing: tuple[Point, ...], merged: str) -> None:
    made = found(session(missing, **later(10, "resident", "step")))
    assert merged in bars(made)
    assert sum(bars(made).values()) == pytest.approx(made.gap_s.estimate)
    merging = next(bar for bar in made.bars if "+".join(bar.causes) == merged)
    assert merging.name.endswith("not separable")


@pytest.mark.parametrize("point", NEEDED)
def test_without_the_ends_there_is_no_waterfall(point: Point) -> None:
    assert waterfall([session((point,))], mode="strong", world_size=2) is None
    assert waterfall([], mode="strong", world_size=2) is None


def test_a_session_without_the_ends_does_not_count_and_a_variant_counts_only_if_all_have_it() -> None:
    made = found(session(), session(("step",)), session(("unsynced",)))
    assert made.sessions == 2
    assert "overhead+exchange" in bars(made)


def test_sessions_give_the_interval_and_one_gives_none() -> None:
    alone = found(session(**later(10, "resident", "step")))
    assert alone.largest.step_s.low is None
    several = found(*(session(**later(ms, "resident", "step")) for ms in (9.0, 10.0, 11.0)))
    low, high = several.largest.step_s.low, several.largest.step_s.high
    assert low is not None
    assert high is not None
    assert low < 0.010 < high
    # t with two degrees of freedom, times 1 ms over the root of three.
    assert high - low == pytest.approx(2 * 4.3027 * 1e-3 / 3**0.5, rel=1e-4)


seconds = st.floats(1e-4, 10.0)


@given(
    st.lists(
        st.fixed_dictionaries({p: st.tuples(*[seconds] * len(r)) for p, r in PERFECT.items()}), min_size=1, max_size=4
    )
)
def test_bars_always_sum_to_the_gap(drawn: list[dict[Point, tuple[float, ...]]]) -> None:
    made = found(*({point: [ranks] for point, ranks in each.items()} for each in drawn))
    assert sum(bars(made).values()) == pytest.approx(made.gap_s.estimate, abs=1e-9)
    assert made.measured_s.estimate - made.ideal_s.estimate == pytest.approx(made.gap_s.estimate, abs=1e-9)
