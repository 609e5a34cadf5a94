"""Section Sharding: what a stage sends, holds and takes by synchronous training, and the rate that its messages need."""

from hpcdl.report.run.findings import findings
from hpcdl.report.sections import sharding


def test_a_stage_is_compared_with_synchronous_training(hand):
    """A step of 25 ms computes for 15 ms, and sends 103 bytes: at 0.9 there is 1.67 ms for what does not overlap."""
    hand.train([[20.0] * 30] * 4, compute=[15.0] * 4, memory=[1600] * 4)
    keys = {"training": "zero(stage=3)", "system": "ZeRO-3"}
    hand.train([[25.0] * 30] * 4, compute=[15.0] * 4, memory=[700, 600, 700, 600], **keys)
    (found,) = findings([hand.read()])
    (line, *others) = [sharding.answer(found).headline, *sharding.answer(found).details]
    assert line.startswith(
        "ZeRO-3 sends 1.00 times the bytes, holds 0.438 of the memory, takes 1.25 times the step of"
    )
    assert not others
    (table,) = sharding.SECTION.page(found).tables
    assert table.rows[-1] == ("ZeRO-3", "4", "25.0 ms", "10.0 ms", "103 B", "700 B", "6.18 to 61.8 kB/s")


def test_runs_without_sharding_have_no_such_section(hand):
    hand.train([[20.0] * 30] * 4, compute=[15.0] * 4, memory=[1600] * 4)
    (found,) = findings([hand.read()])
    assert sharding.answer(found) is None
    assert not sharding.SECTION.page(found).tables
