"""When ranks begin together, told what the others say and what their clock shows."""

import asyncio

import numpy as np
import pytest

from hpcdl.cases.parts import measuring as starts
from hpcdl.cases.parts.measuring import start

OFFSET = 1_000_000


class Ranks:
    """This rank's clock, which runs when it is looked at, and another rank, which is ahead of it."""

    def __init__(self):
        self.now = 0
        self.ahead = 500
        self.hears = 100
        self.other_late = 0

    def clock(self):
        return OFFSET, 7

    def time(self):
        self.pass_by(1e-9)
        return self.now

    def pass_by(self, seconds=1e-8):
        self.now += round(seconds * 1e9)

    async def allgather_words(self, words):
        theirs = np.array(words)
        if len(words) == 2:
            theirs = np.array([words[0] + self.ahead, self.other_late])
            self.now += self.ahead + self.hears
        return np.array([words, theirs])

    def ready(self):
        return asyncio.run(self.window.ready())

    def told(self, warmup=0):
        return asyncio.run(self.window.description(warmup))


@pytest.fixture
def ranks(monkeypatch):
    one = Ranks()
    monkeypatch.setattr(starts, "sleep", one.pass_by)
    monkeypatch.setattr(starts.os, "sched_yield", one.pass_by)
    one.window = start("window", one, one.time)
    return one


def test_ranks_begin_when_twice_the_time_is_over_that_the_last_one_takes_to_hear(ranks):
    for _ in range(5):
        agreed = ranks.now + ranks.ahead  # when the other rank came
        assert ranks.ready() <= ranks.now
    told = ranks.told()
    assert told["starts_late"] == 0
    assert told["start_error_seconds"] == pytest.approx(7e-9)
    assert told["start_lead_seconds"] == pytest.approx(2 * ranks.hears * 1e-9, rel=0.05)
    assert ranks.now == pytest.approx(agreed + 2 * ranks.hears, abs=20)


def test_who_is_late_begins_at_once_and_the_lead_grows_also_by_anothers_lateness_up_to_a_limit(ranks):
    ranks.ready()
    lead = ranks.told()["start_lead_seconds"]
    ranks.hears = 1000
    late = ranks.now + ranks.ahead + ranks.hears
    assert ranks.ready() == pytest.approx(late, abs=5)
    for _ in range(3):
        ranks.ready()
    told = ranks.told()
    assert told["starts_late"] == pytest.approx(1 / 5)
    assert ranks.told(warmup=2)["starts_late"] == 0
    lead += 2 * (1000e-9 - lead)
    assert told["start_lead_seconds"] == pytest.approx(lead, abs=1e-8)
    ranks.other_late = 10**9
    ranks.ready()
    assert ranks.told()["start_lead_seconds"] == pytest.approx(lead + 0.02)
