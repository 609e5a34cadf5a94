"""Polling policy: which ranks share a core, and how sleeps grow."""

import pytest

from hpcdl.fabric.mpi import backoff
from hpcdl.fabric.mpi.backoff import MAX_AT_WORK, MAX_PAUSE_IDLE, MIN_PAUSE, POLLS, Backoff, Place


def test_ranks_share_a_core_only_on_one_machine_and_if_both_may_use_it():
    bound = [Place("m", frozenset({core})) for core in range(4)]
    assert [place.ranks_per_core(bound) for place in bound] == [1, 1, 1, 1]
    free = [Place("m", frozenset({0, 1}))] * 6
    assert free[0].ranks_per_core(free) == 3
    assert free[0].ranks_per_core([*free[:2], *[Place("n", frozenset({0, 1}))] * 4]) == 1
    # one core for all, as when every emulated host binds its first rank to the first core
    assert bound[0].ranks_per_core([bound[0]] * 5) == 5


@pytest.mark.parametrize("at_work", [False, True])
@pytest.mark.parametrize("ranks_per_core", [0.5, 1, 1.5, 100])
def test_sleeps_grow_to_a_limit_and_are_short_again_after_a_completed_operation(ranks_per_core, at_work):
    waiting = Backoff(ranks_per_core, at_work=at_work)
    pauses = [waiting.pause() for _ in range(40)]
    assert pauses[0] == MIN_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == (MAX_AT_WORK if at_work else MAX_PAUSE_IDLE)
    waiting.reset()
    assert waiting.pause() == MIN_PAUSE


def test_only_an_oversubscribed_rank_sleeps_and_it_never_spins(monkeypatch):
    slept, yielded = [], []
    monkeypatch.setattr(backoff, "sleep", slept.append)
    monkeypatch.setattr(backoff.os, "sched_yield", lambda: yielded.append(1))
    dedicated, oversubscribed = Backoff(1), Backoff(2)
    for _ in range(POLLS):
        dedicated.wait()
    assert not yielded
    dedicated.wait()
    assert len(yielded) == 1
    for _ in range(POLLS):
        oversubscribed.wait()
    assert len(yielded) == 1 + POLLS
    assert not slept
    for _ in range(7):
        oversubscribed.wait()
    assert len(slept) == 7
    oversubscribed.reset()
    for _ in range(POLLS + 1):
        oversubscribed.wait()
    assert len(slept) == 8
