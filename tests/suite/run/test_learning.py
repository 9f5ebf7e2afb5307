"""A training: a net in a worker, as the controller follows it, and the line that shows its curve."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from reference.data import feed
from reference.evaluate import accuracy
from reference.models.init import build
from reference.trainers.scratch import Scratch
from reference.trainers.single import Single
from suite.checks.bench import Bench
from suite.processes.failure import WorkerFailure
from suite.processes.hosts import STORE
from suite.processes.jobs import Epoch, Prepared, Probed, SetUp, Timed, TrainingRecipe
from suite.rank import commands
from suite.rank.arm import TimedArm, make_trainer, open_dataset, prepare_dataset
from suite.rank.commands import State
from suite.rank.timing import Others
from suite.rank.training import Training
from suite.render.scale import sparkline
from suite.room import accelerator
from suite.run.learning import Curve, Limits, NotScored, OutOfTime, learn
from suite.run.plan import FIRST_STEP_TIMEOUT_S
from suite.run.session import Say
from tests.support import learners
from tests.support.learners import TEST, TRAIN, Noted, prepared, recipe
from tests.support.measurements import arm, job

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")
JOB = job(arm(2))


class Ranks:
    """Two ranks, the second one slower, that answer until an epoch in which the group is gone."""

    def __init__(self, gone_in: int | None = None, raises: bool = False) -> None:
        self.gone_in, self.raises = gone_in, raises
        self.asked: list[tuple[int, float]] = []
        self.losses: tuple[float | None, ...] = (None, None)
        self.test_losses: tuple[float | None, ...] = (None,) * 9
        self.epochs_s: tuple[float, ...] = (1.0, 1.0, 1.0)
        self.now = 0.0

    def __call__(self, kind: type[Epoch], command: str, timeout_s: float, /, **told: Any) -> list[Epoch] | None:
        assert (command, told["recipe"], told["arm"]) == ("train", self.recipe, JOB)
        epoch = told["epoch"]
        self.asked.append((epoch, timeout_s))
        self.now += self.epochs_s[epoch]
        if epoch == self.gone_in:
            if self.raises:
                raise WorkerFailure("group", "rank 1: gone")
            return None
        common = kind(accuracy=0.25 * (epoch + 1), train_s=1.0 + epoch, train_samples=100, test_samples=20)
        common = replace(common, test_loss=self.test_losses[epoch])
        return [replace(common, train_s=common.train_s + r, loss=loss) for r, loss in enumerate(self.losses)]

    @property
    def recipe(self) -> TrainingRecipe:
        dataset = Prepared(name="digits", folder="", train_samples=100, test_samples=20)
        return TrainingRecipe(dataset=dataset, batch=32, lr=0.1, epochs=len(self.epochs_s), init="default")

    def learn(self, say: Say = lambda line: None, allowed_s: float = math.inf) -> Curve | None:
        limits = Limits(30.0, allowed_s=allowed_s, clock=lambda: self.now)
        return learn(self, JOB, self.recipe, limits, "ddp", say)


def test_every_epoch_is_shown_before_the_next_begins() -> None:
    ranks, shown = Ranks(), []
    curve = ranks.learn(lambda line: shown.append((len(ranks.asked), line)))
    assert shown == [
        (0, "training ddp: epoch 1 of 3"),
        (1, "training ddp: epoch 1 of 3, accuracy 0.25 ▃"),
        (2, "training ddp: epoch 2 of 3, accuracy 0.50 ▃▅"),
        (3, "training ddp: epoch 3 of 3, accuracy 0.75 ▃▅▇"),
    ]
    assert curve == ((0.25, 0.5, 0.75), (2.0, 3.0, 4.0), 100, 20, (), (), ""), "the slowest rank's seconds count"
    assert ranks.asked == [(0, 30.0 + FIRST_STEP_TIMEOUT_S), (1, 30.0), (2, 30.0)]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((0.25, 0.5), (0.75,) * 3), ((0.25, None), ()), ((0.25, math.nan), (None,) * 3), ((math.inf, 0.5), (None,) * 3)],
)
def test_loss_is_the_sum_of_the_ranks_shares(shares: tuple[float | None, ...], expected: tuple[float | None]) -> None:
    """Empty where a rank's trainer returns none; None for an epoch whose loss is not finite."""
    ranks = Ranks()
    ranks.losses = shares
    curve = ranks.learn()
    assert curve is not None
    assert curve.loss == expected


