"""In which order pieces of a gradient are summed, where few may be under way at once.

Backward completes the last layers first, and the next forward wants the first layers first. While backward lasts,
pieces begin in its order. What has not begun when it ends begins in the order of the forward (priority: Jayarajan
et al. 2019, P3, section 4; Peng et al. 2019, ByteScheduler, section 4), and few are under way at a time, so that
an urgent piece waits for few others.

All ranks must begin pieces in one order, and one rank's backward ends when another's has not. So how many pieces
begin in backward's order is agreed on: as many as the slowest rank had begun by then in the step before, and some
more if all of them were over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from hpcdl.fabric.comm import Comm
    from hpcdl.fabric.task import Task

WIDTH: Final = 2
"""Pieces under way: one on the links, and one that takes its place."""


class FrontFirst:
    """One rank's side of summing the gradients of all stages, and of what follows a stage's sum, step after step.

    ``pieces``: of each stage's gradient, stages in the order of the forward. ``add_up`` sums a piece over all
    ranks, ``then`` follows when those of a stage are summed. ``width``: pieces under way; 0 for as many as there
    are, in the order of backward.
    """

    def __init__(
        self,
        comm: Comm,
        pieces: Mapping[str, Sequence[slice]],
        add_up: Callable[[slice], Coroutine[Any, Any, None]],
        then: Callable[[str], Coroutine[Any, Any, None]],
        width: int = WIDTH,
    ) -> None:
        self._comm = comm
        self._pieces = pieces
        self._add_up = add_up
        self._then = then
        self._all = sum(map(len, pieces.values()))
        self._width = width or self._all
        self._early = self._all
        """Pieces that begin before backward ends, or a few more: stages begin whole."""
        self._agreed: Task[int] | None = None
        self._stages: dict[str, Task[None]] = {}
        self._line: list[Task[None]] = []
        """This step's pieces, in the order in which they begin."""
        self._gates: list[Task[None]] = []
        """What each of them waits for, where few may be under way."""
        self._begun = self._over = 0

    async def begin(self) -> None:
        """Begin a step's backward: all of the step before is finished."""
        if self._agreed is not None:
            self._early = await self._agreed
        self._stages.clear()
        self._line.clear()
        self._gates.clear()
        self._begun = self._over = 0

    def complete(self, stage: str) -> None:
        """Backward has completed the gradient of ``stage``."""
        if len(self._line) < self._early:
            self._start(stage)

    def end(self) -> None:
        """Backward has ended: all gradients are complete."""
        early = len(self._line)
        wanted = early + self._width if self._over == early else max(self._begun, self._width)
        for stage in self._pieces:
            if stage not in self._stages:
                self._start(stage)
        if self._width < self._all:
            self._agreed = self._comm.start(self._agree(min(wanted, self._all)))

    async def finished(self, stage: str) -> None:
        """Wait until the gradient of ``stage`` is summed, and for what follows."""
        if stage in self._stages:
            await self._stages[stage]

    def _start(self, stage: str) -> None:
        if not self._pieces[stage]:
            return
        mine = []
        for piece in self._pieces[stage]:
            if self._width < self._all:
                # after the gate before it too: the library's collectives must begin in one order on all ranks
                room = self._line[-self._width :] if len(self._line) >= self._width else []
                self._gates.append(self._comm.start(_joined([*self._gates[-1:], *room[:1]])))
            mine.append(self._comm.start(self._in_turn(piece, self._gates[-1:])))
            self._line.append(mine[-1])
        self._stages[stage] = self._comm.start(self._after(stage, mine))

    async def _in_turn(self, piece: slice, gate: Sequence[Task[None]]) -> None:
        await _joined(gate)
        self._begun += 1
        await self._add_up(piece)
        self._over += 1

    async def _after(self, stage: str, pieces: Sequence[Task[None]]) -> None:
        await _joined(pieces)
        await self._then(stage)

    async def _agree(self, wanted: int) -> int:
        return int((await self._comm.meet(np.array([wanted]))).min())


async def _joined(tasks: Sequence[Task[None]]) -> None:
    for task in tasks:
        await task
