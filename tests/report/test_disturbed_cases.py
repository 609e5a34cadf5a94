"""Disturbed cases: limits, and what reports, JSON and series say about them."""

import json
import re

import numpy as np
import pytest

from hpcdl.analysis.over_time.series import series_of
from hpcdl.fabric.pairs import rounds
from hpcdl.report.render import render
from hpcdl.report.run.declaration import badges
from hpcdl.report.run.findings import findings
from hpcdl.report.sections.links import LINKS, NODES

from .conftest import operation

SECOND = 10**9

QUIET = dict.fromkeys(("foreign_ns", "foreign_error_ns", "idle_cores", "steal_ns"), 0)
QUIET |= {"wall_ns": 10 * SECOND, "cpu_ns": 9 * SECOND, "busy_ns": 9 * SECOND}
QUIET |= {"involuntary_switches": 20, "load": 1.0}


def rank(**other):
    return QUIET | other


def foreign(seconds, **other):
    return rank(foreign_ns=round(seconds * SECOND), **other)


@pytest.mark.parametrize(("busy", "shared"), [(1.2, False), (1.9, True), (-1, True)])
def test_ranks_share_cores_if_there_are_too_few_and_these_are_busy(hand, busy, shared):
    """Four ranks on two cores, which are busy for 1.2 of 2 seconds if the ranks mostly sleep; -1: unknown."""
    counted = [rank(busy_ns=round(10 * busy * SECOND), foreign_ns=-1 if busy < 0 else 0)] * 4
    hand.train([[80.0] * 12] * 4, counters=counted)
    ranks = [{"hostname": "h", "affinity": "0-1"}] * 4
    run = hand.read({"cpu": {"physical_cores": 2}, "ranks": ranks})
    assert json.loads(render([run], "json"))["cases"][0]["oversubscribed"] is shared


def test_ranks_on_emulated_hosts_with_a_core_each_share_none(hand):
    """The cores of these hosts are those of one machine."""
    hand.train([[80.0] * 12] * 2, counters=[rank(busy_ns=19 * SECOND, foreign_ns=0)] * 2)
    ranks = [{"hostname": f"host{number}", "affinity": f"{number}"} for number in range(2)]
    emulated = {"hosts": 2, "rate": "1gbit", "slow": {}, "bytes_per_second": {"host0": 10**8, "host1": 10**8}}
    run = hand.read({"cpu": {"physical_cores": 2}, "ranks": ranks, "emulated": emulated})
    (case,) = json.loads(render([run], "json"))["cases"]
    assert (case["emulated"], case["oversubscribed"]) == (True, False)


