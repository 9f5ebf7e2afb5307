"""The checks themselves: how small an error they find, which bugs they name, and which records they judge how."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.checkpoint import checkpoint

from reference.all_reduce import ALL_REDUCE
from reference.data.feeds import index_batches, rank_batches
from reference.evaluate import count_correct
from reference.scatter import gather, scatter
from reference.trainers.scratch import Scratch
from reference.trainers.single import Single
from suite.checks import draw
from suite.checks.functions import FUNCTION_CHECKS, search
from suite.properties import functions, nets, suspects, tolerance
from suite.properties.answers import RIGHT, Judgement
from suite.properties.case import Case, Net
from suite.properties.observe import Observation
from suite.properties.one_device import UNREAD
from suite.properties.seen import Seen
from suite.properties.trainer import CHECKS, NOTHING_MOVED, OF_STEPS, judge
from tests.support.in_this_process import CASE, see, tampered

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_intra_op_thread")


def move(step: int, factor: float) -> Callable[[Observation], None]:
    """Return a change that scales what a step did."""

    def change(seen: Observation) -> None:
        pairs = zip(*(seen["parameters"][i] for i in (step, step + 1)), strict=True)
        seen["parameters"][step + 1] = [before + (after - before) * factor for before, after in pairs]

    return change


@pytest.mark.parametrize("check", CHECKS)
def test_a_right_trainer_passes_in_this_process_as_well(check: str) -> None:
    net = {"dropout": Net(hidden=(64,), dropout=True), "batch_norm": Net(hidden=(3,), norm="batch")}.get(check, Net())
    spoiled = 0 if check == "not_a_number" else None
    resumed = 1 if check == "resume" else None
    case = Case(1 if check == "identity" else 3, (6, 9), net=net, spoiled=spoiled, resumed=resumed)
    trainer = Single if check in draw.WITH_STATE else Scratch
    seen = Seen(case, [see(trainer, case, check)], see(trainer, case.alone(), check), variants=2)
    assert judge(check, seen).finding == ""


@pytest.mark.parametrize("trains", ["samples", "tokens"])
@pytest.mark.parametrize("check", ["gradient", "low_precision"])
def test_one_case_has_a_parameter_larger_than_the_first_bucket_of_ddp(check: str, trains: str) -> None:
    [case] = draw.fixed(check, 2, trains)
    assert max(p.nbytes for p in nets.build(case).parameters()) > dist._DEFAULT_FIRST_BUCKET_BYTES
    assert case.dtype in draw.CHECKS[check][2]
    assert draw.fixed(check, 1, trains) == draw.fixed("start", 2, trains) == []


@pytest.mark.parametrize("off", [1e-6, -1e-9, 1e-12])
def test_the_bound_leaves_room_for_rounding_only(off: float) -> None:
    case = Case(1, (8,))
    assert judge("gradient", tampered(move(0, 1.0), case=case)) == RIGHT
    assert "step 0: the gradient of 'head." in judge("gradient", tampered(move(0, 1 + off), case=case)).finding


def test_a_frozen_parameter_must_not_move_at_all() -> None:
    case = Case(1, (8,), net=Net(frozen=True))

    def nudge(seen: Observation) -> None:
        seen["parameters"][1][0][0] *= 1 + 2**-52

    assert "the gradient of 'head.weight' is off by" in judge("gradient", tampered(nudge, case=case)).finding


def test_a_gradient_that_is_not_a_number_is_wrong() -> None:
    judgement = judge("gradient", tampered(move(1, float("nan"))))
    assert "step 1" in judgement.finding
    assert judgement.suspects[0].startswith("not a number")


class Skipping(Single):
    """Skips a step whose samples are not all numbers."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor | None:
        return None if X.isnan().any() else super().step(X, y, global_batch_size)


def test_a_step_after_the_spoiled_one_may_be_wrong_in_a_way_of_its_own() -> None:
    case = Case(2, (4, 4, 4), spoiled=1)

    def differ(seen: Observation) -> None:
        seen["differing"][2] = [(1, 0, 0.25)]

    def nudge(seen: Observation) -> None:
        seen["parameters"][3][0][0] += 0.1

    for change, looks_like in (
        (move(0, 2.0), "summed over the devices instead of averaged"),
        (differ, "the sum is not written back to every device's own gradient (d2l-ai/d2l-zh#955)"),
        (move(2, 2.0), "summed over the devices instead of averaged"),
        (nudge, "no bug in particular"),
    ):
        judgement = judge("not_a_number", tampered(change, Skipping, case))
        assert judgement.finding
        assert judgement.suspects[0].startswith(looks_like)
    assert judge("not_a_number", tampered(move(0, 1.0), Skipping, case)) == RIGHT


