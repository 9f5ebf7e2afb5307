"""Which nets are trained, how many seed pairs, and when their accuracies count."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from suite.plan.cells import Arm, Cell
from suite.plan.workloads import BUILT_IN, Recipe
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Epoch, Prepared
from suite.records.baselines import AcceptedNet, Baseline
from suite.room.devices import Devices
from suite.run import accuracy
from suite.run.accuracy import SEED, SHARE
from suite.run.groups import Groups
from suite.run.observations import Comparison, Observations, Session
from suite.verdict import Outcome
from tests.support.measurements import (
    AGAINST,
    LENET,
    SEED_PAIRS,
    accepted_run,
    arm,
    baseline,
    cell,
    job,
    run_of,
    settings,
    trained,
    why_missing,
)

PAIR, WEAK = arm(2), arm(2, mode="weak")
ONE, TWO, WEAK_TWO = cell(1), cell(2), cell(2, mode="weak")
SEEDS = tuple(range(SEED, SEED + SEED_PAIRS))
DIGITS = Prepared(name="digits", folder="", train_samples=1437, test_samples=10_000)
FASHION = Prepared(name="fashion-mnist", folder="", train_samples=60_000, test_samples=10_000)
UNTAUGHT = LENET.model_copy(update={"accuracy": None})


def lenet(**recipe: Any) -> tuple[Any]:
    return (LENET.model_copy(update={"accuracy": Recipe(**recipe)}),)


def accepted_nets(reached: Mapping[int, float], dataset: str = "digits") -> Baseline:
    """Return the baseline of a run whose nets on one device reached these accuracies, by seed."""
    run = accepted_run({ONE: 1.0})
    nets = tuple(AcceptedNet(seed=seed, dataset=dataset, accuracy=share) for seed, share in reached.items())
    kept = run.cells[0].model_copy(update={"nets": nets, "dataset": FASHION.name, "oversubscribed": False})
    return baseline(run.model_copy(update={"cells": (kept,)}))


class Workers:
    """Replaces a session's groups and `Sessions`: nets reach the given accuracies, and every epoch takes `epoch_s`."""

    def __init__(self, arms: list[Arm], reached: Mapping[int | Arm, float], broken: Arm | None = None) -> None:
        self.session = Session(0)
        self.now, self.epoch_s, self.left = 0.0, 0.0, 1e6
        self.step_s = dict.fromkeys(arms, 0.0)
        self.by_arm = dict.fromkeys(arms)
        self.reached = reached
        self.broken = broken  # the arm that is lost in its third epoch
        self.asked: list[tuple[str, int, int]] = []  # trainer, world size and seed of every net that was begun
        self.recipes: list[tuple[str, int, float]] = []  # its mode, its batch and its rate
        self.epochs = 0  # of all nets together
        self.loss: float | None = 0.5
        self.not_finite = ""  # after an epoch
        self.first_epoch_s: list[float] = []  # the deadlines of first epochs
        self.steps: dict[Arm, int] = {}  # that an epoch was said to have

    def left_s(self) -> float:
        return self.left - self.now

    def timeout_s(self, arm: Arm, steps: int) -> float:
        self.steps[arm] = steps
        return 20.0

    def request(
        self, arm: Arm, kind: type[Epoch], command: str, timeout_s: float, /, **told: Any
    ) -> list[Epoch] | None:
        assert command == "train"
        if told["epoch"] == 0:
            self.first_epoch_s.append(timeout_s)
            self.asked.append((arm.trainer, arm.world_size, told["arm"].seed))
            self.recipes.append((arm.mode, told["recipe"].batch, told["recipe"].lr))
        if arm == self.broken and told["epoch"] == 2:
            del self.by_arm[arm]
            return None
        self.epochs += 1
        self.now += self.epoch_s
        reached = self.reached[arm if arm in self.reached else arm.world_size]
        answer = kind(accuracy=reached, train_s=1.0, train_samples=1437, test_samples=10_000, loss=self.loss)
        return [answer, replace(answer, train_s=2.0, loss=self.loss and 0.25, not_finite=self.not_finite)]