@pytest.mark.parametrize(
    ("counted", "words"),
    [
        (foreign(0.49), None),
        (foreign(5.1), "took 0.51 cores from rank 1 (limit 0.05; 2 involuntary context switches/s"),
        (foreign(5.1, foreign_error_ns=5 * SECOND), None),
        (foreign(9.0, idle_cores=1), None),
        (foreign(15.0, idle_cores=1), "0.50 cores from rank 1 "),
        (rank(steal_ns=7 * SECOND // 10), None),  # an idle virtual machine
        (rank(steal_ns=2 * SECOND), "the hypervisor took 18 % of the time of rank 1 (limit 10 %)"),
        (rank(busy_ns=SECOND // 10, steal_ns=SECOND // 5), None),  # the rank sleeps: two thirds of little
        (rank(foreign_ns=-1, foreign_error_ns=-1, busy_ns=-1, steal_ns=-1), None),
        (rank(involuntary_switches=10**6, load=99.0, retransmissions=999), None),
        ({}, None),
        ([foreign(4), foreign(9), rank(), foreign(1)], "0.90 cores from rank 1 and 2 other ranks ("),
    ],
)
def test_a_case_is_disturbed_beyond_limits_by_the_rank_that_lost_most(hand, counted, words):
    counters = counted if isinstance(counted, list) else [rank(), counted]
    hand.train([[80.0] * 12] * len(counters), counters=counters)
    (case,) = json.loads(render([hand.read()], "json"))["cases"]
    assert case["disturbed"] is None if words is None else words in case["disturbed"]


@pytest.mark.parametrize(("one", "two"), [(rank(), foreign(5)), (foreign(5), rank())])
def test_a_disturbed_case_or_base_has_no_verdict(hand, one, two, row):
    hand.launches = 2
    hand.train([[80.0 + n % 3 for n in range(30)]], counters=[one])
    hand.train([[40.0 + n % 3 for n in range(30)]] * 2, counters=[rank(), two])
    run = hand.read()
    page = render([run], "md")
    assert "LeNet-5 at 2 ranks: other load disturbed the measurement, an efficiency of 0.988" in page
    assert row(page[page.index("## Scaling") :], "ring", "2")[-1] == "disturbed"
    assert page.count("Other load disturbed 1 case: it has no verdict and no place in rankings.") == 1
    base = json.loads(render([run], "json"))["cases"][1]["base_disturbed"]
    assert base is (one["foreign_ns"] > 0)


@pytest.mark.parametrize("steal", [(0.0, 0.0), (0.03, 0.03), (0.03, 0.07), (0.07, 0.05)])
@pytest.mark.parametrize(("ms", "verdict"), [(40, True), (60, False)])
def test_launches_that_vary_little_have_a_verdict_in_spite_of_steal(hand, steal, ms, verdict):
    """Cases of 1 and 2 ranks, launches within 1 %, from which the hypervisor took shares of the time."""
    for launch, noise in enumerate((0.995, 1.0, 1.005)):
        one, two = (rank(steal_ns=round(9 * SECOND * share)) for share in steal)
        hand.train([[80 * noise] * 12], counters=[one], launch=launch)
        hand.train([[ms * noise] * 12] * 2, counters=[two] * 2, launch=launch)
    record = json.loads(render([hand.read()], "json"))["cases"][1]
    assert (record["near_linear"], record["disturbed"]) == (verdict, None)
    assert record["stolen"] == pytest.approx(0.9 * steal[1], abs=1e-6)


def test_undisturbed_launches_of_a_case_decide(hand):
    for launch, taken in enumerate((0, 5, 0)):
        ms = (90.0 if taken else 41.0) + launch / 5
        hand.train([[80.0 + launch / 5] * 12], counters=[rank()], launch=launch)
        hand.train([[ms] * 12] * 2, counters=[foreign(taken)] * 2, launch=launch)
    page = render([hand.read()], "md")
    assert "LeNet-5 stays near-linear on 2 ranks with a ring: efficiency " in page
    assert "- Other load disturbed 1 launch, counted over all cases: the interval" in page
    record = json.loads(render([hand.read()], "json"))["cases"][1]
    assert (record["launches"], record["launches_left_out"], record["disturbed"]) == (2, 1, None)
    (found,) = findings([hand.read()])
    assert ", ".join(badges(found.records)) == "3 launches, other load disturbed all but 2 of one case"


def all_pairs(hand, counters, slow=1.5, noise=0.0, **fields):
    """Four hosts; exchanges of host1 with host2 take ``slow`` times as long as the others."""
    drawn = np.exp(noise * np.random.default_rng(1).normal(size=(4, 20, 4)))
    order = [(repetition, partners) for partners in rounds(4, "all_pairs") for repetition in range(20)]
    table = [
        [(slow if {rank, to[rank]} == {1, 2} else 1.0) * drawn[rank, n, to[rank]] for n, to in order]
        for rank in range(4)
    ]
    given = {"kind": "pairwise", "pattern": "all_pairs", "warmup_steps": 0, "message_bytes": 65536, **fields}
    hand.case(table, aggregation="fabric", case="pairs", counters=counters, **given)
    return hand.read({"cpu": {"physical_cores": 8}, "ranks": [{"hostname": f"host{rank}"} for rank in range(4)]})


@pytest.mark.parametrize(
    ("noise", "lost", "confirm", "says"),
    [
        (0.01, 0, 1, "No host or link is slow: the slowest host, host.*; one below 85.0 % of the others' speed"),
        (0.35, 0, 1, "No host or link is below [67].* % of the others' speed, and noise hides one above it: "),
        (1.5, 0, 1, "Not decided: repetitions are few or vary too much; only one below .* would have been named"),
        (0.01, 5, 2, "Not decided: other load disturbed each case; only one below 85.0 % of the others' speed"),
    ],
)
def test_that_none_is_slow_is_said_with_the_slowness_that_would_be_seen(hand, noise, lost, confirm, says):
    counters = [rank(), foreign(lost), rank(), rank()]
    run = all_pairs(hand, counters, slow=1.0, noise=noise, settings={"confirm": confirm})
    (found,) = findings([run])
    assert re.match(says, LINKS.answer(found).headline)
    hand.parts.clear()
    times = 20 * np.exp(noise * np.random.default_rng(1).normal(size=(4, 20)))
    node = {"kind": "node", "collective": "triad", "pattern": "alone", "warmup_steps": 0, "case": "node"}
    hand.case(times, counters=counters, settings={"confirm": confirm}, **node)
    (found,) = findings([hand.read({"ranks": run.environment["ranks"]})])
    says = says.replace("host or link", "host's own work").replace("85.0", "90.0").replace("[67]", "[78]")
    assert re.match(says, NODES.answer(found).headline)


DISTURBED = [rank(), foreign(5), rank(), rank()]
NAMED = "The link between host1 and host2 runs at 66.7 % of the median link's speed."
NOT_NAMED = (
    "Not decided: no host can be named as slow, because the case was disturbed: other processes took 0.50 cores"
)
ONCE = "Slow once, but not when measured again a second later, and so no finding: 1 pair of ranks."


@pytest.mark.parametrize(
    ("counters", "again", "says"),
    [
        (DISTURBED, None, [f"{NOT_NAMED} from rank 1"]),
        (DISTURBED, "[[6, 1.5, 1.5]]", [NAMED]),
        ([rank()] * 4, "[[6, 1.5, 1.01]]", ["No host or link is slow", ONCE]),
        ([rank(steal_ns=SECOND // 2)] * 4, None, [NAMED]),
    ],
)
def test_a_link_is_named_if_its_case_was_undisturbed_or_if_it_was_slow_twice(hand, counters, again, says):
    fields = {"settings": {"confirm": 2}, "measured_again": again} if again else {}
    page = render([all_pairs(hand, counters, **fields)], "md")
    assert all(text in page for text in says)
    assert ("The link between" in page) == (NAMED in says)


def test_disturbed_cases_are_in_no_series(hand):
    hand.train([[80.0] * 12], counters=[rank()], case="quiet")
    hand.train([[80.0] * 12], counters=[foreign(5)], case="loud")
    hand.train([[80.0] * 12], counters=[foreign(5)], case="wrong", correct=False)
    found = series_of(hand.read())
    assert [one.case for one in found.cases] == ["quiet", "wrong"]
    assert list(found.disturbed) == ["loud"]
    assert "rank 0" in found.disturbed["loud"]


def test_a_table_of_disturbed_collectives_keeps_its_times(hand, row):
    for scheme, ms in (("ring", 1.0), ("native", 5.0)):
        operation(hand, scheme, 4, [ms] * 9, counters=[rank(), foreign(5)], correct=None)
    brief = render([hand.read(suite_text='[suite]\nanswer = "collectives"')], "md")
    assert {"ring", "1.00 ms", "5.00 ms", "not decided: DISTURBED"} <= {*row(brief, "4 B")}
