from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.data.parts.dataset import Split
from hpcdl.data.parts.sharding import bounds
from hpcdl.fabric.comm import INPUT, Array, Comm
from hpcdl.training.parts.bucketing import CompleteBuckets, check_bucket_bytes
from hpcdl.training.parts.gradient import run_passes
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.split.flow import WHOLE
from hpcdl.training.parts.split.mesh import placed
from hpcdl.training.parts.split.neighbours import LOSS, Images, Loss, Neighbour, Stage
from hpcdl.training.parts.split.schedules import SCHEDULES, Microbatch, Section, in_flight
from hpcdl.training.parts.traits import Settings, Strategy


async def pipeline(
    comm: Comm,
    session: Session,
    *,
    microbatches: int = 4,
    schedule: str = "1f1b",
    bucket_bytes: int | None = None,
) -> None:
    """Synchronous pipeline parallelism: each rank trains a stage of consecutive layers (Huang et al. 2019).

        stage 0   F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3      1f1b, 3 stages, 4 microbatches
        stage 1   .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .       F: forward, B: backward
        stage 2   .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .

    A batch is divided into ``microbatches``, whose activations pass from stage to stage. ``schedule`` is ``gpipe``
    or ``1f1b`` (:mod:`hpcdl.training.parts.split.schedules`). Both sum the gradients of all microbatches before
    the update, so that training equals that of the undivided network. Exceptions: batch normalisation uses the
    statistics of each microbatch, and on GPUs dropout draws other masks.

    Each microbatch in flight has its own activations: all of them with ``gpipe``, at most as many as stages with
    ``1f1b``. No activation is computed twice, unlike in GPipe with recomputation.

    A pipeline is a group of the mesh, ``mesh = {pipeline = 4}``. With several, each has its share of the batch,
    and gradients are summed over the ranks of the same stage, in buckets of about ``bucket_bytes`` as in
    ``synchronous``. Without a mesh each rank has all layers.
    """
    replica, gradients = session.replica, session.replica.gradients
    place = session.place or await placed(comm, 1)
    pipe, replicas = place.model, place.data
    order = SCHEDULES[schedule](pipe.rank, pipe.size, microbatches)
    bindings = replica.bindings(in_flight(order))
    largest = int(np.diff(bounds(session.global_batch, replicas.size, session.inputs.shares)).max())
    most = -(-largest // microbatches)
    before = None if replica.is_first else Stage(pipe, replica, most, len(bindings), before=True)
    after = None if replica.is_last else Stage(pipe, replica, most, len(bindings), before=False)
    # The last stage has the loss, and must know from which stages losses of auxiliary classifiers come.
    marks = np.zeros(pipe.size)
    marks[pipe.rank] = any(stage.heads for stage in replica.stages)
    await pipe.native("allreduce", marks)
    with_heads = np.flatnonzero(marks).tolist()
    section, scale = Section(0, bindings, [WHOLE], order), 1 / session.global_batch
    smallest = session.bucket_bytes if bucket_bytes is None else bucket_bytes
    buckets = CompleteBuckets(replicas, session.buckets(smallest), partial(session.reduce, replicas))

    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.inputs.epoch(step), rate) as outcome:
            buckets.begin()
            share = (step, replicas.rank, replicas.size)
            if before is None:
                images, labels = await comm.compute(INPUT, partial(session.inputs.load, *share))
                source: Neighbour = Images(_divided(images, microbatches))
            else:
                labels = await comm.compute(INPUT, partial(session.inputs.labels, *share))
                source = before
            parts = [Microbatch(own, ((0, len(own)),)) for own in _divided(labels, microbatches)]
            sink = Loss(comm, replica, parts, [WHOLE], scale, outcome) if after is None else after
            batch, complete = section._replace(microbatches=parts), buckets.start_complete
            own = await run_passes(comm, session, batch, scale, source, sink, after=complete)
            await buckets.finish()
            await comm.compute("update", partial(session.optimizer.update, replica.parameters, gradients, rate))
            auxiliary = await total_loss(pipe, with_heads, own)
            if after is None:
                outcome.loss = (outcome.loss + auxiliary) / max(1, outcome.images)
        if session.evaluation.due(step + 1):
            through = partial(test, comm, session, replicas, before, after, most)
            if await session.evaluation.test(comm, step + 1, replicas=replicas, through=through):
                return


def _divided(batch: Array, microbatches: int) -> list[Array]:
    """Return views of the microbatches, whose sizes differ by at most one image."""
    return [batch[begin:end] for begin, end in pairwise(bounds(len(batch), microbatches))]


async def total_loss(pipe: Comm, stages: Sequence[int], own: float) -> float:
    """Return on the last rank the sum of the losses of ``stages``, which it receives; elsewhere ``own``."""
    last = pipe.size - 1
    if pipe.rank == last:
        for stage in stages:
            if stage != last:
                theirs = np.empty(1)
                await pipe.recv(theirs, stage, LOSS)
                own += float(theirs[0])
    elif pipe.rank in stages:
        await pipe.send(np.array([own]), last, LOSS)
    return own


async def test(
    comm: Comm,
    session: Session,
    replicas: Comm,
    before: Stage | None,
    after: Stage | None,
    most: int,
    split: Split,
) -> NDArray[np.float64]:
    """Return the summed loss and the number of correct answers of this pipeline's share of a split, (2,).

    They are zeros on all ranks but the last of each pipeline. At most ``most`` images pass at a time.
    """
    replica = session.replica
    begin, end = bounds(len(split), replicas.size)[replicas.rank :][:2]
    parts = [np.arange(first, min(first + most, end)) for first in range(begin, end, most)]
    sums = np.zeros(2)
    for number, indices in enumerate(parts):
        if before is None:
            images, _ = await comm.compute("evaluation", partial(split.batch, indices, replica.dtype))
            x = replica.backend.asarray(images)
        else:
            before.expect(number, len(indices))
            x = await before.received(number)
        y = await comm.compute("evaluation", partial(replica.predict, x))
        if after is None:
            labels = replica.backend.asarray(split.labels[indices])
            work = partial(replica.loss, y, labels, 1.0)
            loss, correct, _ = await comm.compute("evaluation", work)
            sums += (loss, correct)
        else:
            await after.sent(number - 1)
            await after.send(number, y)
    if after is not None:
        await after.finish()
    replica.release_predictions()
    return sums


def _in_flight(stage: int, stages: int, settings: Settings) -> int:
    return in_flight(SCHEDULES[settings["schedule"]](stage, stages, settings["microbatches"]))


TRAITS: Final = Strategy(
    lockstep=True,
    scales_loss=False,
    weighs_images=True,
    least={"microbatches": 1},
    words={"schedule": SCHEDULES},
    check=check_bucket_bytes,
    pipelines=True,
    microbatches=lambda settings: int(settings["microbatches"]),
    in_flight=_in_flight,
)
