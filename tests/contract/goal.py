"""Replayer of GOAL schedules: dependencies, and ports that carry one message after the other."""

import heapq
import re
from collections import defaultdict


def simulated_goal(text, alpha, beta):
    """Return the time in ns of a GOAL schedule in which a message occupies both ports for alpha + bytes x beta.

    A send and a receive match by ranks and tag. No operation may wait for ever, and no message be left over.
    """
    operations, needs = {}, defaultdict(set)
    for number, block in enumerate(re.findall(r"rank \d+ \{(.*?)\}", text, re.DOTALL)):
        for line, what in re.findall(r"^l(\d+): (.*)$", block, re.MULTILINE):
            operations[number, int(line)] = what.split()
        for line, other in re.findall(r"^l(\d+) requires l(\d+)$", block, re.MULTILINE):
            needs[number, int(line)].add((number, int(other)))
    waiting = {one: set(needs[one]) for one in operations}
    users = defaultdict(list)
    for one, required in needs.items():
        for other in required:
            users[other].append(one)
    ready = [(0, one) for one in operations if not waiting[one]]
    heapq.heapify(ready)
    halves, ports, end, last = {}, defaultdict(int), {}, 0
    while ready:
        now, one = heapq.heappop(ready)
        what = operations[one]
        if what[0] == "calc":
            done = {one: now + int(what[1])}
        elif (message := _message(one[0], what)) not in halves:
            halves[message] = one
            continue
        else:
            other = halves.pop(message)
            sender, receiver = (one, other) if what[0] == "send" else (other, one)
            begin = max(now, ports[sender[0], "out"], ports[receiver[0], "in"])
            finish = begin + 1e9 * (alpha + beta * int(what[1].removesuffix("b")))
            ports[sender[0], "out"] = ports[receiver[0], "in"] = finish
            done = {one: finish, other: finish}
        for finished, time in done.items():
            end[finished], last = time, max(last, time)
            for user in users[finished]:
                waiting[user].discard(finished)
                if not waiting[user]:
                    heapq.heappush(ready, (max(end[need] for need in needs[user]), user))
    assert len(end) == len(operations), "operations that wait for ever"
    return last


def _message(rank, what):
    """Return source, destination, tag and size of the message of an operation."""
    label, size, _, peer, _, tag = what[:6]
    return (rank, int(peer), tag, size) if label == "send" else (int(peer), rank, tag, size)
