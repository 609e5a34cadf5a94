from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.dataset import Split
from hpcdl.data.parts.sharding import bounds
from hpcdl.fabric.comm import INPUT, Array, Comm
from hpcdl.nn.replica import Stage
from hpcdl.training.parts import sections
from hpcdl.training.parts.bucketing import CompleteBuckets, check_bucket_bytes
from hpcdl.training.parts.gradient import run_passes
from hpcdl.training.parts.journal import Outcome
from hpcdl.training.parts.mesh import Place, placed
from hpcdl.training.parts.sections import WHOLE, AdjacentStage, Images, Loss, Microbatch, Neighbour, Pass, Section
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings, Strategy


async def pipeline(
    comm: Comm, session: Session, *, microbatches: int = 4, schedule: str = "1f1b", bucket_bytes: int | None = None
) -> None:
    """Synchronous pipeline parallelism: each rank trains a stage of consecutive layers (Huang et al. 2019).

        stage 0   F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3      1f1b, 3 stages, 4 microbatches
        stage 1   .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .       F: forward, B: backward
        stage 2   .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .

    A batch is divided into ``microbatches``, whose activations pass from stage to stage. ``schedule`` is ``gpipe``
    or ``1f1b`` (:mod:`hpcdl.training.parts.sections`). Both sum the gradients of all microbatches before
    the update, so that training equals that of the undivided network. Exceptions: batch normalisation uses the
    statistics of each microbatch, and on GPUs dropout draws other masks.

    Each microbatch in flight has its own activations: all of them with ``gpipe``, at most as many as stages with
    ``1f1b``. No activation is computed twice, unlike in GPipe with recomputation.

    A pipeline is a group of the mesh, ``mesh = {pipeline = 4}``. With several, each has its share of the batch,
    and gradients are summed over the ranks of the same stage, in buckets of about ``bucket_bytes`` as in
    ``synchronous``. Without a mesh each rank has all layers.
    """
    place = session.place or await placed(comm, 1)
    order = sections.SCHEDULES[schedule](place.model.rank, place.model.size, microbatches)
    stage = PipelineStage(comm, session, place, order, microbatches)
    await stage.find_losses()
    buckets = CompleteBuckets(place.data, session.buckets(bucket_bytes), partial(session.reduce, place.data))
    for step in range(session.steps):
        with session.step(step) as (outcome, rate):
            buckets.begin()
            auxiliary = await stage.gradient(step, outcome, buckets.start_complete)
            await buckets.finish()
            await session.update(comm, rate)
            await stage.complete_loss(outcome, auxiliary)
        test = partial(session.evaluation.test, replicas=place.data, through=stage.test)
        if session.evaluation.due(step + 1) and await test(comm, step + 1):
            return


