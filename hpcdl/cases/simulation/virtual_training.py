"""Training in virtual time: real gradients on a modelled network, all ranks in this process.

Arithmetic is real, and its duration is modelled: work by
:mod:`hpcdl.cases.keys.compute_times`, messages by :mod:`hpcdl.fabric.network`. The same seed gives the same
training, the same order of messages and the same times, whatever machine simulates.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final

from hpcdl.cases.keys.compute_times import TIMES
from hpcdl.cases.keys.train_spec import TrainSpec
from hpcdl.cases.simulation.step_simulation import ComputeTimeModel
from hpcdl.fabric.comm import Comm, Counters
from hpcdl.fabric.faults import RankFailed
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.trace.recorder import Scalar
from hpcdl.training.parts.bucketing import bucket_bytes
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.split.mesh import placed

MAX_SECONDS: Final = 10**9
"""Virtual time of a training's computing, at most: 31 years; traces count nanoseconds in 64 bits."""


def check(spec: TrainSpec) -> None:
    """Raise ValueError, led by its key, for settings that make no simulation."""
    if spec.network is None:
        return
    given = spec.compute_source.given
    if len(given) != 1:
        raise ValueError(f"network: a simulated case needs exactly one of {', '.join(TIMES)}")
    try:
        _check_duration(spec)
    except (ValueError, OSError) as error:
        raise ValueError(f"{given[0]}: {error}") from None


def _check_duration(spec: TrainSpec) -> None:
    """Raise ValueError if the training takes more virtual time than traces can count, in nanoseconds."""
    seconds = spec.compute_times.step_seconds(spec.images_per_step)  # one rank may make all steps
    if (slow := spec.straggler) is not None:
        seconds = seconds * slow.factor + slow.seconds
    if not (total := spec.planned_steps * seconds) <= MAX_SECONDS:
        raise ValueError(f"the training would take {total:.3g} s, and may take {MAX_SECONDS} s at most")


async def simulate(
    spec: TrainSpec,
    train: Callable[[Comm, Session], Coroutine[Any, Any, dict[str, Scalar]]],
    journal: Journal,
    _comm: Comm,
) -> dict[str, Scalar]:
    """Run ``train`` on all ranks of the case in virtual time; return rank 0's findings and the simulation's."""
    ranks, failure, cluster = spec.ranks, spec.failure, spec.cluster
    sessions: dict[int, Session] = {}
    work = ComputeTimeModel(
        spec.stage_times,
        lambda rank: sessions[rank].inputs.group_shares[-1][1],
        ranks,
        jitter=spec.jitter,
        straggler=spec.straggler,
        seed=spec.seed,
    )

    def counters(rank: int) -> Counters:
        now, computed, waited = (
            round(seconds * 1e9)
            for seconds in (world.running.time, work.compute_seconds[rank], work.input_seconds[rank])
        )
        return Counters(now, world.messages[rank], world.bytes[rank], computed, waited)

    failed = []

    def before_step(rank: int, step: int) -> None:
        if failure is not None and (rank, step) == (failure.rank, failure.step):
            failed.append(str(failure))
            raise RankFailed

    journals = [
        journal.virtual(partial(counters, rank), ranks, partial(before_step, rank)) for rank in range(ranks)
    ]
    events = [journal.events for journal in journals if journal.events is not None]
    world = simulated(ranks, cluster, compute=work.seconds, events=events or None)
    # a thread for each rank that makes its batches ahead would gain nothing here
    at_once = replace(spec, prefetch=0)
    group = spec.stages * spec.model_ranks

    async def take_part(comm: Comm) -> dict[str, Scalar]:
        place = await placed(comm, group) if group > 1 else None
        replica = at_once.replica(at_once.kernels, place, comm.rank)
        session = sessions[comm.rank] = at_once.session(journals[comm.rank], replica, place)
        session.bucket_bytes = bucket_bytes(cluster.link.alpha, cluster.link.beta, ranks)
        return await train(comm, session)

    first, *_ = world.run(take_part)
    failures = {"process_failure": ", ".join(failed)} if failure else {}
    return {**first, "nodes": -(-ranks // cluster.ranks_per_host), **failures}
