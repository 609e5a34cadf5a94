"""A slow port found in the events of ordinary programs, of which every one waits for the slowest."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from hpcdl import registry
from hpcdl.analysis.messages import LEAST, matched, of_events
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.phantom import phantom
from hpcdl.fabric.simulated import simulated

SCHEMES = ("ring", "halving_doubling", "tree", "parameter_server", "butterfly")
ETHERNET = NETWORKS["ethernet-1g"]


def traced(scheme, ranks, slow, noise=0.0, length=1 << 22, steps=8, probes=0):
    """Events of a training: some work, then the gradient's sum; ranks do not work equally fast.

    ``probes``: exchanges around a ring before it, which tell how long pieces are to be.
    """
    random = np.random.default_rng(ranks)
    aggregate = registry.find("aggregation", scheme)
    events = [[] for _ in range(ranks)]

    async def program(comm):
        probe, right, left = phantom(LEAST // 4), (comm.rank + 1) % ranks, (comm.rank - 1) % ranks
        for _ in range(probes):
            await comm.exchange(probe, right, probe, left)
        for _ in range(steps):
            await comm.compute("backward", lambda: None)
            await aggregate(comm, phantom(length))

    world = simulated(
        ranks, replace(ETHERNET, slow=slow), compute=lambda *_: random.uniform(0.01, 0.02), events=events
    )
    world.run(program)
    names = ("rank", "task", "label", "begin", "end", "peer", "bytes")
    frame = pd.DataFrame([(rank, *event) for rank, mine in enumerate(events) for event in mine], columns=names)
    frame["end"] += (
        np.abs(random.normal(0, noise, len(frame))) * frame["bytes"] * ETHERNET.link.beta * 1e9
    ).astype(int)
    return of_events(frame, {}, [f"host{rank}" for rank in range(ranks)])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("ranks", "culprit"), [(4, 1), (4, 3), (5, 2), (8, 6), (13, 4), (16, 9)])
@pytest.mark.parametrize("share", [0.4, 0.6, 0.75])
def test_a_slow_port_is_named_with_its_factor(scheme, ranks, culprit, share):
    ((host, found),) = traced(scheme, ranks, {culprit: share}, noise=0.02).slow_hosts()
    assert host == culprit
    assert found == pytest.approx(share, rel=0.1)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_probes_of_a_training_do_not_hide_it(scheme):
    ((host, found),) = traced(scheme, 8, {6: 0.6}, noise=0.02, probes=8).slow_hosts()
    assert host == 6
    assert found == pytest.approx(0.6, rel=0.1)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ranks", [3, 4, 7, 16])
def test_nobody_is_named_where_all_are_equal(scheme, ranks):
    assert traced(scheme, ranks, {}, noise=0.05).slow_hosts() == []


def test_two_slow_ports():
    found = traced("butterfly", 16, {3: 0.5, 10: 0.7}, noise=0.02).slow_hosts()
    assert dict(found) == {3: pytest.approx(0.5, rel=0.1), 10: pytest.approx(0.7, rel=0.1)}


def times(rows):
    """What is known of the messages among ``rows``, (rank, label, begin, end, peer), all of one size."""
    frame = pd.DataFrame(rows, columns=("rank", "label", "begin", "end", "peer")).assign(bytes=1 << 20)
    found = matched(frame)
    return None if found is None else found[["source", "dest", "ns"]].to_numpy().tolist()


def test_a_message_begins_with_its_later_end_and_is_over_when_it_has_arrived():
    """The sender comes at 2 and the receiver at 5; the sender goes on at 9, it arrives at 12."""
    assert times([(0, "send", 2, 9, 1), (1, "recv", 5, 12, 0)]) == [[0, 1, 7]]


def test_a_message_begins_when_the_one_before_it_has_arrived():
    rows = [(0, "send", 2, 9, 1), (1, "recv", 1, 12, 0), (0, "send", 9, 17, 1), (1, "recv", 8, 22, 0)]
    assert times(rows) == [[0, 1, 10], [0, 1, 10]]


def test_a_message_that_waited_in_a_buffer_says_nothing():
    """The first sender has gone before its receiver comes."""
    rows = [(0, "send", 2, 4, 1), (1, "recv", 5, 6, 0), (0, "send", 7, 9, 1), (1, "recv", 6, 12, 0)]
    assert times(rows) == [[0, 1, 5]]
    assert times(rows[:2]) is None


def test_what_a_socket_takes_up_sets_out_before_its_receiver_comes():
    """A message takes 80 from 0 to 1, and 130 to rank 2, which comes when 50 of them are over."""
    rows = []
    for start in range(0, 2000, 200):
        rows += [(0, "send", start, start + 80, 1), (1, "recv", start, start + 80, 0)]
        rows += [(1, "send", start + 20, start + 150, 2), (2, "recv", start + 100, start + 150, 1)]
    assert times(rows) == 10 * [[0, 1, 80], [1, 2, 130]]


def test_what_cannot_be_matched_says_nothing():
    rows = [(0, "send", 2, 9, 1, 1 << 20), (2, "recv", 5, 12, 0, 1 << 20)]
    assert matched(pd.DataFrame(rows, columns=("rank", "label", "begin", "end", "peer", "bytes"))) is None
