"""Evaluations of a training: when they are due, and tests of the whole network by all ranks together."""

import math
from collections.abc import Awaitable, Callable
from functools import partial
from operator import itruediv, mul
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.dataset import Split
from hpcdl.fabric.comm import Array, Comm
from hpcdl.nn.replica import Replica
from hpcdl.training.parts.compressed.compressed import NO_FIDELITY, Compressed
from hpcdl.training.parts.inputs import Inputs, Prefetch
from hpcdl.training.parts.journal import Journal, Moment
from hpcdl.training.parts.split.model_group import using

TEST_BYTES: Final = 1 << 20
"""Images that are tested at once, at least."""


class Evaluation:
    """Evaluations every ``every`` epochs and after the last of ``steps`` steps.

    With ``stop_at_target`` training may stop at ``target_accuracy``. ``independent``: replicas are never combined,
    so that each has its own accuracy.
    """

    def __init__(
        self,
        inputs: Inputs,
        journal: Journal,
        steps: int,
        *,
        every: float = 1.0,
        target_accuracy: float | None = None,
        stop_at_target: bool = False,
        independent: bool = False,
    ) -> None:
        self.compressed: Compressed | None = None
        """Exchange of compressed gradients, whose loss of information is recorded."""
        self._inputs = inputs
        self._replica = inputs.replica
        self._group = inputs.group
        self._journal = journal
        self._steps = steps
        self._every = every
        self._target_accuracy = target_accuracy
        self._stop_at_target = stop_at_target
        self._independent = independent
        self.tested: Array = inputs.replica.parameters
        """Parameters of the last test."""
        self._evaluated = 0
        self._again: Callable[[Split], Awaitable[NDArray[np.float64]]] | None = None
        """The last test, with another split."""

    def within(self, steps: int) -> int:
        """Return the number of evaluations due within ``steps`` steps, without the one at the end."""
        # In floats .3 / .1 is less than 3: without the margin such an evaluation would be a step late.
        return int(steps / self._inputs.steps_per_epoch / self._every + 1e-9)

    def due(self, steps: int) -> bool:
        """Return whether an evaluation is due after ``steps`` steps."""
        within = self.within(steps)
        due = within > self._evaluated or steps == self._steps
        self._evaluated = within
        return due

    def due_between(self, after: int, until: int) -> list[int]:
        """Return the numbers of steps above ``after``, up to ``until``, after which an evaluation is due."""
        return [steps for steps in range(after + 1, until + 1) if self.due(steps)]

    def follows(self, step: int) -> bool:
        """Return whether a test follows ``step``."""
        if self._replica.backend.sizes_only:
            return False
        return step + 1 == self._steps or self.within(step + 1) > self.within(step)

    async def test(
        self,
        comm: Comm,
        steps: float,
        *,
        parameters: Array | None = None,
        consensus: float = math.nan,
        at: Moment | None = None,
        replicas: Comm | None = None,
        through: Callable[[Split], Awaitable[NDArray[np.float64]]] | None = None,
    ) -> bool:
        """Test the network on all ranks together; return whether training may stop. Sizes alone are not tested.

        Each rank tests its share of the validation set, or of the test set if there is none. Running statistics of
        batch normalisation, which each rank has its own of during training (Goyal et al. 2017, section 2.3), are
        averaged first. ``parameters``, equal on all ranks, are tested in place of the replica's. ``consensus`` and
        ``at`` are recorded with the result. ``steps``: length of training so far, in global batches. ``replicas``
        are the ranks with the same layers, by default all. ``through(split)`` returns this rank's summed loss and
        number of correct answers, by default those of its share of the split.
        """
        replica, inputs = self._replica, self._inputs
        if replica.backend.sizes_only:
            return False
        if self._group is not None:
            await self._group.average_statistics(comm)
        elif replica.state.size and not self._independent:
            alike = replicas or comm
            await alike.native("allreduce", replica.state)
            await comm.compute("evaluation", partial(itruediv, replica.state, alike.size))
        self.tested = replica.parameters if parameters is None else parameters
        means = partial(self._means, comm, parameters, through)
        self._again = means if inputs.dataset.validation is not None else None
        loss, accuracy = map(float, await means(inputs.dataset.watched))
        epochs, samples = steps / inputs.steps_per_epoch, round(steps * inputs.global_batch)
        fidelity = NO_FIDELITY
        if self.compressed is not None:
            alike = comm if self._group is None else self._group.place.data
            fidelity = await self.compressed.fidelity(alike, replica.gradients)
        self._journal.evaluation(epochs, loss, accuracy, samples, consensus=consensus, fidelity=fidelity, at=at)
        reached = self._target_accuracy is not None and accuracy >= self._target_accuracy
        return bool(self._stop_at_target and reached)

    async def _means(
        self,
        comm: Comm,
        parameters: Array | None,
        through: Callable[[Split], Awaitable[NDArray[np.float64]]] | None,
        split: Split,
    ) -> NDArray[np.float64]:
        """Return mean loss and accuracy of all ranks together, (2,).

        Both are NaN if the loss or a parameter of any rank is not finite: training has diverged.
        """
        inputs = self._inputs
        if self._group is not None:
            sums = await self._group.test(comm, split, inputs.global_batch, parameters)
        elif through is None:
            own, batch = (comm.rank, comm.size), inputs.global_batch
            work = partial(test_share, self._replica, split, own, batch, inputs.prefetch, parameters)
            sums = await comm.compute("evaluation", work)
        else:
            sums = await through(split)
        if not np.isfinite(self.tested).all():
            sums[:] = math.nan
        await comm.native("allreduce", sums)
        return sums / len(split) if math.isfinite(sums[0]) else np.full(2, math.nan)

    async def test_at_end(self) -> dict[str, float]:
        """Look at the test set, once and after training, as the last test looked at the validation set.

        Return ``test_loss`` and ``test_accuracy``; nothing without a validation set. All ranks call.
        """
        if self._again is None:
            return {}
        loss, accuracy = map(float, await self._again(self._inputs.dataset.test))
        return {"test_loss": loss, "test_accuracy": accuracy}

    async def test_average(
        self, comm: Comm, steps: float, parameters: Array, *, weight: float = 1, at: Moment | None = None
    ) -> bool:
        """Test the average over replicas of ``parameters``, which does not change; record their distance from it.

        ``weight``: weight of this rank's replica in the average; the weights of all add up to their number.
        """
        ranks = comm if self._group is None else self._group.place.data
        square = _square_distance if self._group is None else self._group.square_distance
        average = await comm.compute("evaluation", partial(mul, parameters, weight))
        await ranks.native("allreduce", average)
        await comm.compute("evaluation", partial(itruediv, average, ranks.size))
        squares = np.array([await comm.compute("evaluation", partial(square, parameters, average))])
        await comm.native("allreduce", squares)
        distance = float(squares[0] / ranks.size) ** 0.5
        return await self.test(comm, steps, parameters=average, consensus=distance, at=at)


