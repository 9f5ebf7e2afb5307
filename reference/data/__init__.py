"""Data sets held whole in memory, and the feeds that cut them into minibatches.

`load` finds a data set by name, `feed` yields one epoch of it. Images are in [0, 1] and not normalised: the documents
use ToTensor and nothing else.
"""

from __future__ import annotations

from reference.data.dataset import Dataset
from reference.data.feeds import LOADERS, feed
from reference.data.index import index_batches
from reference.data.sources import DATASETS, load

__all__ = ["DATASETS", "LOADERS", "Dataset", "feed", "index_batches", "load"]
