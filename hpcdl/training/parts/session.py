"""Arguments of a strategy: a replica, an optimizer, data, an aggregation, and the length of training."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from operator import itruediv, mul
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hpcdl.data.parts.prefetch import Prefetch
from hpcdl.data.parts.sharding import EQUAL, Shares, bounds, epoch_order, share, steps_per_epoch
from hpcdl.optim.parts.per_tensor import Multipliers
from hpcdl.training.parts.bucketing import between, buckets
from hpcdl.training.parts.compressed.compressed import NO_FIDELITY, Compressed
from hpcdl.training.parts.flow import WHOLE, Flow
from hpcdl.training.parts.testing import test_share

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from numpy.typing import NDArray

    from hpcdl.data.parts.dataset import Dataset
    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.nn.replica import Replica
    from hpcdl.nn.split.layout import Range
    from hpcdl.optim.parts.protocol import Optimizer
    from hpcdl.training.parts.compressed.plan import Plan
    from hpcdl.training.parts.journal import Journal, Moment
    from hpcdl.training.parts.mesh import Place
    from hpcdl.training.parts.model_group import ModelGroup


_Batch: TypeAlias = "tuple[Array, NDArray[np.int64]]"


@dataclass
class Session:
    """Arguments and helpers of a strategy on one rank."""

    replica: Replica
    optimizer: Optimizer
    aggregate: Callable[[Comm, Array], Coroutine[Any, Any, None]]
    """Function that sums a vector over all ranks, in place."""
    dataset: Dataset
    journal: Journal
    learning_rate: Callable[[int], float]
    """Learning rate of each step."""
    global_batch: int
    steps: int
    seed: int
    shares: Shares = EQUAL
    """The ranks' shares of a batch."""
    independent: bool = False
    """True if replicas are never combined (aggregation ``none``), so that each has its own accuracy."""
    target_accuracy: float | None = None
    stop_at_target: bool = False
    evaluate_every: float = 1.0
    """Epochs between evaluations; there is always an evaluation at the end."""
    prefetch: int = 0
    """Batches prepared ahead by a thread, which :meth:`close` ends; 0: no thread, :meth:`batch` makes each."""
    bucket_bytes: int | None = None
    """Shortest bucket that is worth its latency, as measured on the links; None: the whole gradient."""
    compression: Plan | None = None
    """Compression of gradients; None: they are summed dense."""
    compressed: Compressed | None = field(default=None, init=False)
    """Compressor and residual of this rank."""
    group: ModelGroup | None = None
    """This rank of a model group; None: every rank has all layers."""
    place: Place | None = None
    """Place of the rank among pipelines; None: every rank has all layers."""
    vectors: dict[str, Array] = field(default_factory=dict, init=False)
    """Vectors of the strategy besides the replica's, by name; see :meth:`vector`."""
    multipliers: Multipliers = field(init=False)
    """Parameters without weight decay or with a multiple of the learning rate."""
    images: int = field(default=0, init=False)
    """Images of the last batch; simulated compute times scale with it."""
    _replica_images: int = field(default=0, init=False)
    _ahead: tuple[tuple[int, int], Prefetch[_Batch]] | None = field(default=None, init=False)
    _evaluated: int = field(default=0, init=False)
    _parts: list[Optimizer] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Pass the multipliers to the optimizer."""
        self.multipliers = Multipliers.of(self.replica.tensors, self.replica.backend.asarray)
        self.optimizer.multipliers = self.multipliers
        if self.compression is not None:
            replica = self.replica
            self.compressed = Compressed(
                self.compression,
                replica.tensors,
                replica.gradients.size,
                str(replica.gradients.dtype),
                self.vector,
                self._evaluated_after,
                self.seed,
                self.steps,
                replica.backend.device,
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of whole batches in an epoch."""
        return steps_per_epoch(len(self.dataset.train), self.global_batch)

    @property
    def memory_bytes(self) -> int:
        """Bytes of this rank's vectors: parameters, gradients, state, those of the optimizer and the strategy."""
        replica = self.replica
        own = (replica.parameters, replica.gradients, replica.layer_gradient, replica.state)
        states = [vector for one in (self.optimizer, *self._parts) for vector in one.state.values()]
        states += self.compressed.state.values() if self.compressed is not None else ()
        return sum(vector.nbytes for vector in (*own, *states, *self.vectors.values()))

    def optimizer_of(self, span: slice) -> Optimizer:
        """Return a copy of the optimizer for the part ``span`` of the parameters, with its own state."""
        one = deepcopy(self.optimizer)
        one.multipliers = self.multipliers.part(span)
        self._parts.append(one)
        return one

    def vector(self, name: str, size: int | None = None) -> Array:
        """Return a new vector of zeros, as long as the parameters or ``size``, and store it in ``vectors``."""
        elements = self.replica.parameters.size if size is None else size
        self.vectors[name] = self.replica.backend.zeros(elements, self.replica.dtype)
        return self.vectors[name]

    def buckets(self, smallest: int | None, spans: Sequence[slice] | None = None) -> list[slice]:
        """Return the buckets of the layers at ``spans``, by default of all, of about ``smallest`` bytes.

        0 or None: one bucket. Buckets are cut between tensors if the compressor must.
        """
        replica = self.replica
        whole = slice(0, replica.gradients.size) if spans is None else slice(spans[0].start, spans[-1].stop)
        if not smallest or whole.start == whole.stop:
            return [whole] if whole.start < whole.stop else []
        spans = [stage.span for stage in replica.stages] if spans is None else spans
        elements = max(1, smallest // replica.gradients.itemsize)
        whole_tensors = self.compression is not None and self.compression.traits.whole_tensors
        if self.group is not None:
            return self.group.buckets(spans, elements, whole_tensors=whole_tensors)
        slices = buckets(spans, elements)
        return between(slices, [tensor.span for tensor in replica.tensors]) if whole_tensors else slices

    async def reduce(self, comm: Comm, span: slice) -> None:
        """Sum the part ``span`` of the gradient over all ranks, in place, with the compression of the case.

        Raises FloatingPointError for a value that a compressor cannot send: infinite, or not a number.
        """
        gradient = self.replica.gradients[span]
        if self.group is not None:
            await self.group.reduce(comm, span, self.aggregate, self.compressed)
        elif self.compressed is None:
            await self.aggregate(comm, gradient)
        else:
            await self.compressed.reduce(comm, span, gradient, self.aggregate)

    @property
    def flow(self) -> Flow:
        """Movement of activations between the layers."""
        return WHOLE if self.group is None else self.group.flow

    @property
    def group_shares(self) -> tuple[Range, ...]:
        """Shares of the model group's ranks in its last batch; of the rank alone without a group."""
        if self.group is None:
            return ((0, self.images),)
        return self.group.shares(self._replica_images)

    def images_of(self, rank: int, ranks: int) -> int:
        """Return the number of images of ``rank``'s share of a batch."""
        ends = bounds(self.global_batch, ranks, self.shares)
        return ends[rank + 1] - ends[rank]

    def epoch(self, step: int) -> int:
        """Return the epoch of ``step``."""
        return step // self.steps_per_epoch

    def batch(self, step: int, rank: int, ranks: int) -> _Batch:
        """Return images and labels of ``rank``'s share of the global batch, which does not depend on ``ranks``.

        In a divided network, ``rank`` is the number of a replica, and the images are those that the first layer's
        part takes, of the replica's share.
        """
        self._replica_images = self.images_of(rank, ranks)
        self.replica.reseed(self.seed, rank, step)
        if self._ahead is None or self._ahead[0] != (rank, ranks):
            self.close()
            make = partial(self._make_batch, rank=rank, ranks=ranks)
            self._ahead = (rank, ranks), Prefetch(make, self.steps, self.prefetch)
        images, labels = self._ahead[1].take(step)
        self.images = len(labels)
        return images, labels

    def input(self, step: int, rank: int, ranks: int) -> tuple[Array, Array]:
        """Return :meth:`batch` in the memory of the replica's device."""
        images, labels = self.batch(step, rank, ranks)
        return self.replica.backend.asarray(images), self.replica.backend.asarray(labels)

    def labels(self, step: int, rank: int, ranks: int) -> Array:
        """Return the labels of :meth:`input` alone, for a rank whose layers take no images."""
        self.replica.reseed(self.seed, rank, step)
        labels = self.dataset.train.labels[self._indices(step, rank, ranks)]
        self.images = 0
        return self.replica.backend.asarray(labels)

    def close(self) -> None:
        """End the prefetch thread, if there is one; a later :meth:`batch` starts it again."""
        if self._ahead is not None:
            self._ahead[1].close()
            self._ahead = None

    def _make_batch(self, step: int, rank: int, ranks: int) -> _Batch:
        """Make a batch without touching the replica: another thread may call."""
        mine, key = self._indices(step, rank, ranks), (self.seed, self.epoch(step))
        if self.group is not None:
            return self.group.read(self.dataset.train, mine, key)
        return self.dataset.train.batch(mine, self.replica.dtype, key)

    def _indices(self, step: int, rank: int, ranks: int) -> NDArray[np.int64]:
        epoch, within = divmod(step, self.steps_per_epoch)
        order = epoch_order(len(self.dataset.train), epoch, self.seed)
        return share(order, within, self.global_batch, rank, ranks, self.shares)

    def evaluations_within(self, steps: int) -> int:
        """Return the number of evaluations due within ``steps`` steps, without the one at the end."""
        return int(steps / self.steps_per_epoch / self.evaluate_every + 1e-9)

    def evaluation_due(self, steps: int) -> bool:
        """Return whether an evaluation is due after ``steps`` steps."""
        within = self.evaluations_within(steps)
        due = within > self._evaluated or steps == self.steps
        self._evaluated = within
        return due

    def _evaluated_after(self, step: int) -> bool:
        """Return whether an evaluation follows ``step``."""
        return step + 1 == self.steps or self.evaluations_within(step + 1) > self.evaluations_within(step)

    async def evaluate(
        self,
        comm: Comm,
        steps: float,
        *,
        parameters: Array | None = None,
        consensus: float = math.nan,
        at: Moment | None = None,
        replicas: Comm | None = None,
        through: Callable[[], Awaitable[NDArray[np.float64]]] | None = None,
    ) -> bool:
        """Test the network on all ranks together; return whether training may stop.

        Each rank tests its share of the test set. Running statistics of batch normalisation, which each rank has
        its own of during training (Goyal et al. 2017, section 2.3), are averaged first. ``parameters``, equal on
        all ranks, are tested in place of the replica's. ``consensus`` and ``at`` are recorded with the result.
        ``steps``: length of training so far, in global batches. ``replicas`` are the ranks with the same layers,
        by default all. ``through()`` returns this rank's summed loss and number of correct answers, by default
        those of its share of the test set.
        """
        replica = self.replica
        if self.group is not None:
            await self.group.average_statistics(comm)
            sums = await self.group.test(comm, self.dataset.test, self.global_batch, parameters)
        else:
            if replica.state.size and not self.independent:
                alike = replicas or comm
                await alike.native("allreduce", replica.state)
                await comm.compute("evaluation", partial(itruediv, replica.state, alike.size))
            if through is None:
                own, batch = (comm.rank, comm.size), self.global_batch
                work = partial(test_share, replica, self.dataset.test, own, batch, self.prefetch, parameters)
                sums = await comm.compute("evaluation", work)
            else:
                sums = await through()
        await comm.native("allreduce", sums)
        loss, accuracy = (float(total) / len(self.dataset.test) for total in sums)
        epochs, samples = steps / self.steps_per_epoch, round(steps * self.global_batch)
        fidelity = NO_FIDELITY
        if self.compressed is not None:
            alike = comm if self.group is None else self.group.place.data
            fidelity = await self.compressed.fidelity(alike, replica.gradients)
        self.journal.evaluation(epochs, loss, accuracy, samples, consensus=consensus, fidelity=fidelity, at=at)
        reached = self.target_accuracy is not None and accuracy >= self.target_accuracy
        return bool(self.stop_at_target and reached)

    async def evaluate_average(
        self, comm: Comm, steps: float, mine: Array, *, weight: float = 1, at: Moment | None = None
    ) -> bool:
        """Test the average over replicas of ``mine``, which does not change; record their distance from it.

        ``weight``: weight of this rank's replica in the average; the weights of all add up to their number.
        """
        ranks = comm if self.group is None else self.group.place.data
        square = _square_distance if self.group is None else self.group.square_distance
        average = await comm.compute("evaluation", partial(mul, mine, weight))
        await ranks.native("allreduce", average)
        await comm.compute("evaluation", partial(itruediv, average, ranks.size))
        squares = np.array([await comm.compute("evaluation", partial(square, mine, average))])
        await comm.native("allreduce", squares)
        distance = float(squares[0] / ranks.size) ** 0.5
        return await self.evaluate(comm, steps, parameters=average, consensus=distance, at=at)


def _square_distance(one: Array, other: Array) -> float:
    return float(((one - other) ** 2).sum())
