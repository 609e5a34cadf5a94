"""Communicators of a :class:`hpcdl.fabric.virtual.world.World`, and results and costs of a library's collectives.

Sends return when their receive has the data.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, pairwise, product
from math import ceil, log2
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.comm import ANY, TAGS, Array, Memory, Status, check_address, check_exchange
from hpcdl.fabric.network import Link, Network
from hpcdl.fabric.task import AnyTask, Program, Task, operation
from hpcdl.fabric.vectors import Blocks, OutOfPlace, Phantom, disseminate, operand_and_result
from hpcdl.fabric.virtual.groups import Gathering, Group, hold, take
from hpcdl.fabric.virtual.shifts import AsymmetryError
from hpcdl.fabric.virtual.world import World

SUMS: Final = ("allreduce", "nonblocking allreduce", "persistent allreduce", "reduce_scatter allgather")
"""Those that sum on all ranks."""

BY_PARTS: Final = ("reduce_scatter", "allgather", "all_to_all")
"""Those in which each rank has a part of the vector."""

COLLECTIVES: Final = ("barrier", *SUMS, "broadcast", "reduce", *BY_PARTS, "alltoallv")
"""All that :meth:`hpcdl.fabric.comm.Comm.native` knows."""


def collectively(collective: str, vectors: Sequence[Array | OutOfPlace], counts: Sequence[int]) -> None:
    """Run ``collective`` on the ranks' vectors, which are equally long."""
    if collective == "barrier":
        return
    buffers = []
    for operand, result in map(operand_and_result, vectors):
        if operand is not None:
            result[...] = operand
        buffers.append(result)
    if collective in SUMS:
        total = sum(buffers)
        for buffer in buffers:
            buffer[...] = total
    elif collective == "reduce":
        buffers[0][...] = sum(buffers)
    elif collective == "broadcast":
        for buffer in buffers[1:]:
            buffer[...] = buffers[0]
    else:
        parts = [slice(begin, end) for begin, end in pairwise(accumulate(counts, initial=0))]
        before = [buffer.copy() for buffer in buffers]
        for buffer, mine in zip(buffers, parts, strict=True):
            if collective == "reduce_scatter":
                buffer[mine] = sum(given[mine] for given in before)
            else:
                for given, part in zip(before, parts, strict=True):
                    buffer[part] = given[part if collective == "allgather" else mine]


def seconds(collective: str, on_hosts: Sequence[int], size: int, network: Network) -> float:
    """Return the time (s) of a good library on hosts with so many ranks; ``size``: bytes of the whole vector.

    On one host, or with one rank on each, it is that of the best algorithm of Thakur, Rabenseifner & Gropp 2005.
    Otherwise it is the least of: a leader of each host sends to other hosts; all ranks do, a part of the vector
    each, in turn at the host's port; halving and doubling over all ranks; a ring, of which one message at a time
    enters a host. Of an alltoallv ``size`` is what the busiest rank exchanges with others, one after the other,
    and all ranks of its host are as busy. A split takes no time, because programs do it once, before the part that
    is predicted.
    """
    if collective == "split":
        return 0.0
    hosts, together, lanes, ranks = len(on_hosts), max(on_hosts), min(on_hosts), sum(on_hosts)
    gamma = network.gamma
    if hosts == 1 or together == 1:
        return _of_equal_links(collective, ranks, size, network.inside if hosts == 1 else network.link, gamma)

    def inside(name: str, part: float = size) -> float:
        return _of_equal_links(name, together, part, network.inside, gamma)

    def between(name: str, ports: int = 1, whole: float = size) -> float:
        # messages of a port take turns, sums do not
        return ports * _of_equal_links(name, hosts, whole / ports, network.link, gamma / ports)

    def by_parts(name: str, leader: float, sums: float) -> float:
        by_leaders = leader + between(name) + inside("allgather", size / hosts)
        halving = between(name, together, together * size) + inside(name, size / hosts)
        ring = (ranks - 1) * max(link.seconds(size / ranks) for link in (network.link, network.inside)) + sums
        return min(by_leaders, inside(name) + between(name, lanes), halving, ring)

    to_leader, from_leader, cut, join = map(inside, ("reduce", "broadcast", "reduce_scatter", "allgather"))
    scattered = by_parts("reduce_scatter", to_leader, (ranks - 1) / ranks * size * gamma)
    gathered = by_parts("allgather", from_leader, 0.0)
    choices = {
        "barrier": [2 * inside("barrier") + between("barrier"), inside("barrier") + between("barrier", lanes)],
        "reduce_scatter": [scattered],
        "allgather": [gathered],
        "reduce_scatter allgather": [scattered + gathered],
        "broadcast": [between("broadcast") + from_leader, 2 * join + between("broadcast", lanes)],
        "reduce": [to_leader + between("reduce"), cut + between("reduce", lanes) + join],
        "all_to_all": [inside("all_to_all") + between("all_to_all", lanes, together * size)],
        "alltoallv": [together * (ranks - together) * network.link.seconds(size / (ranks - 1))],
    }
    by_leaders, by_all = between("allreduce"), between("allreduce", lanes)
    allreduce = [to_leader + by_leaders + from_leader, cut + by_all + join, scattered + gathered]
    return min(choices.get(collective, allreduce))


