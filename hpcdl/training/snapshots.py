"""Parameters as they were at moments of the training, kept for the test set until training is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from hpcdl.training.journal import Moment

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
    counted in its memory: one vector for each evaluation.
    """

    def __init__(self, session: Session) -> None:
        """Call when training begins: moments count from here."""
        self._session = session
        self._taken: list[_Snapshot] = []
        session.journal.begin()

    def take(self, steps: int, vector: Array, start: int = 0) -> None:
        """Copy ``vector``, which holds the parameters from number ``start`` on, after ``steps`` global batches.

        It replaces a copy that was taken after as many.
        """
        session = self._session
        if self._taken and self._taken[-1].moment.steps == steps:
            self._taken.pop()
        moment = session.journal.moment()._replace(steps=steps)
        self._taken.append(_Snapshot(moment, start, vector.copy()))

    async def evaluate(self, comm: Comm, combine: Literal["average", "sum"] = "average") -> Array:
        """Test what all ranks have taken, the first copies together and so on; return the last parameters.

        ``"average"``: of the vectors of all ranks, with their distance from it. ``"sum"``: each rank has some
        of the parameters, or none. The moment is the last rank's of those that took part; where ranks have taken
        unequally many, the first ones of those with more are left out. Collective; at least one rank has taken
        one.
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
        parameters = session.replica.parameters.copy()
        for one, (steps, training_ns) in zip(mine, moments.max(axis=0), strict=True):
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
