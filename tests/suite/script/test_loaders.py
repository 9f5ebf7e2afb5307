"""What is read of a script's loaders, in this process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
)

from suite.script.loaders import Draws, described
from suite.script.tape import Tape

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
