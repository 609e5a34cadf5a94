"""A slow port found in the events of ordinary programs, of which every one waits for the slowest."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from hpcdl import registry
from hpcdl.analysis.network.slow_hosts import long_messages, of_events
from hpcdl.cases.measuring.autotune import LONG
from hpcdl.cases.simulation.sized_session import sized_session
from hpcdl.cases.simulation.sizes import sizes
from hpcdl.cases.spec.compute_times import at_rate
from hpcdl.cases.spec.keys import Choice, architecture
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.nn.replica import Replica
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.bucketing import bucket_bytes
from hpcdl.training.parts.journal import Journal

SCHEMES = ("ring", "halving_doubling", "tree", "parameter_server", "butterfly")
ETHERNET = NETWORKS["ethernet-1g"]


NAMES = ("rank", "task", "label", "begin", "end", "peer", "bytes")


def framed(events):
    return pd.DataFrame([(rank, *event) for rank, mine in enumerate(events) for event in mine], columns=NAMES)


def traced(scheme, ranks, slow, noise=0.0, length=1 << 22, steps=8, probes=0):
    """Events of a training: some work, then the gradient's sum; ranks do not work equally fast.

    ``probes``: exchanges around a ring before it, which tell how long pieces are to be.
    """
    random = np.random.default_rng(ranks)
    aggregate = registry.find("aggregation", scheme)
    events = [[] for _ in range(ranks)]

    async def program(comm):
        probe, right, left = phantom(LONG // 4), (comm.rank + 1) % ranks, (comm.rank - 1) % ranks
        for _ in range(probes):
            await comm.exchange(probe, right, probe, left)
        for _ in range(steps):
            await comm.compute("backward", lambda: None)
            await aggregate(comm, phantom(length))

    world = simulated(
        ranks, replace(ETHERNET, slow=slow), compute=lambda *_: random.uniform(0.01, 0.02), events=events
    )
    world.run(program)
    frame = framed(events)
    frame["end"] += (
        np.abs(random.normal(0, noise, len(frame))) * frame["bytes"] * ETHERNET.link.beta * 1e9
    ).astype(int)
    return of_events(frame, {}, [f"host{rank}" for rank in range(ranks)])


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("ranks", "culprit"), [(4, 1), (4, 3), (5, 2), (8, 6), (13, 4), (16, 9)])
@pytest.mark.parametrize("share", [0.4, 0.6, 0.75])
def test_a_slow_port_is_named_with_its_factor(scheme, ranks, culprit, share):
    ((host, found),) = traced(scheme, ranks, {culprit: share}, noise=0.02).slow_hosts()
    assert host == culprit
    assert found.value == pytest.approx(share, rel=0.1)


@pytest.mark.sampled
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ranks", [3, 4, 7, 16])
def test_nobody_is_named_where_all_are_equal(scheme, ranks):
    assert traced(scheme, ranks, {}, noise=0.05).slow_hosts() == []


def test_two_slow_ports():
    found = traced("butterfly", 16, {3: 0.5, 10: 0.7}, noise=0.02).slow_hosts()
    assert {host: share.value for host, share in found} == {
        3: pytest.approx(0.5, rel=0.1),
        10: pytest.approx(0.7, rel=0.1),
    }


def trained(scheme, strategy, ranks, slow, *, change=lambda frame: frame, names=None, **settings):
    """Of a replay of NiN, whose exchanges take about as long as its computing. ``change``: of its events."""
    random = np.random.default_rng(ranks)
    shape, layers = architecture(Choice("models", "nin_cifar"), None)
    times = at_rate(layers, shape, 2e12)
    events = [[] for _ in range(ranks)]
    world = simulated(
        ranks,
        replace(ETHERNET, slow=slow),
        compute=lambda _rank, label: times.seconds(label, 64) * random.uniform(1, 1.05),
        events=events,
    )

    async def train(comm):
        session = sized_session(
            Replica(layers, shape, backend=sizes()),
            registry.find("aggregation", scheme),
            Journal(Recorder(events=False), lambda: Counters(0, 0, 0, 0, 0)),
            images=64,
            copies=ranks,
            steps=4,
            bucket_bytes=bucket_bytes(ETHERNET.link.alpha, ETHERNET.link.beta, ranks),
        )
        await registry.find("training", strategy)(comm, session, **settings)

    world.run(train)
    return of_events(change(framed(events)), {}, names or [f"host{rank}" for rank in range(ranks)])


TRAININGS = [("synchronous", {"bucket_bytes": 0}), ("layerwise", {})]


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("strategy", "settings"), TRAININGS)
@pytest.mark.parametrize(("ranks", "culprit"), [(3, 1), (4, 2), (5, 3), (8, 6)])
def test_pieces_beside_each_other_do_not_blur_the_factor(scheme, strategy, settings, ranks, culprit):
    ((host, found),) = trained(scheme, strategy, ranks, {culprit: 0.6}, **settings).slow_hosts()
    assert host == culprit
    assert found.value == pytest.approx(0.6, rel=0.1)


@pytest.mark.sampled
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("strategy", "settings"), TRAININGS)
@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_nobody_is_named_for_sharing_a_port(scheme, strategy, settings, ranks):
    assert trained(scheme, strategy, ranks, {}, **settings).slow_hosts() == []


def test_a_slow_host_whose_messages_a_socket_takes_up_is_named():
    """Every eighth message to and from host 2 is under way for 0.4 of its time when its receiver comes.

    Counted from there it seems 1.17 times as fast as the others' messages, which no other link contradicts.
    """

    def taken_up(frame):
        of_the_slow = (frame["label"] == "recv") & ((frame["rank"] == 2) | (frame["peer"] == 2))
        late = frame.index[of_the_slow][::8]
        frame.loc[late, "begin"] += (0.4 * (frame.loc[late, "end"] - frame.loc[late, "begin"])).astype(int)
        return frame

    ((host, share),) = trained("ring", "layerwise", 6, {2: 0.7}, change=taken_up).slow_hosts()
    assert host == 2
    assert share.value == pytest.approx(0.7, rel=0.05)
    assert share.low < 0.7 < share.high < 0.8


@pytest.mark.parametrize("names", [["one"] * 4, ["one", "one", "two", "two"]])
def test_fewer_than_three_hosts_have_no_slow_one(names):
    assert trained("ring", "layerwise", 4, {2: 0.4}, names=names) is None


def test_crowded_links_say_nothing():
    """All of a gradient's many pieces at once."""
    assert trained("parameter_server", "synchronous", 4, {2: 0.6}, bucket_bytes=1 << 17) is None


