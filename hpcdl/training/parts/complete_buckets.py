"""Sums of the gradient's buckets, each started as soon as backward has completed it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Comm
    from hpcdl.fabric.task import Task
    from hpcdl.nn.stage import Stage
    from hpcdl.training.parts.session import Session


class CompleteBuckets:
    """Buckets of about ``bucket_bytes``, summed over the ranks of ``comm`` in each step.

    None: the length that the measured links ask for; 0: one bucket. The last bucket is summed after backward.
    """

    def __init__(self, comm: Comm, session: Session, bucket_bytes: int | None) -> None:
        gradients = session.replica.gradients
        smallest = session.bucket_bytes if bucket_bytes is None else bucket_bytes
        self._comm = comm
        self._session = session
        self._buckets = [slice(0, gradients.size)] if gradients.size else []
        if smallest and gradients.size:
            elements = max(1, smallest // gradients.itemsize)
            self._buckets = session.buckets([stage.span for stage in session.replica.stages], elements)
        self._unsent: deque[slice] = deque()
        self._under_way: deque[Task[Any]] = deque()

    def begin(self) -> None:
        """Begin a step: no bucket is complete."""
        self._unsent.extend(self._buckets)

    def start_complete(self, stage: Stage) -> None:
        """Start the sums of the buckets that backward of ``stage`` has completed."""
        while len(self._unsent) > 1 and self._unsent[0].start >= stage.span.start:
            bucket = self._unsent.popleft()
            self._under_way.append(self._comm.start(self._session.reduce(self._comm, bucket)))

    async def finish(self) -> None:
        """Sum the last bucket and wait for the others."""
        while self._unsent:
            await self._session.reduce(self._comm, self._unsent.popleft())
        while self._under_way:
            await self._under_way.popleft()
