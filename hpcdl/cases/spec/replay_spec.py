"""Specification of a replay: keys are fields, and the named strategy and compression are properties."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from hpcdl import registry
from hpcdl.cases.simulation.stage_balance import balanced
from hpcdl.cases.spec.choice import Choice, architecture
from hpcdl.cases.spec.compute_times import DEVICES, ComputeSource, ComputeTimes, times_of_ranks
from hpcdl.cases.spec.keys import MOST_RANKS, MOST_STEPS, MOST_THREADS, key
from hpcdl.cases.spec.scheme import NONE, plan
from hpcdl.training.parts.compressed.plan import ExchangeSettings
from hpcdl.training.parts.mesh import Mesh
from hpcdl.training.parts.traits import Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer
    from hpcdl.nn.split.division import Division
    from hpcdl.training.parts.compressed.plan import Plan


MOST_IMAGES: Final = 10**9
"""Images of a rank's batch, at most."""


@dataclass(frozen=True, kw_only=True)
class ReplaySpec:
    """Keys of a replay; properties raise ValueError for settings that cannot be."""

    model: Choice = key(folder="models")
    dataset: Choice | None = key(None, folder="datasets")
    training: Choice = key(Choice("training", "synchronous"), folder="training")
    aggregation: Choice = key(Choice("aggregation", "ring"), folder="aggregation")
    compression: Choice = key(Choice("compression", NONE), folder="compression", around=ExchangeSettings)
    ranks: int = key(least=1, most=MOST_RANKS)
    batch_per_rank: int | None = key(None, least=1, most=MOST_IMAGES)
    global_batch: int | None = key(None, least=1, most=MOST_IMAGES)
    mesh: Mesh | None = key(None, table=Mesh)
    steps: int = key(20, least=1, most=MOST_STEPS)
    warmup: int = key(2, least=0)
    device: str | None = key(None, choices=tuple(DEVICES))
    flops: float | None = key(None, above=0)
    times: str | None = key(None)
    time_scale: float = key(1.0, above=0)
    scale_to_batch: bool = key(default=False)
    threads: int = key(1, least=1, most=MOST_THREADS)
    trace: str = key("events", choices=("events", "steps", "alternating"))

    @cached_property
    def architecture(self) -> tuple[Shape, Sequence[Layer]]:
        """The shape of images, and the layers."""
        return architecture(self.model, self.dataset)

    @cached_property
    def strategy(self) -> Strategy:
        """Traits of the strategy."""
        return registry.traits("training", self.training.name, Strategy)

    @cached_property
    def plan(self) -> Plan | None:
        """Compression of the gradients; None without it."""
        return plan(self.compression, self.aggregation)

    @property
    def stages(self) -> int:
        """Ranks among which the layers are divided; 1: each rank has all of them."""
        return 1 if self.mesh is None else self.mesh.pipeline

    @cached_property
    def parts(self) -> tuple[slice, ...]:
        """Layers of each stage: contiguous, the slowest as fast as possible."""
        shape, layers = self.architecture
        return balanced(layers, shape, self.stages, self.compute_times)

    @property
    def model_ranks(self) -> int:
        """Ranks among which each layer is split; 1 if layers are whole."""
        return 1 if self.mesh is None else self.mesh.groups(self.ranks)[1]

    @property
    def copies(self) -> int:
        """Number of copies of the network; each is on one rank, or on a pipeline or a model group."""
        return self.ranks // (self.stages * self.model_ranks)

    @property
    def images(self) -> int:
        """Images of a copy's batch."""
        if self.global_batch is not None:
            return self.global_batch // self.copies
        return (self.batch_per_rank or 0) * self.model_ranks

    @cached_property
    def divisions(self) -> tuple[Division, ...]:
        """Parts of the layers of each rank of a model group; empty if layers are not split."""
        shape, layers = self.architecture
        return () if self.mesh is None else self.mesh.divisions(layers, shape, self.ranks)

    @property
    def rank_times(self) -> tuple[ComputeTimes, ...]:
        """Times of each rank of a pipeline or of a model group, by its place in it."""
        _, layers = self.architecture
        if self.mesh is not None and self.divisions:
            return times_of_ranks(self.compute_times, layers, self.divisions, self.images, self.mesh.exchange)
        return self.compute_times.of_stages(layers, self.parts)

    @property
    def compute_source(self) -> ComputeSource:
        """Source of the times of work."""
        return ComputeSource(self.device, self.flops, self.times)

    @cached_property
    def compute_times(self) -> ComputeTimes:
        """Times of the work of a rank."""
        shape, layers = self.architecture
        images = None if self.scale_to_batch else self.images
        found = self.compute_source.compute_times(str(self.model), layers, shape, images)
        return found.scaled(self.time_scale)