def train(
    *cells: Cell,
    reached: Mapping[int | Arm, float],
    lost: tuple[Arm, ...] = (),
    broken: Arm | None = None,
    epoch_s: float = 0.0,
    step_s: float = 0.0,
    left_s: float = 1e6,
    loss: float | None = 0.5,
    not_finite: str = "",
    accepted: Mapping[int, float] | None = None,
    compared: bool = False,
    seed: int = 0,
    wall_s: float = 0.0,
    **changes: Any,
) -> tuple[Observations, Workers]:
    """Train what a first session trains, on one and on k devices of every trainer; `changes` replace settings.

    `accepted` is what an accepted run reached on one device, by seed. With `compared` all cells were compared with a
    rebuilt commit before, by a run with this seed.
    """
    arms = [arm(k, each.trainer, mode=each.mode) for each in cells for k in (1, each.world_size)]
    workers = Workers([each for each in dict.fromkeys(arms) if each not in lost], reached, broken)
    workers.epoch_s, workers.left, workers.loss = epoch_s, left_s, loss
    workers.not_finite, workers.session.wall_s = not_finite, wall_s
    workers.step_s = dict.fromkeys(workers.step_s, step_s)
    datasets = {"digits": DIGITS, "auto": FASHION}
    run = run_of(*cells, config=settings(**changes), datasets=datasets, clock=lambda: workers.now, begun_s=0.0)
    run.plan = replace(run.plan, baseline=accepted_nets(accepted or {}), seed=seed)
    if compared:
        run.comparison = Comparison({"base": AGAINST}, run.plan.cells)
    run.jobs |= {each: job(each) for each in workers.by_arm}
    accuracy.training(run, workers, lambda line: None)(workers)  # type: ignore[arg-type]
    return run, workers


def test_a_first_epoch_gets_no_more_than_is_left_of_the_budget_for_its_first_step() -> None:
    _, workers = train(cell(2), reached={1: 0.9, 2: 0.9}, budget_s=70.0)
    assert set(workers.first_epoch_s) == {20.0 + 70.0}


@pytest.mark.parametrize(
    ("loss", "not_finite", "said"),
    [
        (math.nan, "", "the loss of "),
        (math.inf, "", "the loss of "),
        (math.nan, "head.weight", "the loss of "),
        (None, "head.weight", "parameter 'head.weight' of "),
        (0.5, "", ""),
    ],
)
def test_a_net_that_is_not_finite_costs_its_arm(loss: float | None, not_finite: str, said: str) -> None:
    """Its accuracy shows nothing: where a trainer returns no loss, one device and k diverge to the same one."""
    _, workers = train(cell(2), reached={1: 0.1, 2: 0.1}, loss=loss, not_finite=not_finite)
    assert (arm(2) in workers.session.failures) == bool(said)
    if said:
        cause = workers.session.failures[arm(2)].cause
        assert cause.startswith(said)
        assert cause.endswith("seed 1, is not finite after 20 epoch(s); lower lr, or choose another init")