def test_the_loss_of_test_texts_is_that_of_all_ranks_together() -> None:
    ranks = Ranks()
    ranks.test_losses = (2.5, math.nan, 1.5)
    curve = ranks.learn()
    assert curve is not None
    assert curve.test_loss == (2.5, None, 1.5)


@pytest.mark.parametrize(
    ("epochs_s", "allowed_s", "trained"),
    [
        ((9.0, 1.0, 1.0), 11.0, 3),  # a slow first epoch does not predict the others
        ((9.0, 1.0, 1.0), 8.0, 1),
        ((1.0, 5.0, 5.0), 10.0, 2),
        ((1.0, 5.0, 1.0), 6.5, 2),
        ((1.0, 1.0, 5.0, 1.0), 8.5, 4),  # the shortest epoch predicts the others
    ],
)
def test_training_stops_as_soon_as_it_cannot_end_in_time(
    epochs_s: tuple[float, ...], allowed_s: float, trained: int
) -> None:
    ranks = Ranks()
    ranks.epochs_s = epochs_s
    if trained == len(epochs_s):
        assert ranks.learn(allowed_s=allowed_s) is not None
    else:
        with pytest.raises(OutOfTime, match=r"the training takes about \d+ s") as out:
            ranks.learn(allowed_s=allowed_s)
        assert out.value.needed_s > allowed_s
    assert len(ranks.asked) == trained


def test_a_net_without_an_accuracy_is_not_trained_on() -> None:
    """A rank without test samples cannot tell."""
    asked = []

    def ask(kind: type[Epoch], command: str, timeout_s: float, /, **told: Any) -> list[Epoch]:
        asked.append(told["epoch"])
        seen = kind(accuracy=0.0, train_s=1.0, train_samples=100, test_samples=20)
        return [seen, replace(seen, not_scored="no scores")]

    with pytest.raises(NotScored, match=r"^no scores$"):
        learn(ask, JOB, Ranks().recipe, Limits(30.0), "ddp", lambda line: None)
    assert asked == [0]


def test_group_that_is_gone_is_not_asked_again_and_a_failure_reaches_the_caller() -> None:
    ranks = Ranks(gone_in=1)
    assert ranks.learn() is None
    assert [epoch for epoch, _ in ranks.asked] == [0, 1]
    with pytest.raises(WorkerFailure, match="rank 1: gone"):
        Ranks(gone_in=2, raises=True).learn()


@pytest.mark.parametrize(
    ("shares", "shown"),
    [
        ((), ""),
        ((0.0,), "▁"),
        ((1.0,), "█"),
        ((0.12, 0.13, 0.5, 0.99), "▁▂▅█"),
        ([0.0] * 99 + [1.0], "▁" * 19 + "█"),
        ([0.0, 1.0] * 20, "█" * 20),
    ],
)
def test_sparkline_has_one_block_per_share_and_at_most_twenty(shares: list[float], shown: str) -> None:
    assert sparkline(shares) == shown


CPU = torch.device("cpu")
NOTED = "tests.support.learners:Noted"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(tmp_path_factory.mktemp("training"))


@pytest.fixture(autouse=True)
def noted() -> Iterator[list[Noted]]:
    Noted.made.clear()
    yield Noted.made
    Noted.made.clear()


def curve(told: TrainingRecipe, trainer: str = "single", seed: int = 1) -> list[float]:
    training = Training(0, [CPU], learners.job(trainer, seed=seed), told)
    return [training.epoch(number).accuracy for number in range(told.epochs)]


def test_curve_equals_that_of_a_net_trained_by_hand(dataset: Prepared) -> None:
    """Another seed has another curve."""
    whole = open_dataset(dataset, CPU, torch.float32)
    trainer = Single(build("toy", "default", 1), [CPU], lr=0.2)
    by_hand = []
    for epoch in range(3):
        for X, y in feed(whole, "resident", 32, seed=1, epoch=epoch):
            trainer.step(X, y, len(X))
        by_hand.append(accuracy(trainer.replicas, [CPU], whole.test_X, whole.test_y))
    assert curve(recipe(dataset)) == by_hand
    assert curve(recipe(dataset), seed=2) != by_hand


