"""Evaluations of a training: when they are due, and tests of the whole network by all ranks together."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
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
from hpcdl.training.parts.split.model_group import holders, using

TEST_BYTES: Final = 1 << 20
"""Images that are tested at once, at least."""


@dataclass(eq=False)
class Evaluation:
    """Evaluations every ``every`` epochs and after the last step.

    With ``stop_at_target`` training may stop at ``target_accuracy``. ``independent``: replicas are never combined,
    so that each has its own accuracy.
    """

    inputs: Inputs
    journal: Journal
    _: KW_ONLY
    every: float = 1.0
    target_accuracy: float | None = None
    stop_at_target: bool = False
    independent: bool = False
    compressed: Compressed | None = field(default=None, init=False)
    """Exchange of compressed gradients, whose loss of information is recorded."""
    tested: Array = field(init=False)
    """Parameters of the last test."""
    _evaluated: int = field(default=0, init=False)
    _again: Callable[[Split], Awaitable[NDArray[np.float64]]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.tested = self.inputs.replica.parameters

    def within(self, steps: int) -> int:
        """Return the number of evaluations due within ``steps`` steps, without the one at the end."""
        # In floats .3 / .1 is less than 3: without the margin such an evaluation would be a step late.
        return int(steps / self.inputs.steps_per_epoch / self.every + 1e-9)

    def due(self, steps: int) -> bool:
        within = self.within(steps)
        due = within > self._evaluated or steps == self.inputs.steps
        self._evaluated = within
        return due

    def follows(self, step: int) -> bool:
        if self.inputs.replica.backend.sizes_only:
            return False
        return step + 1 == self.inputs.steps or self.within(step + 1) > self.within(step)

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
        batch normalisation, which differ between ranks during training (Goyal et al. 2017, section 2.3), are
        averaged first. ``parameters``, equal on all ranks, are tested in place of the replica's. ``steps``: length
        of training so far, in global batches. ``consensus`` and ``at`` are recorded. ``replicas``: the ranks with
        the same layers, by default all. ``through(split)`` returns this rank's summed loss and correct answers.
        """
        replica, inputs = self.inputs.replica, self.inputs
        if replica.backend.sizes_only:
            return False
        if self.inputs.group is not None:
            await self.inputs.group.average_statistics(comm)
        elif replica.state.size and not self.independent:
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
            fidelity = await self.compressed.fidelity(holders(comm, inputs.group), replica.gradients)
        self.journal.evaluation(epochs, loss, accuracy, samples, consensus=consensus, fidelity=fidelity, at=at)
        reached = self.target_accuracy is not None and accuracy >= self.target_accuracy
        return bool(self.stop_at_target and reached)

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
        inputs = self.inputs
        if self.inputs.group is not None:
            sums = await self.inputs.group.test(comm, split, inputs.global_batch, parameters)
        elif through is None:
            own, batch = (comm.rank, comm.size), inputs.global_batch
            work = partial(test_share, self.inputs.replica, split, own, batch, inputs.prefetch, parameters)
            sums = await comm.compute("evaluation", work)
        else:
            sums = await through(split)
        if not np.isfinite(self.tested).all():
            sums[:] = math.nan
        await comm.native("allreduce", sums)
        return sums / len(split) if math.isfinite(sums[0]) else np.full(2, math.nan)

    async def test_at_end(self) -> dict[str, float]:
        """Return ``test_loss`` and ``test_accuracy`` as in the last test; nothing without a validation set."""
        if self._again is None:
            return {}
        loss, accuracy = map(float, await self._again(self.inputs.dataset.test))
        return {"test_loss": loss, "test_accuracy": accuracy}

    async def test_average(
        self, comm: Comm, steps: float, parameters: Array, *, weight: float = 1, at: Moment | None = None
    ) -> bool:
        """Test the average of the replicas' ``parameters``, which do not change; record their distance from it.

        ``weight``: of this rank's replica; the weights of all add up to their number.
        """
        group = self.inputs.group
        square = group.square_distance if group is not None else lambda own, mean: float(((own - mean) ** 2).sum())
        ranks = holders(comm, group)
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

    Batches are as large as in training, so that tests need no more memory, or a megabyte.
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
