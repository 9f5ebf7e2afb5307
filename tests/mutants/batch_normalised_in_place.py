"""The caller's images are normalised in place, once more every time they are trained on.

The feed's tensors are views of the resident data set, and ``sub_`` saves memory. The first epoch is trained on what was
meant, the second on images normalised twice, and so on, while the test set stays as it is.

Source: no public report; in-place input transforms are torchvision's ``Normalize(inplace=True)``
"""

from __future__ import annotations

from torch import Tensor

from reference.trainers.scratch import Scratch

KIND = "trainer"
KILLED_BY = "inputs"
LOOKS_LIKE = "in-place operation | samples changed"


class Mutant(Scratch):
    """`Scratch` with Fashion-MNIST's mean and standard deviation."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        return super().step(X.sub_(0.286).div_(0.353), y, global_batch_size)
