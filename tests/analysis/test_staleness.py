import numpy as np
import pytest

from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.outcome import MAX_AGE, staleness
from hpcdl.analysis.run.scaling import records


def served(hand, training, rows, ranks=4, **fields):
    """``rows``: (worker, version, staleness), applied one after the other on rank 0."""
    updates = {0: [(10**9 + 10**6 * n, *row, 0.1) for n, row in enumerate(rows)]}
    hand.train([[10.0] * 100] * ranks, training=training, aggregation="own", updates=updates, **fields)
    return hand


def test_mean_shares_and_workers_by_hand(hand):
    rows = [(0, 0, 0), (1, 1, 1), (2, 2, 2), (0, 3, 2), (1, 4, 2), (1, 5, 0)]
    (launch,) = launches(served(hand, "mine:served", rows, warmup_steps=0).read())
    found = staleness(launch)
    assert found.mean == pytest.approx(7 / 6)
    assert found.shares == pytest.approx((2 / 6, 1 / 6, 3 / 6))
    assert found.workers == 3
    assert (found.collect, found.expected) == (None, None)
    launch.case.updates["staleness"] = np.full(6, 2**31 - 1)  # as a damaged record may have
    assert len(staleness(launch).shares) == MAX_AGE + 1


@pytest.mark.parametrize(
    ("training", "collect", "expected"),
    [
        *(("softsync", collect, 3 / collect) for collect in (1, 2, 4)),
        ("downpour(overlap=True)", 1, 7.0),  # each worker has two gradients under way
    ],
)
def test_what_is_expected_of_workers_that_wait_for_nobody(hand, training, collect, expected):
    rows = [(n % 4, n // collect, 1) for n in range(80)]
    served(hand, f"{training}(collect={collect})" if training == "softsync" else training, rows, warmup_steps=0)
    (one,) = records(launches(hand.read()))
    assert (one.workers, one.gradients_per_update, one.staleness_expected) == (4, collect, expected)


@pytest.mark.parametrize(
    "training", ["ssp(bound=3)", "m_synchronous(collect=1)", "downpour(n_fetch=2)", "downpour(n_push=5)"]
)
def test_nothing_is_expected_of_workers_that_wait_or_fetch_seldom(hand, training):
    served(hand, training, [(n % 4, n, 3) for n in range(80)])
    (one,) = records(launches(hand.read()))
    assert one.staleness_mean == 3.0
    assert one.staleness_expected is None


def test_the_mean_is_of_the_measured_span_and_the_largest_of_all(hand):
    rows = [(0, 0, 40), *[(n % 4, n, 3) for n in range(1, 80)]]  # the first while everybody warms up
    (one,) = records(launches(served(hand, "asynchronous", rows, common_clock=True).read()))
    assert (one.staleness_mean, one.staleness_max) == (3.0, 40)


def test_every_shard_counts_its_own_versions(hand):
    updates = {rank: [(10**9 + 10**6 * n, n % 2, n // 2, 0, 0.1) for n in range(20)] for rank in (2, 3)}
    hand.train([[10.0] * 9] * 2 + [[]] * 2, training="softsync(collect=2)", aggregation="own", updates=updates)
    (one,) = launches(hand.read())
    assert staleness(one).collect == 2.0


def test_synchronous_training_has_none(hand):
    hand.train([[10.0] * 9] * 2)
    (one,) = records(launches(hand.read()))
    assert (one.staleness_mean, one.staleness_max, one.workers) == (None, None, None)


def test_memory_is_that_of_the_rank_that_holds_most_and_consensus_that_of_the_end(hand):
    seen = [(4, 1.0, 0.4, 0.9, 0.5, 256, 3.0), (8, 2.0, 0.9, 0.5, 0.9, 512, 0.25)]
    hand.train([[10.0] * 9] * 2, memory=[400, 1200], evaluations=seen)
    (one,) = records(launches(hand.read()))
    assert (one.memory_bytes_per_rank, one.consensus_distance) == (1200, 0.25)