def test_a_model_with_a_signature_of_its_own_has_an_accuracy_where_it_returns_scores(dataset: Prepared) -> None:
    here = "tests.support.own_signatures:"
    told = learners.job(here + "CallsAlone", model=here + "TakesLabels")
    training = Training(0, [CPU], told, recipe(dataset))
    assert all(training.epoch(number).accuracy > 0.6 for number in range(3))
    told = learners.job(here + "CallsAloneForALoss", model=here + "OnlyLoss")
    training = Training(0, [CPU], told, recipe(dataset))
    epoch = training.epoch(0)
    assert epoch.not_scored.startswith(
        "the model returns tensors of [()] for labels of (64,): an accuracy needs a score"
    )
    assert epoch.loss is not None


def test_the_arms_and_trainings_of_a_process_share_one_copy_of_a_dataset(dataset: Prepared) -> None:
    """A copy for each would take gigabytes of a GPU on which every group has a process."""
    first, second = (Training(0, [CPU], learners.job("single"), recipe(dataset)) for _ in range(2))
    assert first._dataset.train_X.data_ptr() == second._dataset.train_X.data_ptr()
    assert open_dataset(dataset, CPU, torch.float64).train_X.dtype == torch.float64


def test_epoch_answers_samples_and_seconds(dataset: Prepared) -> None:
    answer = Training(0, [CPU], learners.job("single"), recipe(dataset)).epoch(0)
    assert (answer.train_samples, answer.test_samples) == (TRAIN, TEST)
    assert 0 < answer.train_s < 60
    cut = Training(0, [CPU], learners.job("single"), recipe(dataset, samples=48)).epoch(0)
    assert (cut.train_samples, cut.test_samples) == (48, 48)


@pytest.mark.parametrize("trainer", ["single", "scratch", "data_parallel", "gluon"])
def test_loss_of_an_epoch_is_the_mean_over_its_samples(dataset: Prepared, trainer: str) -> None:
    """The short last minibatch counts by its samples."""
    whole = open_dataset(dataset, CPU, torch.float32)
    by_hand, losses = Single(build("toy", "default", 1), [CPU], lr=0.2), []
    for X, y in feed(whole, "resident", 50, seed=1, epoch=0):
        losses.append(float(F.cross_entropy(by_hand.net(X), y, reduction="sum").detach()))
        by_hand.step(X, y, len(X))
    answer = Training(0, [CPU] * 2, learners.job(trainer), recipe(dataset, batch=50)).epoch(0)
    assert answer.loss == pytest.approx(sum(losses) / TRAIN, rel=1e-5)


def test_trainer_that_returns_no_loss_has_none(dataset: Prepared) -> None:
    assert Training(0, [CPU], learners.job("tests.support.learners:Silent"), recipe(dataset)).epoch(0).loss is None


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ("tests.support.learners:DivergesSilently", ["fc.weight"] * 2),
        ("tests.support.learners:LosesAShard", ["", "fc.weight"]),
        ("ddp", ["", ""]),
    ],
)
def test_ranks_name_a_parameter_that_is_not_finite_after_an_epoch(
    dataset: Prepared, bench: Bench, trainer: str, expected: list[str]
) -> None:
    """Of a sharded one each rank reads its own part."""
    told = {"arm": learners.job(trainer, 2), "recipe": recipe(dataset, batch=TRAIN, epochs=1)}
    answers = bench.group(2).request(Epoch, "train", epoch=0, **told)
    assert [answer.not_finite for answer in answers] == expected


@pytest.mark.parametrize(("done", "asked"), [(0, 1), (1, 0), (1, 2), (3, 3)])
def test_epoch_out_of_order_is_refused(dataset: Prepared, done: int, asked: int) -> None:
    training = Training(0, [CPU], learners.job("single"), recipe(dataset))
    for number in range(done):
        training.epoch(number)
    with pytest.raises(ValueError, match=f"epoch {asked} was asked for after {done} of 3: .* once and in order"):
        training.epoch(asked)


def test_gradient_is_divided_by_the_samples_of_its_minibatch(dataset: Prepared, noted: list[Noted]) -> None:
    curve(recipe(dataset, batch=50, epochs=2), NOTED)
    assert noted[0].divisors == [50, 50, 50, 42] * 2


