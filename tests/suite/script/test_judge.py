"""Verdicts on records, without any process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from suite.script import judge, judge_data, judge_replay
from suite.script.items import ITEMS, RIGHT

Record = dict[str, Any]


def step(gradient: float = 1.0, **more: Any) -> dict[str, Any]:
    values = torch.full((2,), gradient, dtype=more.pop("dtype", torch.float64))
    return {
        "optimizer": 0,
        "rates": [0.1],
        "first_rates": [None],
        "digests": {"w": str(gradient)},
        "finite": bool(values.isfinite().all()),
        "largest": abs(gradient),
        "gradients": {"w": values},
        "size": 2,
        "exchanged": {"passes": 1, "values": 0, "backwards": 1},
        "in_step": 0,
        "draws": 1,
        "passes": 1,
        "rows": ["a", "b"],
        "drew": 0,
        "sharded": False,
        "after": {"w": f"after {id(values)}"},
        **more,
    }


def record(*steps: dict[str, Any], **more: Any) -> Record:
    """Return the record of a rank, or of a replay."""
    base: Record = {
        "ended": "", "update": "", "world": 2, "cycle": 1, "steps": list(steps), "by_loader": True, "not_kept": "",
        "unfed": 0, "padded": False, "dropout": False, "compressed": False, "batch_norm": False, "shared_by": "",
        "loaders": [], "batches": [8], "has_targets": False, "returns_loss": False, "begun": {"w": "0"}, "misfits": [],
        "generators": "g", "sharded": False,
    }  # fmt: skip
    return base | more


def loader(rows: list[int] | None, **more: Any) -> dict[str, Any]:
    """Return what is known of a rank's loader over ten rows."""
    plan = None if rows is None else torch.tensor(rows)
    base = {
        "trains": True, "dataset": "Rows", "length": 10, "rows_of_dataset": 10, "rows": plan, "everything": plan,
        "prints": ["p"], "contents": [], "sampler": "DistributedSampler", "replicas": 2, "same_order": False,
        "drops_last": False, "batch": 2,
    }  # fmt: skip
    return {**base, **more}


def test_where_ranks_share_one_model_only_the_group_and_the_gradients_are_judged() -> None:
    ranks = [record(step(after={"w": str(rank)}), begun={"w": str(rank)}, shared_by="experts") for rank in range(2)]
    verdicts = judge.judge(ranks, None, why="none")
    apart = "ranks share one model by experts, and only replicas of a whole model can be compared"
    assert verdicts["start"].unchecked == verdicts["replicas"].unchecked == apart
    assert not any(verdict.finding for verdict in verdicts.values())
    still = [each | {"steps": [step(gradient=0.0)]} for each in ranks]
    assert judge.judge(still, None)["moves"].finding
    assert judge.judge([each | {"world": 1} for each in ranks], None)["world"].finding


def loaders(*plans: list[int] | None, **more: Any) -> list[Record]:
    return [record(step(), loaders=[loader(plan, **more)]) for plan in plans]


def test_there_is_a_verdict_for_each_item() -> None:
    ranks = [record(step(after={"w": "1"})), record(step(after={"w": "1"}))]
    assert set(judge.judge(ranks, record(step()))) == set(ITEMS)
    alone = judge.judge([record(step(), world=1)] * 2, None)
    assert alone["world"].finding.startswith("the process group of rank 0 has 1 rank(s), and 2 were started")
    assert {item for item, verdict in alone.items() if verdict.unchecked} == set(ITEMS) - {"world", "moves"}


@pytest.mark.parametrize(
    ("steps", "finding"),
    [
        ([step(float("nan"))], "update 0: a gradient on rank 0 is infinite or not a number"),
        ([step(0.0), step(0.0)], "all gradients are 0 in 2 update"),
        ([step(after={"w": "1"}), step(after={"w": "1"})], "no parameter changes in 2 updates on rank 0, alth"),
    ],
)
def test_what_does_not_move_is_wrong(steps: list[dict[str, Any]], finding: str) -> None:
    assert judge.moves([record(*steps)]).finding.startswith(finding)


def test_one_update_without_a_gradient_is_a_note_and_so_is_divergence_by_our_own_batch_normalisation() -> None:
    assert judge.moves([record(step(), step(0.0))]).notes == ("all gradients are 0 in update 1 on rank 0",)
    verdict = judge.moves([record(step(), step(float("inf")), batch_norm=True)])
    assert not verdict.finding
    assert "it may diverge" in verdict.notes[0]