def _of_equal_links(collective: str, ranks: int, size: float, link: Link, gamma: float) -> float:
    steps, share = ceil(log2(ranks)), (ranks - 1) / ranks * size
    extra = sum(link.extra_seconds(size / 2**step) for step in range(1, steps + 1))
    doubling = steps * link.alpha + share * link.beta + extra
    halving = doubling + share * gamma
    choices = {
        "barrier": [steps * link.alpha],
        "reduce_scatter": [halving],
        "allgather": [doubling],
        "reduce_scatter allgather": [halving + doubling],
        "broadcast": [steps * link.seconds(size), 2 * doubling],
        "reduce": [steps * (link.seconds(size) + size * gamma), halving + doubling],
        "all_to_all": [steps * link.seconds(size / 2), (ranks - 1) * link.seconds(size / ranks)],
        "alltoallv": [(ranks - 1) * link.seconds(size / max(1, ranks - 1))],
    }
    return min(choices.get(collective, [steps * (link.seconds(size) + size * gamma), halving + doubling]))


T = TypeVar("T")
U = TypeVar("U")


class VirtualComm:
    """A :class:`hpcdl.fabric.comm.Comm` of a :class:`hpcdl.fabric.virtual.world.World`."""

    def __init__(self, world: World, group: Group, rank: int) -> None:
        self.rank = rank
        self.size = len(group.members)
        self._world = world
        self._group = group
        self._failures = group.failures
        self._members = group.members
        self._me = group.members[rank]
        self._gathered: dict[int, int] = {}
        self._subcommunicators: dict[Hashable, VirtualComm] = {}

    @operation
    def send(self, buffer: Array, dest: int, tag: int = 0) -> Generator[None, None, None]:
        check_address(dest, tag, self.size)
        world = self._world
        task = world.running
        if task.time > world.now:
            world.wake(task, task.time)
            yield
        if self._failures.failed:
            self._check_alive(dest)
        begin = world.now
        task.waiting = 1
        self._send(task, buffer, dest, tag)
        yield
        if world.events is not None:
            self._record("send", begin, dest, buffer.nbytes, task.sent)

    @operation
    def recv(self, buffer: Array, source: int = ANY, tag: int = ANY) -> Generator[None, Status, Status]:
        check_address(source, tag, self.size, ANY)
        world = self._world
        task = world.running
        if task.time > world.now:
            world.wake(task, task.time)
            yield
        if self._failures.failed:
            self._check_alive(source)
        begin = world.now
        task.waiting = 1
        self._receive(task, buffer, source, tag)
        status: Status = yield
        if world.events is not None:
            self._record("recv", begin, status.source, status.count * buffer.itemsize, task.arrived)
        return status

    @operation
    def exchange(
        self, outgoing: Array, dest: int, incoming: Array, source: int, tag: int = 0
    ) -> Generator[None, Status, Status]:
        size = self.size
        if not (0 <= dest < size and 0 <= source < size and 0 <= tag < TAGS):
            check_exchange(dest, source, tag, size)
        world = self._world
        task = world.running
        if task.time > world.now:
            world.wake(task, task.time)
            yield
        if self._failures.failed:
            self._check_alive(dest, source)
        begin = world.now
        task.waiting = 2
        self._receive(task, incoming, source, tag)
        self._send(task, outgoing, dest, tag)
        status: Status = yield
        if world.events is not None:
            self._record("recv", begin, source, status.count * incoming.itemsize, task.arrived)
            self._record("send", begin, dest, outgoing.nbytes, task.sent)
        return status

    async def apply(self, label: str, work: Callable[[], T], touched_bytes: int) -> T:
        result = work()
        self._apply(label, touched_bytes)
        return result

    async def add(self, into: Array, addend: Array) -> None:
        into += addend
        self._apply("add", into.nbytes)

    def _apply(self, label: str, touched_bytes: int) -> None:
        world = self._world
        task = world.running
        begin = task.time
        # other ranks cannot see this arithmetic: the task's time goes ahead, the world's stays
        task.time = world.clock.apply(begin, self._me, label, touched_bytes)
        if world.events is not None:
            self._record(label, begin, -1, touched_bytes)

    @operation
    def compute(self, label: str, work: Callable[[], T]) -> Generator[None, None, T]:
        world = self._world
        task = world.running
        begin = task.time
        result = work()
        world.wake(task, world.clock.compute(begin, self._me, label))
        yield
        if world.events is not None:
            self._record(label, begin, -1, 0)
        return result

    def start(self, work: Program[T], *, shared_tags: bool = False) -> Task[T]:
        world = self._world
        starter = world.running
        task = starter.starts(work, self, self._group.depth, shared_tags=shared_tags)
        return world.launch(task, self._me, starter.time)  # after its starter's arithmetic

    async def split(self, color: int, key: int = 0) -> VirtualComm:
        group = self._group

        def finish(given: dict[int, tuple[int, int]]) -> dict[int, VirtualComm]:
            answers = {}
            for wanted in {c for c, _ in given.values()}:
                order = [r for _, r in sorted((k, r) for r, (c, k) in given.items() if c == wanted)]
                part = self._world.group(tuple(group.members[r] for r in order), group.depth + 1)
                answers.update({old: VirtualComm(self._world, part, new) for new, old in enumerate(order)})
            return answers

        return await self._gather("split", (color, key), 0, finish)  # type: ignore[no-any-return]

    async def subcommunicator(self, color: Callable[[int], int], division: Hashable) -> VirtualComm:
        """See :class:`hpcdl.fabric.comm.Comm`; no rank waits for another one."""
        if division not in self._subcommunicators:
            self._check_alive(*self._failures.failed)
            group, rank = self._world.divided(self._group, color, division)[self._me]
            self._subcommunicators[division] = VirtualComm(self._world, group, rank)
        return self._subcommunicators[division]

    async def survivors(self) -> VirtualComm:
        group = self._group

        def finish(given: dict[int, None]) -> dict[int, VirtualComm | None]:
            if not group.failures.failed:
                return dict.fromkeys(given)
            survivors = sorted(given)
            part = self._world.group(tuple(group.members[rank] for rank in survivors), group.depth)
            return {old: VirtualComm(self._world, part, new) for new, old in enumerate(survivors)}

        return await self._gather("survivors", None, 0, finish) or self

    async def native(self, collective: str, buffer: Array, counts: Sequence[int] = ()) -> None:
        if collective not in COLLECTIVES:
            raise ValueError(f"no native collective {collective!r}")

        def finish(given: dict[int, Any]) -> dict[int, None]:
            if isinstance(buffer, Blocks):
                for source, rank in product(given, given):
                    given[rank].incoming[source][...] = given[source].outgoing[rank]
            elif type(buffer) is not Phantom:
                collectively(collective, [given[rank] for rank in range(self.size)], counts)
            return dict.fromkeys(given)

        size = buffer.exchanged_bytes(self.rank) if isinstance(buffer, Blocks) else buffer.nbytes
        await self._gather(f"native {collective}", buffer, size, finish)

    def scratch(self, size: int, like: Array) -> AbstractContextManager[Array]:
        return self._world.scratch.borrow(size, like)

    @property
    def memory(self) -> Memory:
        return self._world.memory

    def borrow_shared(self, like: Array) -> AbstractContextManager[Array]:
        return self._world.scratch.borrow(like.size, like)

    def clock(self) -> tuple[int, int]:
        return 0, 0

    async def allgather_words(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return await disseminate(self, words)

    @operation
    def get(self, into: Array, theirs: Array, peer: int) -> Generator[None, None, None]:
        world = self._world
        task = world.running
        if task.time > world.now:
            world.wake(task, task.time)
            yield
        begin = world.now
        into[:] = theirs
        if peer != self.rank:
            task.waiting = 2  # it is both ends
            world.transfer(self._members[peer], into.nbytes, task, task)
            yield
        if world.events is not None:
            self._record("get", begin, peer, into.nbytes)

    def _check_alive(self, *peers: int) -> None:
        loss = self._failures.of(peers, self.rank, started=self._world.running.space != 0)
        if loss is not None:
            raise loss

    def _send(self, task: AnyTask, buffer: Array, dest: int, tag: int) -> None:
        group, rank, space, world = self._group, self.rank, task.space, self._world
        if world.shifts is not None:
            group, rank, dest = group.shifted(world.shifts, rank, dest)
        mailbox = group.wild.get((space, dest), group.mailbox) if group.wild else group.mailbox
        key = (space, dest, rank, tag)
        receive = mailbox.take_receive(key) if mailbox.open else take(mailbox.receives, key)
        if receive is None:
            group.posted += 1
            hold(mailbox.sends, key, (group.posted, task, rank, dest, tag, buffer))
            return
        world.complete(task, group.members[rank], rank, tag, buffer, receive[1], receive[5])
        if group.wild:
            group.tidy(space, dest)

    def _receive(self, task: AnyTask, buffer: Array, source: int, tag: int) -> None:
        group, rank, space = self._group, self.rank, task.space
        key = (space, rank, source, tag)
        if wild := source < 0 or tag < 0:
            if source < 0 and self._world.shifts is not None:
                raise AsymmetryError("a receive from any rank")
            mailbox = group.open(space, rank)
            send = mailbox.take_send(source, tag)
        else:
            mailbox = group.wild.get((space, rank), group.mailbox) if group.wild else group.mailbox
            send = take(mailbox.sends, key)
        if send is None:
            group.posted += 1
            post = (group.posted, task, rank, source, tag, buffer)
            if wild:
                mailbox.open.append(post)
            else:
                hold(mailbox.receives, key, post)
            return
        _, sending, sender, _, sent_tag, sent = send
        self._world.complete(sending, group.members[sender], sender, sent_tag, sent, task, buffer)
        if group.wild:
            group.tidy(space, rank)

    @operation
    def _gather(
        self, what: str, given: T, size: int, finish: Callable[[dict[int, T]], dict[int, U]]
    ) -> Generator[None, U, U]:
        """Wait for all ranks' ``given``; the last rank computes each rank's result by ``finish``."""
        world = self._world
        task = world.running
        if world.shifts is not None:
            raise AsymmetryError(what)
        world.wake(task, task.time)
        yield
        begin = world.now
        turn = self._gathered[task.space] = self._gathered.get(task.space, 0) + 1
        if self._failures.failed and what != "survivors":
            self._check_alive(*range(self.size))
        gathering = self._group.gatherings.setdefault((task.space, turn), Gathering(what, size, finish))
        if gathering.what != what:
            raise ValueError(f"rank {self._me} calls {what} where others call {gathering.what}")
        gathering.size = max(gathering.size, size)
        gathering.tasks[self.rank] = task
        gathering.given[self.rank] = given
        if what not in ("split", "survivors", "native nonblocking allreduce") and task.space == 0:
            world.hold(self._me)
        if len(gathering.tasks) == self.size - len(self._failures.failed):
            world.finish(self._group, (task.space, turn))
        answer = yield
        if world.events is not None:
            self._record(what, begin, -1, size)
        return answer

    def _record(self, label: str, begin: float, peer: int, size: int, end: float | None = None) -> None:
        task = self._world.running
        end = task.time if end is None else end
        peer = -1 if peer < 0 else self._members[peer]
        self._world.events[self._me].append(  # type: ignore[index]
            (task.number, label, round(begin * 1e9), round(end * 1e9), peer, size)
        )
