"""Draws inputs for the checks on functions (`suite.properties.functions`), and searches for one that a function breaks.

A test of a collective of your own is one line: `assert not search("all_reduce_sums", my_all_reduce_).finding`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.scatter import chunk_sizes
from suite.properties import functions
from suite.properties.answers import Judgement

CPU = torch.device("cpu")

# Whole numbers up to this size add up exactly over eight devices; 64-bit ones beyond what 32 bits hold.
EXACT: dict[torch.dtype, int] = {
    torch.float64: 2**49,
    torch.float32: 2**19,
    torch.float16: 127,
    torch.bfloat16: 15,
    torch.int64: 2**59,
    torch.int32: 2**27,
    torch.int16: 2**11,
    torch.int8: 15,
}


@st.composite
def reductions(draw: st.DrawFn) -> list[Tensor]:
    """Draw a tensor for each device, no two alike: any dtype, whole or not; some empty, 0-dim or not contiguous."""
    dtype = draw(st.sampled_from(list(EXACT)))
    shape = draw(st.sampled_from([(), (0,), (1,), (5,), (8,), (13,), (3, 5), (2, 0, 3), (4, 2, 3)]))
    k = draw(st.integers(1, 8))
    whole = not dtype.is_floating_point or draw(st.booleans())
    turned = len(shape) > 1 and draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    made: list[Tensor] = []
    while len(made) < k:
        if whole:
            tensor = torch.randint(-EXACT[dtype], EXACT[dtype] + 1, shape, generator=generator).to(dtype)
        else:
            tensor = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        if not tensor.numel() or not any(torch.equal(tensor, other) for other in made):
            made.append(tensor)
    return [tensor.transpose(0, -1) if turned else tensor for tensor in made]


splits = st.tuples(st.integers(1, 40), st.integers(1, 9))


@st.composite
def shards(draw: st.DrawFn) -> list[Tensor]:
    """Draw a shard of (n_i, 3) for each device, no two rows alike; some are empty, and often all are equally long."""
    k, longest = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    uneven = st.lists(st.integers(0, longest), min_size=k, max_size=k)
    sizes = draw(st.one_of(st.just([longest] * k), uneven))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return list(torch.split(_rows(sum(sizes)).to(dtype), sizes))


@st.composite
def evaluations(draw: st.DrawFn) -> dict[str, Any]:
    """Draw equal replicas, uneven shards, and batch sizes that do not divide them."""
    k, n = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(draw(st.integers(0, 2**16)))
        net = nn.Linear(3, 4)
        X, y = torch.randn(n, 3), torch.randint(4, (n,))
    return {"replicas": [net] * k, "devices": [CPU] * k, "X": X, "y": y, "batch_size": draw(st.integers(1, 12))}


feeds = st.fixed_dictionaries(
    {"n": st.integers(1, 40), "batch_size": st.integers(1, 12), "seed": st.integers(0, 99), "epoch": st.integers(0, 9)}
)
shuffles = st.fixed_dictionaries(
    {"n": st.integers(20, 40), "batch_size": st.integers(1, 12), "seed": st.integers(0, 99)}
)


@st.composite
def interruptions(draw: st.DrawFn) -> functions.Interruption:
    """Draw a feed on several ranks, and after how many minibatches of an epoch it is interrupted."""
    drawn: dict[str, Any] = draw(feeds)
    most = -(-drawn["n"] // drawn["batch_size"])
    return functions.Interruption(**drawn, world_size=draw(st.integers(1, 4)), start=draw(st.integers(0, most)))


def _rows(n: int) -> Tensor:
    return torch.arange(3 * n).reshape(n, 3)


class _Check(NamedTuple):
    """A check of a kind of function: what is drawn, and the judgement of a function on it."""

    kind: str
    drawn: st.SearchStrategy[Any]
    judge: Callable[[Any, Any], Judgement]


FUNCTION_CHECKS = {
    "all_reduce_sums": _Check("all_reduce", reductions(), functions.all_reduce_sums),
    "all_reduce_keeps_tensors_apart": _Check("all_reduce", reductions(), functions.all_reduce_keeps_tensors_apart),
    "scatter_keeps_samples": _Check(
        "scatter", splits, lambda f, drawn: functions.scatter_keeps_samples(f, _rows(drawn[0]), [CPU] * drawn[1])
    ),
    "scatter_follows_rule": _Check(
        "scatter",
        splits,
        lambda f, drawn: functions.scatter_follows_rule(f, _rows(drawn[0]), [CPU] * drawn[1], chunk_sizes(*drawn)),
    ),
    "gather_joins_samples": _Check("gather", shards(), lambda f, drawn: functions.gather_joins_samples(f, drawn, CPU)),
    "gather_returns_gradients": _Check(
        "gather", shards(), lambda f, drawn: functions.gather_returns_gradients(f, drawn, CPU)
    ),
    "evaluation_counts_once": _Check(
        "evaluation", evaluations(), lambda f, drawn: functions.evaluation_counts_once(f, **drawn)
    ),
    "feed_covers": _Check("feed", feeds, lambda f, drawn: functions.feed_covers(f, **drawn)),
    "feed_reshuffles": _Check("feed", shuffles, lambda f, drawn: functions.feed_reshuffles(f, **drawn)),
    "feed_resumes": _Check("rank_feed", interruptions(), functions.feed_resumes),
}


class _Wrong(Exception):
    pass


def search(check: str, function: Any, examples: int | None = None) -> Judgement:
    """Put drawn inputs to a function; return the judgement of the smallest that it gets wrong, or an empty one.

    The inputs are the same in every search. They lie on the CPU; on GPUs, call the check itself.

    Args:
        check: a name in `FUNCTION_CHECKS`.
        function: an all-reduce, scatter, gather, evaluation or feed, called as `suite.properties.functions` says.
        examples: how many inputs, 100 by default, or what hypothesis's profile says.

    Raises:
        ValueError: there is no such check.
    """
    if check not in FUNCTION_CHECKS:
        raise ValueError(f"there is no check {check!r} on functions: valid names are {', '.join(FUNCTION_CHECKS)}")
    _, drawn_from, judge = FUNCTION_CHECKS[check]
    wrong: list[Judgement] = []

    @settings(
        max_examples=examples or settings().max_examples,
        derandomize=True,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn_from)
    def judge_all(drawn: Any) -> None:
        judgement = judge(function, drawn)
        if judgement.finding:
            wrong[:] = [judgement]
            raise _Wrong

    try:
        judge_all()
    except _Wrong:
        return wrong[0]
    return Judgement()
