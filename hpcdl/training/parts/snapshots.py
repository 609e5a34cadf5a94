"""Ranks without common steps: a counter assigns their steps, and copies of parameters are tested after the end."""

from collections.abc import AsyncIterator
from functools import partial
from operator import itruediv
from typing import Final, Literal, NamedTuple

import numpy as np

from hpcdl.fabric.comm import Array, Comm
from hpcdl.training.parts.journal import Moment
from hpcdl.training.parts.mesh import holders
from hpcdl.training.parts.session import Session


async def share_statistics(comm: Comm, session: Session, *, worked: bool) -> None:
    """Set the running statistics of all ranks to the mean over the ranks that ``worked``."""
    state = session.replica.state
    if state.size:
        if not worked:
            state[:] = 0
        workers = np.array([float(worked)])
        await comm.native("allreduce", state)
        await comm.native("allreduce", workers)
        await comm.compute("evaluation", partial(itruediv, state, float(workers[0])))


class _Snapshot(NamedTuple):
    moment: Moment
    start: int
    vector: Array


class Snapshots:
    """Snapshots of one rank, so that evaluations do not interrupt training.

    A rank copies its parameters when an evaluation is due by its own count of steps. After training all ranks test
    the copies together. They do not count as memory of the training. A worker without parameters calls only
    :meth:`note_progress`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._taken: list[_Snapshot] = []
        self._statistics: dict[int, Array] = {}
        """Running statistics, by the number of evaluations that were due."""
        self._considered = 0
        """Global batches up to which :meth:`take_due` has taken snapshots."""
        session.journal.begin()

    def take(self, steps: int, vector: Array, start: int = 0) -> None:
        """Copy ``vector``, parameters from ``start`` on, after ``steps`` batches, in place of an earlier copy."""
        self.note_progress(steps)
        session = self._session
        if self._taken and self._taken[-1].moment.steps == steps:
            self._taken.pop()
        moment = session.journal.moment()._replace(steps=steps)
        self._taken.append(_Snapshot(moment, start, vector.copy()))

    def take_due(self, until: int, vector: Array) -> None:
        """Take a snapshot of ``vector`` for each evaluation due since the last call, up to ``until`` batches."""
        for steps in range(self._considered + 1, until + 1):
            if self._session.evaluation.due(steps):
                self.take(steps, vector)
        self._considered = max(self._considered, until)

    def note_progress(self, steps: int) -> None:
        """Copy the running statistics if an evaluation has become due within ``steps`` global batches."""
        due = self._session.evaluation.within(steps)
        if due > max(self._statistics, default=0):
            self._statistics[due] = self._session.replica.state.copy()

    async def evaluate(
        self, comm: Comm, combine: Literal["average", "sum"] = "average", *, worked: bool = True
    ) -> Array:
        """Test the snapshots of all ranks, in the order in which they were taken; return the last parameters.

        ``"average"``: test the average of the ranks' vectors, and record their distance from it. ``"sum"``: each
        rank has a part of the parameters, or none. The moment is that of the last rank. Of more snapshots than
        another rank has, the first are left out. Running statistics are the mean over the ranks that ``worked``;
        the last snapshot is tested with the present ones. Collective; one rank at least must have a snapshot.
        """
        session, ranks = self._session, holders(comm, self._session.group)
        taken = np.zeros(comm.size, np.int64)
        taken[comm.rank] = len(self._taken)
        await comm.native("allreduce", taken)
        number = int(taken[taken > 0].min())
        moments = np.zeros((comm.size, number, 2), np.int64)
        snapshots: list[_Snapshot | None] = [*self._taken[-number:]] if self._taken else [None] * number
        moments[comm.rank] = [snapshot.moment if snapshot else (0, 0) for snapshot in snapshots]
        flat = moments.reshape(-1)
        await comm.native("allreduce", flat)
        parameters, state = session.replica.parameters.copy(), session.replica.state
        now = state.copy()
        for snapshot, (steps, training_ns) in zip(snapshots, moments.max(axis=0), strict=True):
            number -= 1
            due = session.evaluation.within(steps)
            known = (copy for count, copy in self._statistics.items() if count >= due)
            state[:] = next(known, now) if number else now
            await share_statistics(ranks, session, worked=worked)
            parameters[:] = 0
            if snapshot is not None:
                parameters[snapshot.start : snapshot.start + snapshot.vector.size] = snapshot.vector
            moment = Moment(int(steps), int(training_ns))
            if combine == "average":
                await session.evaluation.test_average(comm, moment.steps, parameters, at=moment)
            else:
                await ranks.native("allreduce", parameters)
                await session.evaluation.test(comm, moment.steps, parameters=parameters, at=moment)
        if combine == "average":
            await comm.native("allreduce", parameters)
            await comm.compute("evaluation", partial(itruediv, parameters, comm.size))
        return parameters


_REQUEST: Final = 254
_ANSWER: Final = 255
"""Tags, in the tag space that all main programs share."""
COUNTER_RANK: Final = 0
"""Rank that runs :func:`assign_steps`."""


async def assign_steps(comm: Comm, steps: int, workers: int, *, ramp: int = 0) -> None:
    """Answer requests with the step numbers 0 to ``steps`` - 1, then send -1 once to each of ``workers`` ranks.

    In the first ``ramp`` steps the number of ranks that get steps rises evenly from 1, rank 0, to ``workers``.
    Rank :data:`COUNTER_RANK` starts this program with shared tags.
    """
    nothing = np.empty(0, np.int64)
    waiting: list[int] = []
    for number in [*range(steps), *[-1] * workers]:
        admitted = workers if number < 0 or number >= ramp else 1 + number * (workers - 1) // ramp
        while not (ready := [rank for rank in waiting if rank < admitted or admitted == workers]):
            waiting.append((await comm.recv(nothing, tag=_REQUEST)).source)
        waiting.remove(ready[0])
        await comm.send(np.array([number]), ready[0], _ANSWER)


async def numbered_steps(comm: Comm) -> AsyncIterator[tuple[int, int]]:
    """Yield own count and number of this rank's steps, in rising order, until all steps are assigned.

    The next number is requested during each step. A rank makes every step that it is assigned.
    """
    own, following = 0, comm.start(_request(comm), shared_tags=True)
    while (number := await following) >= 0:
        following = comm.start(_request(comm), shared_tags=True)
        yield own, number
        own += 1


async def _request(comm: Comm) -> int:
    answer = np.zeros(1, np.int64)
    await comm.send(answer[:0], COUNTER_RANK, _REQUEST)
    await comm.recv(answer, COUNTER_RANK, _ANSWER)
    return int(answer[0])
