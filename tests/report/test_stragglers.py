"""Throughput kept with a straggler: a row, a figure and an answer with its interval and what it rests on."""

import pytest

from hpcdl.report.run.findings import Findings
from hpcdl.report.sections import waiting


def test_methods_are_compared_with_themselves_without_the_straggler(hand):
    """A slow rank costs synchronous training four fifths, and the other method nothing; steps vary by a tenth."""
    for training, slower in (("synchronous", 5), ("layerwise", 1)):
        for straggler, factor in ((None, 1), ("rank 1 5x slower", slower)):
            steps = [factor * (10.0 + number % 2) for number in range(40)]
            settings = {"straggler": {"rank": 1, "factor": 5}} if straggler else {}
            hand.train([steps] * 2, training=training, straggler=straggler, settings=settings)
    found = Findings(hand.read(), "run")
    (table,) = waiting.stragglers_page(found).tables
    kept = table.header.index("with / without")
    assert [(row[0], float(row[kept])) for row in table.rows] == [("layerwise", 1), ("synchronous", 0.2)]
    headline, details = waiting.stragglers_answer(found)
    assert headline.startswith("Throughput kept with rank 1 5x slower: layerwise 1.00 (0.")
    assert ") to synchronous 0.200 (0.1" in headline and headline.endswith("(1 launch).") and not details
    (chart,) = waiting.stragglers_charts(found)
    assert [value for value, _, _ in chart.values] == pytest.approx([1, 0.2])
