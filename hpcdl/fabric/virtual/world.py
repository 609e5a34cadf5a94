"""All ranks in one process under one clock: the engine of the in-process and of the simulated interpreter.

All tasks that can go on wait in one queue, earliest first. The clock defines the times.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf
from operator import itemgetter
from typing import Final, Protocol, TypeVar

from hpcdl.fabric.comm import ANY, Array, Comm, Event, PeerLost, Status
from hpcdl.fabric.faults import RankFailed
from hpcdl.fabric.shared_memory import OneProcess
from hpcdl.fabric.task import AnyTask, Program, Task
from hpcdl.fabric.vectors import BufferPool, Phantom
from hpcdl.fabric.virtual.flows import Flows
from hpcdl.fabric.virtual.groups import Group, deliver
from hpcdl.fabric.virtual.shifts import Shifts

T = TypeVar("T")

SELDOM: Final = (1_000_000, 100, 1000)
"""Thresholds of the garbage collector: tasks come by the million without cycles, and collecting took a third."""

_order: Final = itemgetter(0)


class Deadlock(Exception):  # noqa: N818 - the standard term
    """No rank can go on. The error message lists the ranks that wait, their peers and their messages."""


class Clock(Protocol):
    """Completion times of operations, in seconds or in any unit that orders the queue."""

    bytes_between_hosts: int
    """Sum over all messages so far, without a topology."""

    @property
    def places(self) -> Sequence[int]:
        """Number of each rank among those that share a port with it."""

    def message(self, now: float, source: int, dest: int, size: int, asked: float) -> float:
        """Return when a message of ``size`` bytes completes whose send and receive have met at ``now``.

        ``asked``: when its sender was ready.
        """

    def native(self, now: float, collective: str, members: Sequence[int], size: int) -> float:
        """Return when a collective of ``size`` bytes completes that the last of ``members`` has called at ``now``.

        The collectives are those of :meth:`Comm.native`, and ``"split"``.
        """

    def apply(self, now: float, rank: int, label: str, touched_bytes: int) -> float:
        """Return when ``rank`` completes arithmetic called ``label`` on so many bytes that begins at ``now``."""

    def compute(self, now: float, rank: int, label: str) -> float:
        """Return when ``rank`` completes work called ``label`` that begins at ``now``."""


class World:
    """``ranks`` ranks under a ``clock``; ``make_comm(world, group, rank)`` makes a rank's communicator.

    ``messages`` and ``bytes`` count what each rank has sent, without native collectives. With ``events``, a list
    for each rank, every operation is recorded as (task, label, begin ns, end ns, peer, bytes). With ``flows``
    messages share links, and the clock is not asked for them. With ``shifts`` only the representatives run.
    """

    def __init__(
        self,
        ranks: int,
        clock: Clock,
        make_comm: Callable[[World, Group, int], Comm],
        events: list[list[Event]] | None = None,
        flows: Flows | None = None,
        shifts: Shifts | None = None,
    ) -> None:
        self.flows = flows
        self.shifts = shifts
        self.simulated = range(ranks) if shifts is None else shifts.representatives
        """Ranks whose programs run."""
        self.ranks = ranks
        self.clock = clock
        self.make_comm = make_comm
        self.events = events
        self.done = 0
        """Hash of the messages and the ends of the representatives' programs, equal for those of equal hosts."""
        self.messages = [0] * ranks
        self.bytes = [0] * ranks
        self.now = 0.0
        self.running: AnyTask = None  # type: ignore[assignment]
        self.groups: list[Group] = []
        self.scratch = BufferPool()
        self.memory = OneProcess()
        # tasks by the time at which they go on; equal ranks act at equal times, so times are far fewer than tasks
        self._agenda: dict[float, list[AnyTask]] = {}
        self._moments: list[float] = []
        self._unfinished: list[set[AnyTask]] = [set() for _ in range(ranks)]
        self._under_way = 0
        self._matched: list[tuple[tuple[int, ...], int, AnyTask, AnyTask]] = []
        """Messages that begin at this moment: order, bytes, receiver and sender."""
        self._end = 0.0
        self._failed: list[AnyTask] = []
        self._held: dict[int, list[AnyTask]] = {}

    def run(self, program: Callable[[Comm], Program[T]]) -> list[T]:
        """Run ``program(comm)`` on every rank and return the results in the order of ranks.

        Raises Deadlock, PeerLost, AsymmetryError, or the error of a program.
        """
        group = self.group(tuple(range(self.ranks)), 0)
        self._launched = [0] * self.ranks
        if self.shifts is not None:
            group.places = {rank: (group, rank) for rank in range(self.ranks)}
        comms = [self.make_comm(self, group, rank) for rank in self.simulated]
        mains = [self.launch(Task(program(comm)), comm.rank, self.now) for comm in comms]
        usual = gc.get_threshold()
        gc.set_threshold(*SELDOM)
        try:
            self._run_moments()
        finally:
            gc.set_threshold(*usual)
            for tasks in self._unfinished:
                for task in tasks:
                    task.coroutine.close()
        self.now = max(self.now, self._end)
        self._raise_errors([*mains, *self._failed])
        return [main.result for main in mains]  # type: ignore[misc]

    def _run_moments(self) -> None:
        """Resume the tasks that are due, moment by moment, until none is left."""
        flows, moments = self.flows, self._moments
        while self._under_way:
            if flows is not None and flows.next < inf and not (moments and moments[0] < flows.next):
                self.now = flows.next
                for receiving, sending in flows.advance(self.now):
                    self._arrive(self.now, receiving, sending)
                continue
            if not moments:
                self._raise_deadlock()
            now = self.now = heappop(moments)
            for task in self._agenda.pop(now):
                if self._held and task.rank in self._held:
                    self._held[task.rank].append(task)
                elif not task.done:  # its rank has not failed
                    self.running = task
                    task.time = now
                    try:
                        if task.thrown is None:
                            asked = task.coroutine.send(task.answer)
                        else:
                            thrown, task.thrown = task.thrown, None
                            asked = task.coroutine.throw(thrown)
                    except BaseException as ending:  # noqa: BLE001 - raised where the task is awaited, or by run()
                        self._end_task(task, ending)
                    else:
                        if asked is not None:
                            asked.waiters += (task,)
            if self._matched:
                self._begin_messages()

    def group(self, members: tuple[int, ...], depth: int) -> Group:
        """Make a group; deadlock reports read the mailboxes of all groups."""
        group = Group(members, depth)
        self.groups.append(group)
        return group

    def divided(
        self, group: Group, color: Callable[[int], int], division: Hashable
    ) -> dict[int, tuple[Group, int]]:
        """Return the group of equal ``color``, and the rank in it, of each member of ``group``; made once."""
        places = group.divisions.get(division)
        if places is None:
            parts: dict[int, list[int]] = {}
            for rank, member in enumerate(group.members):
                parts.setdefault(color(rank), []).append(member)
            places = group.divisions[division] = {}
            for members in parts.values():
                part = self.group(tuple(members), group.depth + 1)
                part.places = places
                places.update({member: (part, rank) for rank, member in enumerate(members)})
            if self.shifts is not None:
                self.shifts.check({member: part for member, (part, _) in places.items()})
        return places

    def launch(self, task: Task[T], rank: int, when: float) -> Task[T]:
        """Queue a program that begins at ``when``."""
        task.rank = rank
        task.time = when
        task.answer = task.thrown = None
        task.number = self._launched[rank]
        self._launched[rank] += 1
        self._unfinished[rank].add(task)
        self._under_way += 1
        self.wake(task, when)
        return task

    def wake(self, task: AnyTask, when: float) -> None:
        """Queue ``task`` to go on at ``when``."""
        due = self._agenda.get(when)
        if due is None:
            self._agenda[when] = [task]
            heappush(self._moments, when)
        else:
            due.append(task)

    def complete(
        self, sending: AnyTask, source: int, rank: int, tag: int, sent: Array, receiving: AnyTask, room: Array
    ) -> None:
        """Deliver a message of the rank ``source``, ``rank`` to its receiver, and set when both ends go on."""
        if type(room) is not Phantom:
            deliver(rank, sent, receiving.rank, room)
        status = receiving.answer
        if type(status) is not Status or status != (rank, tag, sent.size):  # most are those of the last message
            receiving.answer = Status(rank, tag, sent.size)
        size = sent.nbytes
        self.messages[sending.rank] += 1
        self.bytes[sending.rank] += size
        self.transfer(source, size, receiving, sending)

    def transfer(self, source: int, size: int, receiving: AnyTask, sending: AnyTask) -> None:
        """Move ``size`` bytes from the rank ``source`` to that of ``receiving``; both tasks wait for it."""
        dest, places = receiving.rank, self.clock.places
        if self.flows is None:
            order = (sending.number, places[source], receiving.number, places[dest], source, dest)
            self._matched.append((order, size, receiving, sending))
        else:
            self.flows.send(self.now, source, dest, size, (receiving, sending))

    def _begin_messages(self) -> None:
        """Begin the messages of a moment by task and place on the host: in one order on all equal hosts.

        In the order of ranks those of a last host, which meet at the first one, would take turns of their own.
        """
        matched, now, message = self._matched, self.now, self.clock.message
        if len(matched) > 1:
            matched.sort(key=_order)
        for order, size, receiving, sending in matched:
            source, dest = order[4:]
            if self.shifts is not None:
                self.done = hash((self.done, now, order[:4], self.shifts.peer(source, dest), size))
            self._arrive(message(now, source, dest, size, sending.time), receiving, sending)
        matched.clear()

    def _arrive(self, when: float, receiving: AnyTask, sending: AnyTask) -> None:
        receiving.arrived = sending.sent = when
        for task in (receiving, sending):
            task.waiting -= 1
            if task.time < when:  # noqa: PLR1730 - max() takes as long as the rest
                task.time = when
            if not task.waiting:
                self.wake(task, task.time)

    def hold(self, rank: int) -> None:
        """Stop all programs of ``rank``: its main program is inside the library."""
        self._held[rank] = []

    def release(self, rank: int, when: float) -> None:
        """End a :meth:`hold` at ``when``, if there is one."""
        for task in self._held.pop(rank, ()):
            self.wake(task, max(when, task.time))

    def finish(self, group: Group, turn: tuple[int, int]) -> None:
        """Complete a collective that all ranks have called which have not failed."""
        gathering = group.gatherings.pop(turn)
        answers = gathering.finish(gathering.given)
        collective = gathering.what.removeprefix("native ").replace("survivors", "split")
        when = self.clock.native(self.now, collective, group.members, gathering.size)
        for rank, waiting in gathering.tasks.items():
            waiting.answer = answers[rank]
            self.release(waiting.rank, when)
            self.wake(waiting, when)

    def _end_rank(self, rank: int) -> None:
        """End all programs of the failed ``rank``; raise PeerLost in the tasks that wait for it."""
        for task in self._unfinished[rank]:
            task.done = True
            task.coroutine.close()
        self._under_way -= len(self._unfinished[rank])
        self._unfinished[rank].clear()
        for group in self.groups:
            if rank not in group.members:
                continue
            group.failures.failed.append(group.members.index(rank))
            for mailbox in group.mailboxes():
                for task, loss in group.failures.withdraw(mailbox):
                    self._raise_in(task, loss, group)
            for turn, gathering in list(group.gatherings.items()):
                gathering.tasks.pop(group.failures.failed[-1], None)
                if gathering.what != "survivors":
                    del group.gatherings[turn]
                    for task in gathering.tasks.values():
                        self.release(task.rank, self.now)
                        self._raise_in(task, PeerLost(rank), group)
                elif len(gathering.tasks) == len(group.members) - len(group.failures.failed):
                    self.finish(group, turn)

    def _raise_in(self, task: AnyTask, loss: PeerLost, group: Group) -> None:
        """Let ``task`` go on with an exception from the operation that it waits in."""
        for mailbox in group.mailboxes():
            mailbox.forget(task)
        task.thrown = loss
        self.wake(task, max(self.now, task.time))

    def _end_task(self, task: AnyTask, ending: BaseException) -> None:
        """Keep the result or the error of a program, and wake the tasks that await it."""
        if isinstance(ending, StopIteration):
            task.result = ending.value
        elif isinstance(ending, RankFailed):
            self._end_rank(task.rank)
        elif isinstance(ending, Exception):
            task.error = ending
            self._failed.append(task)
        else:
            raise ending
        if task.time > self.now:  # after arithmetic
            self._end = max(self._end, task.time)
            task.wait_for_end = partial(self._wait_until, task.time)
        if self.shifts is not None:
            self.done = hash((self.done, task.time, self.clock.places[task.rank], task.number))
        if not task.done:  # otherwise its rank has just failed
            task.done = True
            self._unfinished[task.rank].remove(task)
            self._under_way -= 1
        for waiter in task.waiters:
            waiter.answer = None
            self.wake(waiter, max(task.time, waiter.time))

    def _wait_until(self, when: float) -> None:
        """Put the clock of the running program ahead to ``when``."""
        self.running.time = max(self.running.time, when)

    def _raise_errors(self, tasks: list[AnyTask]) -> None:
        for task in tasks:
            if task.error is not None and not task.joined:
                raise task.error

    def _raise_deadlock(self) -> None:
        """Raise a program's error, raise PeerLost in a task whose peer has ended, or raise Deadlock."""
        self._raise_errors(self._failed)
        lines = []
        for group in self.groups:
            for mailbox in group.mailboxes():
                for doing, post in mailbox.posts():
                    rank = post.task.rank
                    lines.append((rank, f"rank {rank} {doing} {post}"))
                    if post.peer != ANY and not self._unfinished[group.members[post.peer]]:
                        self._raise_in(post.task, PeerLost(group.members[post.peer], lines[-1][1]), group)
                        return
            for gathering in group.gatherings.values():
                missing = [m for i, m in enumerate(group.members) if i not in gathering.tasks]
                for task in gathering.tasks.values():
                    rank = task.rank
                    lines.append((rank, f"rank {rank} is in {gathering.what}; ranks {missing} have not called it"))
        raise Deadlock("deadlock: no rank can go on\n  " + "\n  ".join(line for _, line in sorted(lines)))
