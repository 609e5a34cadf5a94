"""Layers of stand-ins for a network: names and places of gradients, marks, and no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.split.part import Part

APART: Final = 65_521
"""Elements between numbers within a stage: a prime, so that they meet the parts of no partition alike."""
CYCLE: Final = 1000
"""Steps after which a rank's numbers return; sums over a thousand ranks are exact in float32."""


class Stage:
    """A layer without arithmetic: its backward marks its gradients, and looks what became of the last marks."""

    heads = ()

    def __init__(self, name: str, span: slice, marks: Marks) -> None:
        self.name = name
        self.span = span
        self._marks = marks
        self._places = np.unique([*range(span.start, span.stop, APART), max(span.start, span.stop - 1)])
        if span.start == span.stop:
            self._places = self._places[:0]
        self._steps = 0

    def forward(self, x: Array) -> Array:
        """Return ``x``."""
        return x

    def backward(self, dy: Array, *, first: bool = True) -> Array:  # noqa: ARG002
        """Mark this step's gradients; return ``dy``."""
        self.look()
        self._marks.gradients[self._places] = self._marks.own(self._steps)
        self._steps += 1
        return dy

    def look(self) -> None:
        """Count the marks of the last step that are not its sum."""
        if self._steps:
            found = self._marks.gradients[self._places]
            self._marks.wrong += int(np.count_nonzero(found != self._marks.total(self._steps - 1)))


class Valued:
    """A layer without arithmetic: its backward copies a part of ``values`` to ``gradients``, for a compressor."""

    heads = ()

    def __init__(self, name: str, span: slice, gradients: Array, values: Array) -> None:
        self.name = name
        self.span = span
        self._gradients = gradients[span]
        self._values = values[span]

    def forward(self, x: Array) -> Array:
        """Return ``x``."""
        return x

    def backward(self, dy: Array, *, first: bool = True) -> Array:  # noqa: ARG002
        """Write this step's gradients; return ``dy``."""
        self._gradients[:] = self._values
        return dy

    def look(self) -> None:
        """See nothing: a compressed sum is not exact."""


class Outline:
    """A layer of which only the size is there, for gradients that have no numbers to mark."""

    heads = ()

    def __init__(self, name: str, span: slice) -> None:
        self.name = name
        self.span = span

    def forward(self, x: Array) -> Array:
        """Return ``x``."""
        return x

    def backward(self, dy: Array, *, first: bool = True) -> Array:  # noqa: ARG002
        """Return ``dy``."""
        return dy

    def look(self) -> None:
        """See nothing."""


@dataclass
class Marks:
    """Numbers that one rank writes into its gradients, and their expected sums."""

    gradients: NDArray[np.float32]
    rank: int
    ranks: int
    summed: bool
    """True if gradients are summed over the ranks."""
    wrong: int = 0
    """Marks that differed from the expected sum."""

    def own(self, step: int) -> int:
        """This rank's number in a step."""
        return self.rank + 1 + step % CYCLE

    def total(self, step: int) -> int:
        """Return the number after the step: the sum over ranks."""
        if not self.summed:
            return self.own(step)
        return self.ranks * (self.ranks + 1) // 2 + self.ranks * (step % CYCLE)


class Microbatched:
    """A layer of one microbatch; ``sent`` and ``returned`` make what leaves the rank, for so many images."""

    heads = ()

    def __init__(self, stage: Stage | Valued | Outline) -> None:
        self.name = stage.name
        self.span = stage.span
        self.sent: Callable[[int], Array] | None = None
        self.returned: Callable[[int], Array] | None = None
        self._stage = stage

    def forward(self, x: Array) -> Array:
        """Return ``x``, or the outputs that are sent."""
        return x if self.sent is None else self.sent(len(x))

    def backward(self, dy: Array, *, first: bool) -> Array:
        """Mark the gradients with the first microbatch; return ``dy``, or the gradient that is returned."""
        if first:
            self._stage.backward(dy)
        return dy if self.returned is None else self.returned(len(dy))


class Divided:
    """A rank's part of a layer without arithmetic; ``zeros(shape)`` makes its outputs and input gradients.

    ``before`` is the part before it: an array of a whole batch has one row, and does not tell the images.
    """

    heads = ()

    def __init__(
        self,
        stage: Stage | Outline,
        part: Part,
        shape: Shape,
        zeros: Callable[[Shape], Array],
        before: Divided | None,
    ) -> None:
        self.name, self.span = stage.name, stage.span
        self.divided = bool(part.cuts)
        self.shape = shape
        self.output = part.output(shape)
        self.images = 0
        """Rows of the input in the last forward."""
        self._stage = stage
        self._zeros = zeros
        self._before = before if part.takes.of_batch else None
        self._to_batch = part.gives.of_batch

    def forward(self, x: Array) -> Array:
        """Return outputs of as many images, or of the batch."""
        self.images = len(x)
        rows = self.images if self._before is None else self._before.images
        return self._zeros((1 if self._to_batch else rows, *self.output))

    def backward(self, dy: Array, *, first: bool = True) -> Array:
        """Mark the gradients with the first images of a step; return input gradients of as many images."""
        if first:
            self._stage.backward(dy)
        return self._zeros((self.images, *self.shape))

    def look(self) -> None:
        """Look at the last marks."""
        self._stage.look()