class TestSeedPairs:
    """How many pairs are trained, and what they come to."""

    @pytest.mark.parametrize(
        ("two", "profile", "pairs", "outcome", "counts", "says"),
        [
            (0.89, "quick", 1, Outcome.INCONCLUSIVE, False, "one pair shows no spread"),
            (0.73, "quick", SEED_PAIRS, Outcome.FAIL, True, f"over {SEED_PAIRS} seed pairs"),
            (0.86, "quick", SEED_PAIRS, Outcome.FAIL, True, f"over {SEED_PAIRS} seed pairs"),
            (0.91, "full", SEED_PAIRS, Outcome.PASS, True, f"over {SEED_PAIRS} seed pairs"),
        ],
        ids=["quick", "quick where one pair looks like a loss", "quick where it loses the margin", "full"],
    )
    def test_pairs_that_are_trained(
        self, two: float, profile: str, pairs: int, outcome: Outcome, counts: bool, says: str
    ) -> None:
        run, workers = train(TWO, reached={1: 0.91, 2: two}, profile=profile)
        assert sorted(workers.asked) == [("ddp", k, seed) for k in (1, 2) for seed in SEEDS[:pairs]]
        [check] = accuracy.checks(run, TWO, 1)
        assert (check.outcome, check.counts) == (outcome, counts)
        assert says in check.reason

    def test_one_device_is_trained_once_for_all_world_sizes_and_modes(self) -> None:
        cells = [cell(1), TWO, WEAK_TWO, cell(1, "scratch")]
        _, workers = train(*cells, reached={1: 0.9, 2: 0.9})
        assert sorted(workers.asked) == [("ddp", 1, SEED), ("ddp", 2, SEED), ("ddp", 2, SEED), ("scratch", 1, SEED)]

    def test_net_whose_workers_are_lost_has_no_accuracy_and_no_further_seeds(self) -> None:
        run, workers = train(TWO, reached={1: 0.91, 2: 0.5}, broken=PAIR, profile="full")
        assert [(each.world_size, each.seed) for each in run.accuracies] == [(1, seed) for seed in SEEDS]
        assert [asked for asked in workers.asked if asked[1] == 2] == [("ddp", 2, SEED)]
        assert accuracy.checks(run, TWO, 1) == ()

    def test_pair_without_its_one_device_arm_does_not_count(self) -> None:
        run, workers = train(TWO, reached={2: 0.1}, lost=(arm(1),))
        assert workers.asked == [("ddp", 2, SEED)]
        [check] = accuracy.checks(run, TWO, 1)
        assert not check.counts

    def test_cell_whose_workers_a_variant_of_its_step_broke_says_so(self) -> None:
        """Such a variant costs the waterfall, and no cell is an ERROR."""
        run = run_of(TWO, unprobed={(PAIR, "unsynced"): "rank 1: ValueError: no gradients"})
        accuracy.training(run, Workers([], {}), lambda line: None)(Groups(Session(0)))  # type: ignore[arg-type]
        said = "its workers had ended before it was trained: rank 1: ValueError: no gradients"
        assert why_missing(accuracy.why_none(run, TWO)) == said

    def test_candidate_that_fails_while_it_trains_is_lost(self) -> None:
        """A campaign makes an ERROR of what a session has lost."""
        cause = WorkerFailure("group", "rank 0: RuntimeError: out of luck")

        class Failing:
            def request(self, *_: object, **__: object) -> None:
                raise cause

        run, failing = run_of(TWO, WEAK_TWO), Failing()
        run.jobs[PAIR], run.datasets["digits"] = job(PAIR), DIGITS
        groups = Groups(Session(0), {PAIR: failing, WEAK: failing})  # type: ignore[dict-item]
        accuracy.training(run, Workers([PAIR], {}), lambda line: None)(groups)  # type: ignore[arg-type]
        assert groups.session.failures == {PAIR: cause}
        assert groups.by_arm == {}
        said = f"its workers had ended before it was trained: {cause.cause}"
        assert why_missing(accuracy.why_none(run, WEAK_TWO)) == said, "strong and weak share their workers"


def test_targets_without_class_labels_are_not_trained_on_and_the_cell_says_so() -> None:
    """Nor do they take a part of the budget."""
    run = run_of(TWO, datasets={"digits": replace(DIGITS, no_labels="float32 (n,)")})
    assert accuracy.trained(run) == accuracy.needed(run) == accuracy.wanted_pairs(run) == []
    workers = Workers([arm(1), PAIR], {1: 0.9, 2: 0.9})
    accuracy.training(run, workers, lambda line: None)(workers)  # type: ignore[arg-type]
    assert workers.asked == []
    assert accuracy.checks(run, TWO, 1) == ()
    assert why_missing(accuracy.why_none(run, TWO)) == (
        "y is float32 (n,), and an accuracy is the share of class labels, int64, that get the highest score; "
        "time and gradients do not need one"
    )


