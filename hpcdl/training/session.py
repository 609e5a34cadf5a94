"""What a strategy is given: a replica, an optimizer, data, a way of summing, and how long to train."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hpcdl.data.prefetch import Prefetch
from hpcdl.data.sharding import EQUAL, Shares, epoch_order, share, steps_per_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from numpy.typing import NDArray

    from hpcdl.data.dataset import Dataset
    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.nn.replica import Replica
    from hpcdl.optim.protocol import Optimizer
    from hpcdl.training.journal import Journal, Moment


_Batch: TypeAlias = "tuple[Array, NDArray[np.int64]]"


@dataclass
class Session:
    """One rank's side of a training case."""

    replica: Replica
    optimizer: Optimizer
    aggregate: Callable[[Comm, Array], Coroutine[Any, Any, None]]
    """Sums a vector over all ranks, in place."""
    dataset: Dataset
    journal: Journal
    learning_rate: Callable[[int], float]
    """Step to rate."""
    global_batch: int
    steps: int
    seed: int
    shares: Shares = EQUAL
    """Of a batch, the ranks'."""
    independent: bool = False
    """Whether replicas are never combined (aggregation ``none``), so that each has its own accuracy."""
    target_accuracy: float | None = None
    stop_at_target: bool = False
    evaluate_every: float = 1.0
    """Epochs from one evaluation to the next; there is always one at the end."""
    prefetch: int = 0
    """Batches made ahead, by a thread that :meth:`close` ends; 0: no thread, each is made when it is wanted."""
    bucket_bytes: int | None = None
    """The least bytes of a gradient that are worth a message, as measured; None: all of it at once."""
    vectors: dict[str, Array] = field(default_factory=dict, init=False)
    """What the strategy keeps besides the replica, by name; see :meth:`vector`."""
    images: int = field(default=0, init=False)
    """In the batch that was asked for last; what simulated work scales with."""
    _ahead: tuple[tuple[int, int], Prefetch[_Batch]] | None = field(default=None, init=False)
    _evaluated: int = field(default=0, init=False)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch."""
        return steps_per_epoch(len(self.dataset.train), self.global_batch)

    @property
    def memory_bytes(self) -> int:
        """Bytes of this rank's vectors: parameters, gradients, state, the optimizer's and the strategy's."""
        replica = self.replica
        own = (replica.parameters, replica.gradients, replica.state)
        kept = (*own, *self.optimizer.state.values(), *self.vectors.values())
        return sum(vector.nbytes for vector in kept)

    def vector(self, name: str, size: int | None = None) -> Array:
        """Make a vector of zeros, as long as the parameters or ``size``, that the strategy keeps as ``name``."""
        elements = self.replica.parameters.size if size is None else size
        self.vectors[name] = self.replica.backend.zeros(elements, self.replica.dtype)
        return self.vectors[name]

    def epoch(self, step: int) -> int:
        """The epoch that ``step`` is in."""
        return step // self.steps_per_epoch

    def batch(self, step: int, rank: int, ranks: int) -> _Batch:
        """Images and labels of ``rank``'s share of the global batch, the same batch whatever ``ranks``."""
        self.replica.reseed(self.seed, rank, step)
        if self._ahead is None or self._ahead[0] != (rank, ranks):
            self.close()
            make = partial(self._make_batch, rank=rank, ranks=ranks)
            self._ahead = (rank, ranks), Prefetch(make, self.steps, self.prefetch)
        images, labels = self._ahead[1].take(step)
        self.images = len(images)
        return images, labels

    def input(self, step: int, rank: int, ranks: int) -> tuple[Array, Array]:
        """Return the same where the replica's kernels can read it."""
        images, labels = self.batch(step, rank, ranks)
        return self.replica.backend.asarray(images), self.replica.backend.asarray(labels)

    def close(self) -> None:
        """End what makes batches ahead, if there is such; a later batch begins it anew."""
        if self._ahead is not None:
            self._ahead[1].close()
            self._ahead = None

    def _make_batch(self, step: int, rank: int, ranks: int) -> _Batch:
        """The same, without a trace in the replica: it may be another thread that calls."""
        epoch, within = divmod(step, self.steps_per_epoch)
        order = epoch_order(len(self.dataset.train), epoch, self.seed)
        mine = share(order, within, self.global_batch, rank, ranks, self.shares)
        return self.dataset.train.batch(mine, self.replica.dtype, (self.seed, epoch))

    def turn(self, steps: int) -> int:
        """How often the test set is to be looked at within ``steps`` steps, but for the end."""
        return int(steps / self.steps_per_epoch / self.evaluate_every + 1e-9)

    def evaluation_due(self, steps: int) -> bool:
        """Whether the test set is to be looked at after ``steps`` steps."""
        turn = self.turn(steps)
        due = turn > self._evaluated or steps == self.steps
        self._evaluated = turn
        return due

    async def evaluate(
        self,
        comm: Comm,
        steps: float,
        *,
        parameters: Array | None = None,
        consensus: float = math.nan,
        at: Moment | None = None,
    ) -> bool:
        """Test the network on all ranks together; tells whether training may stop.

        Each rank takes its share of the test set. Running statistics of batch normalisation, which are
        each rank's own during training (Goyal et al. 2017, section 2.3), are averaged first. With ``parameters``,
        the same on all ranks, those are tested and the replica's own come back afterwards; ``consensus`` and
        ``at`` are noted with what is found. ``steps``, in global batches, is how far training was.
        """
        replica, test = self.replica, self.dataset.test
        if replica.state.size and not self.independent:
            await comm.native("allreduce", replica.state)
            replica.state /= comm.size
        own = replica.parameters.copy() if parameters is not None else None
        if parameters is not None:
            replica.parameters[:] = parameters
        sums = await comm.compute("evaluation", lambda: self._test(comm.rank, comm.size))
        if own is not None:
            replica.parameters[:] = own
        await comm.native("allreduce", sums)
        loss, right = (float(total) / len(test) for total in sums)
        epochs, samples = steps / self.steps_per_epoch, round(steps * self.global_batch)
        self.journal.evaluation(epochs, loss, right, samples, consensus=consensus, at=at)
        reached = self.target_accuracy is not None and right >= self.target_accuracy
        return bool(self.stop_at_target and reached)

    async def evaluate_average(
        self, comm: Comm, steps: float, mine: Array, *, weight: float = 1, at: Moment | None = None
    ) -> bool:
        """Test the average over ranks of ``mine``, which stays as it is; note how far the ranks are from it.

        ``weight`` is this rank's in the average; all ranks' add up to their number.
        """
        average = mine * weight
        await comm.native("allreduce", average)
        average /= comm.size
        squares = np.array([float(((mine - average) ** 2).sum())])
        await comm.native("allreduce", squares)
        distance = float(squares[0] / comm.size) ** 0.5
        return await self.evaluate(comm, steps, parameters=average, consensus=distance, at=at)

    def _test(self, rank: int, ranks: int) -> NDArray[np.float64]:
        """Sum of losses and number of right answers over this rank's share of the test set.

        Batches are no larger than in training, so that memory which is enough for that is enough for this.
        """
        replica, test = self.replica, self.dataset.test
        mine = np.arange(rank * len(test) // ranks, (rank + 1) * len(test) // ranks)
        parts = range(0, len(mine), math.ceil(self.global_batch / ranks))

        def make(part: int) -> _Batch:
            return test.batch(mine[parts[part] :][: parts.step], replica.dtype)

        sums = np.zeros(2)
        with Prefetch(make, len(parts), self.prefetch) as ahead:
            for part in range(len(parts)):
                images, labels = ahead.take(part)
                logits = replica.predict(replica.backend.asarray(images))
                loss, right, _ = replica.loss(logits, replica.backend.asarray(labels), 1.0, train=False)
                sums += (loss, right)
        replica.let_go()
        return sums
