"""Ranks as coroutines of one process: what the in-process and the simulated interpreter share.

Everything that wants to go on waits in one queue, earliest first. What "early" means is the clock's business:
a random number makes a seeded interleaving (:mod:`hpcdl.fabric.inprocess`), virtual seconds make a simulation
(:mod:`hpcdl.fabric.simulated`). Sends are rendezvous: they return when their receive has the data.
"""

from __future__ import annotations

import types
from collections import defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from hpcdl.fabric.collectives import COLLECTIVES, collectively
from hpcdl.fabric.comm import (
    ANY,
    DEPTHS,
    Array,
    Event,
    PeerLost,
    Phantom,
    Scratch,
    Status,
    Task,
    check_address,
    check_exchange,
)
from hpcdl.fabric.failure import Died, Losses
from hpcdl.fabric.matching import Mailbox, Post, deliver
from hpcdl.fabric.shared_memory import OneProcess
from hpcdl.fabric.window import disseminate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Hashable, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    import numpy.typing as npt

    from hpcdl.fabric.comm import Comm, Memory

P = ParamSpec("P")
T = TypeVar("T")


class Deadlock(Exception):  # noqa: N818 - the standard term
    """No rank can go on. The message says who waits for whom, and for which message."""


class Clock(Protocol):
    """Says when things are over. Times are in seconds or in whatever orders the queue."""

    def message(self, now: float, source: int, dest: int, size: int) -> float:
        """A message of ``size`` bytes found its receive at ``now``: when do both ends go on?"""
        ...

    def native(self, now: float, collective: str, ranks: int, size: int) -> float:
        """The last of ``ranks`` called a collective of ``size`` bytes at ``now``: when do all go on?

        The collectives are those of :meth:`Comm.native`, and ``"split"``.
        """
        ...

    def add(self, now: float, rank: int, size: int) -> float:
        """``rank`` reduces ``size`` bytes from ``now`` on: until when?"""
        ...

    def compute(self, now: float, rank: int, label: str) -> float:
        """``rank`` does the work called ``label`` from ``now`` on: until when?"""
        ...


class _Place:
    """What the world keeps about a task."""

    __slots__ = ("answer", "rank", "thrown", "time", "waiting")

    def __init__(self, rank: int, time: float) -> None:
        self.rank = rank
        self.time = time
        self.answer: Any = None
        self.thrown: BaseException | None = None
        self.waiting = 0


class _Group:
    """The members of a communicator: ranks of the world in order, and how deep it was split off."""

    __slots__ = ("depth", "gatherings", "losses", "mailboxes", "members")

    def __init__(self, members: tuple[int, ...], depth: int) -> None:
        if depth >= DEPTHS:
            raise ValueError(f"communicators split more than {DEPTHS} deep")
        self.members = members
        self.depth = depth
        self.mailboxes: defaultdict[int, Mailbox] = defaultdict(Mailbox)
        self.gatherings: dict[tuple[int, int], _Gathering] = {}
        self.losses = Losses(members)


class _Gathering:
    """A collective that waits for its last rank."""

    __slots__ = ("finish", "given", "size", "tasks", "what")

    def __init__(self, what: str, size: int, finish: Callable[[dict[int, Any]], dict[int, Any]]) -> None:
        self.what = what
        self.size = size
        self.finish = finish
        """What everybody gave to what everybody gets."""
        self.tasks: dict[int, Task[Any]] = {}
        self.given: dict[int, Any] = {}


