"""Random programs with tasks in virtual time, beside a plain discrete-event engine that shares no code with it.

The engine knows no coroutines, tag spaces or mailboxes: a thread is a place in a list of steps, events are a heap,
and a port is the list of the messages that it has carried. Every rank has a host.
"""

import random
from collections import defaultdict, deque
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace

import pytest

from hpcdl.fabric.network import Link, Network
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import simulated

ALPHA, BETA, GAMMA = 1e-3, 1e-6, 3e-7
NETWORK = Network("random", Link(ALPHA, BETA), "none", gamma=GAMMA)


class Script:
    """Random steps of a program on each rank; all ranks get theirs in one order, so that none deadlocks."""

    def __init__(self, chance, ranks, level=0):
        self.steps, self.scripts = [[] for _ in range(ranks)], []
        waiting = [[] for _ in range(ranks)]
        kinds = ["compute", "sum", "sum", "send", "exchange", "await", *["start"] * 2 * (level < 3)]
        for kind in chance.choices([*kinds, *["barrier"] * (level > 0)], k=chance.randint(1, 9 - 2 * level)):
            rank, other = chance.sample(range(ranks), 2)
            if kind == "compute":
                self.steps[rank].append((kind, chance.uniform(0, 0.01)))
            elif kind == "sum":
                self.steps[rank].append((kind, chance.randrange(30_000)))
            elif kind == "send":
                self.steps[rank].append(("message", chance.randrange(10_000), other, None))
                self.steps[other].append(("message", 0, None, rank))
            elif kind == "await" and waiting[rank]:
                self.steps[rank].append((kind, waiting[rank].pop(chance.randrange(len(waiting[rank])))))
            elif kind == "start":
                for steps, scripts in zip(self.steps, waiting, strict=True):
                    steps.append((kind, len(self.scripts)))
                    scripts.append(len(self.scripts))
                self.scripts.append(Script(chance, ranks, level + 1))
            elif kind in {"exchange", "barrier"}:
                for each, steps in enumerate(self.steps):
                    peers = (each + other - rank) % ranks, (each - other + rank) % ranks
                    steps.append((kind,) if kind == "barrier" else ("message", chance.randrange(10_000), *peers))
        for steps, scripts in zip(self.steps, waiting, strict=True):
            steps += [("await", each) for each in chance.sample(scripts, chance.randint(0, len(scripts)))]

    async def run(self, world, ends, comm):
        """Run the steps on an interpreter; add the end of each program by rank and number."""
        tasks = []
        for kind, *values in self.steps[comm.rank]:
            if kind == "compute":
                await comm.compute(str(values[0]), lambda: None)
            elif kind == "sum":
                await comm.apply("sum", lambda: None, values[0])
            elif kind == "start":
                tasks.append(comm.start(self.scripts[values[0]].run(world, ends, comm)))
            elif kind == "await":
                await tasks[values[0]]
            elif kind == "barrier":
                await comm.native("barrier", phantom(0))
            else:
                (outgoing, incoming), dest, source = (phantom(n, "u1") for n in (values[0], 10_000)), *values[1:]
                if source is None:
                    await comm.send(outgoing, dest)
                elif dest is None:
                    await comm.recv(incoming, source, 0)
                else:
                    await comm.exchange(outgoing, dest, incoming, source)
        ends[comm.rank, world.running.number] = world.running.time