class TestRecipes:
    """What the workers are told, and what is kept of each net."""

    def test_weak_cell_has_its_own_batch_and_rate(self) -> None:
        """The chapter's (1, 256, .1) and (2, 512, .2), in one run; strong scaling keeps the recipe."""
        book = BUILT_IN["book-resnet18-256"].model_copy(update={"name": LENET.name})
        gpus = Devices("cuda", ("cuda:0", "cuda:1"), ())
        run, workers = train(TWO, WEAK_TWO, reached={1: 0.91, 2: 0.9}, workloads=(book,), devices=gpus)
        assert workers.recipes == [("strong", 256, 0.1), ("strong", 256, 0.1), ("weak", 512, 0.2)]
        assert [(net.mode, net.batch, net.lr) for net in run.accuracies] == workers.recipes
        assert [net.world_size for net in run.accuracies] == [1, 2, 2]

    def test_cut_on_a_cpu_grows_with_the_batch(self) -> None:
        """Two minibatches remain two."""
        run, _ = train(WEAK_TWO, reached={1: 0.9, 2: 0.9}, workloads=lenet(batch=64, cpu_samples=128))
        assert [net.shortened for net in run.accuracies] == ["128 samples an epoch", "256 samples an epoch"]

    def test_every_epoch_is_kept_with_the_slowest_ranks_seconds(self) -> None:
        run, workers = train(TWO, reached={1: 0.91, 2: 0.89})
        epochs = Recipe().epochs
        assert workers.epochs == 2 * epochs
        assert [(net.world_size, net.per_epoch, net.train_s, net.loss) for net in run.accuracies] == [
            (k, (reached,) * epochs, (2.0,) * epochs, (0.75,) * epochs) for k, reached in ((1, 0.91), (2, 0.89))
        ]

    @pytest.mark.parametrize(
        ("workloads", "steps"), [((LENET,), 90 + 625), (lenet(batch=1024, cpu_samples=512), (1 + 1) * 4)]
    )
    def test_deadline_covers_an_epochs_steps_and_its_evaluation(self, workloads: tuple[Any], steps: int) -> None:
        """In minibatches of 16, of which the test set has 625; one larger than the timed batch counts as several."""
        _, workers = train(TWO, reached={1: 0.9, 2: 0.9}, workloads=workloads)
        assert workers.steps[PAIR] == steps


