"""The line that ends a training run, as the lecture notebook prints it. Imports neither torch nor pytest."""

from __future__ import annotations

from collections.abc import Sequence


def sec_per_epoch(epoch_s: Sequence[float]) -> float:
    """Return the mean over the epochs after the first, which includes the warm-up; of one epoch, its own seconds."""
    measured = epoch_s[1:] or epoch_s
    return sum(measured) / len(measured)


def closing_line(accuracy: float, seconds: float, devices: Sequence[object], loss: float | None = None) -> str:
    """Return ``loss 0.412, test acc 0.83, 2.6 sec/epoch on [cuda:0, cuda:1]``.

    The accuracy is a share of the test samples, 0 to 1, the seconds those of `sec_per_epoch`, and the loss the last
    epoch's mean; None leaves it out.
    """
    trained = "" if loss is None else f"loss {loss:.3f}, "
    return f"{trained}test acc {accuracy:.2f}, {seconds:.1f} sec/epoch on [{', '.join(map(str, devices))}]"
