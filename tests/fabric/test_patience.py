"""How a rank waits: who shares a core, and how sleeps grow."""

import pytest

from hpcdl.fabric import patience
from hpcdl.fabric.patience import (
    FEW_LOOKS,
    LEAST,
    LISTENS,
    LOOKS,
    MOST,
    MOST_AT_WORK,
    OFFERS,
    Patience,
    Place,
    here,
)


def test_ranks_share_a_core_only_on_one_machine_and_if_both_may_use_it():
    bound = [Place("m", frozenset({core})) for core in range(4)]
    assert [place.ranks_per_core(bound) for place in bound] == [1, 1, 1, 1]
    free = [Place("m", frozenset({0, 1}))] * 6
    assert free[0].ranks_per_core(free) == 3
    assert free[0].ranks_per_core([*free[:2], *[Place("n", frozenset({0, 1}))] * 4]) == 1
    # one core for all, as when every emulated host binds its first rank to the first core
    assert bound[0].ranks_per_core([bound[0]] * 5) == 5


def test_this_process_is_alone_with_itself():
    assert 0 < here().ranks_per_core([here()]) <= 1
    assert not Patience(here().ranks_per_core([here()])).crowded


@pytest.mark.parametrize("at_work", [False, True])
@pytest.mark.parametrize("ranks_per_core", [0.01, 0.5, 1, 1.5, 4, 100])
def test_pauses_grow_to_a_limit_and_are_short_again_when_something_moved(ranks_per_core, at_work):
    waiting = Patience(ranks_per_core, at_work=at_work, clock=lambda: 0.0)
    pauses = [waiting.pause() for _ in range(40)]
    assert pauses[0] == LEAST
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] <= (MOST_AT_WORK if at_work else MOST)
    waiting.moved()
    assert waiting.pause() == LEAST


def test_looks_are_close_when_a_step_as_long_as_the_last_one_ends():
    now = 0.0
    waiting = Patience(8, clock=lambda: now)
    now = 0.005
    waiting.moved()
    looks = []
    while now < 0.02:
        now += waiting.pause()
        looks.append(now)
    late = {when: min(look for look in looks if look >= when) - when for when in (0.007, 0.0099, 0.01, 0.015)}
    assert late[0.0099] < 4 * LEAST
    assert late[0.01] <= LEAST
    assert max(late.values()) <= max(LEAST, 8 * patience.MOST_PER_RANK)
    # not while the rank works: then a step lasts as long as the work
    now = 0.0
    busy = Patience(8, at_work=True, clock=lambda: now)
    now = 0.005
    busy.moved()
    assert busy.pause() == LEAST


def test_the_more_share_a_core_the_longer_they_sleep():
    longest = []
    for ranks_per_core in (1, 4, 8, 1000):
        waiting = Patience(ranks_per_core)
        longest.append(max(waiting.pause() for _ in range(40)))
    assert longest == sorted(longest)
    assert longest[-1] == MOST


@pytest.mark.parametrize("ranks_per_core", [0.5, 1, 2])
def test_who_works_looks_less_often(ranks_per_core):
    idle, busy = Patience(ranks_per_core), Patience(ranks_per_core, at_work=True)
    assert max(busy.pause() for _ in range(40)) > max(idle.pause() for _ in range(40))


def test_only_who_shares_a_core_sleeps(monkeypatch):
    slept, listened, yielded = [], [], []
    monkeypatch.setattr(patience, "sleep", slept.append)
    monkeypatch.setattr(patience.os, "sched_yield", lambda: yielded.append(1))
    crowded = Patience(2, listen=listened.append)
    for waiting, looks in ((Patience(1), LOOKS), (crowded, FEW_LOOKS)):
        for _ in range(looks + OFFERS):
            waiting.wait()
    assert len(yielded) == 2 * OFFERS
    assert not listened
    for _ in range(LISTENS):
        crowded.wait()
    assert len(listened) == LISTENS
    assert not slept  # a queue that is never empty would not let it
    for _ in range(7):
        crowded.wait()
    assert len(slept) == 7
    crowded.moved()
    for _ in range(FEW_LOOKS + OFFERS + 1):
        crowded.wait()
    assert (len(listened), len(slept)) == (LISTENS + 1, 7)