def test_ranks_begin_with_the_same_weights() -> None:
    ranks = [record(step()), record(step(), begun={"w": "1"})]
    assert judge.start(ranks).finding.startswith("rank 1 begins with another 'w' than rank 0; seed all ranks alike")
    assert (
        judge.start([record(step(), begun={})] * 2).unchecked == "no module was called in training mode with gradients"
    )


def test_random_numbers_are_judged_where_there_are_any() -> None:
    assert judge.random([record(step())] * 2).unchecked.startswith("the model draws no random numbers")
    assert judge.random([record(step(drew=1))] * 2).finding.startswith("ranks 0 and 1 have the same random numbers")
    assert judge.random([record(step(drew=1)), record(step(), generators="h")]) == RIGHT


def test_an_exchange_that_was_not_seen_is_no_failure_where_ranks_agree_on_other_rows() -> None:
    quiet = {"exchanged": {"passes": 0, "values": 0, "backwards": 1}, "after": {"w": "1"}}
    ranks = [record(step(**quiet)), record(step(**quiet, rows=["c", "d"]))]
    assert "yet ranks agree" in judge.exchange(ranks).notes[0]
    assert judge.exchange([ranks[0], ranks[0]]).finding.startswith(
        "update 0 exchanges no gradients on rank 0: each rank"
    )
    by_hand = {**quiet, "exchanged": {"passes": 0, "values": 2, "backwards": 1}}
    assert judge.exchange([record(step(**by_hand))] * 2) == RIGHT


def test_several_exchanges_of_an_update_are_a_note() -> None:
    several = record(step(exchanged={"passes": 3, "values": 0, "backwards": 3}))
    assert judge.exchange([several] * 2).notes[0].startswith("each of the 3 passes of update 0 exchanges gradients")
    gan = record(step(exchanged={"passes": 3, "values": 0, "backwards": 1}))
    assert judge.exchange([gan] * 2) == RIGHT


def test_a_pass_without_a_backward_exchanges_nothing() -> None:
    forward = record(step(exchanged={"passes": 1, "values": 0, "backwards": 0}))
    assert judge.exchange([forward] * 2).finding.startswith("update 0 exchanges no gradients on rank 0")


def test_what_is_not_known_of_a_named_update_is_not_green() -> None:
    unknown: dict[str, Any] = {"digests": {}, "gradients": {}, "largest": 0.0, "rates": [], "first_rates": []}
    steps = [step(**unknown, after={"w": f"{number}"}) for number in range(2)]
    own = record(*steps, update="engine:learn")
    assert judge.moves([own] * 2).notes == ("gradients are not known, only that parameters change",)
    still = record(steps[0], steps[0], update="engine:learn")
    assert judge.moves([still] * 2).finding.startswith("no parameter changes in 2 updates on rank 0; check that")
    assert "when engine:learn begins or ends" in judge_replay.gradient([own] * 2, own, [], "").unchecked
    assert "engine:learn makes the updates" in judge_replay.schedule([own] * 2, own, "").unchecked
    nothing = record(*(step(**unknown, after={}) for _ in range(2)), update="engine:learn")
    assert judge.moves([nothing] * 2).unchecked == "neither gradients nor parameters are known"
    assert judge.replicas([nothing] * 2).unchecked.startswith("parameters are not known")


def test_replicas_are_equal_or_sharded() -> None:
    ranks = [record(step(after={"w": "1"})), record(step(after={"w": "2"}))]
    assert judge.replicas(ranks).finding.startswith("after update 0, 'w' on rank 1 is not that of rank 0")
    assert judge.replicas([record(step(sharded=True))] * 2).unchecked.startswith("parameters are sharded")


def test_steps_of_two_optimizers_make_an_update() -> None:
    steps = [step(optimizer=number % 2) for number in range(4)]
    assert [len(update) for update in judge.updates_of(record(*steps, cycle=2))] == [2, 2]


EVEN, ODD = list(range(0, 10, 2)), list(range(1, 10, 2))


def test_a_partition_is_right_and_padding_a_note() -> None:
    assert judge_data.data(loaders(EVEN, ODD)) == RIGHT
    padded = judge_data.data(loaders([0, 2, 4, 6, 8], [1, 3, 5, 7, 0], length=9, rows_of_dataset=9))
    assert padded.finding == ""
    assert padded.notes == ("1 row(s) of Rows are drawn twice in an epoch, as padding",)
    dropped = judge_data.data(loaders([0, 2, 4, 6], [1, 3, 5, 7], drops_last=True))
    assert dropped.finding == ""
    assert dropped.notes[0] == "2 of 10 rows of Rows are on no rank in the epoch that was seen"
    assert judge_data.data(loaders(EVEN, ODD, replicas=1, rows_of_dataset=5)) == RIGHT  # a subset for each rank


