"""The nets of `docs.evidence.book_mechanism`, as workloads name them: fresh, on images of half the side."""

from __future__ import annotations

from torch import nn

from docs.evidence import book_mechanism
from docs.evidence.book_mechanism import MATCHED_STD


def first_run() -> nn.Sequential:
    """Normal on stem and head alone, as the chapter's first run is."""
    return _halved(book_mechanism.first_run(None, MATCHED_STD))


def all_normal() -> nn.Sequential:
    """Normal on every weight, as the chapter's second run is."""
    return _halved(book_mechanism.fresh_normal(None, MATCHED_STD))


def _halved(net: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(2), net)
