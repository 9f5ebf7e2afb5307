"""The accuracy rule: its outcomes, its words, and its two error bounds by seeded simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy
import pytest
from scipy import stats

from suite.plan.workloads import BUILT_IN
from suite.records import record
from suite.verdict.accuracy import MARGIN, SEED_PAIRS, noninferiority
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome, Verdict

RUNS = 2000
PLATEAU = 0.1  # ten classes, one guess
BOOK = (0.91, 0.73)
FASHION_MNIST_TEST = 10_000

Pairs = list[tuple[float, float]]
Rule = Callable[[Pairs, int], Outcome]


@dataclass(frozen=True)
class Seeds:
    """How trained nets come out: the spread of their true accuracy, the test set, how many never leave the start."""

    sd: float
    test_samples: int
    failing: float = 0.0
    level: float = 0.9

    def accuracies(self, rng: numpy.random.Generator, level: float, count: int) -> numpy.ndarray:
        true = numpy.clip(rng.normal(level, self.sd, count), 0, 1)
        true[rng.random(count) < self.failing] = PLATEAU
        return rng.binomial(self.test_samples, true) / self.test_samples

    def pairs(self, rng: numpy.random.Generator, loss: float, count: int = SEED_PAIRS) -> Pairs:
        """Pairs whose mean difference is -loss; the seeds that fail to train do so on either side, apart."""
        one = self.accuracies(rng, self.level, count)
        many = self.accuracies(rng, self.level - loss / (1 - self.failing), count)
        return list(zip(one.tolist(), many.tolist(), strict=True))


SEEDS = [
    Seeds(sd, test_samples, failing)
    for sd in (0.002, 0.01, 0.03)
    for test_samples in (360, 10_000)
    for failing in (0.0, 0.05)
]
NAMES = [f"sd{seeds.sd}-n{seeds.test_samples}-failing{seeds.failing}" for seeds in SEEDS]


def outcomes(seeds: Seeds, loss: float, comparisons: int, rule: Rule | None = None, count: int = SEED_PAIRS) -> list:
    def judge(pairs: Pairs, comparisons: int) -> Outcome:
        return noninferiority(pairs, comparisons=comparisons, test_samples=seeds.test_samples).outcome

    rng = numpy.random.default_rng(17)
    return [(rule or judge)(seeds.pairs(rng, loss, count), comparisons) for _ in range(RUNS)]


def exceeds(count: int, runs: int, bound: float) -> bool:
    """Whether so many events in so many runs contradict the bound (exact binomial, one-sided, 0.1 %)."""
    return bool(stats.binomtest(count, runs, bound, alternative="greater").pvalue < 0.001)


@pytest.mark.parametrize("seeds", SEEDS, ids=NAMES)
@pytest.mark.parametrize("comparisons", [1, 12])
def test_equal_training_rarely_fails(seeds: Seeds, comparisons: int) -> None:
    found = outcomes(seeds, 0.0, comparisons)
    assert not exceeds(found.count(Outcome.FAIL), RUNS, ALPHA_FAIL / comparisons)


@pytest.mark.parametrize("count", [2, 3, 12])
@pytest.mark.parametrize("failing", [0.0, 0.05])
def test_equal_training_rarely_fails_with_any_number_of_pairs(count: int, failing: float) -> None:
    found = outcomes(Seeds(0.01, 360, failing), 0.0, 4, count=count)
    assert not exceeds(found.count(Outcome.FAIL), RUNS, ALPHA_FAIL / 4)


@pytest.mark.parametrize("seeds", SEEDS, ids=NAMES)
def test_a_loss_of_the_margin_rarely_passes(seeds: Seeds) -> None:
    found = outcomes(seeds, MARGIN, 1)
    assert not exceeds(found.count(Outcome.PASS), RUNS, ALPHA_PASS)


def test_the_simulation_tells_a_rule_that_spends_the_error_in_every_comparison() -> None:
    def greedy(pairs: Pairs, comparisons: int) -> Outcome:
        return noninferiority(pairs, comparisons=1, test_samples=10_000).outcome

    found = outcomes(Seeds(0.03, 10_000), 0.0, 12, greedy)
    assert exceeds(found.count(Outcome.FAIL), RUNS, ALPHA_FAIL / 12)


def test_the_simulation_tells_a_rule_that_looks_at_the_mean_alone() -> None:
    def naive(pairs: Pairs, comparisons: int) -> Outcome:
        return Outcome.PASS if sum(many - one for one, many in pairs) / len(pairs) > -MARGIN / 2 else Outcome.FAIL

    seeds = Seeds(0.03, 360)
    assert exceeds(outcomes(seeds, 0.0, 1, naive).count(Outcome.FAIL), RUNS, ALPHA_FAIL)
    assert exceeds(outcomes(seeds, MARGIN, 1, naive).count(Outcome.PASS), RUNS, ALPHA_PASS)


def test_a_spread_without_its_floor_alarms_where_two_pairs_agree_by_luck() -> None:
    """On 50 test samples two pairs are equally far apart in one run of twenty; the floor is what keeps them quiet."""

    def bare(pairs: Pairs, comparisons: int) -> Outcome:
        return noninferiority(pairs, comparisons=comparisons, seed_sd=1e-9).outcome

    seeds = Seeds(0.03, 50, level=0.5)
    assert exceeds(outcomes(seeds, 0.0, 1, bare, count=2).count(Outcome.FAIL), RUNS, ALPHA_FAIL)
    assert not exceeds(outcomes(seeds, 0.0, 1, count=2).count(Outcome.FAIL), RUNS, ALPHA_FAIL)


@pytest.mark.parametrize("test_samples", [360, 10_000])
@pytest.mark.parametrize(("comparisons", "loss"), [(1, 2 * MARGIN), (12, 3 * MARGIN)])
def test_the_default_pairs_have_the_power_they_are_chosen_for(test_samples: int, comparisons: int, loss: float) -> None:
    """Six pairs with a spread of .014 and the test set's own."""
    seeds = Seeds(0.01, test_samples)
    assert outcomes(seeds, 0.0, comparisons).count(Outcome.PASS) >= 0.95 * RUNS
    assert outcomes(seeds, loss, comparisons).count(Outcome.FAIL) >= 0.95 * RUNS