def test_an_exception_is_a_finding_with_its_traceback_but_a_note_in_refusals() -> None:
    def refuse(seen: Observation) -> None:
        seen["raised"] = {"where": "step 1", "error": "RuntimeError: no", "traceback": "Traceback: here"}

    judgement = judge("gradient", tampered(refuse))
    said = "the trainer raised: rank 0, step 1: RuntimeError: no"
    assert judgement == Judgement(said, details="Traceback: here", crashed=True)
    note = "refused: rank 0, step 1: RuntimeError: no"
    assert judge("refusals", tampered(refuse)) == Judgement(note=note, details="Traceback: here", refused=True)


def test_replicas_of_this_process_and_of_other_ranks_are_compared() -> None:
    def differ(seen: Observation) -> None:
        seen["differing"][2] = [(1, 0, 0.25)]

    judgement = judge("replicas", tampered(differ))
    assert judgement.finding == "after step 1, 'hidden.0.weight' of replica 1 differs from replica 0's by 0.25"
    assert "d2l-ai/d2l-zh#955" in judgement.suspects[0]
    one, other = see(Single, CASE), copy.deepcopy(see(Single, CASE))
    assert judge("replicas", Seen(CASE, [one, other])) == RIGHT
    other["parameters"][2][0][0] += 2**-50
    assert "after step 1, 'hidden.0.weight' of rank 1" in judge("replicas", Seen(CASE, [one, other])).finding


def test_a_forward_that_is_computed_again_in_the_backward_is_no_other_shard() -> None:
    """As with a checkpoint around the net: the same samples, the same masks, and statistics that move twice."""

    class Recomputes(Single):
        def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
            net, forward = self.net, self.net.forward
            net.forward = lambda X: checkpoint(forward, X, use_reentrant=False)
            try:
                return super().step(X, y, global_batch_size)
            finally:
                net.forward = forward

    for check, net in (("dropout", Net(hidden=(64,), dropout=True)), ("batch_norm", Net(hidden=(3,), norm="batch"))):
        case = Case(1, (6,), net=net)
        seen = see(Recomputes, case)
        assert [entry["recomputed"] for entry in seen["log"][0]] == [False, True]
        assert judge(check, Seen(case, [seen])).finding == ""


@pytest.mark.parametrize(
    ("place", "finding"),
    [
        ((0, 1, 1), "step 0: samples of different shards met the same dropout mask"),
        ((1, 1, 0), "step 1: samples of steps 0 and 1 met the same dropout mask"),
    ],
)
def test_a_mask_that_comes_again_is_found(place: tuple[int, int, int], finding: str) -> None:
    case = Case(2, (4, 4), net=Net(hidden=(64,), dropout=True))

    def repeat(seen: Observation) -> None:
        step, forward, sample = place
        seen["log"][step][forward]["masks"][sample] = seen["log"][0][0]["masks"][0]

    assert judge("dropout", tampered(lambda seen: None, Scratch, case)) == RIGHT
    judgement = judge("dropout", tampered(repeat, Scratch, case))
    assert judgement.finding == finding
    assert "huggingface/transformers#31412" in judgement.suspects[0]


def test_samples_that_no_net_in_training_mode_saw_are_counted() -> None:
    case = Case(2, (4,), net=Net(hidden=(64,), dropout=True))
    finding = judge("dropout", tampered(lambda seen: seen["log"][0].pop(), Scratch, case)).finding
    assert finding == "step 0: of 4 samples 2 went through a net in training mode"


def test_a_rank_may_have_no_loss_to_return() -> None:
    case = Case(1, (4,))
    seen = see(Single, case)
    assert judge("loss", Seen(case, [seen, {**seen, "losses": [None]}])) == RIGHT
    finding = judge("loss", Seen(case, [seen, {**seen, "losses": [0.5]}])).finding
    assert "add up to" in finding


