"""Predictions beside what others measured on real clusters: errors, held-out nodes and the floor."""

import pytest

from hpcdl.analysis.network.clusters import comparable, scatter
from hpcdl.report.run.findings import findings
from hpcdl.report.sections.clusters import answer, cells, groups


def test_errors_are_of_cells_with_the_same_nodes_algorithm_and_size(hand):
    """A prediction on nodes that the network was fitted to is no evidence."""
    wanted = ("lumi", "allreduce", "ring")
    rings = [each for each in comparable() if (each.machine, each.collective, each.scheme) == wanted]
    common = {"kind": "collective", "collective": "allreduce", "aggregation": "ring", "network": "lumi"}
    for nodes, factor in ((16, 1.0), (32, 1.2)):
        measured = next(each for each in rings if (each.nodes, each.message_bytes) == (nodes, 4194304))
        ms = 1e3 * factor * measured.seconds
        hand.case([[ms] * 3], case=f"p{nodes}", ranks=nodes, message_bytes=4194304, **common)
    hand.case([[1.0] * 3], case="nobody measured this", ranks=17, message_bytes=4194304, **common)
    (found,) = findings([hand.read(suite_text="[suite]\nname = 's'\nanswer = 'clusters'\n")])
    every = cells(found)
    assert {(cell.measured.nodes, cell.held_out) for cell in every} == {(16, False), (32, True)}
    (held,) = [group for group in groups(every) if group.which == "held out"]
    assert held.errors == (pytest.approx(0.2, rel=1e-3), pytest.approx(0.2, rel=1e-3))
    assert "off by 20.0 %" in answer(found).headline
    assert not cells(findings([hand.read(suite_text="[suite]\nname = 's'\n")])[0])


def test_the_floor_compares_two_measurements_of_one_thing():
    pairs = scatter()
    assert all(difference >= 0 for by in pairs.values() for some in by.values() for difference in some)
    assert set(pairs["own code and library"]) == {"leonardo", "lumi", "marenostrum5"}
