"""Session of a strategy: replica, optimizer, inputs, evaluations, aggregation, and the length of training."""

import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from operator import itruediv, mul
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.compression.parts.protocol import Layout
from hpcdl.data.parts.dataset import Split
from hpcdl.fabric.comm import SHARD_UPDATE, Array, Comm
from hpcdl.nn.replica import Replica
from hpcdl.optim.parts.protocol import UNIFORM, Multipliers, Optimizer
from hpcdl.training.parts.bucketing import between, buckets
from hpcdl.training.parts.compressed import NO_FIDELITY, Compressed
from hpcdl.training.parts.inputs import Inputs, Prefetch
from hpcdl.training.parts.journal import Journal, Moment, Outcome
from hpcdl.training.parts.mesh import ModelGroup, Place, holders, using
from hpcdl.training.parts.noise_and_sharpness import NoiseScale
from hpcdl.training.parts.plan import Plan

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

        async def means(split: Split) -> NDArray[np.float64]:
            """Return mean loss and accuracy of all ranks together, (2,); NaN if training has diverged on any."""
            if inputs.group is not None:
                sums = await inputs.group.test(comm, split, inputs.global_batch, parameters)
            elif through is None:
                own, batch = (comm.rank, comm.size), inputs.global_batch
                work = partial(test_share, replica, split, own, batch, inputs.prefetch, parameters)
                sums = await comm.compute("evaluation", work)
            else:
                sums = await through(split)
            if not np.isfinite(self.tested).all():
                sums[:] = math.nan
            await comm.native("allreduce", sums)
            return sums / len(split) if math.isfinite(sums[0]) else np.full(2, math.nan)

        self._again = means if inputs.dataset.validation is not None else None
        loss, accuracy = map(float, await means(inputs.dataset.watched))
        epochs, samples = steps / inputs.steps_per_epoch, round(steps * inputs.global_batch)
        fidelity = NO_FIDELITY
        if self.compressed is not None:
            fidelity = await self.compressed.fidelity(holders(comm, inputs.group), replica.gradients)
        self.journal.evaluation(epochs, loss, accuracy, samples, consensus=consensus, fidelity=fidelity, at=at)
        reached = self.target_accuracy is not None and accuracy >= self.target_accuracy
        return bool(self.stop_at_target and reached)

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