@pytest.fixture
def product_dtypes() -> Iterator[set[torch.dtype]]:
    """Dtypes of what linear layers return, in all threads."""
    dtypes = set[torch.dtype]()

    def note(module: nn.Module, _: object, output: torch.Tensor) -> None:
        if isinstance(module, nn.Linear) and module.training:
            dtypes.add(output.dtype)

    hook = register_module_forward_hook(note)
    yield dtypes
    hook.remove()


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("trainer", ["single", "scratch", "data_parallel"])
def test_what_is_timed_and_what_is_trained_have_the_workloads_precision(
    dataset: Prepared, product_dtypes: set[torch.dtype], trainer: str, precision: str
) -> None:
    told = replace(learners.job(trainer, precision=precision), dataset=dataset)
    variant = {"share": 1, "exchange": True, "alone": False}
    for act in (
        lambda: Training(0, [CPU, CPU], told, recipe(dataset)).epoch(0),
        lambda: TimedArm(0, [CPU, CPU], told).window(2),
        lambda: TimedArm(0, [CPU, CPU], told).probe(1, resident=True, **variant),
    ):
        product_dtypes.clear()
        act()
        assert product_dtypes == {getattr(torch, precision)}
    arm = TimedArm(0, [CPU], told)
    arm.window(1)
    assert {parameter.dtype for parameter in arm.trainer.replicas[0].parameters()} == {torch.float32}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_window_of_whole_turns_lasts_as_its_share_of_a_slow_loader(
    dataset: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its four processes wait at the same time; eight steps are two turns of them, wherever in a turn they begin."""
    fetch, wait_s = _MapDatasetFetcher.fetch, 0.2

    def late(fetcher: Any, indices: Any) -> Any:
        time.sleep(wait_s)
        return fetch(fetcher, indices)

    monkeypatch.setattr(_MapDatasetFetcher, "fetch", late)
    arm = TimedArm(0, [CPU], replace(learners.job("single", loader="book"), dataset=dataset, global_batch=4))
    for lead_in in (4, 6):
        assert arm.window(8, lead_in) / 1e9 == pytest.approx(2 * wait_s, rel=0.4)
    arm._batches.close()  # otherwise the garbage collector, in whatever test it runs, waits 20 s for the loaders


def test_a_timed_window_has_the_peak_memory_of_its_process(dataset: Prepared) -> None:
    state = State(0, {"an arm": TimedArm(0, [CPU], replace(learners.job("single"), dataset=dataset))})
    held = commands.window(state, "an arm", 2).memory
    assert held is not None
    assert (held.resident_bytes or 0) > 10_000_000, "torch alone is larger"
    assert not held.allocated_bytes


@pytest.mark.parametrize(
    ("pinned", "store", "told"), [(((0,),), False, True), ((), False, False), (((0,),), True, False)]
)
def test_the_share_of_others_is_told_by_a_process_with_cores_on_one_host(
    pinned: tuple[tuple[int, ...], ...], store: bool, told: bool, dataset: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between hosts an exchange is work of the kernel, which looks like that of others."""
    if store:
        monkeypatch.setenv(STORE, "127.0.0.1:1")
    monkeypatch.setattr(Others, "read_ns", lambda self: 3)
    state = State(0, {"an arm": TimedArm(0, [CPU], replace(learners.job("single"), dataset=dataset, pinned=pinned))})
    assert commands.window(state, "an arm", 2).others_ns == (3 if told else None)


def test_unused_memory_is_given_back_after_everything_that_trains(
    dataset: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On accelerators; a CPU has nothing to give back."""
    released: list[list[torch.device]] = []
    monkeypatch.setattr(accelerator, "release", released.append)
    arm = TimedArm(0, [CPU], replace(learners.job("single"), dataset=dataset))
    arm.window(1)
    arm.probe(1, resident=True, share=1, exchange=True, alone=False)
    arm.count(1)
    commands.train(State(0), learners.job(NOTED), recipe(dataset, epochs=1), 0)
    assert released == [[CPU]] * 4


def test_a_data_set_of_nests_is_timed_and_trained_on_two_ranks(tmp_path: Path, bench: Bench) -> None:
    """A trainer of tokens learns them; a rank may have no label that counts."""
    texts = prepare_dataset("tests.support.texts:corpus", "", str(tmp_path / "texts"))
    told = learners.job("reference.trainers.ddp:DDPTokensTrainer", 2, model="tests.support.texts:Writer")
    told, group = replace(told, dataset=texts, global_batch=5), bench.group(2)
    group.request(SetUp, "setup", name="texts", arm=told)
    assert all(timed.duration_ns > 0 for timed in group.request(Timed, "window", name="texts", steps=2))
    half = {"resident": True, "share": 2, "exchange": True, "alone": False}
    assert all(probed.duration_ns for probed in group.request(Probed, "probe", name="texts", steps=1, variant=half))
    train = {"arm": told, "recipe": recipe(texts, batch=8, epochs=8)}
    answers = [group.request(Epoch, "train", epoch=epoch, **train)[0] for epoch in range(8)]
    assert answers[-1].accuracy > max(0.5, answers[0].accuracy)
    assert (answers[-1].train_samples, answers[-1].test_samples) == (96, 32)


@pytest.mark.parametrize("trainer", ["ddp_tokens", "fsdp_tokens"])
def test_two_ranks_train_a_gpt_as_one_device_does(tmp_path: Path, bench: Bench, trainer: str) -> None:
    """Same loss and same tokens right after an uneven epoch; what is ahead of chance was learned from the data."""
    texts = prepare_dataset("texts-tiny", "", str(tmp_path / "texts"))
    assert texts.tokens == 64
    told = {"recipe": recipe(texts, batch=15, lr=0.1, epochs=1, samples=100, init="default"), "epoch": 0}
    [alone] = bench.group(1).request(Epoch, "train", arm=learners.job("single", 1, model="gpt-tiny"), **told)
    [first, second] = bench.group(2).request(Epoch, "train", arm=learners.job(trainer, 2, model="gpt-tiny"), **told)
    assert first.test_loss == second.test_loss == pytest.approx(alone.test_loss, rel=1e-4)
    assert first.accuracy == second.accuracy == pytest.approx(alone.accuracy, abs=0.002)
    assert 1.15 < alone.test_loss < 3.45, "between the best loss and that of guessing"


class TestTheCommand:
    """`train` in one worker: what it keeps from epoch to epoch, and when it closes a net."""

    def test_net_begins_with_epoch_0_and_is_closed_after_the_last(self, dataset: Prepared, noted: list[Noted]) -> None:
        state, told = State(0), recipe(dataset)
        for epoch in range(3):
            assert [net.closed for net in noted] == [0] * bool(epoch)
            answer = commands.train(state, learners.job(NOTED), told, epoch)
        assert answer.accuracy == curve(told)[-1]
        assert [net.closed for net in noted] == [1]
        assert state.learner is None
        with pytest.raises(ValueError, match="epoch 3 was asked for and no net is in training: epoch 0 begins"):
            commands.train(state, learners.job(NOTED), told, 3)

    def test_unfinished_net_is_closed_by_the_next_one_and_by_the_workers_end(
        self, dataset: Prepared, noted: list[Noted]
    ) -> None:
        state = State(0)
        commands.train(state, learners.job(NOTED), recipe(dataset), 0)
        commands.train(state, learners.job(NOTED, seed=2), recipe(dataset), 0)
        assert [net.closed for net in noted] == [1, 0]
        state.close()
        assert [net.closed for net in noted] == [1, 1]


def test_rank_that_dies_in_the_third_epoch_is_named_after_two_epochs_were_shown(
    dataset: Prepared, bench: Bench
) -> None:
    said: list[str] = []
    group = bench.group(2)
    with pytest.raises(WorkerFailure, match=r"rank 1: its process ended with signal 9 \(SIGKILL\)"):
        dies = learners.job("tests.support.learners:DiesInTheThirdEpoch", 2)
        learn(group.request, dies, recipe(dataset), Limits(60.0), "it", said.append)
    assert not group.alive
    assert [line.partition(", accuracy")[0] for line in said] == [
        "training it: epoch 1 of 3",
        "training it: epoch 1 of 3",
        "training it: epoch 2 of 3",
    ]


@pytest.mark.nightly
def test_compiled_replicas_have_room_for_the_versions_of_every_device() -> None:
    """Beyond torch's limit of eight for all devices of a process, it runs what it would compile without a word."""
    with torch._dynamo.config.patch(recompile_limit=8):  # pytest's monkeypatch takes the setting away at its end
        made = make_trainer(Scratch, build("toy"), [CPU] * 3, 0.1, learners.job("scratch", compile=True).workload)
        made.close()
        assert torch._dynamo.config.recompile_limit == 24