def test_weights_of_a_convolution_are_another_tensor_in_channels_last() -> None:
    conv = nets.build(Case(1, (1,), net=Net(conv=True))).conv
    assert not conv.weight.to(memory_format=torch.channels_last).is_contiguous()


def test_a_step_of_ten_has_more_samples_than_most_micro_batches() -> None:
    for trains in ("samples", "tokens"):
        [case] = draw.fixed("trajectory", 2, trains)
        assert max(case.batches) // case.world_size > 64


def evidence(actual: Callable[[list[Tensor], Tensor], Tensor], sizes: tuple[int, ...] = (4, 4, 2)) -> suspects.Evidence:
    generator = torch.Generator().manual_seed(1)
    sums = [size * torch.randn(6, generator=generator, dtype=torch.float64) for size in sizes]
    earlier = [torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2)]
    vectors = torch.tensor([False, False, False, False, True, True])
    right = torch.stack(sums).sum(0) / sum(sizes)
    parameters = torch.randn(6, generator=generator, dtype=torch.float64)
    return suspects.Evidence(actual(sums, right), sums, sum(sizes), len(sizes), earlier, vectors, parameters)


@pytest.mark.parametrize(
    ("actual", "name"),
    [
        (lambda sums, right: 3 * right, "summed over the devices"),
        (lambda sums, right: right / 3, "averaged over the devices and divided by the global batch"),
        (lambda sums, right: (sums[0] / 4 + sums[1] / 4 + sums[2] / 2) / 3, "mean of the shards' means"),
        (lambda sums, right: sums[1] / 10, "no exchange: the gradient of one shard alone"),
        (lambda sums, right: sums[2] / 2, "no exchange: the gradient of one shard alone"),
        (lambda sums, right: (sums[0] + sums[1]) / 10, "the last shard left out"),
        (lambda sums, right: (sums[0] + sums[1]) / 8, "the last shard left out"),
        (lambda sums, right: torch.zeros(6, dtype=torch.float64), "nothing was learned"),
        (lambda sums, right: 0.05 * right, "0.05 times the right gradient"),
        (lambda sums, right: right * torch.tensor([1, 1, 1, 1, 0.5, 2]), "only one-dimensional parameters"),
        (lambda sums, right: sum(s.float() for s in sums).double() / 10 + 1e-9, "in float32"),
        (lambda sums, right: sum(s.bfloat16() for s in sums).double() / 10, "in 16 bits"),
        (lambda sums, right: right * float("inf"), "not a number"),
        (lambda sums, right: torch.arange(6, dtype=torch.float64) ** 3, "no bug in particular"),
    ],
)
def test_known_bugs_are_told_apart(actual: Callable[[list[Tensor], Tensor], Tensor], name: str) -> None:
    [line] = suspects.fitting(evidence(actual))
    assert name in line


def test_a_factor_near_one_may_also_be_a_rounding_error() -> None:
    """Both are named, and another case tells them apart."""
    factor, rounding = suspects.fitting(evidence(lambda sums, right: 0.999 * right))
    assert factor.startswith("0.999 times the right gradient")
    assert rounding.startswith("the error of a sum in 16 bits")


def test_weight_decay_is_told_from_a_rounding_error() -> None:
    plain = evidence(lambda sums, right: right)
    decayed = dataclasses.replace(plain, actual=plain.right + 1e-4 * plain.parameters)
    lines = suspects.fitting(decayed)
    assert lines == ("the right gradient plus 0.0001 times the parameters: weight decay",)


@pytest.mark.parametrize("share", [0.9999, 0.999, 0.7, 3.0])
def test_on_one_device_nothing_is_exchanged(share: float) -> None:
    alone = dataclasses.replace(evidence(lambda sums, right: share * right, (4,)), world_size=1)
    lines = suspects.fitting(alone)
    assert not [line for line in lines if "exchanged" in line]
    assert lines


def test_less_precision_than_float64_is_recognised_under_oracle_self() -> None:
    right = evidence(lambda sums, right: right).right
    assert suspects.lower_precision(right, right.bfloat16().double()) != ()
    assert "float32" in suspects.lower_precision(right, right.float().double())[0]
    assert suspects.lower_precision(2 * right, right) == ()


def test_a_small_case_may_fit_several() -> None:
    """One sample on two devices: half of the gradient is a mean of means, and an average too many."""
    small = evidence(lambda sums, right: right / 2, (1,))
    lines = suspects.fitting(dataclasses.replace(small, world_size=2))
    assert [line.partition(" ")[0] for line in lines] == ["averaged", "mean"]


