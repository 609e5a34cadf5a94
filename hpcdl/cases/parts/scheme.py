"""The aggregation of a case: its traits, the memory where it sums, and a simulation before the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl import registry
from hpcdl.aggregation.parts import traits
from hpcdl.fabric.device import nccl
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.simulated import simulated

if TYPE_CHECKING:
    from hpcdl.cases.parts.choice import Choice
    from hpcdl.nn.backend import Backend

MOST_TRIED: Final = 32
"""Ranks up to which an aggregation is tried: about 10 ms for a ring."""


def traits_of(aggregation: Choice) -> traits.Aggregation:
    """Return the traits of a scheme with its settings. Raises ValueError for an unknown one."""
    return traits.traits_of(aggregation.name, aggregation.settings)


def check_memory(aggregation: Choice, backend: Backend) -> None:
    """Raise ValueError for a scheme that cannot sum vectors where ``backend`` has them."""
    memory, scheme = traits_of(aggregation).memory, aggregation.name
    if memory == "host" and not backend.on_host:
        raise ValueError(f"{scheme!r} sums in the host's memory, and backend {backend.name!r} is not there")
    if memory == "device":
        if backend.on_host:
            raise ValueError(f"{scheme!r} sums vectors on GPUs, and backend {backend.name!r} has none there")
        nccl.library()  # the one that sums there


def check_dense(aggregation: Choice) -> None:
    """Raise ValueError for a scheme that sums no whole vectors but entries that a compressor selects."""
    if traits_of(aggregation).sparse:
        those = [
            one for one in registry.names("compression") if hasattr(registry.find("compression", one), "select")
        ]
        raise ValueError(
            f"{aggregation.name!r} sums entries that a compressor selects; these do: {', '.join(those)}"
        )


def check_hosts(aggregation: Choice, ranks: int, ranks_per_host: int) -> None:
    """Raise ValueError for a scheme of one host whose simulated ranks are on several."""
    if traits_of(aggregation).one_host and ranks_per_host < ranks:
        raise ValueError(
            f"{aggregation.name!r} is for ranks of one host, and has {ranks_per_host} of {ranks} on one here"
        )


def can_be_tried(aggregation: Choice, ranks: int) -> bool:
    """Return True if an aggregation may be simulated before the run.

    A user's own is not called before the run, whatever else it does. Schemes of the device's memory cannot be
    simulated, sparse ones sum no whole vectors, and more ranks take long.
    """
    traits = traits_of(aggregation)
    return ":" not in aggregation.name and traits.memory != "device" and not traits.sparse and ranks <= MOST_TRIED


def try_out(aggregation: Choice, ranks: int) -> None:
    """Simulate an aggregation, if :func:`can_be_tried`, to raise the ValueError that the run would."""
    if can_be_tried(aggregation, ranks):
        aggregate = aggregation.bind()
        world = simulated(ranks, next(iter(NETWORKS.values())))
        world.run(lambda comm: aggregate(comm, phantom(ranks, "float32")))
