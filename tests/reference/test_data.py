"""Data sets, where they come from, and the minibatches that feeds make of them."""

from __future__ import annotations

import inspect
import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reference import nest
from reference.data import DATASETS, LOADERS, Dataset, feed, index_batches, load
from reference.data.__main__ import main
from reference.data.fashion_mnist import IDX_FILES, has_idx_files, raw_folder, read_dataset, write_idx
from reference.data.synthetic import synthetic
from reference.data.texts import best, make
from reference.loss import IGNORED
from reference.scatter import chunk_sizes
from tests.support.project import REPOSITORY
from tests.support.repositories import Repository
from tests.support.strategies import world_sizes

SAMPLE = REPOSITORY.parent / "shared" / "data" / "fashion-mnist-sample"


def write_files(root: Path, train: int = 23, test: int = 5) -> list[torch.Tensor]:
    """Write random images and labels as the four files under a data root, and return them in the files' order."""
    generator = torch.Generator().manual_seed(0)
    raw_folder(root).mkdir(parents=True)
    parts: list[torch.Tensor] = []
    for n in (train, test):
        parts.append(torch.randint(256, (n, 28, 28), generator=generator, dtype=torch.uint8))
        parts.append(torch.randint(10, (n,), generator=generator, dtype=torch.uint8))
    for name, values in zip(IDX_FILES, parts, strict=True):
        write_idx(raw_folder(root) / name, values)
    return parts


def numbered(n: int) -> Dataset:
    """Return a data set whose sample i is the number i, with label i."""
    X, y = torch.arange(float(n)).reshape(n, 1), torch.arange(n)
    return Dataset("numbered", X, y, X[:1], y[:1])


def test_fashion_mnist_is_read_as_to_tensor_scales_it(tmp_path: Path) -> None:
    """Bytes become [0, 1] in float32, with an axis for the channel, and are not normalised."""
    train, train_labels, test, test_labels = write_files(tmp_path)
    data = load("fashion-mnist", tmp_path)
    assert data.name == "fashion-mnist"
    assert data.train_X.shape == (23, 1, 28, 28)
    assert data.train_y.dtype == torch.int64
    assert torch.equal(data.train_X[:, 0], train.float() / 255)
    assert torch.equal(data.test_X[:, 0], test.float() / 255)
    assert torch.equal(data.train_y, train_labels.long())
    assert torch.equal(data.test_y, test_labels.long())


@pytest.mark.skipif(not has_idx_files(SAMPLE), reason="the sample of real Fashion-MNIST images is not on this machine")
def test_real_images_are_read() -> None:
    data = load("auto", SAMPLE)
    assert data.name == "fashion-mnist"
    assert (len(data.train_X), len(data.test_X)) == (700, 200)
    assert torch.bincount(torch.cat([data.train_y, data.test_y])).tolist() == [90] * 10
    assert 0.2 < data.train_X.mean().item() < 0.4
    assert data.train_X.max() <= 1


def test_missing_and_broken_files_are_reported_with_the_remedy(tmp_path: Path) -> None:
    message = f"not under {tmp_path}: .*{', '.join(IDX_FILES)}.*python -m reference.data download --data-root"
    with pytest.raises(FileNotFoundError, match=message):
        load("fashion-mnist", tmp_path)
    write_files(tmp_path)
    path = raw_folder(tmp_path) / IDX_FILES[0]
    path.write_bytes(path.read_bytes()[:1000])
    message = f"a file in {raw_folder(tmp_path)} is not a complete IDX file.*remove the folder"
    with pytest.raises(ValueError, match=message):
        load("fashion-mnist", tmp_path)


