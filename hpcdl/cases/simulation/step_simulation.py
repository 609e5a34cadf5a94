"""One training step in virtual time: the strategy itself, with size-only gradients and activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.cases.keys.compute_times import ComputeTimes, times_of_ranks
from hpcdl.cases.simulation.sized_session import sized_session
from hpcdl.cases.simulation.sizes import sizes
from hpcdl.fabric.comm import INPUT, Counters, Event
from hpcdl.fabric.faults import Delays, Straggler
from hpcdl.fabric.network import Network
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.nn.geometry import Shape, master
from hpcdl.nn.layer import Layer
from hpcdl.nn.replica import Replica, Tensor
from hpcdl.nn.split.division import Division
from hpcdl.nn.volumes import volumes
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.compressed.plan import Plan
from hpcdl.training.parts.compressed.sizes import of_sizes
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.split.mesh import Mesh, placed
from hpcdl.training.parts.split.model_group import ModelGroup

CYCLES: Final = 4
"""Number of simulated cycles of steps."""

UNSETTLED: Final = 2
"""Number of cycles at the beginning that are not counted, because the first one has no predecessor."""

Columns = dict[str, npt.NDArray[Any]]


def tensors_of(layers: Sequence[Layer], shape: Shape) -> Sequence[Tensor]:
    """Return the parameters of a network in the order of its flat gradient."""
    return Replica(layers, shape, backend=sizes()).tensors


@dataclass(frozen=True)
class Training:
    """Everything that determines the time of a step."""

    strategy: Callable[..., Any]
    aggregate: partial[Any]
    layers: Sequence[Layer]
    shape: Shape
    dtype: str
    cycle: int = 1
    """Number of steps after which the pattern repeats."""
    lockstep: bool = True
    """True if all ranks take every step together."""
    workers: Callable[[int], range] = range
    """Replicas, of so many, that share a batch; the others are servers."""
    independent: bool = False
    """True if ranks exchange nothing."""
    mesh: Mesh | None = None
    """Mesh that divides the layers; None: each rank has all."""
    parts: Sequence[slice] = (slice(None),)
    """Layers of each stage of a pipeline."""
    microbatches: int = 1
    """Parts of a copy's batch in a pipeline."""
    plan: Plan | None = None
    """Compression of the gradients."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Time of arithmetic between messages, by its label (s per byte that it touches); others take gamma."""

    @cached_property
    def replicas(self) -> list[Replica]:
        """Replicas of the layers of each stage of a pipeline."""
        return [self.replica(part=part) for part in self.parts]

    def replica(self, **part: Any) -> Replica:
        """Return a replica of sizes, of a ``part`` or a ``division`` of the layers."""
        return Replica(self.layers, self.shape, backend=sizes(), dtype=master(self.dtype), **part)

    def rank_times(self, times: ComputeTimes, ranks: int, images: int) -> tuple[ComputeTimes, ...]:
        """Return the times of each rank that shares a copy of the network; ``images`` are those of the copy."""
        if self.mesh is None or not (divisions := self.divisions(ranks)):
            return times.of_stages(self.layers, self.parts)
        return times_of_ranks(times, self.layers, divisions, images, self.mesh.exchange)

    def divisions(self, ranks: int) -> tuple[Division, ...]:
        """Return the parts of the layers of each rank of a model group; empty if layers are not split."""
        return () if self.mesh is None else self.mesh.divisions(self.layers, self.shape, ranks)

    def group_ranks(self, ranks: int) -> int:
        """Return the ranks that share a copy of the network. ValueError if ``ranks`` do not fit the mesh."""
        return 1 if self.mesh is None else self.mesh.group_ranks(ranks)

    def copies(self, ranks: int) -> int:
        """Return the copies of the network that share a batch. ValueError if ``ranks`` do not fit the mesh."""
        return len(self.workers(ranks // self.group_ranks(ranks)))

    @property
    def gradient_bytes(self) -> int:
        """Return the size of the vector that ranks exchange (bytes)."""
        return volumes(self.layers, self.shape, 1).parameters * np.dtype(self.dtype).itemsize


class ComputeTimeModel:
    """Model compute time of the simulated ranks and accumulate totals.

    ``times`` are those of the ranks of a pipeline or of a model group in turn, or one for all ranks.
    ``images(rank)`` returns the images of a rank's work; in a model group, those of the group.

    The times of a batch, its input being where it begins, vary by a common factor of mean 1 and standard deviation
    ``jitter``, lognormal. Each rank draws from its own random numbers, so that no interleaving changes them.
    """

    def __init__(
        self,
        times: Sequence[ComputeTimes],
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
        slow = [rank for rank in range(ranks) if straggler is not None and straggler.slows(rank)]
        self._delays = {rank: Delays(straggler, rank, seed) for rank in slow if straggler}
        self.compute_seconds = [0.0] * ranks
        self.input_seconds = [0.0] * ranks

    def seconds(self, rank: int, label: str) -> float:
        """Return the seconds that ``rank`` now takes for work called ``label``; see
        :func:`hpcdl.fabric.virtual.simulated.simulated`.
        """
        if label == INPUT and self._deviation:
            self._factor[rank] = self._random[rank].lognormal(-(self._deviation**2) / 2, self._deviation)
        seconds = self._factor[rank] * self._times[rank % len(self._times)].seconds(label, self._images(rank))
        pause = 0.0
        if rank in self._delays:
            seconds += self._delays[rank].after(seconds)
            pause = self._delays[rank].before(label)
        self.compute_seconds[rank] += pause + seconds
        if label == INPUT:
            self.input_seconds[rank] += seconds
        return pause + seconds


class VirtualStep(NamedTuple):
    """Time and traffic of a step."""

    cycles: npt.NDArray[np.float64]
    """Mean step time of the slowest rank in each cycle that counts (s); empty without a common step."""
    bytes_sent: float
    """By the rank that sends most, mean over steps."""
    touched: Mapping[str, float]
    """Bytes that the arithmetic of rank 0 touches between messages, by its label; empty unless traced."""
    steps: Columns
    """Steps of all ranks: columns of :data:`hpcdl.trace.recorder.STEP`, and their rank."""
    updates: Columns
    """Gradients applied by all ranks: columns of :data:`hpcdl.trace.recorder.UPDATE`, and their rank."""
    unsettled: int
    """Steps at the beginning that do not count."""

    @property
    def seconds(self) -> float:
        """Median over cycles (s); NaN without a common step."""
        return float(np.median(self.cycles)) if len(self.cycles) else math.nan


def virtual_step(
    training: Training,
    ranks: int,
    images: int,
    network: Network,
    times: ComputeTimes,
    bucket: int | None = None,
    *,
    traced: bool = False,
    jitter: float = 0.0,
    counted: int = 1,
) -> VirtualStep:
    """Simulate steps with ``images`` for each copy of the network.

    A copy is on one rank, or on a pipeline or a model group. ``bucket`` is the smallest size of a bucket (bytes);
    None if buckets do not depend on the links, within a host. ``jitter``: coefficient of variation of each rank's
    computing in a step; recorded ``times`` are medians, given ones means. At least ``counted`` steps count.
    """
    recorders = [Recorder(events=False) for _ in range(ranks)]
    sessions: dict[int, Session] = {}
    mesh, together = training.mesh, training.group_ranks(ranks)
    divisions = training.divisions(ranks)
    work = ComputeTimeModel(
        # the factors of the model have mean 1; the median of a recorded lognormal is below its mean
        training.rank_times(times.scaled(math.hypot(1, times.jitter)) if jitter else times, ranks, images),
        lambda rank: sessions[rank].inputs.group_shares[-1][1],
        ranks,
        jitter=jitter,
    )
    unsettled = UNSETTLED * training.cycle
    steps = unsettled + training.cycle * max(CYCLES - UNSETTLED, -(-counted // training.cycle))
    events: list[list[Event]] | None = [[] for _ in range(ranks)] if traced else None
    world = simulated(ranks, network, compute=work.seconds, prices=training.prices, events=events)

    async def train(comm: Any) -> None:
        def counters() -> Counters:
            return Counters(round(world.running.time * 1e9), 0, 0, 0, 0)

        place = await placed(comm, together) if together > 1 else None
        group = None
        if mesh is not None and place is not None and divisions:
            division = divisions[place.model.rank]
            replica = training.replica(division=division)
            group = ModelGroup(place, division, replica, mesh.exchange)
        else:
            replica = copy(training.replicas[comm.rank % together])
            replica.stages = tuple(map(copy, replica.stages))
        session = sessions[comm.rank] = sized_session(
            replica,
            training.aggregate,
            Journal(recorders[comm.rank], counters),
            images=images,
            copies=training.copies(ranks),
            steps=steps,
            bucket_bytes=bucket,
            independent=training.independent,
            compression=of_sizes(training.plan) if training.plan is not None else None,
            place=place,
            group=group,
        )
        await training.strategy(comm, session)

    world.run(train)
    packed = [recorder.pack() for recorder in recorders]
    tables = {name: _columns([rank[name] for rank in packed]) for name in ("steps", "updates")}
    cycles = np.empty(0)
    if training.lockstep:
        spans = np.array([rank["steps"]["end"] - rank["steps"]["begin"] for rank in packed]).max(axis=0)
        cycles = spans[unsettled:].reshape(-1, training.cycle).mean(axis=1) * 1e-9
    touched: dict[str, float] = {}
    for _, label, _, _, peer, size in events[0] if events else ():
        if peer < 0 and size:
            touched[label] = touched.get(label, 0.0) + size / steps
    return VirtualStep(cycles, max(world.bytes) / steps, touched, **tables, unsettled=unsettled)


def _columns(tables: Sequence[npt.NDArray[Any]]) -> Columns:
    """Return the columns of the ranks' tables, one after another, and the rank of each row."""
    whole = np.concatenate(tables)
    ranks = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return {"rank": ranks, **{name: whole[name] for name in whole.dtype.names or ()}}