@dataclass(eq=False)
class PipelineStage:
    """One rank of a pipeline: its layers, and the ranks with the stages before and after."""

    comm: Comm
    session: Session
    place: Place
    order: Sequence[Pass]
    microbatches: int

    def __post_init__(self) -> None:
        session, replica, pipe = self.session, self.session.replica, self.place.model
        bindings = replica.bindings(sections.in_flight(self.order))
        self._section = Section(0, bindings, [WHOLE], self.order)
        ends = bounds(session.global_batch, self.place.data.size, session.inputs.shares)
        self._most = -(-int(np.diff(ends).max()) // self.microbatches)
        """Images of a microbatch, at most."""
        neighbour = partial(AdjacentStage, pipe, replica, self._most, len(bindings))
        self._before = None if replica.is_first else neighbour(before=True)
        self._after = None if replica.is_last else neighbour(before=False)
        self._with_heads: list[int] = []
        """Stages with auxiliary classifiers."""

    async def find_losses(self) -> None:
        """Tell the last stage, which has the loss, which stages have losses of auxiliary classifiers."""
        pipe = self.place.model
        marks = np.zeros(pipe.size)
        marks[pipe.rank] = any(layer.heads for layer in self.session.replica.stages)
        await pipe.native("allreduce", marks)
        self._with_heads = np.flatnonzero(marks).tolist()

    async def gradient(self, step: int, outcome: Outcome, complete: Callable[[Stage], None]) -> float:
        """Compute the stage's gradient of a batch; return the losses of its auxiliary classifiers.

        ``complete`` is called after the last backward of each layer.
        """
        session, comm, replicas = self.session, self.comm, self.place.data
        share, scale = (step, replicas.rank, replicas.size), 1 / session.global_batch
        if self._before is None:
            images, labels = await comm.compute(INPUT, partial(session.inputs.load, *share))
            source: Neighbour = Images(_divided(images, self.microbatches))
        else:
            labels = await comm.compute(INPUT, partial(session.inputs.labels, *share))
            source = self._before
        parts = [Microbatch(own, ((0, len(own)),)) for own in _divided(labels, self.microbatches)]
        sink = self._after or Loss(comm, session.replica, parts, [WHOLE], scale, outcome)
        section = self._section._replace(microbatches=parts)
        return await run_passes(comm, session, section, scale, source, sink, after=complete)

    async def complete_loss(self, outcome: Outcome, auxiliary: float) -> None:
        """Add the ``auxiliary`` losses of all stages to the loss of the last one."""
        pipe, last = self.place.model, self.place.model.size - 1
        if pipe.rank == last:
            theirs = np.empty(1)
            for stage in self._with_heads:
                if stage != last:
                    await pipe.recv(theirs, stage, sections.LOSS)
                    auxiliary += float(theirs[0])
            outcome.loss = (outcome.loss + auxiliary) / max(1, outcome.images)
        elif pipe.rank in self._with_heads:
            await pipe.send(np.array([auxiliary]), last, sections.LOSS)

    async def test(self, split: Split) -> NDArray[np.float64]:
        """Return the summed loss and the number of correct answers of this pipeline's share of a split, (2,).

        They are zeros on all ranks but the last of each pipeline.
        """
        comm, replica, replicas = self.comm, self.session.replica, self.place.data
        begin, end = bounds(len(split), replicas.size)[replicas.rank :][:2]
        parts = [np.arange(first, min(first + self._most, end)) for first in range(begin, end, self._most)]
        sums = np.zeros(2)
        for number, indices in enumerate(parts):
            if self._before is None:
                images, _ = await comm.compute("evaluation", partial(split.batch, indices, replica.dtype))
                x = replica.backend.asarray(images)
            else:
                self._before.expect(number, len(indices))
                x = await self._before.received(number)
            y = await comm.compute("evaluation", partial(replica.predict, x))
            if self._after is None:
                labels = replica.backend.asarray(split.labels[indices])
                loss, correct, _ = await comm.compute("evaluation", partial(replica.loss, y, labels, 1.0))
                sums += (loss, correct)
            else:
                await self._after.sent(number - 1)
                await self._after.send(number, y)
        if self._after is not None:
            await self._after.finish()
        replica.release_predictions()
        return sums


def _divided(batch: Array, microbatches: int) -> list[Array]:
    """Return views of the microbatches, whose sizes differ by at most one image."""
    return [batch[begin:end] for begin, end in pairwise(bounds(len(batch), microbatches))]


def _in_flight(stage: int, stages: int, settings: Settings) -> int:
    return sections.in_flight(sections.SCHEDULES[settings["schedule"]](stage, stages, settings["microbatches"]))


TRAITS: Final = Strategy(
    lockstep=True,
    scales_loss=False,
    weighs_images=True,
    least={"microbatches": 1},
    words={"schedule": sections.SCHEDULES},
    check=check_bucket_bytes,
    pipelines=True,
    microbatches=lambda settings: int(settings["microbatches"]),
    in_flight=_in_flight,
)
