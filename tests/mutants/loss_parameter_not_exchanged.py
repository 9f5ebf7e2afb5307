"""The gradient of a parameter that belongs to the loss, a temperature, is not exchanged.

The net was wrapped and the loss was not. Every rank learns a temperature of its own, and with it another loss.

Source: KevinMusgrave/pytorch-metric-learning#710
"""

from __future__ import annotations

from tests.right.losses import LearnedTemperature

KIND = "trainer"
KILLED_BY = "trajectory"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"


class Mutant(LearnedTemperature):
    """`LearnedTemperature` that exchanges the net's gradients."""

    def exchange_of_loss(self) -> None:
        """Keep this rank's own."""
