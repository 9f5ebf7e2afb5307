"""Which nets are trained, how many seed pairs, and when what they show counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from suite.plan.base import Base
from suite.plan.cells import Arm, Cell
from suite.plan.workloads import BUILT_IN, Recipe
from suite.processes.failure import WorkerFailure
from suite.room.devices import Devices
from suite.run import accuracy, learning
from suite.run.accuracy import SEED, SHARE
from suite.run.observations import Facts, Observations
from suite.run.session import Crew, Session
from suite.verdict import Outcome
from tests.support.measurements import LENET, SEED_PAIRS, arm, cell, measurement, order, settings, trained

PAIR = arm(2)
WEAK = arm(2, mode="weak")
SEEDS = tuple(range(SEED, SEED + SEED_PAIRS))


class Workers:
    """A crew whose nets reach the accuracies they are told to, and a clock that knows how long they may take.

    Attributes:
        asked: trainer, world size and seed of every net that was begun.
        recipes: mode of that net, its batch and its rate.
        epochs: of all nets together.
        now, epoch_s: the time, and what an epoch takes of it.
        steps: that an epoch was said to have, by arm.
        broken: the arm that is lost in its third epoch.
    """

    STEP_S = 0.0  # that was timed

    def __init__(
        self, arms: list[Arm], reached: Mapping[int | Arm, float], broken: Arm | None = None, epoch_s: float = 0.0
    ) -> None:
        self.session = Session(0)
        self.now, self.epoch_s, self.left = 0.0, epoch_s, 1e6
        self.recipes: list[tuple[str, int, float]] = []
        self.step_s = dict.fromkeys(arms, self.STEP_S)
        self.groups = dict.fromkeys(arms)
        self.reached, self.broken = reached, broken
        self.asked: list[tuple[str, int, int]] = []
        self.epochs = 0
        self.steps: dict[Arm, int] = {}

    def left_s(self) -> float:
        return self.left - self.now

    def timeout_s(self, arm: Arm, steps: int) -> float:
        self.steps[arm] = steps
        return 20.0

    def request(self, arm: Arm, command: str, timeout_s: float, /, **told: Any) -> list[dict[str, Any]] | None:
        assert command == "train"
        if told["epoch"] == 0:
            self.asked.append((arm.trainer, arm.world_size, told["arm"]["seed"]))
            self.recipes.append((arm.mode, told["recipe"]["batch"], told["recipe"]["lr"]))
        if arm == self.broken and told["epoch"] == 2:
            del self.groups[arm]
            return None
        self.epochs += 1
        self.now += self.epoch_s
        reached = self.reached[arm if arm in self.reached else arm.world_size]
        answer = {"accuracy": reached, "train_samples": 1437, "test_samples": 10_000}
        return [answer | {"train_s": 1.0, "loss": 0.5}, answer | {"train_s": 2.0, "loss": 0.25}]


def train(
    *cells: Cell,
    reached: Mapping[int | Arm, float],
    lost: tuple[Arm, ...] = (),
    broken: Arm | None = None,
    epoch_s: float = 0.0,
    left_s: float = 1e6,
    **changes: Any,
) -> tuple[Observations, Workers]:
    """Everything that a first session's workers are asked to train, with one and with k devices of every trainer."""
    datasets = changes.pop("datasets", {})
    run = measurement(*cells, config=settings(**changes))
    arms = [arm(k, found.trainer, mode=found.mode) for found in cells for k in (1, found.world_size)]
    arms = [found for found in dict.fromkeys(arms) if found not in lost]
    run.orders = {found: order(found) for found in arms}
    digits = {"name": "digits", "train_samples": 1437, "test_samples": 10_000, "folder": ""}
    run.datasets = Facts({**run.datasets, "digits": digits, **datasets})
    workers = Workers(arms, reached, broken, epoch_s)
    workers.left = left_s
    with pytest.MonkeyPatch.context() as patch:
        for module in (accuracy, learning):
            patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: workers.now))
        accuracy.training(run, workers, lambda line: None)(workers)  # type: ignore[arg-type]
    return run, workers


def test_quick_trains_one_pair_and_shows_it() -> None:
    run, workers = train(cell(), reached={1: 0.91, 2: 0.89})
    assert workers.asked == [("ddp", 1, SEED), ("ddp", 2, SEED)]
    [check] = accuracy.checks(run, cell(), 1)
    assert (check.outcome, check.counts) == (Outcome.INCONCLUSIVE, False)
    assert "one pair shows no spread" in check.reason