def test_six_pairs_cannot_exclude_a_rare_collapse_on_k_devices() -> None:
    """The limit that the module states: k devices lose .05 in the mean by failing in 6.25 % of seeds, and most pass."""
    rng = numpy.random.default_rng(3)
    passes = 0
    for _ in range(RUNS):
        many = numpy.where(rng.random(SEED_PAIRS) < 0.0625, PLATEAU, 0.9)
        pairs = [(0.9, float(accuracy)) for accuracy in many]
        passes += noninferiority(pairs, comparisons=1, test_samples=10_000).outcome is Outcome.PASS
    assert passes / RUNS == pytest.approx((1 - 0.0625) ** SEED_PAIRS, abs=0.04)


def trained(world_size: int, accuracy: float) -> record.Accuracy:
    """What a record holds of one training."""
    return record.Accuracy(
        trainer="data_parallel",
        workload="book-resnet18-256" if world_size == 1 else "book-resnet18-512",
        world_size=world_size,
        dataset="fashion-mnist",
        train_samples=60_000,
        test_samples=FASHION_MNIST_TEST,
        per_epoch=(0.5, accuracy),
        train_s=(12.2, 12.2),
    )


def judged(one: record.Accuracy, many: record.Accuracy, comparisons: int) -> Verdict:
    pair = (one.per_epoch[-1], many.per_epoch[-1])
    return noninferiority([pair], comparisons=comparisons, test_samples=one.test_samples)


@pytest.mark.parametrize("comparisons", [1, 12, 24])
def test_the_books_figures_fail(comparisons: int) -> None:
    printed = BUILT_IN["book-resnet18-256"].published[1].accuracy, BUILT_IN["book-resnet18-512"].published[2].accuracy
    assert printed == BOOK
    assert noninferiority([BOOK], comparisons=comparisons).outcome is Outcome.FAIL
    found = judged(trained(1, BOOK[0]), trained(2, BOOK[1]), comparisons)
    assert found.outcome is Outcome.FAIL
    assert found.reason.startswith("accuracy 0.180 lower than on 1 device over 1 seed pair, surely not equal (at least")


@pytest.mark.parametrize("many", [0.89, 0.91, 1.0])
def test_one_pair_that_is_close_or_better_is_not_judged(many: float) -> None:
    found = judged(trained(1, 0.91), trained(2, many), 1)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "one pair shows no spread" in found.reason
    assert "more seed pairs" in found.reason


def test_one_pair_fails_only_beyond_the_stated_spread() -> None:
    assert noninferiority([(0.91, 0.85)], comparisons=1).outcome is Outcome.INCONCLUSIVE
    assert noninferiority([(0.91, 0.85)], comparisons=1, seed_sd=0.01).outcome is Outcome.FAIL


def test_no_pair_asks_for_seeds() -> None:
    found = noninferiority([], comparisons=1)
    assert found == Verdict(Outcome.INCONCLUSIVE, "no seed was trained on 1 and on k devices: train 6 seeds on both")


@pytest.mark.parametrize("accuracy", [0.0, 0.5, 0.98, 1.0])
def test_pairs_without_any_difference_pass(accuracy: float) -> None:
    for test_samples in (360, None):
        found = noninferiority([(accuracy, accuracy)] * 6, comparisons=12, test_samples=test_samples)
        assert found.outcome is Outcome.PASS


