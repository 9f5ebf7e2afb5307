"""Whether a trained net's parameters, and the samples it is trained on, are finite (worker's side)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from reference.nest import Nest


class HasParameters(Protocol):
    """A module, or what has named parameters as one."""

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Return them."""


def first_not_finite(net: HasParameters) -> str:
    """Return the name of the first parameter that has a NaN or an infinity; "" where all are finite.

    A trainer may return no loss that shows it. Of a sharded parameter this rank's part is read, so that no rank waits
    for another one. Nothing as large as a parameter is allocated, except for numbers of one byte. Whole numbers are not
    read.
    """
    return next((name for name, parameter in net.named_parameters() if not _finite(parameter)), "")


def first_bad_sample(name: str, samples: Nest) -> str:
    """Return where in a nest on the CPU the first NaN or infinity is: "inf in train_X['mask'], sample 3"; or ""."""
    for path, leaf in pytree.tree_flatten_with_path(samples)[0]:
        if not _finite(leaf):
            values = leaf.flatten(1) if leaf.ndim > 1 else leaf[:, None]
            sample = int((~values.isfinite()).any(dim=1).nonzero()[0])
            found: Tensor = values[sample][~values[sample].isfinite()]
            return f"{found[0].item()} in {name}{pytree.keystr(path)}, sample {sample}"
    return ""


def _finite(parameter: Any) -> bool:
    part = (parameter.to_local() if hasattr(parameter, "to_local") else parameter).detach()
    if part.is_complex():
        part = torch.view_as_real(part.resolve_conj())
    if not part.is_floating_point() or part.numel() == 0:
        return True
    if part.element_size() == 1:  # torch.aminmax takes no float8
        part = part.float()
    return bool(torch.stack(torch.aminmax(part)).isfinite().all())  # a NaN is the least and the largest number
