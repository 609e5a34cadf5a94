"""Section Sharding: what a stage sends, holds and takes by synchronous training, and the rate that its messages need."""

import pytest

from hpcdl.report.run.findings import findings
from hpcdl.report.sections import step_ratios


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