@pytest.mark.parametrize(
    ("plans", "more", "finding"),
    [
        (
            (EVEN, [0, 2, 4, 5, 7]),
            {},
            "3 of 7 rows of Rows are on more than one rank in an epoch, such as row 0, and 3 are ",
        ),
        (
            (list(range(10)), list(range(10))),
            {"replicas": 1},
            "every rank goes through the same 10 rows of Rows in an ",
        ),
        (
            (EVEN, ODD[:3]),
            {},
            "2 of 10 rows of Rows are on no rank in an epoch; give the DistributedSampler of all ranks",
        ),
        (
            ([1, 1, 3], [1, 1, 3]),
            {"replicas": 1},
            "all ranks draw the same 3 rows of Rows; seed the sampler with seed + ",
        ),
    ],
)
def test_rows_that_are_shared_or_lost_are_wrong(plans: Any, more: dict[str, Any], finding: str) -> None:
    assert judge_data.data(loaders(*plans, **more)).finding.startswith(finding)


def test_rows_drawn_with_replacement_and_habits_are_notes() -> None:
    verdict = judge_data.data(loaders([1, 1, 3], [2, 2, 3], replicas=1))
    assert verdict.finding == ""
    assert verdict.notes[0].startswith("rows of Rows are drawn with replacement")
    habits = judge_data.data(loaders(EVEN, ODD, sampler="SequentialSampler", drops_last=True))
    assert habits.notes == (
        "Rows has the same order in every epoch",
        "drop_last: an epoch of Rows leaves out up to a minibatch of each rank",
    )


def given(*rows: list[str], **more: Any) -> list[Record]:
    return [record(step(rows=each), **more) for each in rows]


def test_rows_known_by_content_are_wrong_only_above_chance() -> None:
    letters = list("abcdefgh")
    assert judge_data.data(given(letters, letters)).finding.startswith("8 row(s) that the model was given on one rank")
    many = [f"{number}" for number in range(40)]
    assert judge_data.data(given(many, many[::-1])).finding.startswith("40 row(s)")
    assert judge_data.data(given(letters, ["a", *"ijklmno"])).finding == ""
    # Rows that repeat on one rank repeat across ranks, too.
    assert judge_data.data(given(list("aabbaabbab"), list("abababbaab"))).finding == ""
    assert judge_data.data(given([], [])).unchecked == "which rows ranks train on is not known"


def test_data_sets_of_each_rank_are_compared_by_content() -> None:
    own = [
        loader(EVEN, prints=[str(rank)], replicas=1, contents=[f"{rank}-{n}" for n in range(9)]) for rank in range(2)
    ]
    ranks = [record(step(rows=[f"{rank}"]), loaders=[own[rank]]) for rank in range(2)]
    assert judge_data.data(ranks).notes[0] == "each rank has a Rows of its own"
    for rank in range(2):
        own[rank]["contents"] = list("abcdefghi")
    assert judge_data.data(ranks).finding.startswith("ranks have Rows of their own, and 9 row(s) of one were found")
    for rank in range(2):
        own[rank]["replicas"] = 2
    assert judge_data.data(ranks).finding.startswith("ranks have other rows in Rows, and a DistributedSampler leaves")


def test_an_evaluation_on_rows_that_another_rank_trains_on_is_wrong_and_on_ones_own_a_habit() -> None:
    ranks = loaders(EVEN, ODD)
    ranks[0]["loaders"].append(loader([1, 3], trains=False))
    said = "2 of the rows of Rows that rank 0 keeps for an evaluation are trained on by rank 1"
    assert judge_data.data(ranks).finding.startswith(said)
    ranks[0]["loaders"][1] = loader([1, 2], trains=False)
    assert judge_data.data(ranks).finding == ""


def gradient(actual: dict[str, Any], right: dict[str, Any], parts: tuple[Record, ...] = (), **more: Any) -> Any:
    """Return the verdict on two ranks with a step each; the replay gets both ranks' rows."""
    alone = record(
        right | {"rows": actual["rows"] * 2}, **{k: more.pop(k) for k in ("padded", "misfits", "unfed") if k in more}
    )
    return judge_replay.gradient([record(actual, **more)] * 2, alone, parts, "")


