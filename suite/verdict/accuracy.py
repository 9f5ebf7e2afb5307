"""Accuracy on k devices against one: seed-paired non-inferiority.

Seeds are the sample. Each pair trains a fresh net from one seed on 1 device and on k, and gives one difference, k minus
1; pairs are taken as independent draws around the true mean difference, and the test set as given, so the question is
whether k devices train as well and not what the net would reach elsewhere. With n pairs, mean m and spread s,

    FAIL  m + t(n - 1, 1 - ALPHA_FAIL / comparisons) s / sqrt(n) < 0  and  m <= -margin / 2
    PASS  m - t(n - 1, 1 - ALPHA_PASS) s / sqrt(n) > -margin

so that P(FAIL | m >= 0 in truth) <= ALPHA_FAIL / comparisons and P(PASS | m <= -margin in truth) <= ALPHA_PASS, at any
spread, as far as Student's t holds. There is one look: the number of pairs is fixed beforehand, and a run with more of
them is a new run.

How far t holds (tests/suite/verdict/test_verdict_accuracy.py simulates it, docs/log.md has the figures):

- Where k devices change nothing, the two sides of a pair have one distribution and their difference is symmetric, for
  which t errs on the safe side when tails are heavy: one seed of many that stays on a plateau moves m and s alike, and
  |m| sqrt(n) / s is 1. With 5 % of such seeds on both sides the bounds hold from two pairs on. Where nearly every other
  seed fails they do not for two or three pairs: all of them fail on k devices alone in up to 4^-n of runs.
- Accuracies lie on a grid of 1/test_samples, and pairs may agree by luck; s is therefore taken no smaller than the
  spread of two nets that err independently on the test set (they err on the same images, so it is less).
- A collapse on k devices that is rare is not excluded: n pairs without one bound its rate by 1 - ALPHA_PASS^(1/n), 39 %
  with six. At a rate of 6.25 %, which costs .05 in the mean, six pairs out of six look well in 68 % of runs, and no
  rule on six pairs can tell.
- A sign-flip test assumes symmetry alone, but six pairs have 64 outcomes: p is 1/64 or more, never 1 %. The arcsine and
  the logit would make spreads more alike, but the margin is not one number on their scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from suite.verdict.decide import quantile
from suite.verdict.metrics import mean_and_standard_error
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome, Verdict

MARGIN = 0.05
SEED_PAIRS = 6
# The widest that is known stands in for a recipe of which nothing is known: LeNet's 31 published builds lie from .75
# to .84. The range of 31 normal draws is 4.11 standard deviations on average, so one is .022 and a pair's difference
# .031, whose upper 95 % limit with 30 degrees of freedom is .039. On digits, the same seed on both sides, it is .003
# (docs/log.md).
SEED_SD = 0.04

_MOST_PAIRS = 1000  # a forecast beyond it is no advice


def noninferiority(
    pairs: Sequence[tuple[float, float]],
    *,
    margin: float = MARGIN,
    comparisons: int,
    seed_sd: float = SEED_SD,
    test_samples: int | None = None,
) -> Verdict:
    """Judge whether k devices train to the accuracy of one.

    A single pair has no spread of its own and is judged with `seed_sd` and the normal distribution: it can FAIL, never
    PASS. That FAIL keeps its error rate for recipes whose pairs differ by `seed_sd` at most and whose seeds all leave
    the start; one that stays there with probability q is taken for a loss with probability q (1 - q).

    Args:
        pairs: accuracy on 1 device and on k, from one seed each, as shares from 0 to 1.
        margin: the loss of accuracy that must not pass.
        comparisons: everything in the run that can fail, all rules together; they share ALPHA_FAIL.
        seed_sd: stated standard deviation of a pair's difference, for a single pair and, without `test_samples`, as
            the least spread of several.
        test_samples: size of the test set behind every accuracy.

    Returns:
        PASS, FAIL or INCONCLUSIVE, the last with what it would take. An accuracy that rose never fails.

    Raises:
        ValueError: an accuracy that is NaN or outside 0 to 1, or an argument out of its range.
    """
    _check(pairs, margin, comparisons, seed_sd, test_samples)
    if not pairs:
        return Verdict(
            Outcome.INCONCLUSIVE, f"no seed was trained on 1 and on k devices: train {SEED_PAIRS} seeds on both"
        )
    differences = [many - one for one, many in pairs]
    n = len(differences)
    if n == 1:
        mean, sd = differences[0], seed_sd
        fail_half = -NormalDist().inv_cdf(ALPHA_FAIL / comparisons) * sd
        pass_half = math.inf
    else:
        mean, error = mean_and_standard_error(differences)
        sd = max(error * math.sqrt(n), _least_spread(pairs, test_samples, seed_sd))
        fail_half, pass_half = _half_width(n, sd, ALPHA_FAIL / comparisons), _half_width(n, sd, ALPHA_PASS)
    found = f"accuracy {_signed(mean)} than on 1 device over {n} seed pair{'s'[: n > 1]}"
    if mean + fail_half < 0 and mean <= -margin / 2:
        return Verdict(Outcome.FAIL, f"{found}, surely not equal (at least {_signed(mean + fail_half)})")
    if mean - pass_half > -margin:
        return Verdict(Outcome.PASS, f"{found}, at worst {_signed(mean - pass_half)} (margin {margin:g})")
    more = _more_pairs(n, mean, sd, margin, comparisons)
    advice = f"about {more} more seed pairs" if more else "more seed pairs than is sensible"
    if n == 1:
        return Verdict(
            Outcome.INCONCLUSIVE,
            f"{found}; one pair shows no spread, and pairs are taken to differ by {seed_sd:g}: it needs {advice}",
        )
    reachable = math.ceil(100 * (pass_half - mean)) / 100
    if reachable < 1:
        advice += f", or a margin of {reachable:.2f}"
    return Verdict(
        Outcome.INCONCLUSIVE,
        f"{found}, and anything from {_signed(mean - pass_half)} to {_signed(mean + fail_half)} is possible: "
        f"it needs {advice}",
    )


def _check(
    pairs: Sequence[tuple[float, float]], margin: float, comparisons: int, seed_sd: float, test_samples: int | None
) -> None:
    for number, pair in enumerate(pairs, start=1):
        for value, where in zip(pair, ("1 device", "k devices"), strict=True):
            if not 0 <= value <= 1:
                raise ValueError(
                    f"accuracy of seed pair {number} on {where} is {value}: it must be a share from 0 to 1; "
                    "divide a percentage by 100, and leave out a pair that was not trained to its end"
                )
    if not 0 < margin < 1:
        raise ValueError(f"margin is {margin}: it must be a share between 0 and 1, 0.05 for five points of accuracy")
    if comparisons < 1:
        raise ValueError(f"comparisons is {comparisons}: count this one and all else in the run that can fail")
    if not 0 < seed_sd < math.inf:
        raise ValueError(f"seed_sd is {seed_sd}: it must be positive and finite; leave it out for {SEED_SD}")
    if test_samples is not None and test_samples < 1:
        raise ValueError(f"test_samples is {test_samples}: give the test set's size, or None if it is not known")


def _least_spread(pairs: Sequence[tuple[float, float]], test_samples: int | None, seed_sd: float) -> float:
    """What a pair's difference spreads by at least: the binomial error of the test set, twice."""
    if test_samples is None:
        return seed_sd
    mean = math.fsum(one + many for one, many in pairs) / (2 * len(pairs))
    # A right and a wrong answer added (Laplace): nets that err nowhere on n images are not sure to err nowhere.
    share = (mean * test_samples + 1) / (test_samples + 2)
    return math.sqrt(2 * share * (1 - share) / test_samples)


def _half_width(n: int, sd: float, alpha: float) -> float:
    return quantile(n - 1, 1 - alpha) * sd / math.sqrt(n)


def _more_pairs(n: int, mean: float, sd: float, margin: float, comparisons: int) -> int | None:
    """How many more pairs would decide if mean and spread stay as they are; None if over a thousand."""
    towards_fail = mean <= -margin / 2
    distance = -mean if towards_fail else margin + mean
    alpha = ALPHA_FAIL / comparisons if towards_fail else ALPHA_PASS
    return next((to - n for to in range(n + 1, _MOST_PAIRS) if _half_width(to, sd, alpha) < distance), None)


def _signed(difference: float) -> str:
    """A difference of accuracies in words: '0.012 lower'."""
    return f"{abs(difference):.3f} {'lower' if difference < 0 else 'higher'}"
