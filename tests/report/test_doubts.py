import json
from dataclasses import replace

import pytest

from hpcdl.analysis.run.pooling import pool
from hpcdl.report.render import render
from hpcdl.report.run.link_counters import grown_beyond, warnings

from .conftest import steps


def test_oversubscribed_ranks_measure_no_scaling(hand):
    """Four ranks of three threads want 12 of 8 cores."""
    for ranks in (1, 4):
        hand.train([steps(80 / ranks)] * ranks, threads_per_rank=3)
    few, enough = (render([hand.read({"cpu": {"physical_cores": cores}})], "md") for cores in (8, 12))
    assert "A node has 8 cores, and 4 ranks need 12: these cases do not measure scaling. Start fewer" in few
    assert "ranks share cores" in few and "ranks share cores" not in enough


@pytest.mark.parametrize("shown", ["md", "summary"])
def test_who_died_is_said_and_nobody_else_is_missed(hand, shown):
    async_ = {"training": "asynchronous", "failure": "rank 1 at step 8"}
    hand.train([steps(20), []], case="a", process_failure="rank 1 at step 8", **async_)
    hand.train([steps(20), steps(20)], case="b", process_failure="", seed=2, **async_)
    hand.train([steps(20), [], []], case="c", process_failure="rank 1 at step 8", **async_)
    page = " ".join(render([hand.read()], shown).split())
    assert "case a (2 ranks, seed 1): rank 1 at step 8 failed, and the others went on." in page
    assert "case b (2 ranks, seed 2): no rank failed; the failure to inject was rank 1 at step 8." in page
    assert "in case a (2 ranks, seed 1)" not in page
    few = "Only 1 rank left a trace in case c (3 ranks, seed 1): its numbers are those of these ranks only."
    assert few in page


@pytest.mark.parametrize("launches", [1, 3])
def test_few_steps_are_too_few_in_one_launch_only(hand, launches):
    """An interval over launches needs no second step."""
    hand.launches = launches
    hand.train([[20.0] * 3] * 2)
    page = render([hand.read()], "md")
    assert ("1 case has only 1 measured step, too few for an interval" in page) == (launches == 1)


def test_what_was_dropped_is_said_apart(hand):
    hand.train([steps(20)], dropped=(3, 0))
    hand.train([steps(20)], seed=2, dropped=(4, 1))
    page = render([hand.read()], "md")
    full = "The trace was full, and 7 events were not kept. Waiting and staleness use the events before that"
    assert full in page
    assert "and 1 update was not kept" in page


def test_counters_that_grew_are_named_by_host_and_device(hand):
    hand.train([steps(20)])
    wait = {f"n{host}": {"m/1": {"port_xmit_wait": 10 * host, "rx_bytes": 5}} for host in (1, 2)}
    counters = {**wait, "n3": {"m/1": {"np_cnp_sent": 7, "symbol_error": 4}, "m/2": {}}, "n4": None}
    run = hand.read({"link_counters": counters})
    page = " ".join(render([run], "md").split())
    assert "Link errors grew: symbol_error on 1 of 3 hosts read, most on n3 m/1 (4). Check these links." in page
    grew = "np_cnp_sent on 1 of 3 hosts read, most on n3 m/1 (7); port_xmit_wait on 2 of 3 hosts read, most on n2"
    assert f"Link congestion grew: {grew} m/1 (20)." in page
    assert "Counters of links of n4 could not be read: errors may be missed." in page
    assert "rx_bytes" not in page
    assert json.loads(render([run], "json"))["runs"][0]["link_counters"] == counters


USED = {"rx_bytes": 10**9, "rx_packets": 700_000}
STANDBY = {"rx_bytes": 6000, "rx_packets": 40, "rx_dropped": 40}


@pytest.mark.parametrize(
    ("counters", "words"),
    [
        ({"n1": {"eth0": {**USED, "rx_dropped": 3}, "eth1": STANDBY, "tcp": {"RetransSegs": 1}}}, ""),
        ({f"n{n}": {"m/1": {**USED, "rx_discards_phy": 20, "port_xmit_wait": 10**5}} for n in range(3)}, ""),
        ({"n1": {"m/1": {"port_rcv_data": 10**9, "symbol_error": 1}}}, "errors grew: symbol_error on 1 of 1"),
        ({"n1": {"m/1": {"port_rcv_data": 10**12, "symbol_error": 1}}}, ""),  # one in 3.2e13 bits
        ({"n1": {"eth0": USED, "eth1": {"link_down_events_phy": 1}}}, "link_down_events_phy on 1 of 1 host"),
        ({"n1": {"eth0": {**USED, "rx_dropped": 900}}}, "rx_dropped on 1 of 1 host read, most on n1 eth0 (900)"),
        ({"n1": {"eth0": USED, "tcp": {"RetransSegs": 100}}}, "RetransSegs on 1 of 1 host read"),
        ({f"n{n}": {"eth0": {**USED, "rx_dropped": 4 + 40 * (n == 1)}} for n in range(3)}, "most on n1 eth0 (44)"),
        ({"n1": {"m/1": {**USED, "rx_ecn_mark": 7000}}}, "Link congestion grew: rx_ecn_mark on 1 of 1 host"),
        ({"n1": {"m/1": {"symbol_error": None}}}, "symbol_error of n1 m/1 was reset or is at its maximum: errors"),
    ],
)
def test_counters_warn_by_the_packets_of_their_port_or_by_other_hosts(counters, words):
    lines = [*warnings(counters)]
    assert [words in line for line in lines] == [True] * bool(words)


def test_a_retransmission_is_no_counter_that_grew_more_than_before():
    before, *now = ({"n1": {"tcp": {"RetransSegs": count}}} for count in (0, 3, 40))
    assert not grown_beyond([before], now[:1])
    assert grown_beyond([before], now[1:])


def test_cases_without_a_result_are_named(hand):
    hand.train([steps(20)])
    environment = {
        "failed_cases": [
            {"case": "a", "rank": 2, "error": "ValueError: odd"},
            {"case": "b", "rank": None, "error": "the job ended during this case"},
        ],
        "cases_not_run": [{"case": name, "error": "there is one host too many"} for name in ("c", "d")],
    }
    run = hand.read(environment, complete=False)
    for shown in ("md", "summary"):
        page = render([run], shown)
        assert "FAILED: 2 cases of 3." in page
        assert "- FAILED case a: rank 2: ValueError: odd\n" in page
        assert "- FAILED case b: the job ended during this case\n" in page
        assert "- NOT RUN c, d: there is one host too many\n" in page
        assert "Nothing failed" not in page
    (about,) = json.loads(render([run], "json"))["runs"]
    assert about == {"run": run.path.name, "complete": False, "link_counters": {}, **environment}


def test_launches_together_name_the_cases_without_a_result_of_all(hand):
    hand.train([steps(20)])
    complete = hand.read({"key": "k"})
    failed = [{"case": "a", "rank": 2, "error": "ValueError: odd"}]
    other = replace(complete, environment={"key": "k", "failed_cases": failed}, complete=False)
    pooled = pool([complete, other, other])
    assert pooled.environment["failed_cases"] == failed
    assert not pooled.complete
