"""Data sets in memory, and the feeds that split them into minibatches.

`load` returns a data set by its name, `feed` yields one epoch of it. Samples are images, or texts for language models.
Images are in [0, 1] and not normalised, because the documents use ToTensor and nothing else.
"""

from __future__ import annotations

from reference.data.dataset import Dataset
from reference.data.feeds import LOADERS, feed, index_batches
from reference.data.sources import DATASETS, load

__all__ = ["DATASETS", "LOADERS", "Dataset", "feed", "index_batches", "load"]