class TestBudget:
    """Training has a share of the budget, and a cell says where its net did not fit into it."""

    EPOCHS = Recipe().epochs

    def test_net_that_does_not_fit_is_not_trained_and_says_why(self) -> None:
        """Two nets of 25 s fit into the 72 s that a budget of two minutes has for training."""
        cells = [TWO, WEAK_TWO, cell(2, "scratch")]
        run, workers = train(*cells, reached={1: 0.9, 2: 0.9}, epoch_s=25 / self.EPOCHS)
        assert [(net.trainer, net.mode, net.world_size) for net in run.accuracies] == [
            ("ddp", "strong", 1),
            ("ddp", "strong", 2),
        ]
        assert workers.session.training_s <= SHARE * run.plan.config.budget.seconds
        assert why_missing(accuracy.why_none(run, cells[0])) == ""
        for cut in cells[1:]:
            assert accuracy.reached(run, cut) is None
            assert accuracy.checks(run, cut, 1) == ()
            assert re.fullmatch(
                r"\d+ s or more of training do not fit into what the budget has for it \(60% of 120 s at most, "
                r"for all cells\); raise --scaling-budget",
                why_missing(accuracy.why_none(run, cut)),
            )

    def test_what_the_comparison_leaves_is_for_pairs_in_a_drawn_order(self) -> None:
        orders, cells = list[list[tuple[str, int, int]]](), [TWO, cell(2, "scratch"), cell(2, "data_parallel")]
        for compared in (False, True):
            runs = [train(*cells, reached={1: 0.9, 2: 0.9}, compared=compared, seed=seed) for seed in range(8)]
            orders.append([workers.asked[0] for _, workers in runs])
        first, drawn = map(set, orders)
        assert len(first) == 1 < len(drawn)
        assert {world_size for _, world_size, _ in drawn} == {1}, "one device before several, pair by pair"
        run, _ = train(*cells, reached={1: 0.9, 2: 0.9}, compared=True, epoch_s=25 / self.EPOCHS)
        cut = [why for each in cells if (why := why_missing(accuracy.why_none(run, each)))]
        assert len(cut) == 2
        assert all("do not fit into what the budget has left for it" in why for why in cut)

    def test_pairs_of_the_largest_world_sizes_come_first(self) -> None:
        """A net takes 20 s, and there are 60 s: one device, and two of the others."""
        run, _ = train(*map(cell, (2, 4, 8)), reached=dict.fromkeys((1, 2, 4, 8), 0.9), epoch_s=1.0, budget_s=100.0)
        assert [net.world_size for net in run.accuracies] == [1, 8, 4]
        assert "do not fit into what the budget has for it" in why_missing(accuracy.why_none(run, TWO))

    @pytest.mark.parametrize(
        ("left_s", "session_s", "allowed_s"), [(150.0, 20.0, 108.0), (100.0, 40.0, 88.0), (80.0, 70.0, 0.0)]
    )
    def test_four_sessions_and_training_stretch_a_profiles_budget_by_three_fifths(
        self, left_s: float, session_s: float, allowed_s: float
    ) -> None:
        """Three sessions are to come: of 288 s, where sessions are short training has its whole share of 180 s."""
        run = run_of(TWO, config=settings(budget_s=180.0))
        assert accuracy.allowed_s(run, left_s, session_s) == pytest.approx(allowed_s)
        assert accuracy.allowed_s(run_of(TWO, config=settings(budget_s=180.0, fixed=True)), 7.0, session_s) == 7.0

    def test_the_first_session_trains_in_what_the_others_leave(self) -> None:
        """Of 120 s all are left, and 72 come on top; three sessions to come take 60 s or 40 s each."""
        trained_in = {}
        for wall_s in (60.0, 40.0):
            run, _ = train(TWO, reached={1: 0.9, 2: 0.9}, epoch_s=1.0, left_s=120.0, wall_s=wall_s)
            trained_in[wall_s] = [net.world_size for net in run.accuracies]
        assert trained_in == {60.0: [], 40.0: [1, 2]}

    def test_no_epoch_is_begun_where_the_timed_steps_are_too_slow(self) -> None:
        run, workers = train(TWO, reached={1: 0.9, 2: 0.9}, step_s=100.0)
        assert workers.asked == []
        assert "raise --scaling-budget" in why_missing(accuracy.why_none(run, TWO))

    def test_budget_that_the_user_set_is_kept(self) -> None:
        run, workers = train(TWO, reached={1: 0.9, 2: 0.9}, epoch_s=1.0, left_s=30.0, fixed=True, budget_s=1000.0)
        assert [net.world_size for net in run.accuracies] == [1]
        assert workers.session.training_s <= 30.0

    def test_two_ranks_that_share_a_device_are_a_pair(self) -> None:
        """So one device has its accuracy judged, and not its efficiency."""
        shared = Devices("cuda", ("cuda:0", "cuda:0"), ())
        assert accuracy.wanted_pairs(run_of(TWO, config=settings(devices=shared))) == [PAIR]

    def test_pairs_get_their_seeds_in_turn(self) -> None:
        run, _ = train(TWO, WEAK_TWO, reached={1: 0.9, 2: 0.9}, epoch_s=1.0, profile="full", budget_s=190.0 / SHARE)
        seeds = [sum(net.mode == mode and net.world_size == 2 for net in run.accuracies) for mode in ("strong", "weak")]
        assert seeds == [3, 3]

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"against": AGAINST}, "nothing is trained in a run with a base: the budget is for the comparison"),
            (
                {"workloads": (UNTAUGHT,)},
                "workload 'lenet' has no recipe to train by; set its epochs, or write "
                "[tool.scaling.workloads.lenet.accuracy] with dataset, batch, lr and epochs",
            ),
            ({}, "the run ended before it was trained"),
        ],
    )
    def test_other_reasons_for_no_accuracy(self, changes: dict[str, Any], why: str) -> None:
        run = run_of(TWO, config=settings(**changes))
        assert why_missing(accuracy.why_none(run, TWO)) == why
        assert accuracy.wanted_pairs(run) == ([] if changes else [PAIR])