def known(rows):
    """What is known of the messages among ``rows``, (rank, label, begin, end, peer), all of 1 MiB."""
    columns = ("rank", "label", "begin", "end", "peer")
    frame = pd.DataFrame(rows, columns=columns).assign(task=0, bytes=1 << 20)
    return of_events(frame, {}, [f"host{rank}" for rank in range(max(3, 1 + max(row[0] for row in rows)))])


def test_a_message_begins_with_its_later_end_and_is_over_when_it_has_arrived():
    """The sender comes at 2 and the receiver at 5; the sender goes on at 9, it arrives at 12."""
    rows = []
    for start in range(0, 200, 20):
        rows += [(0, "send", start + 2, start + 9, 1), (1, "recv", start + 5, start + 12, 0)]
        rows += [(1, "send", start, start + 7, 0), (0, "recv", start, start + 7, 1)]
    assert known(rows).links[0, 1] == pytest.approx((1 << 20) / 7e-9)


def test_a_queue_is_no_slow_link():
    """Two messages under way at once take twice as long and carry twice as much."""
    rows = []
    for start in range(0, 2000, 200):
        for _ in range(2):
            rows += [(0, "send", start, start + 100, 1), (1, "recv", start, start + 100, 0)]
        rows += [(1, "send", start, start + 50, 0), (0, "recv", start, start + 50, 1)]
    found = known(rows)
    assert found.links[0, 1] == found.links[1, 0] == pytest.approx((1 << 20) / 50e-9)


def test_what_a_socket_takes_up_sets_out_before_its_receiver_comes():
    """A message takes 80 from 0 to 1, and 130 to rank 2, which comes when 90 of them are over."""
    rows = []
    for start in range(0, 2000, 200):
        rows += [(0, "send", start, start + 80, 1), (1, "recv", start, start + 80, 0)]
        rows += [(1, "send", start + 20, start + 150, 2), (2, "recv", start + 110, start + 150, 1)]
    assert known(rows).links[1, 2] == pytest.approx((1 << 20) / 130e-9)


def test_short_messages_that_have_come_already_do_not_hide_a_slow_host():
    """1 MiB takes 80, to and from host 2 133; what is shorter was taken up by its socket before it asks."""
    rows = []
    for start in range(0, 4000, 400):
        for rank, took in ((0, 80), (1, 80), (2, 133)):
            there, back = (rank + 1) % 3, (rank - 1) % 3
            rows += [(rank, "send", start, start + took, there, 1 << 20)]
            rows += [(rank, "recv", start, start + (133 if 2 in (rank, back) else 80), back, 1 << 20)]
        rows += 3 * [
            (1, "send", start + 140, start + 150, 2, 60_000),
            (2, "recv", start + 180, start + 195, 1, 60_000),
        ]
    frame = pd.DataFrame(rows, columns=("rank", "label", "begin", "end", "peer", "bytes")).assign(task=0)
    found = of_events(frame, {}, ["host0", "host1", "host2"])
    ((host, share),) = found.slow_hosts()
    assert (host, share.value) == (2, pytest.approx(80 / 133))


def test_programs_beside_each_other_are_not_mixed_up():
    """Two of the same size overtake: the second one sent is the first to arrive."""
    rows = [(0, 1, "send", 0, 40, 1), (0, 2, "send", 1, 20, 1), (1, 2, "recv", 0, 20, 0), (1, 1, "recv", 2, 40, 0)]
    frame = pd.DataFrame(rows, columns=("rank", "task", "label", "begin", "end", "peer")).assign(bytes=1 << 20)
    found = long_messages(frame)
    assert sorted(zip(found["sent"], found["arrived"], strict=True)) == [(0, 40), (1, 20)]
    frame["task"] = [3, 4, 5, 6]  # servers number theirs as they like
    assert len(long_messages(frame)) == 2
