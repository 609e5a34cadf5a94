"""Patterns under load: no deadlock with rendezvous sends, right messages, and the answers of their reports."""

from collections import Counter

import numpy as np
import pytest
from contract.cases import case_of, ran

from hpcdl.cases import pairwise
from hpcdl.cases.pairwise import PATTERNS
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.pairs import rounds
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.report.run.findings import findings
from hpcdl.report.sections import under_load


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ranks", [2, 4, 5, 7, 12])
def test_each_pattern_ends_on_any_schedule_with_right_messages(pattern, ranks):
    if (pattern == "congestor" and ranks < 4) or (pattern == "message_rate" and ranks % 2):
        pytest.skip("refused")
    for seed in range(3):
        keys = {"message_bytes": 40, "repetitions": 3, "warmup": 1, "window": 5}
        case = case_of("pairwise", pattern=pattern, ranks=ranks, **keys)
        for fields in ran(case, in_process(ranks, seed))[0]:
            assert fields.get("correct", True)
            assert pattern != "congestor" or fields["beside_p99_seconds"] >= 0


def test_fairness_and_percentiles_are_of_the_repetitions_after_the_warm_up(monkeypatch):
    """Of four messages through one port the k-th takes k times as long; the victims' slowest rank counts."""
    world = simulated(5, NETWORKS["ethernet-1g"])
    monkeypatch.setattr(pairwise, "perf_counter_ns", lambda: round(world.running.time * 1e9))
    keys = {"message_bytes": 10**7, "repetitions": 3, "warmup": 1}
    first, *others = ran(case_of("pairwise", pattern="incast", ranks=5, **keys), world)[0]
    rates = 1 / np.arange(1, 5)
    assert first["fairness"] == pytest.approx(rates.sum() ** 2 / (4 * (rates**2).sum()), rel=1e-3)
    assert {rank["fairness"] for rank in others} == {None}
    world, calls = in_process(6), Counter()

    def clock():
        rank = world.running.rank
        number, is_end = divmod(calls[rank], 2)
        calls[rank] += 1
        return is_end * (10**9 if (rank, number % 4) == (0, 0) else 1000 * rank * (1 + number))

    monkeypatch.setattr(pairwise, "perf_counter_ns", clock)
    for rank in ran(case_of("pairwise", pattern="congestor", ranks=6, **keys), world)[0]:
        alone, beside = 4e-6 * np.array([2, 3, 4]), 4e-6 * np.array([6, 7, 8])
        for name, took in (("alone", alone), ("beside", beside)):
            found = [rank[f"{name}_p{share}_seconds"] for share in (50, 99)]
            assert found == pytest.approx(np.quantile(took, [0.5, 0.99]))


def test_random_pairs_are_matchings_that_repeat_for_the_same_ranks():
    for ranks in (2, 5, 8):
        table = rounds(ranks, "random_pairs", 20)
        assert table == rounds(ranks, "random_pairs", 20)
        for partners in table:
            assert partners.count(None) == ranks % 2
            assert all(other is None or partners[other] == rank for rank, other in enumerate(partners))
        assert ranks == 2 or len(set(map(tuple, table))) > 1


def answered(hand, pattern, rows, message_bytes, **fields):
    """Return the sentence on a case of ``rows`` (ms, one list per rank), measured in two launches."""
    described = {"kind": "pairwise", "pattern": pattern, "case": pattern, "aggregation": "fabric", **fields}
    for launch in (1, 2):
        times = [[time * (1 + launch / 100) for time in of_rank] for of_rank in rows]
        hand.case(times, launch=launch, message_bytes=message_bytes, warmup_steps=0, **described)
    environment = {"ranks": [{"hostname": f"host{rank}"} for rank in range(len(rows))]}
    said = getattr(under_load, pattern.upper()).answer(findings([hand.read(environment)])[0])
    assert not said.details
    return said.headline


def test_a_host_that_is_slow_while_all_send_is_named(hand):
    """host1's exchanges take 1.6 times as long: so do those of its partner in each matching."""
    table = rounds(6, "random_pairs", 10)
    for slower, host in ((1.6, "host1 has 62.5 %"), (1.0, "each host has at least 85.0 %")):
        rows = [[slower if 1 in (rank, partners[rank]) else 1.0 for partners in table] for rank in range(6)]
        line = answered(hand, "random_pairs", rows, 10**6)
        assert line.startswith("While all 6 ranks exchange 1.00 MB, the median pair has 985 MB/s (")
        assert line.endswith(f" in each direction; {host} of the others' rate.")
        hand.parts.clear()


def test_the_answers_on_incast_message_rate_and_congestor(hand):
    line = answered(hand, "incast", [[40.0] * 5, *[[9.0] * 5] * 4], 10**6, fairness=0.8)
    assert line.startswith("4 ranks that send 1.00 MB to one at once reach 98.5 MB/s (")
    assert line.endswith(" together; their fairness is 0.800.")
    line = answered(hand, "message_rate", [[10.0] * 5] * 4, 8, settings={"window": 50})
    assert line.startswith("2 pairs of ranks deliver 9,850 (") and "messages of 8 B per second, 50 under" in line
    seconds = {"alone_p50": 1e-4, "beside_p50": 2e-4, "alone_p99": 1e-3, "beside_p99": 4e-3}
    fields = {f"{name}_seconds": value for name, value in seconds.items()}
    line = answered(hand, "congestor", [[1.0] * 5] * 4, 1 << 18, **fields)
    assert line.endswith(" is 4.00 times as long as alone, the median 2.00 times.")
