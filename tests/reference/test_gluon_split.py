"""`split_and_load` and `copyto`: even or uneven, by MXNet's older rule or its newer, and copies in place."""

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
    """Both numbers stand in the message, and what to do."""
    data, devices = torch.arange(n), [CPU] * k
    if n < k:
        with pytest.raises(ValueError, match=f"{n} samples are too few for {k} devices, each needs one: use fewer"):
            split_and_load(data, devices)
    elif n % k:
        with pytest.raises(
            ValueError, match=f"{n} samples cannot be split evenly over {k} devices: .* multiple of {k}"
        ):
            split_and_load(data, devices)
    else:
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
    """10 samples on 8 devices: nobody is idle, as with torch's rule, or has three, as with the older one."""
    assert [len(shard) for shard in split_and_load(torch.arange(10), [CPU] * 8, even_split=False)] == [2, 2] + [1] * 6


def test_an_unknown_rule_is_reported() -> None:
    """With the names that there are."""
    message = "unknown rule 'floor': choose one of torch, mxnet_older, mxnet_newer"
    with pytest.raises(ValueError, match=message):
        split_and_load(torch.arange(4), [CPU], even_split=False, rule="floor")


def test_copyto_a_tensor_writes_into_it() -> None:
    """Whoever refers to the target sees the values; rebinding a name, beside it, leaves the others as they were."""
    target, source = torch.zeros(2), torch.tensor([1.0, 2.0], requires_grad=True)
    elsewhere = [target]
    assert copyto(source, target) is target
    assert elsewhere[0].tolist() == [1.0, 2.0]
    assert not target.requires_grad
    rebound = torch.zeros(2)
    elsewhere = [rebound]
    rebound = source.detach().to(CPU)
    assert elsewhere[0].tolist() == [0.0, 0.0]


def test_copyto_a_device_shares_nothing() -> None:
    """Also on the device where the source lies; `to` alone, beside it, returns the source itself."""
    source = torch.ones(2, requires_grad=True)
    there = copyto(source, CPU)
    assert source.to(CPU) is source
    assert not there.requires_grad
    there.zero_()
    assert source.tolist() == [1.0, 1.0]


def test_the_books_all_reduce_with_copyto() -> None:
    """[1, 1] and [2, 2] become [3, 3] twice, also through a temporary list."""
    first, second = torch.ones(1, 2), 2 * torch.ones(1, 2)
    for tensors in [[first, second]]:
        tensors[0] += copyto(tensors[1], CPU)
        copyto(tensors[0], tensors[1])
    assert first.tolist() == second.tolist() == [[3.0, 3.0]]


def test_copyto_reports_unequal_shapes() -> None:
    """Torch's copy_ would repeat the row."""
    with pytest.raises(ValueError, match=r"cannot copy \(3,\) into \(2, 3\): copyto needs equal shapes"):
        copyto(torch.ones(3), torch.zeros(2, 3))