def test_auto_takes_the_real_images_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name says which data set it is."""
    monkeypatch.setattr("reference.data.sources.synthetic", lambda root: synthetic(root, train=12, test=4))
    assert load("auto", tmp_path).name == "synthetic"
    write_files(tmp_path)
    assert load("auto", tmp_path).name == "fashion-mnist"


def test_synthetic_is_made_once_and_read_as_torchvision_reads_it(tmp_path: Path) -> None:
    """Every byte follows from the seed, and the data root is made."""
    first = synthetic(tmp_path / "a" / "b", train=30, test=5)
    second = synthetic(tmp_path / "c", train=30, test=5)
    torchvisions = read_dataset("synthetic", tmp_path / "c" / "synthetic")
    for part in ("train_X", "train_y", "test_X", "test_y"):
        for other in (second, torchvisions):
            assert torch.equal(getattr(first, part), getattr(other, part))
            assert getattr(first, part).dtype == getattr(other, part).dtype
    assert len(synthetic(tmp_path / "c", train=7, test=7).train_X) == 30
    assert not torch.equal(synthetic(tmp_path / "d", train=30, test=5, seed=1).train_X, first.train_X)


def test_texts_follow_from_the_seed_and_their_labels_are_the_next_tokens() -> None:
    first, second, other = (make("texts", vocabulary=16, positions=9, train=5, test=3, seed=s) for s in (0, 0, 1))
    assert torch.equal(first.train_X, second.train_X)
    assert not torch.equal(first.train_X, other.train_X)
    assert first.train_X.shape == first.train_y["labels"].shape == (5, 9)
    assert torch.equal(first.test_y["labels"][:, 1:-1], first.test_X[:, 2:])
    assert bool((first.test_y["labels"][:, 0] == IGNORED).all())


def test_nothing_predicts_texts_better_than_their_own_process_and_it_needs_both_tokens(tmp_path: Path) -> None:
    """Counted on the tokens: two tokens determine the next one as often as `best` says, one token about half of it."""
    found = load("texts-tiny", tmp_path)
    assert (found.train_X.shape, found.test_X.shape) == ((2048, 64), (512, 64))
    loss, right = best(32)
    before, last, following = found.train_X[:, :-1], found.train_X[:, 1:], found.train_y["labels"][:, 1:]
    counts = torch.zeros(2, 32, 32).index_put_((before % 2, last, following), torch.tensor(1.0), accumulate=True)
    shares = counts / counts.sum(-1, keepdim=True)
    tests = (found.test_X[:, :-1] % 2, found.test_X[:, 1:], found.test_y["labels"][:, 1:])
    entropy = -shares[tests].clamp(min=0.2 / 32).log().mean().item()  # no token is rarer
    assert loss == pytest.approx(1.1569, abs=1e-4)
    assert loss - 0.02 < entropy < loss + 0.1, "estimated from counts, which costs a little"
    assert (shares[tests[:2]].argmax(-1) == tests[2]).float().mean().item() == pytest.approx(right, abs=0.01)
    assert (counts.sum(0)[tests[1]].argmax(-1) == tests[2]).float().mean().item() < 0.7


def test_synthetic_has_by_default_the_sizes_of_fashion_mnist() -> None:
    """The documents' numbers of steps depend on them."""
    defaults = inspect.signature(DATASETS["synthetic"]).parameters
    assert (defaults["train"].default, defaults["test"].default) == (60_000, 10_000)


def test_several_threads_may_make_the_synthetic_set_at_once(tmp_path: Path) -> None:
    """Every file appears whole, so all of them read the same data."""
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: synthetic(tmp_path, train=500, test=50).train_X, range(4)))
    assert all(torch.equal(X, made[0]) for X in made)
    assert sorted(os.listdir(raw_folder(tmp_path / "synthetic"))) == sorted(IDX_FILES)


def test_git_ignores_the_synthetic_set_in_a_users_repository(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.commit({"train.py": ""})
    synthetic(tmp_path / "data", train=30, test=5)
    assert repository.git("status", "--porcelain") == ""


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"\0\0\x0d\x01\0\0\0\x01\0", b"\0\0\x08\x01\0\0\0\x09\0"])
def test_a_broken_synthetic_file_is_reported(tmp_path: Path, content: bytes) -> None:
    synthetic(tmp_path, train=30, test=5)
    path = raw_folder(tmp_path / "synthetic") / IDX_FILES[1]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} is not a complete IDX file of bytes .*generate the data again"):
        synthetic(tmp_path)


def test_an_unwritable_data_root_is_reported(tmp_path: Path) -> None:
    (tmp_path / "synthetic").write_text("a file in the place of the folder")
    with pytest.raises(OSError, match=r"the synthetic data set cannot be written to .*choose another data root"):
        synthetic(tmp_path, train=5, test=5)


def test_synthetic_is_learnable_and_its_classes_overlap(tmp_path: Path) -> None:
    """The mean picture of each class recognises most samples, but not all."""
    data = synthetic(tmp_path, train=4000, test=1000)
    means = torch.stack([data.train_X[data.train_y == c].mean(0).flatten() for c in range(10)])
    guesses = torch.cdist(data.test_X.flatten(1), means).argmin(1)
    assert 0.5 < (guesses == data.test_y).float().mean() < 0.98


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_idx(tmp_path / "file", torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"values are torch.float32: only uint8 is written"):
        write_idx(tmp_path / "file", torch.zeros(3))
    assert os.listdir(tmp_path) == []


def test_digits_are_1437_and_360_images_of_28x28(tmp_path: Path) -> None:
    """Both parts have all ten classes; the split is always the same."""
    data, again = load("digits", tmp_path), load("digits", tmp_path)
    assert data.train_X.shape == (1437, 1, 28, 28)
    assert data.test_X.shape == (360, 1, 28, 28)
    assert data.train_X.dtype == torch.float32
    assert data.train_X.min() == 0
    assert 0.9 < data.train_X.max() <= 1
    assert set(data.train_y.tolist()) == set(data.test_y.tolist()) == set(range(10))
    assert torch.equal(data.train_X, again.train_X)