def test_quick_trains_all_pairs_where_one_looks_like_a_loss() -> None:
    run, workers = train(cell(), reached={1: 0.91, 2: 0.73})
    assert sorted(workers.asked) == sorted(("ddp", k, seed) for k in (1, 2) for seed in SEEDS)
    [check] = accuracy.checks(run, cell(), 1)
    assert (check.outcome, check.counts) == (Outcome.FAIL, True)
    assert f"over {SEED_PAIRS} seed pairs" in check.reason


def test_full_trains_all_pairs_and_all_of_them_count() -> None:
    run, workers = train(cell(), reached={1: 0.91, 2: 0.91}, profile="full")
    assert len(workers.asked) == len(set(workers.asked)) == 2 * SEED_PAIRS
    [check] = accuracy.checks(run, cell(), 1)
    assert (check.outcome, check.counts) == (Outcome.PASS, True)


def test_a_pair_that_looked_bad_by_luck_is_cleared_by_the_others() -> None:
    run = measurement(cell())
    run.accuracies += [trained(0.9, k, seed) for seed in SEEDS[1:] for k in (1, 2)]
    run.accuracies += [trained(0.9, 1), trained(0.88, 2)]
    assert accuracy.judged(run, PAIR, 1).outcome is Outcome.PASS


def test_one_device_is_trained_once_for_all_world_sizes_and_modes() -> None:
    cells = [cell(1), cell(2), cell(2, mode="weak"), cell(1, "scratch")]
    _, workers = train(*cells, reached={1: 0.9, 2: 0.9})
    assert sorted(workers.asked) == [("ddp", 1, SEED), ("ddp", 2, SEED), ("ddp", 2, SEED), ("scratch", 1, SEED)]


def test_a_weak_cell_is_trained_with_its_own_batch_and_rate() -> None:
    """As the chapter's (1, 256, .1) and (2, 512, .2), in one run; strong scaling keeps the recipe."""
    book = BUILT_IN["book-resnet18-256"].model_copy(update={"name": LENET.name})
    cells, on_gpus = [cell(2), cell(2, mode="weak")], Devices("cuda", ("cuda:0", "cuda:1"), ())
    data = {"name": "fashion-mnist", "train_samples": 60_000, "test_samples": 10_000, "folder": ""}
    run, workers = train(*cells, reached={1: 0.91, 2: 0.9}, workloads=(book,), devices=on_gpus, datasets={"auto": data})
    assert workers.recipes == [("strong", 256, 0.1), ("strong", 256, 0.1), ("weak", 512, 0.2)]
    assert [(net.mode, net.world_size, net.batch, net.lr) for net in run.accuracies] == [
        ("strong", 1, 256, 0.1),
        ("strong", 2, 256, 0.1),
        ("weak", 2, 512, 0.2),
    ]


def test_what_a_cpu_cuts_from_a_recipe_grows_with_the_batch() -> None:
    """Two minibatches stay two."""
    short = LENET.model_copy(update={"accuracy": Recipe(batch=64, cpu_samples=128)})
    run, _ = train(cell(2, mode="weak"), reached={1: 0.9, 2: 0.9}, workloads=(short,))
    assert [net.shortened for net in run.accuracies] == ["128 samples an epoch", "256 samples an epoch"]


def test_each_mode_is_judged_by_its_own_nets() -> None:
    cells = [cell(2), cell(2, mode="weak")]
    run, _ = train(*cells, reached={1: 0.91, PAIR: 0.9, WEAK: 0.73})
    assert [accuracy.checks(run, found, 1)[0].outcome for found in cells] == [Outcome.INCONCLUSIVE, Outcome.FAIL]
    assert [accuracy.reached(run, found) for found in cells] == pytest.approx([0.9, 0.73])
    assert accuracy.reached(run, cell(1)) == accuracy.reached(run, cell(1, mode="weak")) == 0.91


def test_nothing_is_trained_by_an_arm_that_was_lost_and_nothing_counts() -> None:
    run, workers = train(cell(), reached={2: 0.1}, lost=(arm(1),))
    assert workers.asked == [("ddp", 2, SEED)]
    [check] = accuracy.checks(run, cell(), 1)
    assert not check.counts


