"""Priority of gradient buckets: the first layers' buckets overtake, because the next forward needs them first.

Buckets start in the order of backward while backward runs, and then in the order of the next forward (Jayarajan et
al. 2019, P3, section 4; Peng et al. 2019, ByteScheduler, section 4). Only a few are under way at once, so that an
urgent bucket waits for few others.

All ranks must start buckets in the same order, although backward ends at different times. Therefore they agree on
the number of buckets that start in backward's order: the minimum over ranks of the number started in the last
step, increased on a rank whose buckets were all complete when its backward ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from hpcdl.fabric.comm import Comm
    from hpcdl.fabric.task import Task

WIDTH: Final = 2
"""Buckets under way: one on the links, and the one that follows it."""


class PrioritySchedule:
    """Schedule of one rank's gradient sums, with an action after each stage's sum.

    ``buckets``: slices of each stage's gradient, stages in the order of the forward. ``aggregate`` sums a bucket
    over all ranks; ``then`` is called with a stage whose buckets are summed. ``width``: buckets under way; 0: all,
    in the order of backward.
    """

    def __init__(
        self,
        comm: Comm,
        buckets: Mapping[str, Sequence[slice]],
        aggregate: Callable[[slice], Coroutine[Any, Any, None]],
        then: Callable[[str], Coroutine[Any, Any, None]],
        width: int = WIDTH,
    ) -> None:
        self._comm = comm
        self._buckets = buckets
        self._aggregate = aggregate
        self._then = then
        self._all = sum(map(len, buckets.values()))
        self._width = width or self._all
        self._early = self._all
        """Buckets that start in the order of backward; rounded up to whole stages."""
        self._agreed: Task[int] | None = None
        self._stages: dict[str, Task[None]] = {}
        self._queue: list[Task[None]] = []
        """Buckets of this step, in the order in which they start."""
        self._starts: list[Task[None]] = []
        """For each bucket a task that ends when the bucket may start, if ``width`` limits them."""
        self._started = self._finished = 0

    async def begin(self) -> None:
        """Prepare for a backward; the buckets of the previous step must be finished."""
        if self._agreed is not None:
            self._early = await self._agreed
        self._stages.clear()
        self._queue.clear()
        self._starts.clear()
        self._started = self._finished = 0

    def complete(self, stage: str) -> None:
        """Start the buckets of ``stage``, which backward has completed, if they are among the early ones."""
        if len(self._queue) < self._early:
            self._start(stage)

    def end(self) -> None:
        """Start all other buckets, in the order of the forward, after the end of backward."""
        early = len(self._queue)
        wanted = early + self._width if self._finished == early else max(self._started, self._width)
        for stage in self._buckets:
            if stage not in self._stages:
                self._start(stage)
        if self._width < self._all:
            self._agreed = self._comm.start(self._agree(min(wanted, self._all)))

    async def finished(self, stage: str) -> None:
        """Wait until the gradient of ``stage`` is summed and ``then`` has returned."""
        if stage in self._stages:
            await self._stages[stage]

    def _start(self, stage: str) -> None:
        if not self._buckets[stage]:
            return
        sums = []
        for bucket in self._buckets[stage]:
            if self._width < self._all:
                # waits for the previous start too: a library's collectives must start in one order on all ranks
                full = self._queue[-self._width :] if len(self._queue) >= self._width else []
                self._starts.append(self._comm.start(_join([*self._starts[-1:], *full[:1]])))
            sums.append(self._comm.start(self._sum(bucket, self._starts[-1:])))
            self._queue.append(sums[-1])
        self._stages[stage] = self._comm.start(self._after(stage, sums))

    async def _sum(self, bucket: slice, start: Sequence[Task[None]]) -> None:
        await _join(start)
        self._started += 1
        await self._aggregate(bucket)
        self._finished += 1

    async def _after(self, stage: str, sums: Sequence[Task[None]]) -> None:
        await _join(sums)
        await self._then(stage)

    async def _agree(self, wanted: int) -> int:
        return int((await self._comm.allgather_words(np.array([wanted]))).min())


async def _join(tasks: Sequence[Task[None]]) -> None:
    for task in tasks:
        await task
