"""Efficiency over arithmetic for each byte of parameters: its own section, if a suite asks for it."""

import pytest

from hpcdl.report.run.findings import Findings
from hpcdl.report.sections import arithmetic


@pytest.mark.parametrize("asked", [True, False])
def test_networks_stand_in_the_order_of_their_arithmetic(hand, asked):
    """One rank computes for 10 ms; two exchange for 1 or 30 ms."""
    for model, parameters, exchange in (("resnet50", 1000, 1.0), ("alexnet", 50000, 30.0)):
        for ranks in (1, 2):
            hand.train(
                [[10.0 + exchange * (ranks - 1)] * 20] * ranks, model=model, kind="replay", scaling="weak",
                batch_per_rank=8, parameters=parameters, flops=1e9, modelled_compute_seconds=0.01, network="lan",
                settings={"network": "lan", "flops": 1e9},
            )  # fmt: skip
    found = Findings(hand.read(suite_text='[suite]\nanswer = "arithmetic"' if asked else ""), "run")
    section = arithmetic.page(found)
    if not asked:
        assert not section and arithmetic.answer(found) is None and not arithmetic.charts(found)
        return
    (table,) = section.tables
    flop = [0.01 * 1e9 / (4 * parameters) for parameters in (50000, 1000)]
    assert [(row[0], float(row[1])) for row in table.rows] == [
        ("alexnet", pytest.approx(flop[0], rel=0.01)),
        ("resnet50", pytest.approx(flop[1], rel=0.01)),
    ]
    (chart,) = arithmetic.charts(found)
    assert chart.parts["efficiency"] == pytest.approx([10 / 40, 10 / 11])
    assert arithmetic.answer(found).headline.startswith(
        "Efficiency on 2 ranks by arithmetic for each byte of parameters: 0.250 with 50.0 FLOP (alexnet) to 0.909"
    )
