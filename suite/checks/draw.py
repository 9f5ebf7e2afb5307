"""The cases that hypothesis draws for each check; they shrink to one linear layer and few small minibatches. Pure JSON.

Every check that allows them gets uneven and empty shards, batches smaller than the world and batches of one sample,
unless the trainer takes equal shards alone.
Nets of lower precision than float64 are smooth and not normalised (`suite.properties.tolerance` says why).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from suite.properties.case import IMAGE, LOW_PRECISION, Case, Net, Text

LARGEST_BATCH = 13
SEEDS = st.integers(0, 2**16)


@st.composite
def nets(draw: st.DrawFn, *, smooth: bool = False) -> Net:
    """Draw a linear or convolutional net; parameters may be shared or frozen, and there may be buffers and kinks."""
    conv, inputs = draw(st.booleans()), draw(st.integers(1, 4))  # both always, so that either shrinks alone
    return Net(
        inputs=math.prod(IMAGE) if conv else inputs,
        hidden=tuple(draw(st.lists(st.integers(1, 5), max_size=2))),
        classes=draw(st.integers(2, 4)),
        activation="relu" if draw(st.booleans()) and not smooth else "tanh",
        conv=conv,
        buffer=draw(st.booleans()),
        tied=draw(st.booleans()),
        frozen=draw(st.booleans()),
    )


Batches = Callable[[int], st.SearchStrategy[list[int]]]  # from the world size to the samples of each step
Nets = Callable[[st.DrawFn, bool], Net]  # from (draw, smooth)


def _steps(least: int, most: int) -> Batches:
    """From `least` to `most` steps of any batch size."""
    return lambda world_size: st.lists(st.integers(1, LARGEST_BATCH), min_size=least, max_size=most)


def _trajectories(world_size: int) -> st.SearchStrategy[list[int]]:
    """Three to six steps, which show an exchange skipped in every fifth; in one case of eight nine to twelve."""
    return st.integers(0, 7).flatmap(lambda number: _steps(*((9, 12) if number == 7 else (3, 6)))(world_size))


def _two_samples_each(world_size: int) -> st.SearchStrategy[list[int]]:
    """One or two steps in which every device has two samples or more, the last one sometimes fewer than the others."""
    even = st.integers(2, 4).map(lambda each: each * world_size)
    return st.lists(even | st.integers(3, 4).map(lambda each: each * world_size - 1), min_size=1, max_size=2)


def _equal_shards(world_size: int) -> st.SearchStrategy[list[int]]:
    """Two or three steps of up to six samples a device, each of another number of samples."""
    each = st.integers(1, 6).map(lambda each: each * world_size)
    return st.lists(each, min_size=2, max_size=3, unique=True)


def _plain(draw: st.DrawFn, smooth: bool) -> Net:
    return draw(nets(smooth=smooth))


def _layered(draw: st.DrawFn, smooth: bool) -> Net:
    """Draw layer normalisation too, over so many features that little of its gradient cancels."""
    net, layered = draw(nets(smooth=smooth)), draw(st.booleans())
    if smooth or not layered:
        return net
    return replace(net, hidden=(draw(st.integers(4, 6)),), norm="layer")


def _batch_normalised(draw: st.DrawFn, smooth: bool) -> Net:
    return replace(draw(nets(smooth=smooth)), hidden=(draw(st.integers(1, 4)),), norm="batch")


def _dropping(draw: st.DrawFn, smooth: bool) -> Net:
    # With 64 features, two masks are equal by chance once in 2 ** 64.
    return replace(draw(nets(smooth=smooth)), hidden=(64,), dropout=True)


def _awkward(draw: st.DrawFn, smooth: bool) -> Net:
    unused = draw(st.sampled_from(["nowhere", "somewhere", "later", "none"]))
    if unused == "none":
        return Net(hidden=(2,), norm="batch")
    return replace(draw(nets(smooth=smooth)), unused=unused)


def _resumed(draw: st.DrawFn, smooth: bool) -> Net:
    """Draw dropout in half of the cases, so that the states of generators count."""
    net, drops = draw(nets(smooth=smooth)), draw(st.booleans())
    return replace(net, hidden=(8,), dropout=True) if drops else net


BOTH = ("float64", "float32")
DOUBLE = ("float64",)

# Every check by its name: the minibatches, nets and dtypes of its cases.
CHECKS: dict[str, tuple[Batches, Nets, tuple[str, ...]]] = {
    "start": (_steps(0, 0), _plain, BOTH),
    "gradient": (_steps(1, 1), _layered, BOTH),
    "trajectory": (_trajectories, _layered, BOTH),
    "identity": (_steps(1, 3), _layered, BOTH),
    "replicas": (_steps(3, 6), _plain, BOTH),
    "loss": (_steps(1, 3), _plain, BOTH),
    "inputs": (_steps(1, 3), _plain, BOTH),
    "low_precision": (_steps(2, 4), _layered, ("bfloat16",)),
    "batch_norm": (_two_samples_each, _batch_normalised, DOUBLE),
    "dropout": (_equal_shards, _dropping, BOTH),
    "evaluation": (_steps(1, 3), _plain, DOUBLE),
    "not_a_number": (_steps(2, 3), _plain, DOUBLE),
    "state": (_steps(2, 4), _plain, DOUBLE),
    "resume": (_steps(2, 3), _resumed, (*BOTH, "bfloat16")),
    # Two steps at least: torch's DistributedDataParallel refuses an unused parameter in the step after the wrong one.
    "refusals": (_steps(2, 3), _awkward, DOUBLE),  # last, because it may end the ranks
}

# The checks of what a trainer saves.
WITH_STATE = ("state", "resume")
WITHOUT_STATE = "not checked: it has no state_dict and load_state_dict of its own"

# The checks in which k devices are compared with one.
WITH_ONE_DEVICE = (
    *("gradient", "trajectory", "identity", "loss", "low_precision", "batch_norm", "not_a_number", "state", "refusals"),
)


@st.composite
def texts(draw: st.DrawFn) -> Text:
    """Draw a language model and its texts; any label may be ignored, and so may all labels of a rank.

    A layer normalisation over two features returns -1 and 1, but for features that nearly agree, where it amplifies
    rounding by 1 / sqrt(1e-5) = 316. So it has four.
    """
    text = Text(
        vocabulary=draw(st.integers(2, 5)),
        positions=draw(st.integers(1, 4)),
        width=draw(st.sampled_from([2, 4])),
        blocks=draw(st.integers(0, 2)),
        norm=draw(st.sampled_from(["none", "layer", "rms"])),
        rotary=draw(st.booleans()),
        tied=draw(st.booleans()),
        checkpoint=draw(st.booleans()),
        unequal=draw(st.booleans()),
        ignored=draw(st.booleans()),
        silent=draw(st.integers(0, LARGEST_BATCH // 2)),
        weighted=draw(st.booleans()),
    )
    return replace(text, width=4) if text.norm == "layer" else text


@st.composite
def dropping_texts(draw: st.DrawFn) -> Text:
    """Draw a language model with dropout, of 64 features a text, whose blocks may be recomputed."""
    return Text(positions=8, width=8, blocks=draw(st.integers(1, 2)), dropout=True, checkpoint=draw(st.booleans()))


@st.composite
def awkward_texts(draw: st.DrawFn) -> Text:
    """Draw a language model with a layer that not every text uses."""
    return replace(draw(texts()), unused=draw(st.sampled_from(["nowhere", "somewhere"])))


# The checks that have no cases for a trainer of tokens, and why.
WITHOUT_TEXTS = {
    "batch_norm": "language models normalise each token by itself (LayerNorm, RMSNorm) and no batch: nothing to check",
}
# Those that have; the minibatches are as in `CHECKS`.
_TEXTS = {"dropout": dropping_texts(), "resume": texts() | dropping_texts(), "refusals": awkward_texts()}
TEXT_CHECKS = {check: _TEXTS.get(check, texts()) for check in CHECKS if check not in WITHOUT_TEXTS}


@st.composite
def cases(draw: st.DrawFn, check: str, most: int, oracle: str, trains: str = "samples", shards: int = 0) -> Case:
    """Draw a case of one check.

    Args:
        draw: hypothesis's.
        check: a name in `CHECKS`.
        most: the largest world size.
        oracle: of the trainer; "self" gets float64, because an unknown optimiser may amplify rounding, and in low
            precision float32 as well, which autocast needs.
        trains: "samples", or "tokens" for language models, which only the checks in `TEXT_CHECKS` have.
        shards: of how many samples each rank's shard is a multiple; 0 for shards of any length.
    """
    batches, net, dtypes = CHECKS[check]
    if check == "refusals":
        most = min(most, 2)  # all ranks must be restarted after one raised and the others waited for it
    world_size = 1 if check == "identity" or most < 2 else draw(st.integers(2, most))
    if oracle == "self" and check != "resume":
        dtypes = ("bfloat16", "float32") if check == LOW_PRECISION else DOUBLE
    dtype = draw(st.sampled_from(dtypes))
    if check == "resume" and dtype == "bfloat16":
        # Over more ranks a sum in another order differs by as much as an error does.
        world_size = min(world_size, 2)
    # Of a short step little can be read from parameters that are rounded to three digits.
    rates = [1.0, 0.5] if check == LOW_PRECISION and oracle == "sgd" else [0.5, 0.1]
    plain = (world_size, tuple(draw(batches(world_size))), draw(SEEDS), dtype, draw(st.sampled_from(rates)))
    if trains == "tokens":
        case = Case(*plain, text=draw(TEXT_CHECKS[check]))
    else:
        case = Case(*plain, net(draw, dtype != "float64"))
    if shards:
        case = case.with_shards(shards)
    if check == "resume":
        return replace(case, resumed=draw(st.integers(1, len(case.batches) - 1)))
    if check == "not_a_number":  # before the last step, which shows a loss scale that ranks do not share
        return replace(case, spoiled=draw(st.integers(0, len(case.batches) - 2)))
    return case


# Every trainer gets these besides the drawn cases, because drawing seldom brings what they have (docs/log.md). The
# first bucket of DistributedDataParallel has 1 MiB, and so many numbers are in one parameter of the large nets: 131,584
# in float64, 525,312 in bfloat16. With so many features the gradient is larger than most limits of its norm. One of the
# ten steps has more samples a device than most micro-batches. The layer "elsewhere" is used in every step here, because
# DistributedDataParallel refuses in the step after the wrong one.
TEN_STEPS = (5, 4, 3, 4, 5, 133, 5, 4, 3, 5)
FIXED = {
    "gradient": [Case(2, (3,), net=Net(inputs=65_792, hidden=(2,)))],
    "trajectory": [Case(2, TEN_STEPS, net=Net(hidden=(3,)))],
    "inputs": [Case(2, (4, 4, 4), net=Net(hidden=(3,)))],
    "low_precision": [Case(2, (3,), dtype="bfloat16", net=Net(inputs=1024, hidden=(513,)))],
    "evaluation": [Case(2, (5,), net=Net(classes=3, buffer=True))],
    "not_a_number": [Case(2, (2, 3, 3), spoiled=0, overflows=True)],
    "resume": [
        Case(2, (5, 4, 6), dtype=dtype, net=Net(hidden=(8,), dropout=True), resumed=1)
        for dtype in ("float64", "bfloat16")
    ],
    "refusals": [
        Case(2, (4, 3, 4), net=Net(hidden=(3,), unused=layer))
        for layer in ("nowhere", "somewhere", "elsewhere", "later")
    ],
}
FIXED_TEXTS = {
    "gradient": [Case(2, (3,), text=Text(vocabulary=257, width=512, tied=True))],
    "trajectory": [Case(2, TEN_STEPS, text=Text(vocabulary=4, positions=2, blocks=1))],
    "inputs": [Case(2, (4, 4, 4), text=Text(vocabulary=4, positions=2, blocks=1))],
    "low_precision": [Case(2, (3,), dtype="bfloat16", text=Text(vocabulary=513, width=1024, tied=True))],
    "resume": [
        Case(2, (5, 4, 6), dtype=dtype, text=Text(positions=8, width=8, blocks=1, dropout=True), resumed=1)
        for dtype in ("float64", "bfloat16")
    ],
    "refusals": [Case(2, (7, 5, 6), text=Text(positions=2, unused=layer)) for layer in ("nowhere", "somewhere")],
}


def fixed(check: str, most: int, trains: str, shards: int = 0) -> list[Case]:
    """Return the cases of a check that are not drawn; the arguments are those of `cases`."""
    if most < 2:
        return []
    cases = (FIXED_TEXTS if trains == "tokens" else FIXED).get(check, [])
    return [case.with_shards(shards) for case in cases] if shards else cases
