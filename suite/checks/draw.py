"""What hypothesis draws for each check: cases that shrink to one linear layer and few small minibatches. Pure JSON.

Uneven and empty shards, batches smaller than the world and batches of one sample come up in every check that allows
them. float32 only goes with smooth nets without normalisation (`suite.properties.tolerance` says why).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from suite.properties.case import IMAGE_SIDE, Case, Net

LARGEST_BATCH = 13
SEEDS = st.integers(0, 2**16)


@st.composite
def nets(draw: st.DrawFn, *, smooth: bool = False) -> Net:
    """Linear and convolutional nets with shared, frozen and no parameters, buffers, kinks and normalised layers."""
    conv = draw(st.booleans())
    return Net(
        inputs=IMAGE_SIDE**2 if conv else draw(st.integers(1, 4)),
        hidden=tuple(draw(st.lists(st.integers(1, 5), max_size=2))),
        classes=draw(st.integers(2, 4)),
        activation="relu" if draw(st.booleans()) and not smooth else "tanh",
        conv=conv,
        buffer=draw(st.booleans()),
        tied=draw(st.booleans()),
        frozen=draw(st.booleans()),
    )


Batches = Callable[[st.DrawFn, int], list[int]]
Nets = Callable[[st.DrawFn, bool], Net]


def _none(draw: st.DrawFn, world_size: int) -> list[int]:
    return []


def _one(draw: st.DrawFn, world_size: int) -> list[int]:
    return [draw(st.integers(1, LARGEST_BATCH))]


def _few(draw: st.DrawFn, world_size: int) -> list[int]:
    return draw(st.lists(st.integers(1, LARGEST_BATCH), min_size=1, max_size=3))


def _many(draw: st.DrawFn, world_size: int) -> list[int]:
    # Up to six: a synchronisation that is skipped in every fourth or fifth step shows.
    return draw(st.lists(st.integers(1, LARGEST_BATCH), min_size=3, max_size=6))


def _two_or_three(draw: st.DrawFn, world_size: int) -> list[int]:
    # torch's DistributedDataParallel refuses an unused parameter in the step after the one that went wrong.
    return draw(st.lists(st.integers(1, LARGEST_BATCH), min_size=2, max_size=3))


def _two_samples_each(draw: st.DrawFn, world_size: int) -> list[int]:
    """Every device has two samples or more, the last one fewer than the others where there is one to spare."""

    def batch() -> int:
        each = draw(st.integers(2, 4))
        return each * world_size - (draw(st.integers(0, 1)) if each > 2 else 0)

    return [batch() for _ in range(draw(st.integers(1, 2)))]


def _one_sample_each(draw: st.DrawFn, world_size: int) -> list[int]:
    return [draw(st.integers(1, 3)) * world_size for _ in range(draw(st.integers(1, 2)))]


def _plain(draw: st.DrawFn, smooth: bool) -> Net:
    return draw(nets(smooth=smooth))


def _layered(draw: st.DrawFn, smooth: bool) -> Net:
    """Also layer normalisation, over so many features that little of its gradient cancels."""
    net, layered = draw(nets(smooth=smooth)), draw(st.booleans())
    if smooth or not layered:
        return net
    return replace(net, hidden=(draw(st.integers(4, 6)),), norm="layer")


def _batch_normalised(draw: st.DrawFn, smooth: bool) -> Net:
    return replace(draw(nets(smooth=smooth)), hidden=(draw(st.integers(1, 4)),), norm="batch")


def _dropping(draw: st.DrawFn, smooth: bool) -> Net:
    # Wide enough that two masks are never equal by chance: 2 ** -64.
    return replace(draw(nets(smooth=smooth)), hidden=(64,), dropout=True)


def _awkward(draw: st.DrawFn, smooth: bool) -> Net:
    unused = draw(st.sampled_from(["nowhere", "somewhere", "later", "none"]))
    if unused == "none":
        return Net(hidden=(2,), norm="batch")
    return replace(draw(nets(smooth=smooth)), unused=unused)


BOTH = ("float64", "float32")
DOUBLE = ("float64",)

# Every check by its name: the minibatches, nets and dtypes of its cases.
CHECKS: dict[str, tuple[Batches, Nets, tuple[str, ...]]] = {
    "start": (_none, _plain, BOTH),
    "gradient": (_one, _layered, BOTH),
    "trajectory": (_many, _layered, BOTH),
    "identity": (_few, _layered, BOTH),
    "replicas": (_many, _plain, BOTH),
    "loss": (_few, _plain, BOTH),
    "inputs": (_few, _plain, BOTH),
    "batch_norm": (_two_samples_each, _batch_normalised, DOUBLE),
    "dropout": (_one_sample_each, _dropping, BOTH),
    "evaluation": (_few, _plain, DOUBLE),
    "refusals": (_two_or_three, _awkward, DOUBLE),  # last: it may cost the ranks
}


@st.composite
def cases(draw: st.DrawFn, check: str, most: int, oracle: str) -> Case:
    """The cases of one check.

    Args:
        draw: hypothesis's.
        check: a name in `CHECKS`.
        most: the largest world size.
        oracle: the trainer's; "self" gets float64 only, because an unknown optimiser may amplify rounding.
    """
    batches, net, dtypes = CHECKS[check]
    if check == "refusals":
        most = 2  # where one rank raises and the others wait for it, all have to be started anew
    world_size = 1 if check == "identity" else draw(st.integers(2, most))
    dtype = draw(st.sampled_from(dtypes)) if oracle == "sgd" else "float64"
    return Case(
        world_size,
        tuple(batches(draw, world_size)),
        draw(SEEDS),
        dtype,
        draw(st.sampled_from([0.5, 0.1])),
        net(draw, dtype == "float32"),
    )
