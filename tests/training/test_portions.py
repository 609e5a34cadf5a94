"""The coordinator's book: whatever workers do, every portion counts once."""

import heapq
import random
from collections import Counter
from itertools import chain

import pytest

from hpcdl.training.coordination.portions import Portions

SHARDS = 3


def play(book, number, workers, seed, *, slow=(), dying=(), push_seconds=0.1):
    """Play workers of random speed through one batch.

    Returns when it was settled, what each shard has counted, and what each worker computed. ``slow`` ones take a
    hundred times as long; ``dying`` ones stop at a random moment, perhaps with a push that some shards have got.
    """
    chance = random.Random(seed)
    shards = [Counter() for _ in range(SHARDS)]
    computed = {worker: [] for worker in range(workers)}
    death = {worker: chance.uniform(0, 3 * number / workers) for worker in dying}
    dead, idle = set(), set()
    events = [(0.0, worker, "free", None) for worker in range(workers)]
    events += [(when, worker, "dies", None) for worker, when in death.items()]
    heapq.heapify(events)

    def add(shard, portions):
        already = [portion for portion in portions if shard[portion]]
        assert not already or len(portions) == 1, "part of a push has been counted"
        if not already:
            shard.update(portions)

    def direct(worker, now):
        idle.discard(worker)
        if book.must_push(worker):
            events_push(worker, now)
        elif (portion := book.hand_out(worker)) is not None:
            takes = chance.paretovariate(2) * (100 if worker in slow else 1)
            heapq.heappush(events, (now + takes, worker, "done", portion))
        else:
            idle.add(worker)

    def events_push(worker, now):
        portions = book.gathered(worker)
        # where it dies before the end, a few shards may have it
        lasting = worker not in death or now + push_seconds < death[worker]
        for shard in shards[: SHARDS if lasting else chance.randrange(SHARDS)]:
            add(shard, portions)
        heapq.heappush(events, (now + push_seconds, worker, "pushed", None))

    while not book.settled:
        now, worker, what, portion = heapq.heappop(events)
        if worker in dead:
            continue
        if what == "dies":
            dead.add(worker)
            idle.discard(worker)
            book.lost(worker)
            for other in sorted(idle):
                direct(other, now)
            continue
        if what == "done":
            computed[worker].append(portion)
            if not book.answer(worker, portion, 2.0**-portion):
                computed[worker].pop()
        elif what == "pushed":
            book.pushed(worker)
        direct(worker, now)
    return now, shards, computed


@pytest.mark.parametrize("backup", [True, False])
def test_every_portion_counts_once_in_a_thousand_schedules(backup):
    for seed in range(1000):
        number, workers = 1 + seed % 23, 1 + seed % 7
        book = Portions(number, push_every=1 + seed % 5, backup=backup)
        _, shards, computed = play(book, number, workers, seed, slow={0} if seed % 2 else ())
        assert all(shard == Counter(range(number)) for shard in shards)
        assert sorted(chain.from_iterable(computed.values())) == list(range(number))
        assert book.loss == sum(2.0**-portion for portion in range(number))


def test_so_it_does_when_workers_die():
    for seed in range(1000):
        number, workers = 1 + seed % 23, 2 + seed % 7
        book = Portions(number, push_every=1 + seed % 5, backup=seed % 3 > 0)
        dying = random.Random(seed).sample(range(workers), random.Random(~seed).randrange(1, workers))
        _, shards, _ = play(book, number, workers, seed, slow={0}, dying=dying)
        assert all(shard == Counter(range(number)) for shard in shards)
        assert book.loss == sum(2.0**-portion for portion in range(number))


def test_a_backup_takes_the_place_of_a_slow_worker():
    """Nobody waits for it, nor for what it had gathered: without backups everybody does."""
    for seed in range(200):
        times = {}
        for backup in (True, False):
            book = Portions(24, push_every=8, backup=backup)
            times[backup], _, computed = play(book, 24, 4, seed, slow={2})
            assert len(computed[2]) <= 1
        assert times[True] < times[False]
        assert times[False] >= 100


def test_a_worker_that_is_ten_times_slower_holds_nothing_up():
    """It has time for some portions here; what it gathered must have left before the one it is late with."""
    book = Portions(64, push_every=64, backup=True)
    now, gathered = 0.0, Counter()
    free = [(0.0, worker, None) for worker in range(4)]
    speed = {0: 10.0, 1: 1.0, 2: 1.0, 3: 1.0}
    while not book.settled and free:
        now, worker, portion = heapq.heappop(free)
        if portion is not None:
            gathered[worker] += book.answer(worker, portion, 0.0)
        if book.must_push(worker):
            book.pushed(worker)
        if (portion := book.hand_out(worker)) is not None:
            heapq.heappush(free, (now + speed[worker], worker, portion))
    assert gathered.total() == 64
    assert gathered[0] in (1, 2)
    assert now <= 64 / 3 + 2  # three workers do nearly all; the slow one's last portion is another's as well


def test_a_portion_is_handed_out_twice_at_most_and_to_different_workers():
    book = Portions(2, push_every=1, backup=True)
    assert [book.hand_out(worker) for worker in "ab"] == [0, 1]
    assert book.hand_out("a") == 1
    assert book.hand_out("c") == 0
    assert book.hand_out("d") is None
    assert book.answer("c", 0, 1.0)
    assert not book.answer("a", 0, 1.0)
    assert book.answer("b", 1, 2.0)
    assert not book.answer("a", 1, 2.0)
    assert not book.settled
    assert [book.gathered(worker) for worker in "abc"] == [[], [1], [0]]
    for worker in "bc":
        assert book.must_push(worker)
        book.pushed(worker)
    assert book.settled
    assert book.loss == 3


def test_without_backup_tasks_a_portion_is_handed_out_once():
    book = Portions(1, push_every=1, backup=False)
    assert book.hand_out("a") == 0
    assert book.hand_out("b") is None