def test_a_gradient_is_that_of_one_device_up_to_rounding() -> None:
    assert gradient(step(1.0), step(1.0)) == RIGHT
    assert gradient(step(1 + 1e-9), step(1.0)) == RIGHT
    assert "less precision than float64" in gradient(step(1 + 1e-6), step(1.0)).notes[0]
    assert gradient(step(1 + 1e-2), step(1.0)).finding.startswith(
        "update 0: the gradient of 'w' is off that of one device"
    )


@pytest.mark.parametrize(
    ("actual", "more", "form"),
    [
        (step(2.0), {}, "summed over the ranks instead of averaged"),
        (step(0.5), {}, "divided by the number of ranks, or of accumulated passes, twice"),
        (step(3.0, passes=3), {}, "accumulated over 3 passes and not divided by them"),
        (step(0.7), {}, "0.7 times the right gradient"),
        (step(0.0, largest=1.0), {}, "nothing was exchanged or accumulated"),
    ],
)
def test_a_wrong_gradient_has_a_form(actual: dict[str, Any], more: dict[str, Any], form: str) -> None:
    assert form in gradient(actual, step(1.0), **more).looks_like


def test_what_ranks_make_of_their_own_rows_explains_a_wrong_gradient() -> None:
    parts = (record(step(1.0)), record(step(4.0)))
    assert gradient(step(2.5), step(1.7), parts).looks_like[0].startswith("the mean of what each rank makes of its own")
    assert gradient(step(1.0), step(1.7), parts).looks_like == ("the gradient of rank 0's rows alone: no exchange",)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"not_kept": "graph.Data"}, "a minibatch has a graph.Data, which cannot be replayed"),
        ({"misfits": ["w"]}, "on one device 'w' is not what it is on 2 ranks"),
        ({"padded": True}, "ranks' rows have several lengths"),
        ({"unfed": 1}, "on one device the script draws minibatches that no rank drew"),
        ({"by_loader": False}, "the script has no DataLoader, and its loss is none of torch's"),
    ],
)
def test_a_difference_that_says_nothing_is_not_judged(more: dict[str, Any], why: str) -> None:
    assert gradient(step(2.0), step(1.0), **more).unchecked.startswith(why)


def test_steps_that_cannot_be_compared_are_not_judged() -> None:
    assert (
        gradient(step(2.0, drew=1), step(1.0)).unchecked
        == "the model draws random numbers that are no dropout of torch's"
    )
    assert gradient(step(2.0, in_step=2), step(1.0)).finding  # ranks have it alike, so it was exchanged before
    apart = [record(step(mine, in_step=2)) for mine in (2.0, 3.0)]
    alone = record(step(1.0, rows=["a", "b", "a", "b"]))
    assert judge_replay.gradient(apart, alone, (), "").unchecked.startswith("gradients are exchanged in the step its")
    other = judge_replay.gradient([record(step(2.0))] * 2, record(step(1.0, rows=["z"])), (), "")
    assert other.unchecked.startswith("step 0: the model is given other rows on one device")
    assert judge_replay.gradient([record(step())] * 2, None, (), "it did not run").unchecked == "it did not run"
    assert gradient(step(float("inf")), step(float("inf"))).unchecked.startswith(
        "from step 0 on, gradients are infinite"
    )
    assert gradient(step(0.0), step(0.0)).unchecked == "all gradients are 0, as the item 'moves' says"
    assert gradient(step(1.0, gradients={}), step(1.0)).unchecked.startswith("from step 0 on, gradients were not kept")


def test_gradients_in_16_bits_are_a_note_where_a_hook_sends_them_so() -> None:
    assert "16 bits" in gradient(step(1.01), step(1.0), compressed=True).notes[0]
    assert gradient(step(1.1), step(1.0), compressed=True).finding


def rates(*values: float, first: float | None = None, **more: Any) -> Record:
    return record(*(step(rates=[value], first_rates=[first]) for value in values), **more)


def schedule(ranks: Record, alone: Record) -> Any:
    return judge_replay.schedule([ranks, ranks], alone, "")


def test_a_schedule_is_that_of_one_device() -> None:
    assert schedule(rates(0.1, 0.2), rates(0.1, 0.2)) == RIGHT
    verdict = schedule(rates(0.1, 0.3, 0.5, 0.7), rates(0.1, 0.2, 0.3, 0.4))
    assert verdict.finding.startswith("update 1: the groups' rates are 0.3 on 2 ranks, and 0.2 on one device")
    assert verdict.looks_like[0].startswith("the schedule advances 2 times an update")


