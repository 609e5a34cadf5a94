"""Assignment of portions: in any schedule, and after failures, every portion counts once."""

import heapq
import random
from collections import Counter
from itertools import chain

from hpcdl.training.parts.sandblaster.vector_shards import Portions

SHARDS = 3


def play(assignment, number, workers, seed, *, slow=(), failing=(), push_seconds=0.1):
    """Run one batch with workers of random speed.

    Return the end time, the portions counted by each shard, and the portions computed by each worker. Workers in
    ``slow`` take a hundred times as long. Workers in ``failing`` stop at a random time, perhaps within a push.
    """
    chance = random.Random(seed)
    shards = [Counter() for _ in range(SHARDS)]
    computed = {worker: [] for worker in range(workers)}
    failure = {worker: chance.uniform(0, 3 * number / workers) for worker in failing}
    failed, idle = set(), set()
    events = [(0.0, worker, "idle", None) for worker in range(workers)]
    events += [(when, worker, "fails", None) for worker, when in failure.items()]
    heapq.heapify(events)

    def add(shard, portions):
        counted = [portion for portion in portions if shard[portion]]
        assert not counted or len(portions) == 1, "part of a push has been counted"
        if not counted:
            shard.update(portions)

    def order(worker, now):
        idle.discard(worker)
        if assignment.must_push(worker):
            push(worker, now)
        elif (portion := assignment.assign(worker)) is not None:
            takes = chance.paretovariate(2) * (100 if worker in slow else 1)
            heapq.heappush(events, (now + takes, worker, "done", portion))
        else:
            idle.add(worker)

    def push(worker, now):
        portions = assignment._unpushed.get(worker, [])
        # a push that a failure interrupts reaches some of the shards
        whole = worker not in failure or now + push_seconds < failure[worker]
        for shard in shards[: SHARDS if whole else chance.randrange(SHARDS)]:
            add(shard, portions)
        heapq.heappush(events, (now + push_seconds, worker, "pushed", None))

    while not assignment.complete:
        now, worker, event, portion = heapq.heappop(events)
        if worker in failed:
            continue
        if event == "fails":
            failed.add(worker)
            idle.discard(worker)
            assignment.lost(worker)
            for other in sorted(idle):
                order(other, now)
            continue
        if event == "done":
            computed[worker].append(portion)
            if not assignment.accept(worker, portion, 2.0**-portion):
                computed[worker].pop()
        elif event == "pushed":
            assignment.pushed(worker)
        order(worker, now)
    return now, shards, computed


def test_every_portion_counts_once_in_a_thousand_schedules():
    for backup in [True, False]:
        for seed in range(1000):
            number, workers = 1 + seed % 23, 1 + seed % 7
            assignment = Portions(number, push_every=1 + seed % 5, backup=backup)
            _, shards, computed = play(assignment, number, workers, seed, slow={0} if seed % 2 else ())
            assert all(shard == Counter(range(number)) for shard in shards)
            assert sorted(chain.from_iterable(computed.values())) == list(range(number))
            assert assignment.loss == sum(2.0**-portion for portion in range(number))


def test_every_portion_counts_once_if_workers_fail():
    for seed in range(1000):
        number, workers = 1 + seed % 23, 2 + seed % 7
        assignment = Portions(number, push_every=1 + seed % 5, backup=seed % 3 > 0)
        failing = random.Random(seed).sample(range(workers), random.Random(~seed).randrange(1, workers))
        _, shards, _ = play(assignment, number, workers, seed, slow={0}, failing=failing)
        assert all(shard == Counter(range(number)) for shard in shards)
        assert assignment.loss == sum(2.0**-portion for portion in range(number))


def test_with_backup_tasks_a_batch_does_not_wait_for_a_slow_worker():
    for seed in range(200):
        times = {}
        for backup in (True, False):
            assignment = Portions(24, push_every=8, backup=backup)
            times[backup], _, computed = play(assignment, 24, 4, seed, slow={2})
            assert len(computed[2]) <= 1
        assert times[True] < times[False]
        assert times[False] >= 100


def test_a_worker_that_is_ten_times_slower_does_not_delay_the_batch():
    """It computes one or two portions, and pushes before the portion that a backup task overtakes."""
    assignment = Portions(64, push_every=64, backup=True)
    now, accepted = 0.0, Counter()
    free = [(0.0, worker, None) for worker in range(4)]
    seconds = {0: 10.0, 1: 1.0, 2: 1.0, 3: 1.0}
    while not assignment.complete and free:
        now, worker, portion = heapq.heappop(free)
        if portion is not None:
            accepted[worker] += assignment.accept(worker, portion, 0.0)
        if assignment.must_push(worker):
            assignment.pushed(worker)
        if (portion := assignment.assign(worker)) is not None:
            heapq.heappush(free, (now + seconds[worker], worker, portion))
    assert accepted.total() == 64
    assert accepted[0] in (1, 2)
    assert now <= 64 / 3 + 2  # three workers compute nearly all portions, the slow one's last portion too
