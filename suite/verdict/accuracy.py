"""Judge the accuracy on k devices against one, and on one against accepted runs: seed-paired non-inferiority.

Seeds are the sample. Each pair trains a fresh net from one seed on 1 device and on k, and gives one difference, k minus
1; against accepted runs, the difference is that of one device now and then. Pairs are taken as independent draws around
the true mean difference, and the test set as given, so the question is whether k devices train as well, and not what
the net would reach on other images. With n pairs, mean m and spread s,

    FAIL  m + t(n - 1, 1 - ALPHA_FAIL / comparisons) s / sqrt(n) < 0  and  m <= -margin / 2
    PASS  m - t(n - 1, 1 - ALPHA_PASS) s / sqrt(n) > -margin

so that P(FAIL | m >= 0 in truth) <= ALPHA_FAIL / comparisons and P(PASS | m <= -margin in truth) <= ALPHA_PASS, at any
spread, as far as Student's t holds. There is one look: the number of pairs is fixed beforehand.

How far t holds (tests/suite/verdict/test_accuracy.py simulates it, docs/log.md has the figures):

- Where k devices change nothing, the difference of a pair is symmetric, for which t errs on the safe side when tails
  are heavy: one seed of many that stays on a plateau moves m and s alike, and |m| sqrt(n) / s is 1. With 5 % of such
  seeds on both sides the bounds hold from two pairs on. Where nearly every other seed fails they do not for two or
  three pairs: all of them fail on k devices alone in up to 4^-n of runs.
- Accuracies are multiples of 1/test_samples, and pairs may agree by luck. The two nets of a pair start alike and mostly
  err on the same images, so the error of m comes from the images that one of them alone gets right (McNemar 1947). At
  least |m| test_samples of them are there, and s is at least what that many, and one more, give by chance.
- A rare collapse on k devices is not excluded: n pairs without one bound its rate by 1 - ALPHA_PASS^(1/n), 39 % with
  six. At a rate of 6.25 %, which costs 0.05 in the mean, six pairs out of six look well in 68 % of runs, and no rule on
  six pairs can tell.
- A sign-flip test assumes symmetry alone, but six pairs have 64 outcomes: p is 1/64 or more, never 1 %. The arcsine and
  the logit would make spreads more alike, but the margin is not one number on their scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from suite.verdict.metrics import mean_and_standard_error, observations_needed, t_quantile
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome, Verdict
from suite.verdict.reasons import Reason

MARGIN = 0.05
SEED_PAIRS = 6
# The widest known spread, for a recipe of which nothing is known: LeNet's 31 published builds range from 0.75 to 0.84.
# The range of 31 normal draws is 4.11 standard deviations on average, so one is 0.022 and a pair's difference 0.031,
# whose upper 95 % limit with 30 degrees of freedom is 0.039. On digits, the same seed on both sides, it is 0.003
# (docs/log.md).
SEED_SD = 0.04


def noninferiority(
    pairs: Sequence[tuple[float, float]],
    *,
    margin: float = MARGIN,
    comparisons: int,
    seed_sd: float = SEED_SD,
    test_samples: int | None = None,
    than: str = "on 1 device",
) -> Verdict:
    """Judge whether k devices train to the accuracy of one, or one device to that of accepted runs.

    A single pair has no spread of its own and is judged with `seed_sd` and the normal distribution: it can FAIL, never
    PASS. That FAIL keeps its error rate for recipes whose pairs differ by `seed_sd` at most and whose seeds all leave
    the start; one that stays there with probability q looks like a loss with probability q (1 - q).

    Args:
        pairs: accuracy on 1 device and on k, or then and now, from one seed each, as shares from 0 to 1.
        margin: the loss of accuracy that must not pass.
        comparisons: everything in the run that can fail, all rules together; they share ALPHA_FAIL.
        seed_sd: stated standard deviation of a pair's difference, for a single pair and, without `test_samples`, as
            the least spread of several.
        test_samples: size of the test set behind every accuracy.
        than: what it is compared with, in words.

    Returns:
        PASS, FAIL or INCONCLUSIVE, the last with what it would take. An accuracy that rose never fails.

    Raises:
        ValueError: an accuracy that is NaN or outside 0 to 1.
    """
    for number, pair in enumerate(pairs, start=1):
        if not all(0 <= accuracy <= 1 for accuracy in pair):
            raise ValueError(f"accuracies of seed pair {number} are {pair}: each must be a share from 0 to 1")
    if not pairs:
        return Verdict(Outcome.INCONCLUSIVE, Reason("no seeds", {"needed": SEED_PAIRS}))
    differences = [many - one for one, many in pairs]
    n = len(differences)
    if n == 1:
        mean, sd = differences[0], seed_sd
        fail_half = -NormalDist().inv_cdf(ALPHA_FAIL / comparisons) * sd
        pass_half = math.inf
    else:
        mean, error = mean_and_standard_error(differences)
        # McNemar's error, if no more images changed than the mean says.
        least = seed_sd if test_samples is None else math.sqrt(abs(mean) * test_samples + 1) / test_samples
        sd = max(error * math.sqrt(n), least)
        fail_half, pass_half = _half_width(n, sd, ALPHA_FAIL / comparisons), _half_width(n, sd, ALPHA_PASS)
    of, names = {"mean": mean, "pairs": n}, {"than": than}
    if mean + fail_half < 0 and mean <= -margin / 2:
        found = {**of, "bound": mean + fail_half, "confidence": 1 - ALPHA_FAIL}
        return Verdict(Outcome.FAIL, Reason("less accurate", found, names))
    if mean - pass_half > -margin:
        found = {**of, "bound": mean - pass_half, "margin": margin}
        return Verdict(Outcome.PASS, Reason("as accurate", found, names))
    towards_fail = mean <= -margin / 2
    distance, alpha = (-mean, ALPHA_FAIL / comparisons) if towards_fail else (margin + mean, ALPHA_PASS)
    needed = observations_needed(n, lambda count: _half_width(count, sd, alpha) < distance)
    advice: dict[str, float] = {} if needed is None else {"more": needed - n}
    if n == 1:
        return Verdict(Outcome.INCONCLUSIVE, Reason("one seed pair", {**of, **advice, "seed_sd": seed_sd}, names))
    reachable = math.ceil(100 * (pass_half - mean)) / 100
    if reachable < 1:
        advice["margin"] = reachable
    ends = {"low": mean - pass_half, "high": mean + fail_half}
    return Verdict(Outcome.INCONCLUSIVE, Reason("accuracy undecided", {**of, **ends, **advice}, names))


def _half_width(n: int, sd: float, alpha: float) -> float:
    return t_quantile(n - 1, 1 - alpha) * sd / math.sqrt(n)
