"""Training in virtual time: real gradients on a modelled network, all ranks in this process.

What a rank computes is real, and how long it takes is modelled: its work by :mod:`hpcdl.analysis.compute_times`,
messages by :mod:`hpcdl.fabric.network`. The same seed gives the same training, the same order of messages and the
same times, whatever machine simulates.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.assembly import compute_times, dataset, layers, session, times_told
from hpcdl.fabric.comm import INPUT, Gauge
from hpcdl.fabric.failure import Died, Failure
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.simulated import simulated
from hpcdl.fabric.straggler import Delays, Straggler
from hpcdl.training.bucketing import bucket_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from hpcdl.analysis.compute_times import ComputeTimes
    from hpcdl.fabric.comm import Comm
    from hpcdl.fabric.network import Network
    from hpcdl.suite import Scalar
    from hpcdl.training.journal import Journal
    from hpcdl.training.session import Session

TIMES: Final = ("device", "flops", "times")
"""Keys that say how long work takes; a simulated case has exactly one of them."""


def check(settings: Mapping[str, Any]) -> None:
    """Raise ValueError, led by its key, for settings that make no simulation."""
    given = [key for key in TIMES if settings[key] is not None]
    if settings["network"] is None:
        if given or settings["jitter"] or settings["ranks_per_host"] != 1:
            key = next(iter(given), "jitter" if settings["jitter"] else "ranks_per_host")
            raise ValueError(f"{key}: is for simulated cases, which name a network")
        return
    if len(given) != 1:
        raise ValueError(f"network: a simulated case needs exactly one of {', '.join(TIMES)}")
    if settings["flops"] is not None and not settings["flops"] > 0:
        raise ValueError(f"flops: must be more than 0, not {settings['flops']}")
    if settings["trace"] == "alternating":
        raise ValueError("trace: a simulated step takes no longer when it is traced")
    try:
        _times(settings)
    except (ValueError, OSError) as error:
        raise ValueError(f"{given[0]}: {error}") from None


def network(settings: Mapping[str, Any]) -> Network:
    """The network with its ranks on their hosts."""
    return NETWORKS[settings["network"]].on(settings["ranks_per_host"])


def _times(settings: Mapping[str, Any]) -> ComputeTimes:
    """How long work takes on a rank that is not slowed. Raises ValueError."""
    data = dataset(settings["dataset"])
    return compute_times(settings, layers(settings, data), data.shape)


def told(settings: Mapping[str, Any]) -> str:
    """What the record says of the simulation."""
    jitter = f", jitter {settings['jitter']:g}" if settings["jitter"] else ""
    return (
        f"simulated on {settings['network']}, {settings['ranks_per_host']} a host, {times_told(settings)}{jitter}"
    )


class Pace:
    """How long the work of each simulated rank takes, and what it comes to.

    The times of a batch, its input being where it begins, vary by a common factor of mean 1 and standard deviation
    ``jitter``, lognormal. Each rank draws from its own random numbers, so that no interleaving changes them.
    """

    def __init__(
        self,
        times: ComputeTimes,
        images: Callable[[int], int],
        ranks: int,
        *,
        jitter: float = 0.0,
        straggler: Straggler | None = None,
        seed: int = 0,
    ) -> None:
        self._times = times
        self._images = images
        self._deviation = math.sqrt(math.log1p(jitter**2))
        self._random = [np.random.default_rng((seed, rank)) for rank in range(ranks)]
        self._factor = [1.0] * ranks
        self._delays = {straggler.rank: Delays(straggler, seed)} if straggler else {}
        self.compute_seconds = [0.0] * ranks
        self.input_seconds = [0.0] * ranks

    def seconds(self, rank: int, label: str) -> float:
        """How long ``rank`` now takes for work called ``label``; see :func:`hpcdl.fabric.simulated.simulated`."""
        if label == INPUT and self._deviation:
            self._factor[rank] = self._random[rank].lognormal(-(self._deviation**2) / 2, self._deviation)
        seconds = self._factor[rank] * self._times.seconds(label, self._images(rank))
        pause = 0.0
        if rank in self._delays:
            seconds += self._delays[rank].after(seconds)
            pause = self._delays[rank].before(label)
        self.compute_seconds[rank] += pause + seconds
        if label == INPUT:
            self.input_seconds[rank] += seconds
        return pause + seconds


async def simulate(
    settings: Mapping[str, Any],
    train: Callable[[Comm, Session], Coroutine[Any, Any, dict[str, Scalar]]],
    journal: Journal,
    straggler: Straggler | None,
    failure: Failure | None,
    _comm: Comm,
) -> dict[str, Scalar]:
    """Run ``train`` on all ranks of the case in virtual time; rank 0's answer and what the simulation adds."""
    ranks, cluster = settings["ranks"], network(settings)
    sessions: list[Session] = []
    pace = Pace(
        _times(settings),
        lambda rank: sessions[rank].images,
        ranks,
        jitter=settings["jitter"],
        straggler=straggler,
        seed=settings["seed"],
    )

    def gauge(rank: int) -> Gauge:
        now, computed, waited = (
            round(seconds * 1e9)
            for seconds in (world.running.time, pace.compute_seconds[rank], pace.input_seconds[rank])
        )
        return Gauge(now, world.messages[rank], world.bytes[rank], computed, waited)

    died = []

    def before_step(rank: int, step: int) -> None:
        if failure is not None and (rank, step) == (failure.rank, failure.step):
            died.append(str(failure))
            raise Died

    journals = [journal.virtual(partial(gauge, rank), ranks, partial(before_step, rank)) for rank in range(ranks)]
    events = [one.events for one in journals if one.events is not None]
    world = simulated(ranks, cluster, compute=pace.seconds, events=events or None)
    # a thread for each rank that makes its batches ahead would gain nothing here
    sessions += [session({**settings, "prefetch": 0}, one) for one in journals]
    for mine in sessions:
        mine.bucket_bytes = bucket_bytes(cluster.link.alpha, cluster.link.beta, ranks)
    first, *_ = world.run(lambda comm: train(comm, sessions[comm.rank]))
    told = {"died": ", ".join(died)} if failure else {}
    return {**first, "nodes": -(-ranks // cluster.ranks_per_host), **told}