class Engine:
    """Events are (time, round, order): what one brings about at its own time belongs to the next round."""

    def __init__(self, script, ranks):
        self.events, self.order, self.started = [], count(), [count() for _ in range(ranks)]
        self.now, self.round, self.ranks = 0.0, -1, ranks
        self.working, self.summing = [0.0] * ranks, [0.0] * ranks
        self.carried, self.posts, self.inside = defaultdict(list), defaultdict(deque), defaultdict(list)
        self.met, self.ends = [], {}
        for rank in range(ranks):
            self.launch(script, (), rank, 0.0)
        while self.events:
            self.now, self.round = self.events[0][:2]
            while self.events and self.events[0][:2] == (self.now, self.round):
                *_, thread = heappop(self.events)
                thread.time = self.now
                self.go_on(thread)
            for _, *message in sorted(self.met, key=lambda message: message[0]):
                self.carry(*message)
            self.met.clear()

    def at(self, time, thread):
        heappush(self.events, (time, self.round + 1 if time == self.now else 0, next(self.order), thread))

    def launch(self, script, path, rank, time):
        """Start a thread; ``path`` names its program on all ranks, ``missing`` counts messages of its step."""
        fields = {"place": 0, "missing": 0, "children": [], "waiters": []}
        number = next(self.started[rank])
        thread = SimpleNamespace(script=script, path=path, rank=rank, number=number, time=time, **fields)
        self.at(time, thread)
        return thread

    def go_on(self, thread):
        """Take steps until one takes time."""
        steps, rank = thread.script.steps[thread.rank], thread.rank
        while thread.place < len(steps):
            kind, *values = steps[thread.place]
            if kind in {"message", "barrier"} and thread.time > self.now:
                return self.at(thread.time, thread)
            thread.place += 1
            if kind == "sum":
                self.summing[rank] = thread.time = max(thread.time, self.summing[rank]) + values[0] * GAMMA
            elif kind == "start":
                path = (*thread.path, values[0])
                thread.children.append(self.launch(thread.script.scripts[values[0]], path, rank, thread.time))
            elif kind == "await":
                child = thread.children[values[0]]
                if (rank, child.number) not in self.ends:
                    return child.waiters.append(thread)
                thread.time = max(thread.time, child.time)
            elif kind == "compute":
                self.working[rank] = max(thread.time, self.working[rank]) + values[0]
                return self.at(self.working[rank], thread)
            else:
                return self.enter(thread) if kind == "barrier" else self.post(thread, *values)
        self.ends[rank, thread.number] = thread.time
        for waiter in thread.waiters:
            self.at(max(thread.time, waiter.time), waiter)
        return None

    def enter(self, thread):
        inside = self.inside[thread.path]
        inside.append(thread)
        if len(inside) == self.ranks:
            for each in inside:
                self.at(self.now + (self.ranks - 1).bit_length() * ALPHA, each)
            inside.clear()

    def post(self, thread, size, dest, source):
        me, thread.missing = thread.rank, (dest is not None) + (source is not None)
        if source is not None:
            if sends := self.posts[thread.path, source, me, "send"]:
                self.meet(*sends.popleft(), thread)
            else:
                self.posts[thread.path, source, me, "receive"].append(thread)
        if dest is not None:
            if receives := self.posts[thread.path, me, dest, "receive"]:
                self.meet(thread, size, receives.popleft())
            else:
                self.posts[thread.path, me, dest, "send"].append((thread, size))

    def meet(self, sender, size, receiver):
        order = (sender.number, receiver.number, sender.rank, receiver.rank)
        self.met.append((order, sender, receiver, ALPHA + size * BETA))

    def carry(self, sender, receiver, takes):
        """Let a message go at the first moment at which both its ports are free for long enough."""
        busy = self.carried["out", sender.rank] + self.carried["into", receiver.rank]
        free = takes * (1 - 1e-9)  # for rounding
        moments = [self.now, *(end for _, end in busy if end > self.now)]
        moment = min(m for m in moments if all(m + free <= begin or m >= end for begin, end in busy))
        for port in (("out", sender.rank), ("into", receiver.rank)):
            self.carried[port].append((moment, moment + takes))
        for thread in (sender, receiver):
            thread.missing -= 1
            thread.time = max(thread.time, moment + takes)
            if not thread.missing:
                self.at(thread.time, thread)


def test_programs_end_when_a_plain_engine_ends_them():
    for seed in range(300):
        chance = random.Random(seed)
        ranks = chance.randint(2, 5)
        script, ends = Script(chance, ranks), {}
        world = simulated(ranks, NETWORK, compute=lambda _rank, label: float(label))
        world.run(partial(script.run, world, ends))
        assert ends == pytest.approx(Engine(script, ranks).ends, rel=1e-9), f"seed {seed}"
        assert world.now == max(ends.values())
