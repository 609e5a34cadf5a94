"""Session of a training of which only the messages are real: replicas have sizes, and no values."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

import numpy as np

from hpcdl.cases.simulation.sizes import phantoms
from hpcdl.data.parts.sharding import EQUAL
from hpcdl.fabric.comm import Array, Comm
from hpcdl.nn.replica import Replica
from hpcdl.optim.parts.per_tensor import UNIFORM, Multipliers
from hpcdl.training.parts.evaluation import Evaluation
from hpcdl.training.parts.inputs import Inputs
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.split.model_group import ModelGroup

STRIDE: Final = 65_521
"""Elements between the marks of a vector: a prime, so that they meet the parts of no partition alike."""
CYCLE: Final = 1000
"""Sums after which a rank's marks repeat; sums over a thousand ranks are exact in float32."""


def sized_session(
    replica: Replica,
    aggregate: Callable[[Comm, Array], Coroutine[Any, Any, None]],
    journal: Journal,
    *,
    images: int,
    copies: int,
    steps: int,
    group: ModelGroup | None = None,
    **others: Any,
) -> Session:
    """Return the session of a ``replica`` of sizes; ``images`` of each of ``copies`` copies of the network.

    ``others``: fields of :class:`hpcdl.training.parts.session.Session`.
    """
    inputs = SizedInputs(replica, images, group)
    return Session(
        replica,
        NoUpdates(),
        aggregate,
        inputs,
        Evaluation(inputs, journal, steps),
        journal,
        lambda _step: 0.0,
        global_batch=images * copies,
        steps=steps,
        seed=0,
        group=group,
        **others,
    )


class SizedInputs(Inputs):
    """Batches of ``images`` images without pixels, for a copy of the network; there is no dataset to be tested."""

    def __init__(self, replica: Replica, images: int, group: ModelGroup | None) -> None:
        self.replica = replica
        self.group = group
        self.shares = EQUAL
        self.images = 0
        self._group_images = images

    @property
    def steps_per_epoch(self) -> int:
        """Return more than all steps: there is no data to pass through."""
        return sys.maxsize

    def images_of(self, rank: int, ranks: int) -> int:  # noqa: ARG002
        """Return the images of a copy's batch."""
        return self._group_images

    def load(self, step: int, rank: int, ranks: int) -> tuple[Array, Array]:  # noqa: ARG002
        """Return what the first layer takes, and the labels of this rank's images."""
        self.images = taken = self._group_images
        if self.group is not None:
            low, high = self.group_shares[self.group.place.model.rank]
            self.images = high - low
            taken = taken if self.group.takes_all else self.images
        return phantoms((taken, *self.replica.shape), self.replica.dtype), np.empty(self.images, np.int64)

    def labels(self, step: int, rank: int, ranks: int) -> Array:  # noqa: ARG002
        """Return the labels of a batch."""
        self.images = 0
        return np.empty(self._group_images, np.int64)


class NoUpdates:
    """An optimizer that changes nothing."""

    multipliers: Multipliers = UNIFORM
    look_ahead = 0.0

    def __init__(self) -> None:
        self.state: dict[str, Array] = {}
        self.steps = 0

    def update(self, parameters: Array, gradients: Array, learning_rate: float) -> None:
        """Do nothing."""


class CheckedSums:
    """Aggregation of vectors with marks, to see whether the sums over ranks are right.

    Each rank writes a number of its own at some places of a vector before the sum. ``summed``: the aggregation
    sums; otherwise it leaves vectors as they are.
    """

    def __init__(self, aggregate: Callable[[Comm, Array], Coroutine[Any, Any, None]], *, summed: bool) -> None:
        self.wrong = 0
        """Marks that differed from the expected sum."""
        self.elements = 0
        """Elements of all vectors so far."""
        self._aggregate = aggregate
        self._summed = summed
        self._sums = Counter[int]()
        """Sums so far, by the address of the vector: tasks of a rank may begin in any order."""

    async def __call__(self, comm: Comm, vector: Array) -> None:
        """Sum ``vector`` and look at its marks."""
        ranks, number = comm.size, self._sums[vector.ctypes.data] % CYCLE
        self._sums[vector.ctypes.data] += 1
        vector[::STRIDE] = vector[-1:] = own = comm.rank + 1 + number
        await self._aggregate(comm, vector)
        total = ranks * (ranks + 1) // 2 + ranks * number if self._summed else own
        self.wrong += int(np.count_nonzero(vector[::STRIDE] != total)) + int(vector[-1] != total)
        self.elements += vector.size
