"""`split_and_load`, even or by one of the chunk rules, and `copyto`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference.gluon import copyto, split_and_load
from reference.scatter import CHUNK_RULES, gather
from tests.support.strategies import CPU, world_sizes


@given(n=st.integers(0, 40), k=world_sizes)
def test_an_even_split_is_even_or_an_error(n: int, k: int) -> None:
    """The message has both numbers and the remedy."""
    data, devices = torch.arange(n), [CPU] * k
    too_few = f"{n} samples are too few for {k} devices, each needs one: use fewer"
    uneven = f"{n} samples cannot be split evenly over {k} devices: .* multiple of {k}"
    if n < k or n % k:
        with pytest.raises(ValueError, match=too_few if n < k else uneven):
            split_and_load(data, devices)
        return
    shards = split_and_load(data, devices)
    assert [len(shard) for shard in shards] == [n // k] * k
    assert torch.equal(gather(shards, CPU), data)


@pytest.mark.parametrize("rule", CHUNK_RULES)
@given(n=st.integers(0, 40), k=world_sizes)
def test_an_uneven_split_follows_the_rule(rule: str, n: int, k: int) -> None:
    """The older rule refuses too few samples, the newer one leaves devices idle."""
    data, devices = torch.arange(n), [CPU] * k
    if rule == "mxnet_older" and n < k:
        with pytest.raises(ValueError, match=f"{n} samples are too few for {k} devices"):
            split_and_load(data, devices, even_split=False, rule=rule)
        return
    shards = split_and_load(data, devices, even_split=False, rule=rule)
    assert [len(shard) for shard in shards] == CHUNK_RULES[rule](n, k)
    assert torch.equal(gather(shards, CPU), data)


def test_the_newer_rule_is_the_default() -> None:
    """Torch's rule would leave devices idle, the older one give a device three of 10 samples."""
    assert [len(shard) for shard in split_and_load(torch.arange(10), [CPU] * 8, even_split=False)] == [2, 2] + [1] * 6


def test_an_unknown_rule_is_reported() -> None:
    message = "unknown rule 'floor': choose one of torch, mxnet_older, mxnet_newer"
    with pytest.raises(ValueError, match=message):
        split_and_load(torch.arange(4), [CPU], even_split=False, rule="floor")


def test_copyto_a_tensor_writes_into_it_as_the_books_all_reduce_needs() -> None:
    """[1, 1] and [2, 2] become [3, 3] twice, also through a temporary list."""
    first, second = torch.ones(1, 2), 2 * torch.ones(1, 2, requires_grad=True)
    for tensors in [[first, second]]:
        tensors[0] += copyto(tensors[1], CPU)
        assert copyto(tensors[0], tensors[1]) is second
    assert first.tolist() == second.tolist() == [[3.0, 3.0]]
    assert not first.requires_grad


def test_copyto_a_device_shares_nothing() -> None:
    """Even on the device of the source, where `to` returns the source itself."""
    source = torch.ones(2, requires_grad=True)
    there = copyto(source, CPU)
    assert source.to(CPU) is source
    assert not there.requires_grad
    there.zero_()
    assert source.tolist() == [1.0, 1.0]


def test_copyto_reports_unequal_shapes() -> None:
    """Torch's copy_ would repeat the row."""
    with pytest.raises(ValueError, match=r"cannot copy \(3,\) into \(2, 3\): copyto needs equal shapes"):
        copyto(torch.ones(3), torch.zeros(2, 3))
