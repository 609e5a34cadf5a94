"""Throughput kept with a straggler: a row, a figure and an answer with its interval and what it rests on."""

import pytest

from hpcdl.report.run.findings import Findings
from hpcdl.report.sections import waiting


def test_methods_are_compared_with_themselves_without_the_straggler(hand):
    """A slow rank costs synchronous training four fifths, and the other method nothing; steps vary by a tenth."""
    for training, slower in (("synchronous", 5), ("layerwise", 1)):
        for straggler, factor in ((None, 1), ("rank 1 5x slower", slower)):
            settings = {"straggler": {"rank": 1, "factor": 5}} if straggler else {}
            for launch in range(3):
                steps = [factor * (10.0 + 0.1 * launch + number % 2) for number in range(40)]
                hand.train([steps] * 2, training=training, straggler=straggler, settings=settings, launch=launch)
    found = Findings(hand.read(), "run")
    (table,) = waiting.stragglers_page(found).tables
    kept = table.header.index("with / without")
    assert [(row[0], float(row[kept])) for row in table.rows] == [("layerwise", 1), ("synchronous", 0.2)]
    answer = waiting.stragglers_answer(found)
    assert answer.headline == (
        "With one rank 5 times slower synchronous training keeps 20 % and layerwise summation all of its throughput "
        "(LeNet-5, 2 ranks)."
    )
    assert not answer.details
    assert "95 %" in table.header
    (chart,) = waiting.stragglers_charts(found)
    assert [value for value, _, _ in chart.values] == pytest.approx([1, 0.2])
    assert all(low <= high for _, low, high in chart.values)  # none is nan


@pytest.mark.parametrize(("exact", "bounds"), [(False, "0.483 to 0.521"), (True, "0.480 to 0.518")])
def test_simulated_replays_of_several_launches_name_the_late_rank(hand, exact, bounds):
    """They have no events and count no images: the case states the late rank, and throughput follows its time.

    Without random times one launch is the time of all.
    """
    common = {"kind": "replay", "training": "synchronous", "aggregation": "ring", "ranks": 8, "network": "lan"}
    common |= {"batch_per_rank": 4, "lockstep": True, "warmup_steps": 0, "images": 0}
    late = {"straggler": "rank 3 pauses 0.1 s", "late_rank": 3, "late_seconds": 0.1}
    late["settings"] = {"straggler": {"rank": 3, "seconds": 0.1}}
    late["straggler_pause_share"] = 0.5
    for launch, ms in enumerate((100, 104, 98)):
        if not (exact and launch):
            hand.case([[ms]], case="a", **common, jitter=None if exact else 0.1, launch=launch)
        hand.case([[ms + 100]], case="b", **common, **late, jitter=None if exact else 0.1, launch=launch)
    found = Findings(hand.read(), "run")
    assert [(one.late_rank, one.late_seconds) for one in found.records] == [(None, None), (3, 0.1)]
    (table,) = waiting.stragglers_page(found).tables
    assert table.rows[0][-3:] == ("0.500", bounds, "3")
    headline = waiting.answer(found).headline
    assert headline == "Rank 3 is late by 100 ms per step: other ranks wait for this rank, not for its links."
    assert waiting.stragglers_answer(found).headline.startswith("Where rank 3 pauses 0.1 s, a ring keeps 50 %")
