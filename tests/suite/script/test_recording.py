"""What a recording is made of: functions of torch that are wrapped, updates, minibatches, loaders, and the tape."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections import UserDict, namedtuple
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch.optim import SGD
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
)

from suite.script import trees
from suite.script.as_cuda import class_on_cpu
from suite.script.loaders import Draws, described
from suite.script.patching import wrap
from suite.script.tape import Tape
from suite.script.updates import Updates, period


def test_a_function_is_wrapped_wherever_it_has_a_name_and_keeps_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    def reduce(tensor: Any, async_op: bool = False) -> None:
        """Stand for a function of torch.distributed."""

    one, other = (ModuleType(f"torch.distributed.{name}") for name in ("one", "other"))
    for module in (one, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(module, "reduce", reduce, raising=False)
    seen = list[Any]()
    wrap(one, "reduce", lambda call, *args, **kwargs: seen.append((call, args, kwargs)))
    other.reduce(1, async_op=True)
    assert seen == [(reduce, (1,), {"async_op": True})]
    assert inspect.signature(one.reduce) == inspect.signature(reduce)


def test_a_method_is_wrapped_and_what_torch_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Module, "half", torch.nn.Module.half)
    wrap(torch.nn.Module, "half", lambda call, module: module.double())
    assert torch.nn.Linear(1, 1).half().weight.dtype == torch.float64
    wrap(dist, "no_such_function", lambda call: None)
    assert not hasattr(dist, "no_such_function")


def test_a_generator_for_a_gpu_is_made_on_the_cpu() -> None:
    """A number stands for a GPU as well."""
    kind = class_on_cpu(torch.Generator)
    assert [kind(*where).device.type for where in ((), ("cuda:1",), (0,))] == ["cpu"] * 3
    assert kind(device="cuda").manual_seed(3).initial_seed() == 3


def test_the_class_of_generators_stays_a_class() -> None:
    """Modules that are imported later have it in their annotations, and ask what is an instance of it."""
    kind = class_on_cpu(torch.Generator)
    assert (kind | None) is not None
    assert isinstance(torch.default_generator, kind)
    assert isinstance(kind(), torch.Generator)
    assert not isinstance(torch.zeros(1), kind)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([0, 0, 0, 0], 1),
        ([0, 1, 0, 1], 2),
        ([0, 0, 1, 0, 0, 1], 3),
        ([0, 0, 1, 0, 0, 1, 0], 3),
        ([0, 1, 2, 0, 1], 0),
        ([0, 0, 0, 1], 0),
    ],
)
def test_the_shortest_cycle_that_repeats_is_an_update(calls: list[int], expected: int) -> None:
    assert period(calls) == expected


def optimizers(count: int) -> list[SGD]:
    """Return so many, each with a parameter that has a gradient."""
    made = []
    for _ in range(count):
        parameter = torch.nn.Parameter(torch.zeros(1))
        parameter.grad = torch.ones(1)
        made.append(SGD([parameter], lr=0.1))
    return made


@pytest.mark.parametrize(
    ("order", "cycles", "updates"),
    [([0], 9, 6), ([0, 1], 5, 4), ([0, 0, 0, 1], 4, 3)],  # the first ones show the cycle
)
def test_an_update_ends_with_the_last_step_of_its_cycle(order: list[int], cycles: int, updates: int) -> None:
    stepped: list[int] = []
    seen: list[int] = []
    known = optimizers(max(order) + 1)
    watched = Updates(lambda: seen.append(stepped[-1]))
    try:
        for which in order * cycles:
            stepped.append(which)
            known[which].step()
    finally:
        watched.close()
    assert seen == [order[-1]] * updates
    assert watched.optimizers == known


def test_a_step_that_a_grad_scaler_skips_is_no_update() -> None:
    seen: list[None] = []
    [optimizer] = optimizers(1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    watched = Updates(lambda: seen.append(None))
    try:
        for gradient in [1.0] * 5 + [float("inf"), 1.0]:
            optimizer.param_groups[0]["params"][0].grad = torch.full((1,), gradient)
            scaler.scale(torch.zeros(1))
            scaler.step(optimizer)
            scaler.update()
    finally:
        watched.close()
    assert len(seen) == 3  # of six: the first four show the cycle


Pair = namedtuple("Pair", "X y")
A, B = torch.arange(6.0).reshape(2, 3), torch.arange(6.0, 15.0).reshape(3, 3)


def test_a_union_has_the_rows_of_all_ranks_in_order() -> None:
    parts = [{"X": A, "y": [torch.zeros(2), "first"], "mask": torch.ones(4, 4)}]
    parts += [{"X": B, "y": [torch.ones(3), "first"], "mask": torch.ones(4, 4)}]
    union, padded = trees.united(parts)
    assert not padded
    assert torch.equal(union["X"], torch.cat([A, B]))
    assert union["y"][0].tolist() == [0, 0, 1, 1, 1]
    assert union["y"][1] == "first"
    assert union["mask"].shape == (4, 4)  # the same for every row


def test_a_list_with_an_entry_for_each_row_is_joined() -> None:
    """Texts, and images of several sizes."""
    union, _ = trees.united([[A, ["a", "b"]], [B, ["c", "d", "e"]]])
    assert union[1] == list("abcde")
    images, _ = trees.united([[A, [A, B]], [A, [B, A]]])
    assert [len(image) for image in images[1]] == [2, 3, 3, 2]


def test_rows_of_other_lengths_are_padded_with_what_does_not_count() -> None:
    labels = [torch.tensor([[1, -100]]), torch.tensor([[1, 2, 3]])]
    union, padded = trees.united(labels)
    assert padded
    assert union.tolist() == [[1, -100, -100], [1, 2, 3]]
    union, _ = trees.united([torch.ones(1, 1), torch.ones(1, 2)])
    assert union.tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize(
    "batch", [Pair(A, B), (A, {"y": B}), UserDict(X=A), [A, None, 3]], ids=["named tuple", "tuple", "mapping", "list"]
)
def test_what_was_kept_gets_the_form_of_a_minibatch(batch: Any) -> None:
    filled = trees.filled(batch, trees.plain(batch))
    assert type(filled) is type(batch)
    assert [torch.equal(a, b) for a, b in zip(trees.leaves(filled), trees.leaves(batch), strict=True)]
    assert all(a is not b for a, b in zip(trees.leaves(filled), trees.leaves(batch), strict=True))


def test_an_object_that_is_no_container_is_named() -> None:
    with pytest.raises(trees.NotKept, match=r"builtins\.object"):
        trees.plain([A, object()])


def test_rows_are_told_by_all_their_tensors() -> None:
    digests = trees.row_digests([A, torch.tensor([1, 2]), torch.ones(7)])
    assert len(digests) == 2
    assert digests[0] == trees.row_digests([A[:1], torch.tensor([1])])[0]
    assert digests[0] != trees.row_digests([A[:1], torch.tensor([2])])[0]
    assert trees.row_digests([]) == []


def test_only_floating_point_numbers_are_doubled() -> None:
    doubled = trees.doubled({"X": A, "y": torch.tensor([1]), "z": (A.bfloat16(), "text")})
    assert [tensor.dtype for tensor in trees.leaves(doubled)] == [torch.float64, torch.int64, torch.float64]


OWN = torch.zeros(1)


def recorded(rank: int) -> dict[str, Any]:
    """Return a record of two minibatches of two rows at one place, whose loader has no more."""
    tape = Tape()
    for number in range(2):
        tape.drawn("place", torch.full((2,), 10.0 * number + rank))
    with pytest.raises(StopIteration):
        tape.drawn_after_end("place", OWN)
    tape.called("targets", torch.tensor([rank]))
    return tape.record([{"draws": 1}])


RANKS = [recorded(0), recorded(1)]


@pytest.mark.parametrize(
    ("mode", "given"),
    [
        ("unions", [[0, 0, 1, 1], [10, 10, 11, 11]]),
        ("singles", [[0, 0], [1, 1], [10, 10], [11, 11]]),
        ("1", [[1, 1], [11, 11]]),
    ],
)
def test_minibatches_come_again_until_the_recorded_loaders_had_no_more(mode: str, given: list[list[float]]) -> None:
    tape = Tape(RANKS, mode)
    assert [tape.drawn("place", OWN).tolist() for _ in given[1:]] == given[:-1]
    assert tape.drawn_after_end("place", OWN).tolist() == given[-1]  # which its own loader has no more of
    with pytest.raises(StopIteration):
        tape.drawn("place", OWN)
    assert tape.draws == len(given)


def test_what_no_rank_was_given_is_the_scripts_own_and_noted() -> None:
    tape = Tape(RANKS, "unions", double=True)
    assert tape.drawn("elsewhere", OWN).dtype == torch.float64
    assert tape.record([])["unfed"] == 1
    assert Tape(RANKS, "unions").called("targets", OWN) is OWN  # a loader gave the rows


def test_without_a_loader_a_model_and_its_losses_are_given_what_was_recorded() -> None:
    tape = Tape()
    tape.called("targets", torch.tensor([3]))
    tape.drawn("place", object())
    record = tape.record([{"draws": 0}])
    assert record["not_kept"] == "builtins.object"
    again = Tape([record] * 2, "unions")
    assert again.called("targets", torch.tensor([0])).tolist() == [3, 3]


DATA = TensorDataset(torch.arange(12.0).reshape(12, 1))


class Noisy(Dataset[torch.Tensor]):
    """Rows that torch's random numbers augment."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(1)