def test_what_was_trained_is_kept_epoch_by_epoch_with_the_slowest_ranks_seconds() -> None:
    run, workers = train(cell(), reached={1: 0.91, 2: 0.89})
    epochs = Recipe().epochs
    assert workers.epochs == 2 * epochs
    [alone, both] = run.accuracies
    assert (alone.world_size, alone.per_epoch, alone.train_s) == (1, (0.91,) * epochs, (2.0,) * epochs)
    assert (both.world_size, both.per_epoch, both.train_s) == (2, (0.89,) * epochs, (2.0,) * epochs)
    assert both.loss == (0.75,) * epochs, "the ranks' shares add up"


class TestBudget:
    """Training has a share of the budget, and what does not fit into it says so."""

    EPOCHS = Recipe().epochs

    def test_what_does_not_fit_is_not_trained_and_says_why(self) -> None:
        """Two nets of 20 s fit into the 60 s that the quick profile's two minutes have for it, and half of a third."""
        cells = [cell(2), cell(2, mode="weak"), cell(2, "scratch")]
        run, _ = train(*cells, reached={1: 0.9, 2: 0.9}, epoch_s=25 / self.EPOCHS)
        assert [(net.trainer, net.mode, net.world_size) for net in run.accuracies] == [
            ("ddp", "strong", 1),
            ("ddp", "strong", 2),
        ]
        assert run.training_s <= SHARE * run.plan.config.budget_s
        assert accuracy.why_none(run, cells[0]) == ""
        for cut in cells[1:]:
            assert accuracy.reached(run, cut) is None
            assert accuracy.checks(run, cut, 1) == ()
            assert re.fullmatch(
                r"\d+ s or more of training do not fit into what the budget has for it \(60% of 120 s at most, "
                r"for all cells\); raise --scaling-budget",
                accuracy.why_none(run, cut),
            )

    def test_no_epoch_is_begun_where_the_rate_that_was_timed_says_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Workers, "STEP_S", 100.0)
        run, workers = train(cell(), reached={1: 0.9, 2: 0.9})
        assert workers.asked == []
        assert "raise --scaling-budget" in accuracy.why_none(run, cell())

    def test_a_budget_of_the_users_own_is_kept(self) -> None:
        run, _ = train(cell(), reached={1: 0.9, 2: 0.9}, epoch_s=1.0, left_s=30.0, min_sessions=1, budget_s=1000.0)
        assert [net.world_size for net in run.accuracies] == [1]
        assert run.training_s <= 30.0

    def test_every_pair_gets_its_seeds_in_turn(self) -> None:
        """Where time runs out, no pair has more than one seed more than another."""
        cells = [cell(2), cell(2, mode="weak")]
        run, _ = train(*cells, reached={1: 0.9, 2: 0.9}, epoch_s=1.0, profile="full", budget_s=190.0 / SHARE)
        seeds = [sum(net.mode == mode and net.world_size == 2 for net in run.accuracies) for mode in ("strong", "weak")]
        assert seeds == [3, 3]

    def test_other_reasons_for_an_empty_column(self) -> None:
        beside = measurement(cell(), config=settings(against=Base("trainer", "ddp", trainer="ddp")))
        assert accuracy.why_none(beside, cell()) == "nothing is trained beside a base: the budget is for the comparison"
        untaught = LENET.model_copy(update={"accuracy": None})
        run = measurement(cell(), config=settings(workloads=(untaught,)))
        assert accuracy.why_none(run, cell()) == "workload lenet has no recipe to train by"
        assert accuracy.why_none(measurement(cell()), cell()) == "the run ended before it was trained"


def test_a_net_whose_workers_are_lost_in_its_third_epoch_is_no_accuracy() -> None:
    """And they are not asked for the other seeds."""
    run, workers = train(cell(), reached={1: 0.91, 2: 0.5}, broken=arm(2), profile="full")
    assert [(found.world_size, found.seed) for found in run.accuracies] == [(1, seed) for seed in SEEDS]
    assert [asked for asked in workers.asked if asked[1] == 2] == [("ddp", 2, SEED)]
    assert accuracy.checks(run, cell(), 1) == ()


