from functools import partial
from typing import Final

from hpcdl.fabric.comm import Comm
from hpcdl.training.parts.bucketing import CompleteBuckets, check_bucket_bytes
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.mesh import place_among
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Strategy


async def synchronous(comm: Comm, session: Session, *, bucket_bytes: int | None = None) -> None:
    """Synchronous data-parallel SGD (FireCaffe, section 3; Das et al. 2016): all ranks make equal steps.

        g  <-  allreduce(gradient of the rank's share, scaled by 1 / global batch)
        x  <-  x - rate * g

    The scaling makes the plain sum over ranks the gradient of the mean loss. The gradient is summed in buckets of
    about ``bucket_bytes``, each as soon as backward has completed it; the messages overlap with the rest of
    backward. With 0 it is one bucket after backward. The default is the length that the measured links between
    hosts ask for (:mod:`hpcdl.training.parts.bucketing`), and one bucket within a host.
    """
    reduce, noise = partial(session.reduce, comm), session.watch_noise(comm.size)
    buckets = CompleteBuckets(comm, session.buckets(bucket_bytes), noise.watched(reduce) if noise else reduce)
    for step in range(session.steps):
        with session.step(step) as (outcome, rate):
            buckets.begin()
            share = partial(session.inputs.load, step, *place_among(comm, session.group))
            await gradient(
                comm, session, share, outcome, scale=1 / session.global_batch, after=buckets.start_complete
            )
            await buckets.finish()
            if noise is not None:
                noise.add(step, outcome.images)
            await session.update(comm, rate)
        if session.evaluation.due(step + 1) and await session.evaluation.test(comm, step + 1):
            return


TRAITS: Final = Strategy(
    lockstep=True, weighs_images=True, splits_layers=True, compresses=True, check=check_bucket_bytes
)