def test_a_bug_that_makes_the_right_gradient_of_a_small_case_does_not_explain_a_wrong_one() -> None:
    """One sample on two devices: the mean of means, and the one shard alone, are right, and rounding is left."""
    small = evidence(lambda sums, right: right.float().double(), (1,))
    [line] = suspects.fitting(dataclasses.replace(small, world_size=2))
    assert line.startswith("the error of a sum in float32")


def test_gradients_of_earlier_steps_are_recognised() -> None:
    before = evidence(lambda sums, right: right).earlier
    assert "stale" in suspects.fitting(evidence(lambda sums, right: before[-1]))[0]
    assert "never cleared" in suspects.fitting(evidence(lambda sums, right: right + before[0] + before[1]))[0]
    assert "step before added" in suspects.fitting(evidence(lambda sums, right: right + before[1]))[0]


# Nets and tolerances.


@given(
    net=draw.nets() | st.builds(dataclasses.replace, draw.nets(), hidden=st.just((8,)), dropout=st.just(True)),
    seed=st.integers(0, 99),
)
def test_every_net_that_is_drawn_can_be_built_alike_twice_and_trained(net: Net, seed: int) -> None:
    case = Case(1, (3,), seed, net=net)
    first, second = nets.build(case), nets.build(case)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    X, _ = nets.minibatch(case, 0)
    assert first(X).shape == (3, net.classes)
    assert first(X[:0]).shape == (0, net.classes)
    assert [entry["samples"] for entry in first.log] == [[0, 1, 2], []][: 2 * net.dropout]
    others = nets.build(case, rank=1)
    assert not any(torch.equal(a, b) for a, b in zip(first.parameters(), others.parameters(), strict=True))


def test_the_bound_grows_with_the_terms_and_with_one_over_the_learning_rate() -> None:
    model = nn.Linear(3, 2).double()
    X = torch.randn(4, 3, dtype=torch.float64)
    loose, tight = tolerance.gradient_bound(model, X, 0.01), tolerance.gradient_bound(model, X, 1.0)
    assert all((a > b).all() for a, b in zip(loose, tight, strict=True))
    assert all((b < 1e-12).all() for b in tight)
    assert all((b > 0).all() for b in tight)