def test_a_warm_up_from_0_that_advances_twice_is_told_from_a_rule_for_the_rate() -> None:
    twice = schedule(rates(0.0, 0.2, 0.4, first=1.0), rates(0.0, 0.1, 0.2, first=1.0))
    assert twice.finding.startswith("update 1: ")
    rule = schedule(rates(0.0, 0.2, 0.4, first=2.0), rates(0.0, 0.1, 0.2, first=1.0))
    assert rule.finding == ""
    assert rule.notes == ("rates begin at 2 times those of one device, as a rule for 2 ranks may want",)


def test_rates_set_by_hand_from_0_are_not_judged_where_all_have_one_factor() -> None:
    assert schedule(rates(0.0, 0.2, 0.4), rates(0.0, 0.1, 0.2)).unchecked.startswith(
        "rates are set by hand and begin at"
    )
    assert schedule(rates(0.0, 0.2, 0.5), rates(0.0, 0.1, 0.2)).finding.startswith("update 1: ")
    assert schedule(rates(0.2, 0.4), rates(0.1, 0.2)).notes[0].startswith("rates begin at 2 times those of one device")


def test_a_schedule_over_another_number_of_minibatches_is_not_judged() -> None:
    verdict = schedule(rates(0.1, 0.3), rates(0.1, 0.2, batches=[16]))
    assert verdict.unchecked.startswith("an epoch has [8] minibatches on a rank and [16] on one device")
    assert judge_replay.schedule([rates(0.1)] * 2, None, "it did not run").unchecked == "it did not run"


def test_ranks_have_the_same_rates() -> None:
    finding = judge_replay.schedule([rates(0.1), rates(0.2)], None, "").finding
    assert finding == "update 0: rank 1 has the rates 0.2, and rank 0 0.1; all ranks must have the same"


def test_weights_that_nothing_has_written_are_named() -> None:
    """Their gradients are not numbers either, and the item `moves` says where to look."""
    ranks = [record(step(float("nan")), unwritten=["blocks.0.weight", "blocks.1.weight"])] * 2
    verdict = judge.start(ranks)
    assert verdict.finding.startswith("rank 0 begins with 2 parameter(s) or buffer(s) that are not numbers, such as")
    assert "to_empty" in verdict.looks_like[0]
    assert judge.moves(ranks).finding.endswith("see the item 'start'")


@pytest.mark.parametrize(("weights", "explains"), [((0.3, 0.5), True), ((0.8, -0.2), False)])
def test_a_clipped_mean_of_the_ranks_own_means_is_explained(weights: tuple[float, float], *, explains: bool) -> None:
    """A gradient that is clipped after the exchange is no mean of what ranks would have clipped alone."""
    one, other = torch.arange(6.0).double(), torch.tensor([1.0, -1.0, 2.0, 0.0, 0.5, 3.0]).double()
    parts = tuple(record(step(gradients={"w": each})) for each in (one, other))
    actual = step(gradients={"w": weights[0] * one + weights[1] * other})
    looks_like = gradient(actual, step(gradients={"w": (one + other) / 2}), parts).looks_like
    assert looks_like == ((judge_replay.WEIGHED,) if explains else ())


def test_a_schedule_that_cannot_be_judged_may_still_be_known_to_advance_for_each_process() -> None:
    said = schedule(rates(0.1, 0.3, 0.5, 0.7), rates(0.1, 0.2, 0.3, 0.4, batches=[16])).unchecked
    assert said.endswith("; each rate is the one that one device has after 2 times as many updates")


def test_ranks_that_split_their_data_apart_are_told_from_ranks_whose_samplers_differ() -> None:
    def verdict(*subsets: str) -> tuple[str, str]:
        plans = ([0, 1, 2, 3, 4], [3, 4, 5, 6, 7])
        ranks = [record(step(), loaders=[loader(plan, subset=of)]) for plan, of in zip(plans, subsets, strict=True)]
        found = judge_data.data(ranks)
        return found.finding, found.looks_like[0]

    apart, alike = verdict("one", "other"), verdict("one", "one")
    assert apart[0].endswith("split the data alike on all ranks, from one seed")
    assert apart[1].startswith("a random_split without a seed")
    assert alike[1].startswith("a DistributedSampler whose seed differs")
