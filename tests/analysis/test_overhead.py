import pytest

from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.overhead import fabric, tracing


def steps(ms):
    return [500.0] * 2 + [ms * (1 + 0.001 * (n % 5 - 2)) for n in range(30)]


def test_the_fabric_against_plain_mpi_by_size(hand):
    for size, raw, ours in ((64, 0.002, 0.003), (4096, 0.010, 0.011)):
        for name, ms in (("raw", raw), ("fabric", ours)):
            hand.case([steps(ms)] * 2, kind="pairwise", aggregation=name, message_bytes=size, warmup_steps=2)
    hand.case([steps(1)] * 2, kind="pairwise", aggregation="fabric", message_bytes=8, warmup_steps=2)
    small, large = fabric(launches(hand.read()))
    assert (small.fields["message_bytes"], large.fields["message_bytes"]) == (64, 4096)
    assert small.ratio.value == pytest.approx(1.5)
    assert large.difference.value == pytest.approx(1e-6)
    assert 1.09 < large.ratio.low <= large.ratio.value <= large.ratio.high < 1.11


@pytest.mark.parametrize("warmup", [2, 3])
def test_tracing_from_the_even_and_the_odd_steps_of_one_training(hand, warmup):
    def alternating(ms):
        return [500.0] * warmup + [ms * (1.1 if n % 2 == 0 else 1) for n in range(warmup, 42)]

    for seed in (1, 2):
        traced = {"settings": {"trace": "alternating"}, "warmup_steps": warmup, "seed": seed}
        hand.train([alternating(50)] * 2, **traced)
        hand.train([alternating(100)], **traced)
    hand.train([steps(1)] * 2, settings={"prefetch": 3})
    two, one = tracing(launches(hand.read()))
    assert (two.fields["ranks"], one.fields["ranks"]) == (2, 1)
    assert (two.without.value, two.having.value) == (pytest.approx(0.050), pytest.approx(0.055))
    assert one.having.value == pytest.approx(0.110)
    assert two.ratio.value == one.ratio.value == pytest.approx(1.1)
