"""Turn measured numbers into verdicts. Pure: no torch, no pytest, no clock. docs/verdict.md derives every rule."""

from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, GRAVEST_FIRST, Outcome, Verdict
from suite.verdict.paired import FIRST_LOOK, Terms, paired, spending, surplus
from suite.verdict.spread import Learned, Middle, Windows

__all__ = [
    "ALPHA_FAIL",
    "ALPHA_PASS",
    "FIRST_LOOK",
    "GRAVEST_FIRST",
    "Learned",
    "Middle",
    "Outcome",
    "Terms",
    "Verdict",
    "Windows",
    "paired",
    "spending",
    "surplus",
]