def _operation(generator: Callable[P, Generator[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """An ``async def`` whose body may yield to the world: half the cost of awaiting something that does."""
    return types.coroutine(generator)  # type: ignore[return-value]


class World:
    """``ranks`` ranks under a ``clock``.

    ``messages`` and ``bytes`` count what each rank has sent, native collectives apart. With ``events`` (a list
    for each rank) every operation is noted as (task, label, begin ns, end ns, peer, bytes).
    """

    def __init__(self, ranks: int, clock: Clock, events: list[list[Event]] | None = None) -> None:
        self.ranks = ranks
        self.clock = clock
        self.events = events
        self.messages = [0] * ranks
        self.bytes = [0] * ranks
        self.now = 0.0
        self.running: Task[Any] = None  # type: ignore[assignment]
        self.groups: list[_Group] = []
        self.scratch = Scratch()
        self.memory = OneProcess()
        # who goes on at which moment; equal ranks act at equal times, so moments are far fewer than tasks
        self._agenda: dict[float, list[Task[Any]]] = {}
        self._moments: list[float] = []
        self._unfinished: list[set[Task[Any]]] = [set() for _ in range(ranks)]
        self._launched = [0] * ranks
        self._end = 0.0
        self._failed: list[Task[Any]] = []
        self._held: dict[int, list[Task[Any]]] = {}

    def run(self, program: Callable[[CooperativeComm], Coroutine[Any, Any, T]]) -> list[T]:
        """Run ``program(comm)`` on every rank and return what each returned.

        Raises Deadlock, PeerLost, or what a program raised.
        """
        everybody = self.group(tuple(range(self.ranks)), 0)
        self._launched = [0] * self.ranks
        comms = [CooperativeComm(self, everybody, rank) for rank in range(self.ranks)]
        mains = [self.launch(Task(program(comm)), comm.rank, self.now) for comm in comms]
        unfinished = self._unfinished
        try:
            while any(unfinished):
                if not self._moments:
                    self._stuck()
                self.now = heappop(self._moments)
                for task in self._agenda.pop(self.now):
                    if self._held and task.place.rank in self._held:
                        self._held[task.place.rank].append(task)
                    else:
                        self._resume(task)
        finally:
            for tasks in unfinished:
                for task in tasks:
                    task.coroutine.close()
        self.now = max(self.now, self._end)
        self._complain([*mains, *self._failed])
        return [main.result for main in mains]  # type: ignore[misc]

    def group(self, members: tuple[int, ...], depth: int) -> _Group:
        """Make a group known, so that a deadlock report sees its mailboxes."""
        group = _Group(members, depth)
        self.groups.append(group)
        return group

    def launch(self, task: Task[T], rank: int, when: float) -> Task[T]:
        """Put a program into the queue, to begin at ``when``."""
        task.place = _Place(rank, when)
        task.number = self._launched[rank]
        self._launched[rank] += 1
        self._unfinished[rank].add(task)
        self.wake(task, when)
        return task

    def wake(self, task: Task[Any], when: float) -> None:
        """Let ``task`` go on at ``when``."""
        agenda = self._agenda
        if when in agenda:
            agenda[when].append(task)
        else:
            agenda[when] = [task]
            heappush(self._moments, when)

    def hold(self, rank: int) -> None:
        """Let nothing on ``rank`` go on: its main program is inside the library."""
        self._held[rank] = []

    def release(self, rank: int, when: float) -> None:
        """End a :meth:`hold` at ``when``, if there is one."""
        for task in self._held.pop(rank, ()):
            self.wake(task, max(when, task.place.time))

    def finish(self, group: _Group, turn: tuple[int, int]) -> None:
        """End a collective for which all have come that are to come."""
        gathering = group.gatherings.pop(turn)
        answers = gathering.finish(gathering.given)
        collective = gathering.what.removeprefix("native ").replace("survivors", "split")
        when = self.clock.native(self.now, collective, len(group.members), gathering.size)
        for rank, waiting in gathering.tasks.items():
            waiting.place.answer = answers[rank]
            self.release(waiting.place.rank, when)
            self.wake(waiting, when)

    def _bury(self, rank: int) -> None:
        """End all programs of ``rank``; tell those who wait for it."""
        for task in self._unfinished[rank]:
            task.done = True
            task.coroutine.close()
        self._unfinished[rank].clear()
        for group in self.groups:
            if rank not in group.members:
                continue
            group.losses.dead.append(group.members.index(rank))
            for mailbox in list(group.mailboxes.values()):
                for task, loss in group.losses.withdraw(mailbox):
                    self._tell(task, loss, group)
            for turn, gathering in list(group.gatherings.items()):
                gathering.tasks.pop(group.losses.dead[-1], None)
                if gathering.what != "survivors":
                    del group.gatherings[turn]
                    for task in gathering.tasks.values():
                        self.release(task.place.rank, self.now)
                        self._tell(task, PeerLost(rank), group)
                elif len(gathering.tasks) == len(group.members) - len(group.losses.dead):
                    self.finish(group, turn)

    def _tell(self, task: Task[Any], loss: PeerLost, group: _Group) -> None:
        """Let ``task`` go on with an exception in the place of what it waited for."""
        for mailbox in group.mailboxes.values():
            mailbox.forget(task)
        task.place.thrown = loss
        self.wake(task, max(self.now, task.place.time))

    def _resume(self, task: Task[Any]) -> None:
        """Let ``task`` run to its next question."""
        if task.done:  # its rank has died
            return
        self.running = task
        place: _Place = task.place
        place.time = self.now
        try:
            if place.thrown is None:
                asked = task.coroutine.send(place.answer)
            else:
                thrown, place.thrown = place.thrown, None
                asked = task.coroutine.throw(thrown)
        except StopIteration as stop:
            task.result = stop.value
        except Died:
            self._unfinished[place.rank].discard(task)
            self._bury(place.rank)
        except Exception as error:  # noqa: BLE001 - handed to whoever joins, or raised by run()
            task.error = error
            self._failed.append(task)
        else:
            if asked is not None:
                asked.waiters.append(task)
            return
        task.done = True
        self._end = max(self._end, place.time)  # after arithmetic its own time is ahead of the world's
        self._unfinished[place.rank].discard(task)
        for waiter in task.waiters:
            waiter.place.answer = None
            self.wake(waiter, max(place.time, waiter.place.time))

    def _complain(self, tasks: list[Task[Any]]) -> None:
        for task in tasks:
            if task.error is not None and not task.joined:
                raise task.error

    def _stuck(self) -> None:
        """Nobody can go on: raise a failure, tell one whose peer has ended, or report the deadlock."""
        self._complain(self._failed)
        lines = []
        for group in self.groups:
            for mailbox in group.mailboxes.values():
                for doing, post in mailbox.posts():
                    place: _Place = post.task.place
                    lines.append((place.rank, f"rank {place.rank} {doing} {post}"))
                    if post.peer != ANY and not self._unfinished[group.members[post.peer]]:
                        self._tell(post.task, PeerLost(group.members[post.peer], lines[-1][1]), group)
                        return
            for gathering in group.gatherings.values():
                missing = [m for i, m in enumerate(group.members) if i not in gathering.tasks]
                for task in gathering.tasks.values():
                    rank = task.place.rank
                    lines.append((rank, f"rank {rank} is in {gathering.what}; ranks {missing} have not called it"))
        raise Deadlock("deadlock: no rank can go on\n  " + "\n  ".join(line for _, line in sorted(lines)))


class CooperativeComm:
    """A :class:`hpcdl.fabric.comm.Comm` of a :class:`World`."""

    def __init__(self, world: World, group: _Group, rank: int) -> None:
        self.rank = rank
        self.size = len(group.members)
        self.kept: dict[Hashable, Task[Comm]] = {}
        self._world = world
        self._group = group
        self._mailboxes = group.mailboxes
        self._losses = group.losses
        self._members = group.members
        self._me = group.members[rank]
        self._gathered: dict[int, int] = {}

    @_operation
    def send(self, buffer: Array, dest: int, tag: int = 0) -> Generator[None, Any, None]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        check_address(dest, tag, self.size)
        world = self._world
        place: _Place = world.running.place
        if place.time > world.now:
            world.wake(world.running, place.time)
            yield
        if self._losses.dead:
            self._check_alive(dest)
        begin = world.now
        place.waiting = 1
        self._post_send(buffer, dest, tag)
        yield
        if world.events is not None:
            self._record("send", begin, dest, buffer.nbytes)

    @_operation
    def recv(self, buffer: Array, source: int = ANY, tag: int = ANY) -> Generator[None, Any, Status]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        check_address(source, tag, self.size, ANY)
        world = self._world
        place: _Place = world.running.place
        if place.time > world.now:
            world.wake(world.running, place.time)
            yield
        if self._losses.dead:
            self._check_alive(source)
        begin = world.now
        place.waiting = 1
        self._post_receive(buffer, source, tag)
        status: Status = yield
        if world.events is not None:
            self._record("recv", begin, status.source, status.count * buffer.itemsize)
        return status

    @_operation
    def exchange(
        self, outgoing: Array, dest: int, incoming: Array, source: int, tag: int = 0
    ) -> Generator[None, Any, Status]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        check_exchange(dest, source, tag, self.size)
        world = self._world
        place: _Place = world.running.place
        if place.time > world.now:
            world.wake(world.running, place.time)
            yield
        if self._losses.dead:
            self._check_alive(dest, source)
        begin = world.now
        place.waiting = 2
        self._post_receive(incoming, source, tag)
        self._post_send(outgoing, dest, tag)
        status: Status = yield
        if world.events is not None:
            self._record("exchange", begin, dest, outgoing.nbytes)
        return status

    async def add(self, into: Array, addend: Array) -> None:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        if type(into) is not Phantom:
            into += addend
        world = self._world
        place: _Place = world.running.place
        begin = place.time
        # nobody else can see this rank's arithmetic: its own time goes ahead, the world's stays
        place.time = world.clock.add(begin, self._me, into.nbytes)
        if world.events is not None:
            self._record("add", begin, -1, into.nbytes)

    @_operation
    def compute(self, label: str, work: Callable[[], T]) -> Generator[None, Any, T]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        world = self._world
        place: _Place = world.running.place
        begin = place.time
        result = work()
        world.wake(world.running, world.clock.compute(begin, self._me, label))
        yield
        if world.events is not None:
            self._record(label, begin, -1, 0)
        return result

    def start(self, work: Coroutine[Any, Any, T], *, shared_tags: bool = False) -> Task[T]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        world = self._world
        task = world.running.starts(work, self, self._group.depth, shared_tags=shared_tags)
        return world.launch(task, self._me, world.running.place.time)  # after its starter's arithmetic

    async def split(self, color: int, key: int = 0) -> CooperativeComm:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        group = self._group

        def finish(given: dict[int, tuple[int, int]]) -> dict[int, Any]:
            answers = {}
            for wanted in {c for c, _ in given.values()}:
                order = [r for _, r in sorted((k, r) for r, (c, k) in given.items() if c == wanted)]
                part = self._world.group(tuple(group.members[r] for r in order), group.depth + 1)
                answers.update({old: CooperativeComm(self._world, part, new) for new, old in enumerate(order)})
            return answers

        return await self._gather("split", (color, key), 0, finish)  # type: ignore[no-any-return]

    async def survivors(self) -> CooperativeComm:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        group = self._group

        def finish(given: dict[int, None]) -> dict[int, Any]:
            if not group.losses.dead:
                return given
            living = sorted(given)
            part = self._world.group(tuple(group.members[rank] for rank in living), group.depth)
            return {old: CooperativeComm(self._world, part, new) for new, old in enumerate(living)}

        return await self._gather("survivors", None, 0, finish) or self

    async def native(self, collective: str, buffer: Array, counts: Sequence[int] = ()) -> None:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        if collective not in COLLECTIVES:
            raise ValueError(f"no native collective {collective!r}")

        def finish(given: dict[int, Array]) -> dict[int, Any]:
            if type(buffer) is not Phantom:
                collectively(collective, [given[rank] for rank in range(self.size)], counts)
            return dict.fromkeys(given)

        await self._gather(f"native {collective}", buffer, buffer.nbytes, finish)

    def scratch(self, size: int, like: Array) -> AbstractContextManager[Array]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        return self._world.scratch.borrow(size, like)

    @property
    def memory(self) -> Memory:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        return self._world.memory

    def lend(self, like: Array) -> AbstractContextManager[Array]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        return self._world.scratch.borrow(like.size, like)

    async def meet(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        return await disseminate(self, words)

    @_operation
    def get(self, into: Array, theirs: Array, peer: int) -> Generator[None, Any, None]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        world = self._world
        place: _Place = world.running.place
        if place.time > world.now:
            world.wake(world.running, place.time)
            yield
        begin = world.now
        if type(into) is not Phantom:
            into[:] = theirs
        if peer != self.rank:
            world.wake(world.running, world.clock.message(begin, self._members[peer], self._me, into.nbytes))
            yield
        if world.events is not None:
            self._record("get", begin, peer, into.nbytes)

    def _check_alive(self, *peers: int) -> None:
        loss = self._losses.of(peers, self.rank, started=self._world.running.space != 0)
        if loss is not None:
            raise loss

    def _post_send(self, buffer: Array, dest: int, tag: int) -> None:
        task = self._world.running
        send = Post(task, self.rank, dest, tag, buffer)
        address = task.space * self.size + dest
        mailbox = self._mailboxes[address]
        if not mailbox.receives:
            mailbox.hold_send(send)
            return
        receive = mailbox.take_receive(send)
        if receive is not None:
            self._meet(send, receive)
            self._tidy(address, mailbox)

    def _post_receive(self, buffer: Array, source: int, tag: int) -> None:
        task = self._world.running
        receive = Post(task, self.rank, source, tag, buffer)
        address = task.space * self.size + self.rank
        mailbox = self._mailboxes[address]
        if not mailbox.sends:
            mailbox.hold_receive(receive)
            return
        send = mailbox.take_send(receive)
        if send is not None:
            self._meet(send, receive)
            self._tidy(address, mailbox)

    def _tidy(self, address: int, mailbox: Mailbox) -> None:
        """Drop a started program's mailbox: a training run starts programs by the million."""
        if address >= self.size and not mailbox.sends and not mailbox.receives:
            del self._mailboxes[address]

    def _meet(self, send: Post, receive: Post) -> None:
        outgoing = send.buffer
        if type(receive.buffer) is not Phantom:
            deliver(send, receive)
        world = self._world
        source = self._members[send.rank]
        size = outgoing.nbytes
        world.messages[source] += 1
        world.bytes[source] += size
        when = world.clock.message(world.now, source, self._members[receive.rank], size)
        place: _Place = receive.task.place
        # what Status(...) does, at half its cost; a large simulation does little else
        place.answer = tuple.__new__(Status, (send.rank, send.tag, outgoing.size))
        place.waiting -= 1
        place.time = max(place.time, when)
        if not place.waiting:
            world.wake(receive.task, place.time)
        place = send.task.place
        place.waiting -= 1
        place.time = max(place.time, when)
        if not place.waiting:
            world.wake(send.task, place.time)

    @_operation
    def _gather(
        self, what: str, given: Any, size: int, finish: Callable[[dict[int, Any]], dict[int, Any]]
    ) -> Generator[None, Any, Any]:
        """Wait for all ranks' ``given``; the last one turns them into each rank's answer."""
        world = self._world
        task = world.running
        world.wake(task, task.place.time)
        yield
        begin = world.now
        turn = self._gathered[task.space] = self._gathered.get(task.space, 0) + 1
        if self._losses.dead and what != "survivors":
            self._check_alive(*range(self.size))
        gathering = self._group.gatherings.setdefault((task.space, turn), _Gathering(what, size, finish))
        if gathering.what != what:
            raise ValueError(f"rank {self._me} calls {what} where others call {gathering.what}")
        gathering.tasks[self.rank] = task
        gathering.given[self.rank] = given
        if what not in ("split", "survivors", "native nonblocking allreduce") and task.space == 0:
            world.hold(self._me)
        if len(gathering.tasks) == self.size - len(self._losses.dead):
            world.finish(self._group, (task.space, turn))
        answer = yield
        if world.events is not None:
            self._record(what, begin, -1, size)
        return answer

    def _record(self, label: str, begin: float, peer: int, size: int) -> None:
        task = self._world.running
        end = task.place.time
        self._world.events[self._me].append(  # type: ignore[index]
            (task.number, label, round(begin * 1e9), round(end * 1e9), peer, size)
        )