class Counting(Noisy):
    """Rows that are others when they are read again."""

    reads = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads += 1
        return torch.tensor(float(self.reads))


class Stream(IterableDataset[torch.Tensor]):
    """Rows without indices."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(4.0))


def of(loader: DataLoader[Any], *, trains: bool = True) -> dict[str, Any]:
    """Return what is known of one loader."""
    draws = Draws(Tape())
    draws.trained = [loader] if trains else []
    draws._made = [lambda: loader]  # type: ignore[assignment,list-item]
    [known] = described(draws)
    return known


def sampler(rank: int = 0, **more: Any) -> DistributedSampler[Any]:
    return DistributedSampler(DATA, num_replicas=2, rank=rank, **more)


def test_ranks_that_split_one_data_set_have_its_rows_between_them() -> None:
    known = [of(DataLoader(DATA, 2, sampler=sampler(rank))) for rank in range(2)]
    assert sorted(itertools.chain(*(each["rows"].tolist() for each in known))) == list(range(12))
    assert known[0]["prints"] == known[1]["prints"] != []
    assert (known[0]["replicas"], known[0]["batch"], known[0]["same_order"]) == (2, 2, True)
    assert not of(DataLoader(DATA, 2, sampler=sampler(shuffle=False)))["same_order"]


def test_subsets_of_subsets_are_told_by_the_rows_of_their_data_set() -> None:
    known = of(DataLoader(Subset(Subset(DATA, [5, 6, 7]), [2, 0]), 1), trains=False)
    assert known["everything"].tolist() == [7, 5]
    assert (known["length"], known["rows_of_dataset"]) == (12, 2)


def test_augmented_rows_are_read_with_the_same_random_numbers_and_rows_that_change_are_not_known() -> None:
    prints = [of(DataLoader(Noisy()))["prints"] for _ in range(2)]
    assert prints[0] == prints[1] != []
    assert of(DataLoader(Counting()))["prints"] == []


def test_a_stream_has_no_rows_and_an_endless_sampler_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of(DataLoader(Stream(), 2))["rows"] is None
    monkeypatch.setattr("suite.script.loaders.MOST_INDICES", 50)
    endless = RandomSampler(DATA, replacement=True, num_samples=10**9)
    known = of(DataLoader(DATA, sampler=endless))
    assert known["rows"] is None
    assert known["length"] == 12


def test_rows_that_do_not_depend_on_the_index_are_not_told_by_it() -> None:
    class Windows(Noisy):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.randint(1000, (4,))

    assert of(DataLoader(Windows(), shuffle=True))["rows"] is None


def test_a_data_set_that_raises_is_not_known() -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> torch.Tensor:
            raise OSError("closed")

    assert of(DataLoader(Broken()))["prints"] == []


def test_batches_of_a_sampler_of_its_own_are_rows_too() -> None:
    known = of(DataLoader(DATA, batch_sampler=[[0, 1], [4]]))
    assert known["rows"].tolist() == [0, 1, 4]
