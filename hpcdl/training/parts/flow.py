"""Flow of activations between the stages of a network that is divided among the ranks of a model group.

Layers compute on the arrays that they are given; the flow alone communicates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from hpcdl.fabric.vectors import empty
from hpcdl.training.parts.redistribution import redistribute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.nn.split.division import Division
    from hpcdl.nn.split.layout import Range
    from hpcdl.nn.stage import Stage


class Flow(Protocol):
    """Moves activations forward over the boundaries of stages, and their gradients backward.

    Boundary i is before stage i; the last one is before the loss. ``images`` are the shares of the model group's
    ranks in its batch.
    """

    async def forward(self, boundary: int, x: Array, images: Sequence[Range]) -> Array:
        """Return the outputs of the stage before the boundary as the stage after it takes them."""
        ...

    async def backward(self, boundary: int, dx: Array, images: Sequence[Range]) -> Array:
        """Return the gradient of the outputs before the boundary from that of the inputs after it."""
        ...


class Undivided:
    """Flow of a replica that has all stages whole: nothing moves."""

    async def forward(self, boundary: int, x: Array, images: Sequence[Range]) -> Array:  # noqa: ARG002
        """See :class:`Flow`."""
        return x

    async def backward(self, boundary: int, dx: Array, images: Sequence[Range]) -> Array:  # noqa: ARG002
        """See :class:`Flow`."""
        return dx


WHOLE: Final = Undivided()


class ModelParallel:
    """Flow among the ranks of ``group``, each of which has its part of every stage."""

    def __init__(self, group: Comm, division: Division, stages: Sequence[Stage]) -> None:
        self._group = group
        self._boundaries = division.boundaries
        self._given = [stages[0].shape, *(stage.output for stage in stages)]
        self._taken = [*(stage.shape for stage in stages), division.output]
        self._buffers: dict[tuple[int, bool, int], Array] = {}

    async def forward(self, boundary: int, x: Array, images: Sequence[Range]) -> Array:
        """See :class:`Flow`."""
        given, taken = self._boundaries[boundary]
        if given == taken:
            return x

        def empty(size: int) -> Array:
            return self._buffer(boundary, True, size, x)

        moved = await redistribute(self._group, x, given, taken, images, empty)
        return moved.reshape(len(moved), *self._taken[boundary])

    async def backward(self, boundary: int, dx: Array, images: Sequence[Range]) -> Array:
        """See :class:`Flow`."""
        given, taken = self._boundaries[boundary]
        if given == taken:
            return dx

        def empty(size: int) -> Array:
            return self._buffer(boundary, False, size, dx)

        moved = await redistribute(self._group, dx, taken, given, images, empty)
        return moved.reshape(len(moved), *self._given[boundary])

    def _buffer(self, boundary: int, forward: bool, size: int, like: Array) -> Array:
        """Return memory that is valid until the next pass over the boundary in this direction."""
        key = (boundary, forward, size)
        if key not in self._buffers:
            self._buffers[key] = empty(size, like)
        return self._buffers[key]
