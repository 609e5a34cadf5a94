"""A slow port found in the events of ordinary programs, of which every one waits for the slowest."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from hpcdl import registry
from hpcdl.analysis.messages import LEAST, matched, of_events
from hpcdl.fabric.comm import phantom
from hpcdl.fabric.network import NETWORKS
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
    frame["end"] += (np.abs(random.normal(0, noise, len(frame))) * (frame["end"] - frame["begin"])).astype(int)
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


def test_clocks_and_ends_of_one_message():
    """The sender comes at 2 and the receiver at 5; the sender goes on at 9, the receiver, who does more, at 12."""
    rows = [(0, "send", 2, 9, 1, 1 << 20), (1, "recv", 5, 12, 0, 1 << 20), (1, "recv", 1, 2, 0, 100)]
    frame = pd.DataFrame(rows, columns=("rank", "label", "begin", "end", "peer", "bytes"))
    assert matched(frame).tolist() == [(0, 1, 1 << 20, 4)]


def test_a_message_that_waited_in_a_buffer_says_nothing():
    """The first sender has gone before its receiver comes."""
    rows = [(0, "send", 2, 4, 1, 1 << 20), (1, "recv", 5, 6, 0, 1 << 20), (0, "send", 7, 9, 1, 1 << 20)]
    rows += [(1, "recv", 6, 12, 0, 1 << 20)]
    names = ("rank", "label", "begin", "end", "peer", "bytes")
    assert matched(pd.DataFrame(rows, columns=names)).tolist() == [(0, 1, 1 << 20, 2)]
    assert matched(pd.DataFrame(rows[:2], columns=names)) is None


def test_what_cannot_be_matched_says_nothing():
    rows = [(0, "send", 2, 9, 1, 1 << 20), (2, "recv", 5, 12, 0, 1 << 20)]
    assert matched(pd.DataFrame(rows, columns=("rank", "label", "begin", "end", "peer", "bytes"))) is None