USERS_FUNCTIONS = """
from torch import arange, rand

def returns_3(): return 3
constant = 3
def unequal(): return (rand(3), arange(2)), (rand(3), arange(3))
def empty(): return (rand(3), arange(3)), (rand(0), arange(0))
def bytes_(): return (arange(3).byte(), arange(3)), (rand(3), arange(3))
def ragged(): return ({"tokens": arange(3), "length": arange(2)}, arange(3)), (arange(3), arange(3))
def named(): return ({"tokens": (arange(3), "text")}, arange(3)), (arange(3), arange(3))
def nothing(): return ({}, arange(3)), (arange(3), arange(3))
def scalar(): return ((arange(3), rand(())), arange(3)), (arange(3), arange(3))
"""


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("returns_3", TypeError, "returned a int: it must return"),
        ("constant", TypeError, "is a int: it must be a function without arguments"),
        ("unequal", ValueError, "train_X has 3 samples and train_y"),
        ("empty", ValueError, "test_X has 0 samples and test_y has 0 labels: there must be as many of both, and"),
        ("bytes_", ValueError, "train_X is torch.uint8: make it floating, .* or int64 where these are tokens"),
        ("ragged", ValueError, "train_X has 2 or 3 samples and train_y has 3"),
        ("named", TypeError, r"train_X\['tokens'\]\[1\] is a str: it must be a tensor, or a dict, tuple or list"),
        ("nothing", ValueError, "train_X is an empty dict"),
        ("scalar", ValueError, r"train_X\[1\] is a tensor without axes: its first axis must be the samples"),
    ],
)
def test_a_users_broken_data_set_is_reported(tmp_path: Path, name: str, error: type[Exception], message: str) -> None:
    """The message says which part is wrong, what it is, and what it must be."""
    (tmp_path / "mine.py").write_text(USERS_FUNCTIONS)
    with pytest.raises(error, match=message):
        load(f"{tmp_path}/mine.py:{name}", tmp_path)


@pytest.mark.parametrize(
    "y",
    [
        *(torch.ones(3).to(dtype) for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.bool)),
        *(torch.ones(3).to(dtype) for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.complex64)),
        torch.rand(3),
        torch.rand(3, 2),
        torch.rand(3, 2, 2),
    ],
    ids=nest.described,
)
def test_targets_of_any_kind_are_a_data_set(tmp_path: Path, y: Tensor) -> None:
    """A loss of the user's takes them as they are; nothing advises to change them."""
    data = Dataset("mine", torch.rand(3, 2), y, torch.rand(3, 2), y)
    [(_, batch)] = feed(data, "resident", 3, epoch=0)
    assert (batch.dtype, batch.shape) == (y.dtype, y.shape)
    [(_, loaded)] = feed(data, "book", 3, epoch=0, num_workers=0)
    assert torch.equal(loaded, batch)


@pytest.mark.parametrize(("batch_size", "steps", "last"), [(256, 235, 96), (512, 118, 96)])
def test_an_epoch_of_fashion_mnist_has_the_documents_steps(batch_size: int, steps: int, last: int) -> None:
    """The short last batch is kept by default. The other rules of a feed are checked with its mutants."""
    sizes = [len(batch) for batch in index_batches(60_000, batch_size, seed=0, epoch=0)]
    assert sizes == [batch_size] * (steps - 1) + [last]
    assert len(list(index_batches(60_000, batch_size, seed=0, epoch=0, drop_last=True))) == steps - 1


@settings(max_examples=15)
@given(n=st.integers(1, 40), batch_size=st.integers(1, 20), k=world_sizes, loader=st.sampled_from(sorted(LOADERS)))
def test_the_ranks_parts_make_up_the_batches_of_one_device(n: int, batch_size: int, k: int, loader: str) -> None:
    """With either loader, by torch's chunk rule; shards may be empty, and each label stays with its sample."""
    whole = [X for X, _ in feed(numbered(n), "resident", batch_size, epoch=3)]
    ranks = [
        list(feed(numbered(n), loader, batch_size, world_size=k, rank=r, epoch=3, num_workers=0)) for r in range(k)
    ]
    for step, X in enumerate(whole):
        parts = [rank[step] for rank in ranks]
        sizes = chunk_sizes(len(X), k)
        assert [len(part) for part, _ in parts] == sizes + [0] * (k - len(sizes))
        assert torch.equal(torch.cat([part for part, _ in parts]), X)
        assert all(torch.equal(part.flatten().long(), y) and y.dtype == torch.int64 for part, y in parts)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_feed_that_is_started_in_the_middle_of_an_epoch_yields_the_rest(loader: str) -> None:
    """`feed_resumes` says what else must hold."""
    whole, rest, nothing = (
        [y.tolist() for _, y in feed(numbered(11), loader, 4, world_size=2, rank=1, start=start, num_workers=0)]
        for start in (0, 1, 3)
    )
    assert (len(whole), rest, nothing) == (3, whole[1:], [])


