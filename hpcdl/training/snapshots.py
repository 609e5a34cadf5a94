"""Parameters and running statistics as they were at moments of a training, tested when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from hpcdl.training.journal import Moment
from hpcdl.training.running_statistics import share_statistics

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.session import Session


class _Snapshot(NamedTuple):
    moment: Moment
    start: int
    vector: Array


class Snapshots:
    """What one rank keeps so that nobody is stopped for being measured.

    A rank takes a copy whenever an evaluation is due by its own count of steps; after the end all ranks
    test them together, outside the training's time. The copies are no part of the training, so they are not
    counted in its memory: one vector for each evaluation, and the running statistics of batch normalisation.

    Who keeps the parameters may see no images, and who sees images may keep no parameters: such a rank only says
    how far training is, :meth:`note`, and its statistics are kept as they are when it first knows that an
    evaluation is due.
    """

    def __init__(self, session: Session) -> None:
        """Call when training begins: moments count from here."""
        self._session = session
        self._taken: list[_Snapshot] = []
        self._statistics: dict[int, Array] = {}
        """By the evaluations that were due."""
        session.journal.begin()

    def take(self, steps: int, vector: Array, start: int = 0) -> None:
        """Copy ``vector``, which holds the parameters from number ``start`` on, after ``steps`` global batches.

        It replaces a copy that was taken after as many.
        """
        self.note(steps)
        session = self._session
        if self._taken and self._taken[-1].moment.steps == steps:
            self._taken.pop()
        moment = session.journal.moment()._replace(steps=steps)
        self._taken.append(_Snapshot(moment, start, vector.copy()))

    def note(self, steps: int) -> None:
        """Copy the running statistics, if an evaluation has become due by ``steps`` global batches."""
        turn = self._session.turn(steps)
        if turn > max(self._statistics, default=0):
            self._statistics[turn] = self._session.replica.state.copy()

    async def evaluate(
        self, comm: Comm, combine: Literal["average", "sum"] = "average", *, worked: bool = True
    ) -> Array:
        """Test what all ranks have taken, the first copies together and so on; return the last parameters.

        ``"average"``: of the vectors of all ranks, with their distance from it. ``"sum"``: each rank has some
        of the parameters, or none. The moment is the last rank's of those that took part; where ranks have taken
        unequally many, the first ones of those with more are left out. The running statistics are the mean of
        those that the ranks that ``worked`` had then; of the last one, which is of the end, what they have now.
        Collective; at least one rank has taken one.
        """
        session = self._session
        taken = np.zeros(comm.size, np.int64)
        taken[comm.rank] = len(self._taken)
        await comm.native("allreduce", taken)
        number = int(taken[taken > 0].min())
        moments = np.zeros((comm.size, number, 2), np.int64)
        mine: list[_Snapshot | None] = [*self._taken[-number:]] if self._taken else [None] * number
        moments[comm.rank] = [one.moment if one else (0, 0) for one in mine]
        flat = moments.reshape(-1)
        await comm.native("allreduce", flat)
        parameters, state = session.replica.parameters.copy(), session.replica.state
        now = state.copy()
        for one, (steps, training_ns) in zip(mine, moments.max(axis=0), strict=True):
            number -= 1
            state[:] = self._statistics_of(steps, now) if number else now
            await share_statistics(comm, session, worked=worked)
            parameters[:] = 0
            if one is not None:
                parameters[one.start : one.start + one.vector.size] = one.vector
            moment = Moment(int(steps), int(training_ns))
            if combine == "average":
                await session.evaluate_average(comm, moment.steps, parameters, at=moment)
            else:
                await comm.native("allreduce", parameters)
                await session.evaluate(comm, moment.steps, parameters=parameters, at=moment)
        if combine == "average":
            await comm.native("allreduce", parameters)
            parameters /= comm.size
        return parameters

    def _statistics_of(self, steps: int, now: Array) -> Array:
        due = self._session.turn(steps)
        return next((kept for turn, kept in self._statistics.items() if turn >= due), now)
