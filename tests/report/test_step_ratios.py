"""Answers by ratios of steps: of batches, split layers, strategies that hide communication, and sharded training."""

import pytest

from hpcdl.report.run.findings import Findings, findings
from hpcdl.report.sections import step_ratios

from .conftest import steps


def answered(hand, name):
    return Findings(hand.read(suite_text=f"[suite]\nname = 's'\nanswer = '{name}'\n"), "run")


def test_the_largest_batch_is_compared_with_one_image(hand):
    for launch in (0, 1, 2):
        for model, last in (("nin", 30.0), ("alexnet", 20.0), ("lenet5", 6.0)):
            for batch, ms in ((1, 1.0), (8, 5.0), (64, last)):
                hand.train([[ms * (1 + 0.01 * launch)] * 10], model=model, global_batch=batch, launch=launch)
    answer = step_ratios.batch_answer(answered(hand, "batch_times"))
    assert answer.headline == ("A batch of 64 takes 30.0 times as long as a batch of 1 for NiN.")
    assert [line.split()[5] for line in answer.details] == ["20.0", "6.00"]
    assert step_ratios.batch_answer(answered(hand, "scaling")) is None


def test_split_layers_are_compared_with_the_split_batch_on_the_most_ranks(hand):
    taken = {"wall_ns": 10**9, "busy_ns": 10**9, "steal_ns": 10**9 // 2}
    for model, counters in (("nin", {}), ("alexnet", {"counters": [taken] * 4})):
        hand.train([[10.0] * 10] * 2, model=model)
        hand.train([[40.0] * 10] * 4, model=model, **counters)
        for mesh, ms in (("model(data=1)", 20.0), ("hybrid(data=1)", 10.0)):
            hand.train([[ms] * 10] * 4, model=model, parallelism=mesh)
    answer = step_ratios.split_answer(answered(hand, "splits"))
    says = "A hybrid split is 4.00 times and splitting the layers 2.00 times as fast as splitting the batch"
    assert answer.headline == f"{says} (NiN, 4 ranks): not decided, as one launch decides nothing."
    assert [*answer.details] == [f"{says} (AlexNet, 4 ranks): not decided, as other load disturbed it."]


def test_strategies_are_compared_with_one_sum_after_backward_or_with_the_first(hand):
    for training, ms in (("synchronous(bucket_bytes=0)", 40), ("synchronous", 30), ("layerwise", 25)):
        hand.train([steps(ms)] * 2, training=training, kind="replay")
    hand.train([steps(20)] * 2, aggregation="none", kind="replay")
    says = "Layerwise summation overlaps 75.0 % and summing in buckets 50.0 % of the communication with computing"
    headline = step_ratios.overlap_answer(answered(hand, "overlap")).headline
    assert headline == f"{says} (LeNet-5, ring, 2 ranks): not decided, as one launch decides nothing."
    hand.parts.clear()
    for launch in (0, 1):
        for training, ms in (("synchronous", 40), ("layerwise", 20)):
            hand.train([steps(ms + 0.2 * launch)] * 2, training=training, launch=launch)
    says = "Layerwise summation makes a step 49.9 % (48.1 to 51.6 %) shorter than with summing in buckets"
    headline = step_ratios.overlap_answer(answered(hand, "overlap")).headline
    assert headline == f"{says} (LeNet-5, ring, 2 ranks)."


def test_a_stage_is_compared_with_synchronous_training(hand):
    """A step of 25 ms computes for 15 ms, and sends 103 bytes: at 0.9 there is 1.67 ms for what does not overlap."""
    hand.train([[20.0] * 30] * 4, compute=[15.0] * 4, memory=[1600] * 4)
    (alone,) = findings([hand.read()])
    assert step_ratios.sharding_answer(alone) is None and not step_ratios.SHARDING.page(alone).tables
    keys = {"training": "zero(stage=3)", "system": "ZeRO-3"}
    hand.train([[25.0] * 30] * 4, compute=[15.0] * 4, memory=[700, 600, 700, 600], **keys)
    (found,) = findings([hand.read()])
    answer = step_ratios.sharding_answer(found)
    assert [answer.headline, *answer.details] == [
        "ZeRO-3 needs 44 % of the memory of synchronous training (LeNet-5, 4 ranks).",
        "ZeRO-3 sends 1.00 times as many bytes as synchronous training (LeNet-5, 4 ranks).",
        "ZeRO-3 makes a step 25.0 % longer than with synchronous training (LeNet-5, 4 ranks): not decided, as one launch decides nothing.",
    ]
    (table,) = step_ratios.SHARDING.page(found).tables
    assert table.rows[-1] == ("ZeRO-3", "4", "25.0 ms", "10.0 ms", "103 B", "700 B", "6.18 to 61.8 kB/s")


@pytest.mark.parametrize(
    "times, words",
    [
        ((50, 50.5, 51), "25.6 % (24.1 to 27.2 %) longer"),
        ((30, 30.2, 30.4), "24.9 % (24.6 to 25.2 %) shorter"),
        ((500, 501, 502), "1146.3 % (1137.1 to 1155.5 %) longer"),
        ((36, 40, 45), "0.5 % (-30.2 to 23.3 %) shorter"),
    ],
)
def test_launches_give_the_time_an_interval(hand, times, words):
    for launch, ms in enumerate(times):
        hand.train([[40 + 0.2 * launch] * 30] * 4, launch=launch)
        hand.train([[ms] * 30] * 4, training="zero(stage=1)", system="ZeRO-1", launch=launch)
    (found,) = findings([hand.read()])
    *_, last = step_ratios.sharding_answer(found).details
    chance = ": the difference may be chance" if times[0] == 36 else ""
    assert last == f"ZeRO-1 makes a step {words} than with synchronous training (LeNet-5, 4 ranks){chance}."
