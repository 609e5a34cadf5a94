"""All ranks in one process, under one clock: who waits for what, and who goes on next.

Everything that wants to go on waits in one queue, earliest first. What "early" means is the clock's business:
a random number makes a seeded interleaving (:mod:`hpcdl.fabric.inprocess`), virtual seconds make a simulation
(:mod:`hpcdl.fabric.simulated`).
"""

from __future__ import annotations

import gc
from collections import defaultdict
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from hpcdl.fabric.comm import ANY, Event, PeerLost
from hpcdl.fabric.failure import Died, Losses
from hpcdl.fabric.matching import Mailbox
from hpcdl.fabric.scratch import Scratch
from hpcdl.fabric.shared_memory import OneProcess
from hpcdl.fabric.task import DEPTHS, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from hpcdl.fabric.comm import Comm

T = TypeVar("T")


SELDOM: Final = (1_000_000, 100, 1000)
"""When cycles of garbage are looked for: tasks come by the million and make none, and looking took a third."""


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


class Group:
    """The members of a communicator: ranks of the world in order, and how deep it was split off."""

    __slots__ = ("depth", "gatherings", "losses", "mailboxes", "members")

    def __init__(self, members: tuple[int, ...], depth: int) -> None:
        if depth >= DEPTHS:
            raise ValueError(f"communicators split more than {DEPTHS} deep")
        self.members = members
        self.depth = depth
        self.mailboxes: defaultdict[int, Mailbox] = defaultdict(Mailbox)
        self.gatherings: dict[tuple[int, int], Gathering] = {}
        self.losses = Losses(members)


