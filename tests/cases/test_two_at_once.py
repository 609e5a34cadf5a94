"""Two collectives at once: right results on every schedule, simulated times, refusals, and the verdict's words."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest
from contract.cases import case_of, ran

from hpcdl.aggregation.parts.traits import schemes
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.prediction.programs import program_of
from hpcdl.report.run.findings import Findings
from hpcdl.report.sections.collectives import answer, at_once, page

BOTH = sorted(set(schemes("reduce_scatter")) & set(schemes("allgather")))
TWO = {"collective": "reduce_scatter", "concurrent": "allgather", "ranks": 5, "message_bytes": 4000}
case = partial(case_of, "collective", **TWO, repetitions=2, warmup=1)


@pytest.mark.parametrize("scheme", BOTH)
@pytest.mark.parametrize("communicators", [1, 2])
def test_both_are_right_on_any_schedule(scheme, communicators):
    found = case(aggregation=scheme, communicators=communicators)
    for fields in ran(found, in_process(5, communicators))[0]:
        assert fields["correct"] and fields["concurrent_beside_p99_seconds"] == 0


@pytest.mark.parametrize(("scheme", "ranks"), [("ring", 8), ("ring", 9), ("halving_doubling", 8)])
def test_two_on_a_link_take_the_time_of_both(scheme, ranks):
    spec = replace(case(aggregation=scheme, network="ethernet-1g").spec, ranks=ranks, message_bytes=ranks << 20)
    network, pair = NETWORKS["ethernet-1g"], spec.operation()
    both, world = pair.simulate(network), simulated(ranks, network)
    world.run(pair)
    assert both.seconds == pytest.approx(world.now, rel=1e-9) and max(both.ends) == both.seconds
    assert both.bytes == 2 * (ranks - 1) << 20
    # the port is busy with the bytes of both; latencies and sums of one hide behind the other
    wire = both.bytes * network.link.beta
    assert wire <= both.seconds < 1.1 * wire + ranks * network.link.alpha


SECONDS = {"faster": 5.0, "slower": 20.0, "tied": 10.0, "undecided": None}
"""Of a pair on two communicators (ms), against 10 ms on one; None: measured in one launch only."""


def pairs(hand, *names):
    """Return the findings on pairs of collectives by schemes of these names."""
    for number, name in enumerate(names):
        two, word = SECONDS[name], f"{name}_{number}"
        for communicators, ms in ((1, 10.0), (2, two or 9.0)):
            for launch in (1, 2, 3) if two else (1,):
                hand.case(
                    [[ms + launch * 0.01] * 3] * 4, case=f"{word}{communicators}", kind="collective",
                    collective="reduce_scatter", concurrent="allgather", communicators=communicators,
                    aggregation=word, message_bytes=1 << 20, ranks=4, launch=launch, warmup_steps=0,
                    alone_p50_seconds=5e-3, alone_p99_seconds=6e-3, concurrent_alone_p50_seconds=5e-3,
                )  # fmt: skip
    return Findings(hand.read(), "run")


def test_the_verdict_is_that_of_the_launches(hand):
    findings = pairs(hand, *SECONDS)
    overlap, counts, *each = at_once(findings)
    assert answer(findings).headline == overlap
    assert counts == "A second communicator is faster than one in 1 of 4 configurations, and slower in 1."
    assert overlap.startswith("Two collectives at once on two communicators take 0.50")
    of = "as one communicator for reduce-scatter and allgather of 1 MiB by"
    assert [re.sub(r" \(.*\)", "", line) for line in each] == [
        f"A second communicator is 2.00 times as fast {of} faster 0.",
        f"A second communicator takes 2.00 times as long {of} slower 1.",
        f"A second communicator is 1.00 times as fast {of} tied 2: the difference may be chance.",
        f"A second communicator is 1.11 times as fast {of} undecided 3: not decided, as one launch decides nothing.",
    ]
    (table,) = page(findings).tables
    assert len(table.rows) == 8


def test_most_undecided_pairs_decide_nothing(hand):
    says = "Not decided whether a second communicator is faster: in 2 of 3 configurations the difference may be chance."
    assert answer(pairs(hand, "undecided", "faster", "undecided")).details[0] == says


def test_a_library_s_pair_has_no_prediction(hand):
    hand.case([[1.0]], kind="collective", collective="reduce_scatter", concurrent="allgather", aggregation="native",
              message_bytes=1024, ranks=4, case="c", settings=json.dumps({"collective": "reduce_scatter",
              "concurrent": "allgather", "aggregation": "native", "ranks": 4, "message_bytes": 1024}))  # fmt: skip
    (record,) = Findings(hand.read(), "run").records
    assert program_of(record, 4) is None
