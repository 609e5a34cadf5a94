"""Training steps in virtual time, with gradients of sizes only: stand-ins run the strategy itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hpcdl.cases.parts.stand_ins import Session, outline
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.nn.volumes import volumes
from hpcdl.trace.recorder import Recorder, Step
from hpcdl.training.parts.compressed.compressed import Compressed
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.mesh import placed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from functools import partial

    from hpcdl.cases.parts.compute_times import ComputeTimes
    from hpcdl.fabric.comm import Array
    from hpcdl.fabric.network import Network
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer
    from hpcdl.training.parts.compressed.plan import Plan

CYCLES: Final = 4
"""Number of simulated cycles of steps."""

UNSETTLED: Final = 2
"""Number of cycles at the beginning that are not counted, because the first one has no predecessor."""


class Tensor(NamedTuple):
    """Position of a parameter in the flat gradient."""

    name: str
    span: slice
    shape: tuple[int, ...]


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
    independent: bool = False
    """True if ranks exchange nothing."""
    parts: Sequence[slice] = (slice(None),)
    """Layers of each stage of a pipeline; by default each rank has all."""
    plan: Plan | None = None
    """Compression of the gradients."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Time of arithmetic between messages, by its label (s per byte that it touches); others take gamma."""

    @property
    def gradient_bytes(self) -> int:
        """Return the size of the vector that ranks exchange (bytes)."""
        return volumes(self.layers, self.shape, 1).parameters * np.dtype(self.dtype).itemsize

    def compressed(self) -> Compressed | None:
        """Return one rank's exchange of compressed gradients; None without compression."""
        if self.plan is None:
            return None
        elements, dtype = volumes(self.layers, self.shape, 1).parameters, self.dtype

        def vector(name: str, size: int | None = None) -> Array:  # noqa: ARG001
            return phantom(elements if size is None else size, dtype)

        return Compressed(
            self.plan, tensors_of(self.layers, self.shape), elements, dtype, vector, _unwatched, seed=0
        )


class VirtualStep(NamedTuple):
    """Time and traffic of a step, mean over steps."""

    seconds: float
    """Of the slowest rank."""
    bytes_sent: float
    """By the rank that sends most."""
    touched: Mapping[str, float]
    """Bytes that the arithmetic of rank 0 touches, by its label; empty unless asked for."""


def _unwatched(_step: int) -> bool:
    return False


def tensors_of(layers: Sequence[Layer], shape: Shape) -> list[Tensor]:
    """Return the parameters of a network in the order of its flat gradient."""
    found: list[Tensor] = []
    begin = 0
    for layer in layers:
        for one in layer.declare(shape):
            if one.trained:
                end = begin + int(np.prod(one.shape))
                found.append(Tensor(f"{layer.name}.{one.name}", slice(begin, end), tuple(one.shape)))
                begin = end
        shape = layer.output(shape)
    return found


def virtual_step(
    training: Training,
    ranks: int,
    images: int,
    network: Network,
    times: ComputeTimes,
    bucket: int | None = None,
    *,
    traced: bool = False,
) -> VirtualStep:
    """Simulate steps with ``images`` on each rank or pipeline.

    ``bucket`` is the smallest size of a bucket (bytes); None if buckets do not depend on the links, within a host.
    """
    recorders = [Recorder(events=False) for _ in range(ranks)]
    sessions: dict[int, Session] = {}
    parts, stages = training.parts, len(training.parts)
    own = times.of_stages(training.layers, parts)
    steps = CYCLES * training.cycle

    def seconds(rank: int, label: str) -> float:
        return own[rank % stages].seconds(label, sessions[rank].images)

    events: list[list[Any]] | None = [[] for _ in range(ranks)] if traced else None
    world = simulated(ranks, network, compute=seconds, prices=training.prices, events=events)

    async def train(comm: Any) -> None:
        def counters() -> Counters:
            return Counters(round(world.running.time * 1e9), 0, 0, 0, 0)

        session = sessions[comm.rank] = Session(
            outline(training.layers, training.shape, training.dtype, parts[comm.rank % stages]),
            aggregate=training.aggregate,
            journal=Journal(recorders[comm.rank], counters),
            batch_per_rank=images,
            global_batch=images * (ranks // stages),
            place=await placed(comm, stages) if stages > 1 else None,
            steps=steps,
            bucket_bytes=bucket,
            independent=training.independent,
            compressed=training.compressed(),
        )
        await training.strategy(comm, session)

    world.run(train)
    spans = np.array([[step.end - step.begin for step in map(Step._make, one.steps)] for one in recorders])
    touched: dict[str, float] = {}
    for _, label, _, _, peer, size in events[0] if events else ():
        if peer < 0:
            touched[label] = touched.get(label, 0.0) + size / steps
    mean = float(spans[:, UNSETTLED * training.cycle :].max(axis=0).mean()) * 1e-9
    return VirtualStep(mean, max(world.bytes) / steps, touched)