def test_an_epochs_deadline_is_for_its_steps_and_its_evaluation() -> None:
    """In minibatches of 16, of which the test set has 625; one that is larger than what was timed counts as several."""
    _, workers = train(cell(), reached={1: 0.9, 2: 0.9})
    assert workers.steps[arm(2)] == 90 + 625
    recipe = LENET.model_copy(update={"accuracy": Recipe(batch=1024, cpu_samples=512)})
    _, workers = train(cell(), reached={1: 0.9, 2: 0.9}, workloads=(recipe,))
    assert workers.steps[arm(2)] == (1 + 1) * 4


def test_pairs_are_paired_by_seed_and_not_by_the_order_they_came_in() -> None:
    """Nets of one seed reach the same; those of different seeds are far apart."""
    run = measurement(cell())
    levels = {seed: 0.5 + 0.08 * number for number, seed in enumerate(SEEDS)}
    run.accuracies += [trained(level, 1, seed) for seed, level in levels.items()]
    run.accuracies += [trained(level, 2, seed) for seed, level in reversed(levels.items())]
    assert accuracy.judged(run, PAIR, 1).outcome is Outcome.PASS
    run.accuracies = [
        found.model_copy(update={"seed": 8 - found.seed if found.world_size == 2 else found.seed})
        for found in run.accuracies
    ]
    assert accuracy.judged(run, PAIR, 1).outcome is Outcome.INCONCLUSIVE


def test_nets_of_another_trainer_or_workload_are_not_mixed_in() -> None:
    run = measurement(cell(), cell(2, "scratch"))
    run.accuracies += [trained(0.91, 1), trained(0.73, 2), trained(0.91, 1, trainer="scratch")]
    assert accuracy.checks(run, cell(), 1)[0].outcome is Outcome.FAIL
    assert accuracy.checks(run, cell(2, "scratch"), 1) == ()
    assert accuracy.checks(run, cell(1), 1) == ()


def test_more_that_can_fail_asks_for_more() -> None:
    """One pair, .10 lower: z at 1 % is 2.33, at 1 % of a hundredth 3.72, with an SD of .04."""
    run = measurement(cell())
    run.accuracies += [trained(0.90, 1), trained(0.80, 2)]
    assert accuracy.judged(run, PAIR, 1).outcome is Outcome.FAIL
    assert accuracy.judged(run, PAIR, 1).counts, "a loss counts, from however few pairs"
    assert accuracy.judged(run, PAIR, 100).outcome is Outcome.INCONCLUSIVE


def test_the_recipes_margin_is_the_one_that_counts() -> None:
    strict = LENET.model_copy(update={"accuracy": Recipe(margin=0.001)})
    run = measurement(cell(), config=settings(workloads=(strict,)))
    run.accuracies += [trained(0.9, k, seed) for seed in SEEDS for k in (1, 2)]
    assert accuracy.judged(run, PAIR, 1).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    "changes",
    [{"against": Base("trainer", "ddp", trainer="ddp")}, {"workloads": (LENET.model_copy(update={"accuracy": None}),)}],
)
def test_beside_a_base_or_without_a_recipe_there_is_nothing_to_train(changes: dict[str, Any]) -> None:
    assert accuracy.wanted_pairs(measurement(cell(), config=settings(**changes))) == []
    assert accuracy.wanted_pairs(measurement(cell())) == [PAIR]


def test_a_candidate_that_fails_while_it_trains_is_lost() -> None:
    """As it is where it fails in a block: a campaign makes an ERROR of what a session has lost."""
    cause = WorkerFailure("group", "rank 0: RuntimeError: out of luck")

    class Failing:
        def request(self, *_: object, **__: object) -> None:
            raise cause

    run = measurement(cell(2), config=settings())
    run.orders = {found: order(found) for found in (arm(1), arm(2))}
    run.datasets["digits"] = {"name": "digits", "train_samples": 1437, "test_samples": 10_000, "folder": ""}
    crew = Crew(Session(0), {arm(2): Failing()})  # type: ignore[dict-item]
    sessions = SimpleNamespace(
        timeout_s=lambda arm, steps: 20.0, left_s=lambda: 600.0, step_s={arm(1): 0.01, arm(2): 0.01}
    )
    accuracy.training(run, sessions, lambda line: None)(crew)  # type: ignore[arg-type]
    assert crew.session.failures == {arm(2): cause}
    assert crew.groups == {}