class RoundsOtherwise(torch.autograd.Function):
    """A tanh as another kind of device may compute it: off by one unit in the last place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        t = torch.nextafter(x.tanh(), torch.zeros(()))
        ctx.save_for_backward(t)
        return t

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        [t] = ctx.saved_tensors
        return gradients[0] * (1 - t * t)


def test_the_bound_allows_for_a_saturated_tanh_that_another_device_rounds_otherwise() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1))
    nn.init.constant_(model[0].weight, 4.0)
    X = torch.ones(1, 1)
    parameters = list(model.parameters())
    right = torch.autograd.grad(model(X).sum(), parameters)
    other = torch.autograd.grad(model[2](RoundsOtherwise.apply(model[0](X))).sum(), parameters)
    errors = [(a - b).abs().double() for a, b in zip(right, other, strict=True)]
    allowed = tolerance.gradient_bound(model, X, lr=1e9)
    assert all((error <= bound).all() for error, bound in zip(errors, allowed, strict=True))
    assert errors[0].item() > 1e-6 * right[0].abs().item()
    assert allowed[0].item() < 0.01 * right[0].abs().item()


@given(tensors=st.integers(1, 8).flatmap(lambda k: st.lists(st.floats(-8, 8, width=16), min_size=k, max_size=k)))
def test_a_sum_in_bfloat16_stays_within_its_bound(tensors: list[float]) -> None:
    each = [torch.tensor([value], dtype=torch.bfloat16) for value in tensors]
    total = torch.zeros(1, dtype=torch.bfloat16)
    for tensor in each:
        total = total + tensor
    exact = sum(tensor.double() for tensor in each)
    assert float((total.double() - exact).abs()) <= float(tolerance.sum_bound(each))


# The functions that trainers are built from; tests/mutants has the wrong ones.

INF = float("inf")
COMPLEX = torch.tensor([[1 + 2j, 3 - 1j], [1 + 1j, 5j]])


def shares_storage(tensors: list[Tensor]) -> None:
    total = torch.stack(tensors).sum(0)
    for tensor in tensors:
        tensor.set_(total)


def writes(change: Callable[[Tensor], Tensor]) -> Callable[[list[Tensor]], None]:
    """Return an all_reduce that writes the sum, changed, to every device."""

    def all_reduce_(tensors: list[Tensor]) -> None:
        total = change(torch.stack(tensors).sum(0))
        for tensor in tensors:
            tensor.copy_(total)

    return all_reduce_


def test_two_sums_of_zero_that_share_their_storage_are_found() -> None:
    tensors = [torch.tensor([1.0, -2.0]), torch.tensor([-1.0, 2.0])]
    finding = functions.all_reduce_keeps_tensors_apart(shares_storage, tensors).finding
    assert finding == "2 devices: setting device 0's tensor to 1 changes device 1's"
    for summand in (1.0, float("nan")):
        tensors = [torch.tensor([1.0, -2.0]), torch.tensor([summand, 2.0])]
        assert functions.all_reduce_keeps_tensors_apart(writes(torch.clone), tensors) == RIGHT


def test_samples_that_change_their_dtype_are_found() -> None:
    X = torch.tensor([[1.0, 2.0], [float("nan"), 3.0], [4.0, 5.0]])
    assert functions.scatter_keeps_samples(scatter, X, [CPU] * 2) == RIGHT
    judgement = functions.scatter_keeps_samples(lambda X, devices: scatter(X.double(), devices), X, [CPU] * 2)
    assert judgement.finding == "3 samples on 2 devices: shards of ['float64', 'float64'], the samples are float32"


@pytest.mark.parametrize(
    ("tensors", "wrong"),
    [
        (COMPLEX, lambda total: total.real + 0j),
        (COMPLEX, lambda total: total.conj()),
        (torch.tensor([[INF, 1.5], [2.0, 1.0]]), lambda total: total.nan_to_num(posinf=3.0)),
        (torch.tensor([[INF], [2.0]]), lambda total: -total),
        (torch.tensor([[INF], [-INF]]), lambda total: total.nan_to_num()),
        (torch.tensor([[1.5], [float("nan")]]), lambda total: total.nan_to_num()),
        (torch.tensor([[1e308], [1e308]], dtype=torch.float64), lambda total: total.nan_to_num()),
    ],
)
def test_complex_and_infinite_sums_are_compared(tensors: Tensor, wrong: Callable[[Tensor], Tensor]) -> None:
    assert functions.all_reduce_sums(writes(torch.clone), list(tensors)) == RIGHT
    assert "device 0 ends with" in functions.all_reduce_sums(writes(wrong), list(tensors)).finding


FUNCTIONS: dict[str, list[Any]] = {
    "all_reduce": list(ALL_REDUCE.values()),
    "scatter": [scatter],
    "gather": [gather],
    "evaluation": [count_correct],
    "feed": [index_batches],
    "rank_feed": [rank_batches],
}


@pytest.mark.parametrize(
    ("check", "function"),
    [
        pytest.param(name, function, id=f"{name}-{function.__name__}")
        for name, check in FUNCTION_CHECKS.items()
        for function in FUNCTIONS[check.kind]
    ],
)
def test_the_references_functions_pass_their_checks(check: str, function: Any) -> None:
    """With more than twice the inputs after which the last wrong function of `tests.mutants` is found, which are 11."""
    assert search(check, function, 25).finding == ""


def test_a_check_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="no check 'all_reduce' on functions: valid names are all_reduce_sums, "):
        search("all_reduce", ALL_REDUCE["naive"])


class Idle(Single):
    """Does nothing, on one device and on several."""

    oracle = "self"

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None:
        return None


@pytest.mark.parametrize("check", OF_STEPS)
def test_a_trainer_that_does_nothing_is_not_said_to_be_right(check: str) -> None:
    case = Case(1 if check == "identity" else 2, (3, 4), resumed=1 if check == "resume" else None)
    alone = see(Idle, case.alone(), check)
    seen = Seen(case, [see(Idle, case, check)], alone, oracle="self", disturbed=[alone, alone])
    judgement = judge(check, seen)
    assert judgement.finding or judgement.note in (NOTHING_MOVED, UNREAD)
    assert bool(judgement.finding) == (check == "trajectory")
