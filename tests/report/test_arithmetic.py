"""Efficiency over arithmetic intensity: its own section, if a suite asks for it."""

import pytest

from hpcdl.report.run.findings import Findings
from hpcdl.report.sections.scaling import arithmetic_answer, arithmetic_charts, arithmetic_page

MODELS = ("alexnet", "googlenet", "lenet5", "nin", "resnet50", "vgg11", "vgg16", "vgg19", "nin_cifar", "resnet20")


def replayed(hand, parameters, exchanges):
    """Return the findings on replays in which a rank computes for 10 ms; two exchange for the given ms."""
    for model, count, exchange in zip(MODELS, parameters, exchanges, strict=False):
        for ranks in (1, 2):
            hand.train(
                [[10.0 + exchange * (ranks - 1)] * 20] * ranks, model=model, kind="replay", scaling="weak",
                batch_per_rank=8, parameters=count, flops=1e9, modelled_compute_seconds=0.01, network="lan",
                settings={"network": "lan", "flops": 1e9},
            )  # fmt: skip
    return Findings(hand.read(suite_text='[suite]\nanswer = "arithmetic"'), "run")


def test_networks_stand_in_the_order_of_their_arithmetic(hand):
    found = replayed(hand, (50000, 1000), (30.0, 1.0))
    (table,) = arithmetic_page(found).tables
    flop = [0.01 * 1e9 / (4 * parameters) for parameters in (50000, 1000)]
    assert [(row[0], float(row[1])) for row in table.rows] == [
        ("alexnet", pytest.approx(flop[0], rel=0.01)),
        ("googlenet", pytest.approx(flop[1], rel=0.01)),
    ]
    (chart,) = arithmetic_charts(found)
    (network, level) = chart.series
    assert network.names == ["alexnet", "googlenet"]
    assert [point.x for point in network.points] == pytest.approx(flop)
    assert [point.y for point in network.points] == pytest.approx([10 / 40, 10 / 11])
    assert {point.y for point in level.points} == {0.9}
    answer = arithmetic_answer(found)
    says = "Not decided: Spearman's correlation needs at least four networks, and 2 were replayed."
    assert answer.headline == says
    ends = "AlexNet has 50 FLOP/B and an efficiency of 0.250, and GoogLeNet has 2,500 FLOP/B"
    assert ends in answer.details[0] and answer.details[0].endswith(" 0.909.")
    free = Findings(hand.read(), "run")  # its suite does not ask
    assert not arithmetic_page(free) and arithmetic_answer(free) is None and not arithmetic_charts(free)


@pytest.mark.parametrize(
    ("exchanges", "begin"),
    [
        (
            range(1, 11),
            "Arithmetic intensity decides the efficiency: Spearman's correlation of both on 2 ranks is 1",
        ),
        (range(10, 0, -1), "Arithmetic intensity does not decide the efficiency: Spearman's correlation"),
        ((3, 1, 2, 5, 4, 7, 6, 10, 8, 9), "Not decided whether arithmetic intensity decides the efficiency: "),
    ],
)
def test_intensity_decides_if_all_of_the_interval_is_high(hand, exchanges, begin):
    found = replayed(hand, [1000 * n for n in range(1, 11)], [float(time) for time in exchanges])
    headline = arithmetic_answer(found).headline
    assert headline.startswith(begin) and headline.endswith("over 10 networks.")
    assert len(headline.split()) <= 30