@pytest.mark.parametrize("loader", LOADERS)
def test_nests_are_fed_as_nests_and_stay_together(tmp_path: Path, loader: str) -> None:
    """Tokens stay int64, and each rank's part of a nest has the structure of the whole."""
    data = load("tests.support.texts:corpus", tmp_path)
    ranks = [list(feed(data, loader, 7, world_size=3, rank=rank, num_workers=0)) for rank in range(3)]
    for step, (X, y) in enumerate(feed(data, "resident", 7)):
        parts = [rank[step] for rank in ranks]
        assert all(set(part) == {"tokens", "length"} and set(labels) == set(y) for part, labels in parts)
        for name in ("tokens", "length"):
            assert torch.equal(torch.cat([part[name] for part, _ in parts]), X[name])
            assert X[name].dtype == torch.int64
        assert torch.equal(torch.cat([labels["weights"] for _, labels in parts]), y["weights"])
    assert len(ranks[0]) == step + 1 == 14


def test_the_books_loader_reads_the_same_images_from_the_files(tmp_path: Path) -> None:
    """Worker processes, PIL and ToTensor give the bits of the resident tensors."""
    write_files(tmp_path)
    data = load("fashion-mnist", tmp_path)
    pairs = zip(feed(data, "book", 8, num_workers=2), feed(data, "resident", 8), strict=True)
    assert all(torch.equal(X, X2) and torch.equal(y, y2) for (X, y), (X2, y2) in pairs)


class CoresOfTheReader(torch.utils.data.Dataset[tuple[torch.Tensor, ...]]):
    """A data set whose samples are the number of cores that the reading process may use."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return torch.tensor(float(len(os.sched_getaffinity(0)))), torch.tensor(index)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind processes to cores")
def test_the_books_worker_processes_use_the_cores_they_are_given() -> None:
    """By default they are bound to the core of the rank that starts them."""
    data, cpus = numbered(4), os.sched_getaffinity(0)
    data.__dict__["train_samples"] = CoresOfTheReader()

    def read() -> None:
        os.sched_setaffinity(0, {min(cpus)})
        seen.extend(next(feed(data, "book", 4, num_workers=1, cpus=given))[0] for given in (None, cpus))

    # In a thread of its own: torch's threads inherit the cores of the one that starts them, and would keep them.
    seen: list[torch.Tensor] = []
    bound_rank = threading.Thread(target=read)
    bound_rank.start()
    bound_rank.join()
    assert [counts.tolist() for counts in seen] == [[1.0] * 4, [float(len(cpus))] * 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loader": "fast"}, "unknown loader 'fast': choose one of resident, book"),
        ({"rank": 2}, "rank is 2 in a world of 2"),
        ({"batch_size": 0}, "batch_size is 0: it must be at least 1"),
        ({"start": -1}, "start is -1: it must be at least 0"),
        ({"device": "meta"}, r"the data set is on cpu, the feed on meta: use dataset.to\(device\) once"),
    ],
)
def test_bad_values_of_a_feed_are_reported_before_the_first_batch(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        feed(numbered(5), **{"loader": "resident", "batch_size": 4, "world_size": 2, **changes})


def test_an_unknown_data_set_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    message = "unknown data set 'cifar': choose one of fashion-mnist, synthetic, digits, auto"
    with pytest.raises(ValueError, match=message):
        load("cifar", tmp_path)


def test_digits_without_scikit_learn_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="the digits data set comes with scikit-learn: pip install scikit-learn"):
        load("digits", tmp_path)


def test_download_reports_a_failure_in_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def offline(self: object) -> None:
        raise RuntimeError("Error downloading train-images:\nTried a mirror, got:\nno route to host")

    monkeypatch.setattr("torchvision.datasets.FashionMNIST.download", offline)
    assert main(["download", "--data-root", str(tmp_path)]) == 1
    said = r"error: Fashion-MNIST could not be downloaded.*no route to host.*use the synthetic data set[^\n]*\n"
    assert re.fullmatch(said, capsys.readouterr().err)


def test_download_says_where_files_are_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(tmp_path)
    assert main(["download", "--data-root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"Fashion-MNIST is in {raw_folder(tmp_path)}\n"
