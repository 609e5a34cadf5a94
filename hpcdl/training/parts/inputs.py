"""Inputs of a training on one rank: its shares of the batches of a dataset, or batches of sizes alone."""

import math
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Generic, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts import sharding
from hpcdl.data.parts.dataset import Dataset
from hpcdl.fabric.comm import Array
from hpcdl.fabric.vectors import phantom
from hpcdl.nn.replica import Replica
from hpcdl.nn.split.part import Range
from hpcdl.optim.parts.protocol import Rule
from hpcdl.training.parts.mesh import ModelGroup

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Items make(0) ... make(stop - 1), of which ``depth`` are made ahead of the last one taken.

    One thread makes all items in order, so ``make`` needs no locks and the items do not depend on timing. With
    ``depth`` 0 there is no thread; each item is made when taken.
    """

    def __init__(self, make: Callable[[int], T], stop: int, depth: int) -> None:
        self._make = make
        self._stop = stop
        self._depth = depth
        self._ahead: dict[int, Future[T]] = {}
        # starts its thread with the first item
        self._thread = ThreadPoolExecutor(1, "prefetch") if depth else None

    def take(self, number: int) -> T:
        """Return item ``number``, or raise its exception, and start the following ones; numbers may skip."""
        if self._thread is None:
            return self._make(number)
        numbers = range(number, max(number, min(number + self._depth, self._stop - 1)) + 1)
        for other in self._ahead.keys() - set(numbers):
            self._ahead.pop(other).cancel()
        for following in numbers:
            if following not in self._ahead:
                self._ahead[following] = self._thread.submit(self._make, following)
        return self._ahead.pop(number).result()

    def close(self) -> None:
        """Drop the prefetched items and end the thread after its current item."""
        self._ahead.clear()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


_Batch: TypeAlias = "tuple[Array, NDArray[np.int64]]"


@dataclass(eq=False)
class Inputs:
    """Shares of the batches of ``dataset``, for ``replica``."""

    replica: Replica
    dataset: Dataset
    global_batch: int
    steps: int
    seed: int
    _: KW_ONLY
    shares: sharding.Shares = sharding.EQUAL
    """The ranks' shares of a batch."""
    partition: str = sharding.EPOCHS
    """Epochs: all images are shuffled in every epoch; replicas: each replica has its own in all epochs."""
    prefetch: int = 0
    """Batches prepared ahead by a thread, which :meth:`close` ends; 0: no thread, :meth:`batch` makes each."""
    group: ModelGroup | None = None
    """The rank's model group; None: it has all layers."""
    images: int = field(default=0, init=False)
    """Images of the last batch; simulated compute times scale with it."""
    _group_images: int = field(default=0, init=False)
    _ahead: tuple[tuple[int, int], Prefetch[_Batch]] | None = field(default=None, init=False)

    @property
    def group_shares(self) -> tuple[Range, ...]:
        """Shares of the model group's ranks in its last batch; of the rank alone without a group."""
        return ((0, self.images),) if self.group is None else self.group.shares(self._group_images)

    @property
    def steps_per_epoch(self) -> int:
        return sharding.steps_per_epoch(len(self.dataset.train), self.global_batch)

    def epoch(self, step: int) -> int:
        return step // self.steps_per_epoch

    def images_of(self, rank: int, ranks: int) -> int:
        ends = sharding.bounds(self.global_batch, ranks, self.shares)
        return ends[rank + 1] - ends[rank]

    def batch(self, step: int, rank: int, ranks: int) -> _Batch:
        """Return images and labels of ``rank``'s share of the global batch, which does not depend on ``ranks``.

        In a divided network, ``rank`` is the number of a replica; the images are those that its first layer takes.
        """
        self._group_images = self.images_of(rank, ranks)
        self.replica.reseed(self.seed, rank, step)
        if self._ahead is None or self._ahead[0] != (rank, ranks):
            self.close()
            make = partial(self._make_batch, rank=rank, ranks=ranks)
            self._ahead = (rank, ranks), Prefetch(make, self.steps, self.prefetch)
        images, labels = self._ahead[1].take(step)
        self.images = len(labels)
        return images, labels

    def load(self, step: int, rank: int, ranks: int) -> tuple[Array, Array]:
        """Return :meth:`batch` in the memory of the replica's device."""
        images, labels = self.batch(step, rank, ranks)
        return self.replica.backend.asarray(images), self.replica.backend.asarray(labels)

    def labels(self, step: int, rank: int, ranks: int) -> Array:
        """Return the labels of :meth:`load` alone, for a rank whose layers take no images."""
        self.replica.reseed(self.seed, rank, step)
        labels = self.dataset.train.labels[self._indices(step, rank, ranks)]
        self.images = 0
        return self.replica.backend.asarray(labels)

    def close(self) -> None:
        """End the prefetch thread, if there is one; a later :meth:`batch` starts another."""
        if self._ahead is not None:
            self._ahead[1].close()
            self._ahead = None

    def _make_batch(self, step: int, rank: int, ranks: int) -> _Batch:
        """Make a batch without touching the replica: another thread may call."""
        indices, key = self._indices(step, rank, ranks), (self.seed, self.epoch(step))
        if self.group is not None:
            return self.group.read(self.dataset.train, indices, key)
        return self.dataset.train.batch(indices, self.replica.dtype, key)

    def _indices(self, step: int, rank: int, ranks: int) -> NDArray[np.int64]:
        epoch, within = divmod(step, self.steps_per_epoch)
        images = len(self.dataset.train)
        if self.partition != sharding.EPOCHS:
            own = sharding.own_images(images, epoch, self.seed, rank, ranks, self.shares)
            count = self.images_of(rank, ranks)
            return own.take(range(within * count, (within + 1) * count), mode="wrap")
        order = sharding.epoch_order(images, epoch, self.seed)
        return sharding.share(order, within, self.global_batch, rank, ranks, self.shares)


class SizedInputs(Inputs):
    """Batches of ``images`` images without pixels, for a copy of the network; there is no dataset to be tested."""

    def __init__(
        self, replica: Replica, images: int, global_batch: int, steps: int, group: ModelGroup | None
    ) -> None:
        self.replica, self.group = replica, group
        self.global_batch, self.steps, self.seed = global_batch, steps, 0
        self._group_images = images

    @property
    def steps_per_epoch(self) -> int:
        """Return more than all steps: there is no data to pass through."""
        return sys.maxsize

    def images_of(self, rank: int, ranks: int) -> int:  # noqa: ARG002
        return self._group_images

    def load(self, step: int, rank: int, ranks: int) -> tuple[Array, Array]:  # noqa: ARG002
        self.images = taken = self._group_images
        if self.group is not None:
            low, high = self.group_shares[self.group.place.model.rank]
            self.images = high - low
            taken = self.images if self.group.takes.by_images else taken
        shape = taken, *self.replica.shape
        return phantom(math.prod(shape), self.replica.dtype).reshape(shape), np.empty(self.images, np.int64)

    def labels(self, step: int, rank: int, ranks: int) -> Array:  # noqa: ARG002
        self.images = 0
        return np.empty(self._group_images, np.int64)


class NoUpdates(Rule):
    """Optimizer of a replica of sizes, which changes nothing."""

    def __init__(self) -> None:
        super().__init__(weight_decay=0.0)

    def step(self, parameters: Array, gradients: Array, rate: float) -> None:
        """Do nothing."""
