"""A training of which only the messages are real: stand-ins for replica, session and optimizer.

Stages have the names and the gradients of a network's and do no arithmetic; how long each takes is for the
communicator to say (:mod:`hpcdl.fabric.modelled_compute`). Gradients are zeros except whole numbers, a rank's
own in each step, at the ends of every stage and here and there between, so that sums that are wrong or mixed up
show.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.fabric.vectors import phantom
from hpcdl.nn.volumes import volumes
from hpcdl.training.parts.bucketing import buckets
from hpcdl.training.parts.flow import WHOLE, Flow

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from numpy.typing import NDArray

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer
    from hpcdl.nn.split.layout import Range
    from hpcdl.training.parts.journal import Journal

APART: Final = 65_521
"""Elements between numbers within a stage: a prime, so that they meet the parts of no partition alike."""
CYCLE: Final = 1000
"""Steps after which a rank's numbers return; sums over a thousand ranks are exact in float32."""


class Stage:
    """A layer without arithmetic: its backward marks its gradients, and looks what became of the last marks."""

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

    def backward(self, dy: Array) -> Array:
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


class Outline:
    """A layer of which only the size is there, for gradients that have no numbers to mark."""

    def __init__(self, name: str, span: slice) -> None:
        self.name = name
        self.span = span

    def forward(self, x: Array) -> Array:
        """Return ``x``."""
        return x

    def backward(self, dy: Array) -> Array:
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


@dataclass
class Replica:
    """Stages that share a vector of gradients; parameters are there where they are exchanged."""

    stages: Sequence[Stage | Outline]
    gradients: Array
    parameters: Array = field(default_factory=lambda: np.empty(0, np.float32))

    def loss(self, x: Array, _labels: Array, _scale: float) -> tuple[float, int, Array]:
        """Return no loss, no right answer, and a gradient for the stages to hand on."""
        return float("nan"), 0, x


def replica(
    layers: Sequence[Layer], shape: Shape, rank: int, ranks: int, *, summed: bool
) -> tuple[Replica, Marks]:
    """Make a stand-in for the network of ``layers`` on images of ``shape``."""
    spans = _spans(layers, shape)
    marks = Marks(np.zeros(spans[-1].stop, np.float32), rank, ranks, summed)
    stages = [Stage(layer.name, span, marks) for layer, span in zip(layers, spans, strict=True)]
    return Replica(stages, marks.gradients), marks


def outline(layers: Sequence[Layer], shape: Shape, dtype: str) -> Replica:
    """Make one of sizes only, for as many simulated ranks as there may be: its vectors take no memory."""
    spans = _spans(layers, shape)
    stages = [Outline(layer.name, span) for layer, span in zip(layers, spans, strict=True)]
    vector = phantom(spans[-1].stop, dtype)
    return Replica(stages, vector, vector)


def _spans(layers: Sequence[Layer], shape: Shape) -> list[slice]:
    """Return the place of each layer's parameters in the vector of all. ValueError: shapes that do not fit."""
    ends = [0]
    for layer in layers:
        ends.append(ends[-1] + volumes([layer], shape, 1).parameters)
        shape = layer.output(shape)
    return [slice(begin, end) for begin, end in pairwise(ends)]


class Updates:
    """An optimizer that changes nothing."""

    def update(self, parameters: Array, gradients: Array, rate: float) -> None:
        """Do nothing."""


@dataclass
class Session:
    """One rank's side of a replayed case; see :class:`hpcdl.training.parts.session.Session`."""

    replica: Replica
    aggregate: Callable[[Comm, Array], Coroutine[Any, Any, None]]
    journal: Journal
    batch_per_rank: int
    global_batch: int
    steps: int
    bucket_bytes: int | None = None
    independent: bool = False
    """True if replicas are never combined."""
    optimizer: Updates = field(default_factory=Updates)
    flow: Flow = WHOLE
    """Nothing moves between layers: a replayed network is not divided."""

    @property
    def group_shares(self) -> tuple[Range, ...]:
        """Return the rank's own batch."""
        return ((0, self.batch_per_rank),)

    def optimizer_of(self, _span: slice) -> Updates:
        """Return an optimizer that changes nothing."""
        return self.optimizer

    def buckets(self, spans: Sequence[slice], smallest: int) -> list[slice]:
        """See :class:`hpcdl.training.parts.session.Session`."""
        return buckets(spans, smallest)

    async def reduce(self, comm: Comm, span: slice) -> None:
        """See :class:`hpcdl.training.parts.session.Session`; dense."""
        await self.aggregate(comm, self.replica.gradients[span])

    def learning_rate(self, _step: int) -> float:
        """Return 0: nothing is learned."""
        return 0.0

    def epoch(self, _step: int) -> int:
        """Return 0: there is no data to pass through."""
        return 0

    def input(self, _step: int, _rank: int, _ranks: int) -> tuple[Array, Array]:
        """Return a batch of images without pixels."""
        return np.empty((self.batch_per_rank, 0), np.float32), np.empty(self.batch_per_rank, np.int64)

    def evaluation_due(self, step: int) -> bool:
        """At the end, when the last sums are there."""
        return step == self.steps

    async def evaluate(self, _comm: Comm, _step: int) -> bool:
        """Look at the last sums."""
        for stage in self.replica.stages:
            stage.look()
        return False