@dataclass
class Session:
    """Arguments and helpers of a strategy on one rank."""

    replica: Replica
    optimizer: Optimizer
    aggregate: Callable[[Comm, Array], Coroutine[Any, Any, None]]
    """Function that sums a vector over all ranks, in place."""
    inputs: Inputs
    evaluation: Evaluation
    learning_rate: Callable[[int], float]
    independent: bool = False
    """True if replicas are never combined (aggregation ``none``), so that each has its own accuracy."""
    bucket_bytes: int | None = None
    """Shortest bucket that is worth its latency, as measured on the links; None: the whole gradient."""
    compression: Plan | None = None
    """Compression of gradients; None: they are summed dense."""
    journal: Journal = field(init=False)
    compressed: Compressed | None = field(default=None, init=False)
    group: ModelGroup | None = None
    """This rank of a model group; None: every rank has all layers."""
    place: Place | None = None
    """Place of the rank in a mesh that divides layers; None: every rank has all layers."""
    timed_updates: bool = False
    """A simulation knows the time of a whole update, of which that of a part takes its share."""
    vectors: dict[str, Array] = field(default_factory=dict, init=False)
    """Vectors of the strategy besides the replica's, by name; see :meth:`vector`."""
    multipliers: Multipliers = field(default=UNIFORM, init=False)
    """Parameters without weight decay or with a multiple of the learning rate."""
    resident_bytes: int | None = field(default=None, init=False)
    """Most bytes of parameters and gradients in memory at a time, if a strategy frees some."""
    watched: list[Any] = field(default_factory=list, init=False)
    """Measurements, such as the noise scale: all ranks await ``fields(comm)``, of the record, after training."""
    _parts: list[Optimizer] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        replica, self.journal = self.replica, self.evaluation.journal
        if not replica.backend.sizes_only:
            self.multipliers = Multipliers.of(replica.tensors)
        self.optimizer.multipliers = self.multipliers
        if self.compression is not None:
            layout = Layout(
                size=replica.gradients.size,
                tensors=replica.tensors,
                dtype=str(replica.gradients.dtype),
                seed=self.inputs.seed,
                device=replica.backend.device,
            )
            self.compressed = self.evaluation.compressed = Compressed(
                self.compression, layout, self.vector, self.evaluation.follows
            )

    @property
    def global_batch(self) -> int:
        """Images of a step, of all ranks together."""
        return self.inputs.global_batch

    @property
    def steps(self) -> int:
        return self.inputs.steps

    @property
    def memory_bytes(self) -> int:
        """Bytes of this rank's vectors: parameters, gradients, state, those of the optimizer and the strategy."""
        replica = self.replica
        vectors = [replica.layer_gradient, replica.state, *self.vectors.values()]
        if self.resident_bytes is None:
            vectors += [replica.parameters, replica.gradients]
        for optimizer in (self.optimizer, *self._parts):
            vectors += optimizer.state.values()
        vectors += self.compressed.state.values() if self.compressed is not None else ()
        return sum(vector.nbytes for vector in vectors) + (self.resident_bytes or 0)

    @contextmanager
    def step(self, step: int) -> Iterator[tuple[Outcome, float]]:
        """Record the body of the ``with`` statement as a step; gives its outcome, to be filled, and its rate."""
        rate = self.learning_rate(step)
        with self.journal.step(self.inputs.epoch(step), rate) as outcome:
            yield outcome, rate

    async def update(self, comm: Comm, rate: float) -> None:
        """Update all parameters by their gradients."""
        replica = self.replica
        await comm.compute("update", partial(self.optimizer.update, replica.parameters, replica.gradients, rate))

    def optimizer_of(self, span: slice) -> Optimizer:
        """Return a copy of the optimizer for the part ``span`` of the parameters, with its own state."""
        optimizer = deepcopy(self.optimizer)
        optimizer.multipliers = self.multipliers.part(span)
        self._parts.append(optimizer)
        return optimizer

    async def update_part(
        self, comm: Comm, optimizer: Optimizer, parameters: Array, gradients: Array, rate: float
    ) -> None:
        """Update a part of the parameters, (n,), among the messages of an exchange."""
        work = partial(optimizer.update, parameters, gradients, rate)
        vectors = 1 if self.timed_updates else 1 + len(optimizer.state)
        await comm.apply(SHARD_UPDATE, work, vectors * parameters.nbytes)

    def second_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Return an optimizer of the strategy's own, whose state counts as memory; sizes are not updated."""
        self._parts.append(self.optimizer if self.replica.backend.sizes_only else optimizer)
        return self._parts[-1]

    def vector(self, name: str, size: int | None = None) -> Array:
        """Return a new vector of zeros, as long as the parameters or ``size``, and store it in ``vectors``."""
        elements = self.replica.parameters.size if size is None else size
        self.vectors[name] = self.replica.backend.zeros(elements, self.replica.dtype)
        return self.vectors[name]

    def buckets(self, smallest: int | None, spans: Sequence[slice] | None = None) -> list[slice]:
        """Return the buckets of the layers at ``spans``, by default of all, of about ``smallest`` bytes.

        0: one bucket; None: :attr:`bucket_bytes`. Buckets are cut between tensors if the compressor must.
        """
        replica, smallest = self.replica, self.bucket_bytes if smallest is None else smallest
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

    async def reduce(self, comm: Comm, span: slice, vector: Array | None = None) -> None:
        """Sum the part ``span`` of the gradient over all ranks, in place, with the compression of the case.

        ``vector``, (span length,), is summed in place of the gradient, which has no model group then. Raises
        FloatingPointError for a value that a compressor cannot send: infinite, or not a number.
        """
        part = self.replica.gradients[span] if vector is None else vector
        if self.group is not None:
            await self.group.reduce(comm, span, self.aggregate, self.compressed)
        elif self.compressed is None:
            await self.aggregate(comm, part)
        else:
            await self.compressed.reduce(comm, span, part, self.aggregate, keep=vector is None)

    def watch_noise(self, ranks: int) -> NoiseScale | None:
        """Return the gradient noise scale; None where a rank does not have its own and the summed gradient."""
        if not self._compares(ranks) or self.compressed is not None or self.group is not None:
            return None
        self.watched.append(noise := NoiseScale(self.replica.gradients, self.global_batch, self.steps))
        return noise

    def _compares(self, replicas: int) -> bool:
        """Return True if several replicas are combined, and their values are in the host's memory."""
        backend = self.replica.backend
        return replicas > 1 and not self.independent and backend.on_host and not backend.sizes_only