class TestOnOneDevice:
    """One device against accepted runs."""

    @pytest.mark.parametrize(
        ("now", "accepted", "profile", "trained_seeds", "outcome", "counts"),
        [
            (0.90, SEEDS, "quick", 1, Outcome.INCONCLUSIVE, False),
            (0.90, SEEDS, "full", SEED_PAIRS, Outcome.PASS, True),
            (0.84, SEEDS, "quick", SEED_PAIRS, Outcome.FAIL, True),
            (0.84, SEEDS[:1], "quick", 1, Outcome.INCONCLUSIVE, False),
            (0.70, SEEDS[:1], "quick", 1, Outcome.FAIL, True),
            (0.84, SEEDS[:3], "quick", 3, Outcome.FAIL, True),
        ],
        ids=["as before", "as before, full", "a loss", "a loss of one seed", "a large one", "a loss of three seeds"],
    )
    def test_accepted_runs_judge_it_seed_by_seed(
        self, now: float, accepted: tuple[int, ...], profile: str, trained_seeds: int, outcome: Outcome, counts: bool
    ) -> None:
        run, workers = train(ONE, reached={1: now}, accepted=dict.fromkeys(accepted, 0.9), profile=profile)
        assert [seed for _, _, seed in workers.asked] == list(SEEDS[:trained_seeds])
        [check] = accuracy.checks(run, ONE, 1)
        assert (check.outcome, check.counts, check.against) == (outcome, counts, "accepted runs")
        assert "in accepted runs over" in check.reason

    def test_a_loss_that_all_world_sizes_have_fails_one_device(self) -> None:
        run, _ = train(ONE, TWO, reached={1: 0.84, 2: 0.84}, accepted=dict.fromkeys(SEEDS, 0.9))
        assert [accuracy.checks(run, each, 1)[0].outcome for each in (ONE, TWO)] == [Outcome.FAIL, Outcome.INCONCLUSIVE]

    def test_a_full_run_trains_all_seeds_for_the_runs_after_it(self) -> None:
        run, workers = train(ONE, reached={1: 0.9}, profile="full")
        assert [seed for _, _, seed in workers.asked] == list(SEEDS)
        assert accuracy.checks(run, ONE, 1) == ()

    def test_nets_of_other_data_are_no_pair(self) -> None:
        run, _ = train(ONE, reached={1: 0.5})
        run.plan = replace(run.plan, baseline=accepted_nets({SEED: 0.9}, dataset="other digits"))
        assert accuracy.wanted_pairs(run) == []


class TestJudged:
    """Seed pairs against the margin."""

    def test_nets_are_paired_by_seed_and_not_by_their_order(self) -> None:
        """Nets of one seed reach equal accuracies; those of different seeds are far apart."""
        levels = {seed: 0.5 + 0.08 * number for number, seed in enumerate(SEEDS)}
        on_one = [trained(level, 1, seed) for seed, level in levels.items()]
        run = run_of(TWO, accuracies=on_one + [trained(level, 2, seed) for seed, level in reversed(levels.items())])
        assert accuracy.judged(run, PAIR, 1).outcome is Outcome.PASS
        run = run_of(TWO, accuracies=on_one + [trained(level, 2, 8 - seed) for seed, level in levels.items()])
        assert accuracy.judged(run, PAIR, 1).outcome is Outcome.INCONCLUSIVE

    def test_each_trainer_and_mode_is_judged_by_its_own_nets(self) -> None:
        cells = [TWO, WEAK_TWO, cell(2, "scratch"), cell(1)]
        run = run_of(*cells)
        run.accuracies += [trained(0.91, 1), trained(0.9, 2), trained(0.73, 2, mode="weak")]
        run.accuracies += [trained(0.91, 1, trainer="scratch")]
        outcomes = [[check.outcome for check in accuracy.checks(run, each, 1)] for each in cells]
        assert outcomes == [[Outcome.INCONCLUSIVE], [Outcome.FAIL], [], []]
        assert [accuracy.reached(run, each) for each in cells] == [0.9, 0.73, None, 0.91]
        assert accuracy.reached(run, cell(1, mode="weak")) == 0.91

    @pytest.mark.parametrize(("comparisons", "outcome"), [(1, Outcome.FAIL), (100, Outcome.INCONCLUSIVE)])
    def test_more_comparisons_ask_for_a_larger_loss(self, comparisons: int, outcome: Outcome) -> None:
        """One pair, .10 lower: z at 1 % is 2.33, at 1 % of a hundredth 3.72, with an SD of .04."""
        run = run_of(TWO, accuracies=[trained(0.90, 1), trained(0.80, 2)])
        check = accuracy.judged(run, PAIR, comparisons)
        assert check.outcome is outcome
        assert check.counts == (outcome is Outcome.FAIL), "a loss counts from any number of pairs"

    def test_margin_is_the_recipes(self) -> None:
        run = run_of(TWO, config=settings(workloads=lenet(margin=0.00005)))
        run.accuracies += [trained(0.9, k, seed) for seed in SEEDS for k in (1, 2)]
        assert accuracy.judged(run, PAIR, 1).outcome is Outcome.INCONCLUSIVE