class Gathering:
    """A collective that waits for its last rank."""

    __slots__ = ("finish", "given", "size", "tasks", "what")

    def __init__(self, what: str, size: int, finish: Callable[[dict[int, Any]], dict[int, Any]]) -> None:
        self.what = what
        self.size = size
        self.finish = finish
        """What everybody gave to what everybody gets."""
        self.tasks: dict[int, Task[Any]] = {}
        self.given: dict[int, Any] = {}


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    usual = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class World:
    """``ranks`` ranks under a ``clock``; ``seen_by`` makes what a rank, the third argument, sees of a group.

    ``messages`` and ``bytes`` count what each rank has sent, native collectives apart. With ``events`` (a list
    for each rank) every operation is noted as (task, label, begin ns, end ns, peer, bytes).
    """

    def __init__(
        self,
        ranks: int,
        clock: Clock,
        seen_by: Callable[[World, Group, int], Comm],
        events: list[list[Event]] | None = None,
    ) -> None:
        self.ranks = ranks
        self.clock = clock
        self.seen_by = seen_by
        self.events = events
        self.messages = [0] * ranks
        self.bytes = [0] * ranks
        self.now = 0.0
        self.running: Task[Any] = None  # type: ignore[assignment]
        self.groups: list[Group] = []
        self.scratch = Scratch()
        self.memory = OneProcess()
        # who goes on at which moment; equal ranks act at equal times, so moments are far fewer than tasks
        self._agenda: dict[float, list[Task[Any]]] = {}
        self._moments: list[float] = []
        self._unfinished: list[set[Task[Any]]] = [set() for _ in range(ranks)]
        self._under_way = 0
        self._launched = [0] * ranks
        self._end = 0.0
        self._failed: list[Task[Any]] = []
        self._held: dict[int, list[Task[Any]]] = {}

    def run(self, program: Callable[[Comm], Coroutine[Any, Any, T]]) -> list[T]:
        """Run ``program(comm)`` on every rank and return what each returned.

        Raises Deadlock, PeerLost, or what a program raised.
        """
        everybody = self.group(tuple(range(self.ranks)), 0)
        self._launched = [0] * self.ranks
        comms = [self.seen_by(self, everybody, rank) for rank in range(self.ranks)]
        mains = [self.launch(Task(program(comm)), comm.rank, self.now) for comm in comms]
        with _collecting_seldom():
            try:
                self._go_on()
            finally:
                for tasks in self._unfinished:
                    for task in tasks:
                        task.coroutine.close()
        self.now = max(self.now, self._end)
        self._complain([*mains, *self._failed])
        return [main.result for main in mains]  # type: ignore[misc]

    def _go_on(self) -> None:
        """Take up what is due, moment by moment, until nobody has anything to do."""
        while self._under_way:
            if not self._moments:
                self._stuck()
            self.now = heappop(self._moments)
            for task in self._agenda.pop(self.now):
                if self._held and task.rank in self._held:
                    self._held[task.rank].append(task)
                else:
                    self._resume(task)

    def group(self, members: tuple[int, ...], depth: int) -> Group:
        """Make a group known, so that a deadlock report sees its mailboxes."""
        group = Group(members, depth)
        self.groups.append(group)
        return group

    def launch(self, task: Task[T], rank: int, when: float) -> Task[T]:
        """Put a program into the queue, to begin at ``when``."""
        task.rank = rank
        task.time = when
        task.answer = task.thrown = None
        task.number = self._launched[rank]
        self._launched[rank] += 1
        self._unfinished[rank].add(task)
        self._under_way += 1
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
            self.wake(task, max(when, task.time))

    def finish(self, group: Group, turn: tuple[int, int]) -> None:
        """End a collective for which all have come that are to come."""
        gathering = group.gatherings.pop(turn)
        answers = gathering.finish(gathering.given)
        collective = gathering.what.removeprefix("native ").replace("survivors", "split")
        when = self.clock.native(self.now, collective, len(group.members), gathering.size)
        for rank, waiting in gathering.tasks.items():
            waiting.answer = answers[rank]
            self.release(waiting.rank, when)
            self.wake(waiting, when)

    def _bury(self, rank: int) -> None:
        """End all programs of ``rank``; tell those who wait for it."""
        for task in self._unfinished[rank]:
            task.done = True
            task.coroutine.close()
        self._under_way -= len(self._unfinished[rank])
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
                        self.release(task.rank, self.now)
                        self._tell(task, PeerLost(rank), group)
                elif len(gathering.tasks) == len(group.members) - len(group.losses.dead):
                    self.finish(group, turn)

    def _tell(self, task: Task[Any], loss: PeerLost, group: Group) -> None:
        """Let ``task`` go on with an exception in the place of what it waited for."""
        for mailbox in group.mailboxes.values():
            mailbox.forget(task)
        task.thrown = loss
        self.wake(task, max(self.now, task.time))

    def _resume(self, task: Task[Any]) -> None:
        """Let ``task`` run to its next question."""
        if task.done:  # its rank has died
            return
        self.running = task
        task.time = self.now
        try:
            if task.thrown is None:
                asked = task.coroutine.send(task.answer)
            else:
                thrown, task.thrown = task.thrown, None
                asked = task.coroutine.throw(thrown)
        except StopIteration as stop:
            task.result = stop.value
        except Died:
            self._bury(task.rank)
        except Exception as error:  # noqa: BLE001 - handed to whoever joins, or raised by run()
            task.error = error
            self._failed.append(task)
        else:
            if asked is not None:
                asked.waiters += (task,)
            return
        if task.time > self.now:  # after arithmetic
            self._end = max(self._end, task.time)
        if not task.done:  # otherwise its rank has just died
            task.done = True
            self._unfinished[task.rank].remove(task)
            self._under_way -= 1
        for waiter in task.waiters:
            waiter.answer = None
            self.wake(waiter, max(task.time, waiter.time))

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
                    rank = post.task.rank
                    lines.append((rank, f"rank {rank} {doing} {post}"))
                    if post.peer != ANY and not self._unfinished[group.members[post.peer]]:
                        self._tell(post.task, PeerLost(group.members[post.peer], lines[-1][1]), group)
                        return
            for gathering in group.gatherings.values():
                missing = [m for i, m in enumerate(group.members) if i not in gathering.tasks]
                for task in gathering.tasks.values():
                    rank = task.rank
                    lines.append((rank, f"rank {rank} is in {gathering.what}; ranks {missing} have not called it"))
        raise Deadlock("deadlock: no rank can go on\n  " + "\n  ".join(line for _, line in sorted(lines)))
