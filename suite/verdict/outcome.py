"""The outcome of a comparison, and the error budget that all rules of a run share. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from suite.verdict.metrics import Interval
from suite.verdict.reasons import Reason, sentence

ALPHA_FAIL = 0.01  # P(any FAIL | nothing is slower) of a whole run: split over everything in it that can fail
ALPHA_PASS = 0.05  # P(PASS | slower by the tolerance or more) of each comparison
ALPHA_WARN = 0.01  # P(a run has any warning of one kind | nothing grew): split over the cells that may have it
WORTH = 0.01  # of a step's time: the smallest share that is worth a warning
CONFIDENCE = f"({1 - ALPHA_FAIL:.0%} confidence)"  # behind a FAIL, in words


class Outcome(StrEnum):
    """The outcome of a cell or of one of its rules."""

    PASS = "PASS"  # noqa: S105 - not a password
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO BASELINE"
    ERROR = "ERROR"


GRAVEST_FIRST = (Outcome.FAIL, Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.NO_BASELINE, Outcome.PASS)


@dataclass(frozen=True)
class Verdict:
    """An outcome, why it is that, and the slowdown t_candidate / t_base where there is one.

    Attributes:
        lacking: how many more of the planned sessions would decide an INCONCLUSIVE if they showed the same; infinite
            where all of them would not.
    """

    outcome: Outcome
    why: Reason
    ratio: Interval | None = None
    lacking: float = 0

    @property
    def reason(self) -> str:
        """Why, in one sentence."""
        return sentence(self.why)