def test_equal_differences_are_not_taken_for_certainty() -> None:
    """Six times .028 lower has no spread at all, but on 50 images that is one or two answers: not surely worse."""
    pairs = [(0.928, 0.9)] * 6
    assert noninferiority(pairs, comparisons=12, test_samples=50).outcome is Outcome.INCONCLUSIVE
    assert noninferiority(pairs, comparisons=12, test_samples=10_000).outcome is Outcome.FAIL


def test_no_error_on_a_handful_of_images_is_no_proof() -> None:
    pairs = [(1.0, 1.0)] * 2
    assert noninferiority(pairs, comparisons=1, test_samples=5).outcome is Outcome.INCONCLUSIVE
    assert noninferiority(pairs, comparisons=1, test_samples=10_000).outcome is Outcome.PASS


def test_an_improvement_never_fails() -> None:
    found = noninferiority([(0.7 + i / 100, 0.95) for i in range(6)], comparisons=1, test_samples=360)
    assert found.outcome is Outcome.PASS
    assert found.reason.startswith("accuracy 0.225 higher than on 1 device over 6 seed pairs, at worst")


def test_a_small_but_certain_loss_does_not_fail() -> None:
    """FAIL also needs an estimate of half the margin: .02 lower, however surely, is no alarm at .05."""
    pairs = [(0.9, 0.88), (0.901, 0.881), (0.9, 0.8801)] * 2
    assert noninferiority(pairs, comparisons=1, test_samples=1_000_000).outcome is Outcome.PASS
    assert noninferiority(pairs, comparisons=1, test_samples=1_000_000, margin=0.03).outcome is Outcome.FAIL


def test_a_seed_on_the_plateau_decides_nothing_on_either_side() -> None:
    good = [(0.9, 0.9), (0.91, 0.9), (0.9, 0.91), (0.905, 0.9), (0.9, 0.905)]
    for stuck in ((PLATEAU, 0.9), (0.9, PLATEAU)):
        found = noninferiority([*good, stuck], comparisons=1, test_samples=360)
        assert found.outcome is Outcome.INCONCLUSIVE


def test_every_seed_on_the_plateau_fails() -> None:
    pairs = [(0.9 + i / 360, PLATEAU) for i in range(6)]
    assert noninferiority(pairs, comparisons=24, test_samples=360).outcome is Outcome.FAIL


def test_inconclusive_says_how_many_more_pairs_and_they_are_enough() -> None:
    """The forecast is checked by granting it: the same mean and spread over so many pairs decide."""
    spread = 0.06
    found = noninferiority([(0.9, 0.9 + spread), (0.9, 0.9 - spread)] * 2, comparisons=1, test_samples=10_000)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "about 4 more seed pairs, or a margin of 0.09" in found.reason
    sd = spread * math.sqrt(4 / 3)
    for count, enough in ((7, False), (8, True)):
        half = stats.t.ppf(1 - ALPHA_PASS, count - 1) * sd / math.sqrt(count)
        assert (half < MARGIN) == enough
    wider = noninferiority(
        [(0.9, 0.9 + spread), (0.9, 0.9 - spread)] * 2, comparisons=1, test_samples=10_000, margin=0.09
    )
    assert wider.outcome is Outcome.PASS


def test_a_forecast_beyond_reason_is_not_made() -> None:
    found = noninferiority([(1.0, 0.0), (0.0, 0.95)], comparisons=1, test_samples=360)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.reason.endswith("it needs more seed pairs than is sensible")  # and no margin of 1 or more


@pytest.mark.parametrize("value", [math.nan, -0.01, 91.0, math.inf])
def test_an_accuracy_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"accuracy of seed pair 2 on k devices is .*: it must be a share from 0 to 1"):
        noninferiority([(0.9, 0.9), (0.9, value)], comparisons=1)
    with pytest.raises(
        ValueError, match=r"seed pair 1 on 1 device is .*leave out a pair that was not trained to its end"
    ):
        noninferiority([(value, 0.9)], comparisons=1)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("margin", 0.0, "margin is 0.0: it must be a share between 0 and 1"),
        ("margin", math.nan, "margin is nan: it must be a share"),
        ("comparisons", 0, "comparisons is 0: count this one and all else in the run that can fail"),
        ("seed_sd", 0.0, "seed_sd is 0.0: it must be positive and finite; leave it out"),
        ("seed_sd", math.inf, "seed_sd is inf: it must be positive and finite"),
        ("test_samples", 0, "test_samples is 0: give the test set's size, or None"),
    ],
)
def test_a_bad_argument_is_refused(argument: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noninferiority([(0.9, 0.9)], **{"comparisons": 1, argument: value})