def test_share(
    replica: Replica,
    split: Split,
    own: tuple[int, int],
    global_batch: int,
    prefetch: int,
    parameters: Array | None,
) -> NDArray[np.float64]:
    """Return the summed loss and the correct answers over the share ``own`` (rank, ranks) of a split, (2,).

    ``parameters`` are tested, or the replica's. Batches are as large as in training, so that tests need no more
    memory than training, or a megabyte; ``prefetch`` of them are made ahead by a thread.
    """
    rank, ranks = own
    indices = np.arange(rank * len(split) // ranks, (rank + 1) * len(split) // ranks)
    image_bytes = math.prod(replica.shape) * replica.parameters.itemsize
    length = max(math.ceil(global_batch / ranks), TEST_BYTES // image_bytes)
    parts = range(0, len(indices), length)

    def make(part: int) -> tuple[Array, NDArray[np.int64]]:
        return split.batch(indices[parts[part] :][:length], replica.dtype)

    sums = np.zeros(2)
    with using(replica, parameters), Prefetch(make, len(parts), prefetch) as ahead:
        for part in range(len(parts)):
            images, labels = ahead.take(part)
            logits = replica.predict(replica.backend.asarray(images))
            loss, correct, _ = replica.loss(logits, replica.backend.asarray(labels), 1.0)
            sums += (loss, correct)
        replica.release_predictions()
    return sums


def _square_distance(parameters: Array, average: Array) -> float:
    return float(((parameters - average) ** 2).sum())
