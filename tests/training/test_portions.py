"""Assignment of portions: whenever workers fail, also within a push, every portion counts once."""

import heapq
import random
from collections import Counter

from hpcdl.training.parts.sandblaster.vector_shards import Portions

SHARDS = 3


def play(assignment, number, workers, seed, failing, push_seconds=0.1):
    """Run one batch with workers of random speed.

    Return the portions counted by each shard. Workers in ``failing`` stop at a random time, perhaps within a push;
    worker 0 takes a hundred times as long.
    """
    chance = random.Random(seed)
    shards = [Counter() for _ in range(SHARDS)]
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
            takes = chance.paretovariate(2) * (1 if worker else 100)
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
            assignment.accept(worker, portion, 2.0**-portion)
        elif event == "pushed":
            assignment.pushed(worker)
        order(worker, now)
    return shards


def test_every_portion_counts_once_if_workers_fail():
    for seed in range(1000):
        number, workers = 1 + seed % 23, 2 + seed % 7
        assignment = Portions(number, push_every=1 + seed % 5, backup=seed % 3 > 0)
        failing = random.Random(seed).sample(range(workers), random.Random(~seed).randrange(workers))
        shards = play(assignment, number, workers, seed, failing)
        assert all(shard == Counter(range(number)) for shard in shards)
        assert assignment.loss == sum(2.0**-portion for portion in range(number))
