"""Collectives on several topologies in one table, the scheme first that is least behind the fastest."""

import json

import pytest

from hpcdl.report.render import render
from hpcdl.report.run.findings import findings
from hpcdl.report.sections.collectives import contention_charts


def test_schemes_are_compared_over_topologies(hand, row):
    common = {"kind": "collective", "collective": "allreduce", "message_bytes": 1 << 20, "network": "lan"}
    for scheme, times in (("ring", (1.0, 3.0)), ("direct", (0.5, 4.0))):
        for sides, ms in zip(([8], [4, 2]), times, strict=True):
            settings = json.dumps({"topology": {"name": "torus", "sides": sides}})
            hand.case(
                [[ms] * 3], case=f"{scheme}-{sides}", aggregation=scheme, ranks=8, settings=settings, **common
            )
    run = hand.read(suite_text="[suite]\nname = 's'\nanswer = 'contention'\n")
    page = render([run], "markdown")
    assert (
        "\nOn 8 ranks no scheme is nearly the fastest on all 2 topologies; a direct exchange comes closest, with at most 1.33 "
        "times the fastest time (an allreduce of 1 MiB, lan).\n" in page
    )
    assert "- Fastest on torus of 8: a direct exchange." in page
    assert "- Fastest on torus of 4 x 2: a ring." in page
    assert row(page, "ring") == ["ring", "1.00 ms", "3.00 ms", "2.00"]
    assert page.index("| direct") < page.index("| ring")
    (chart,) = contention_charts(*findings([run]))
    assert (chart.labels, chart.reference) == (["a direct exchange", "a ring"], 1)
    assert chart.values == [pytest.approx((7 / 6, 1, 4 / 3)), pytest.approx((1.5, 1, 2))]
