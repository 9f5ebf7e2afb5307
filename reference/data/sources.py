"""Load a data set by its name: table name -> function of the data root, and `load`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reference.data.dataset import Dataset
from reference.data.digits import digits
from reference.data.fashion_mnist import fashion_mnist, has_idx_files
from reference.data.synthetic import synthetic
from reference.data.texts import texts, texts_tiny
from reference.load import load_object


def auto(data_root: Path) -> Dataset:
    """Return Fashion-MNIST if its files exist, otherwise the synthetic set; the data set's name says which."""
    return fashion_mnist(data_root) if has_idx_files(data_root) else synthetic(data_root)


DATASETS: dict[str, Callable[[Path], Dataset]] = {
    "fashion-mnist": fashion_mnist,
    "synthetic": synthetic,
    "digits": digits,
    "auto": auto,
    "texts-tiny": texts_tiny,
    "texts": texts,
}


def load(name: str, data_root: Path) -> Dataset:
    """Return a data set, on the CPU.

    Args:
        name: a name in `DATASETS`, or ``module:function`` or ``path.py:function`` of a function without arguments
            that returns ``(train_X, train_y), (test_X, test_y)``, each a tensor or a nest of tensors.
        data_root: folder of the data files; read by "fashion-mnist" and "auto", written once by "synthetic".

    Raises:
        ValueError: unknown name, files that are not IDX, or tensors that `Dataset` refuses.
        TypeError: the user's function returns something other than two pairs, or a pair of something else.
        FileNotFoundError, OSError, ImportError: "fashion-mnist" without its files, "synthetic" where it cannot write
            them, "digits" without scikit-learn.
        FileNotFoundError, ImportError, AttributeError: as in `load_object`.
    """
    if name in DATASETS:
        return DATASETS[name](data_root)
    if ":" not in name:
        raise ValueError(
            f"unknown data set {name!r}: choose one of {', '.join(DATASETS)}, or name your own as module:name"
        )
    function = load_object(name)
    if not callable(function):
        raise TypeError(f"data set {name!r} is a {type(function).__name__}: it must be a function without arguments")
    match function():
        case ((train_X, train_y), (test_X, test_y)):
            return Dataset(name, train_X, train_y, test_X, test_y)
        case other:
            raise TypeError(
                f"data set {name!r} returned a {type(other).__name__}: "
                "it must return (train_X, train_y), (test_X, test_y), four tensors or nests of tensors"
            )
