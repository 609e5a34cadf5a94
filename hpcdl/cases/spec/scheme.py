"""Compression of a case: the plan of its settings, and its exchange."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl import registry
from hpcdl.aggregation.parts import traits
from hpcdl.compression.parts.protocol import Compression
from hpcdl.fabric.device import nccl
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.training.parts.compressed.compressed import Compressed
from hpcdl.training.parts.compressed.plan import ExchangeSettings, Plan, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.cases.spec.choice import Choice
    from hpcdl.compression.parts.protocol import Tensor
    from hpcdl.fabric.comm import Array
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


NONE: Final = "none"
"""The compression that is none."""


def plan(compression: Choice, aggregation: Choice) -> Plan | None:
    """Return the plan of a case; None without compression. Raises ValueError for an unknown compressor."""
    if compression.name == NONE:
        return None
    own, common = compression.split(ExchangeSettings)
    compressor = compression.find()
    return Plan(
        make=partial(compressor, **own),
        kind=kind_of(compressor),
        traits=registry.traits("compression", compression.name, Compression),
        settings=ExchangeSettings(**common),
        scheme=aggregation.find(),
        scheme_settings=aggregation.settings,
        aggregation=traits_of(aggregation),
    )


def exchange(plan: Plan, tensors: Sequence[Tensor]) -> Compressed:
    """Return one rank's exchange of a gradient of ``tensors``, float32, outside a training."""
    elements = tensors[-1].span.stop

    def vector(name: str, size: int | None = None) -> Array:  # noqa: ARG001
        return np.zeros(elements if size is None else size, np.float32)

    return Compressed(plan, tensors, elements, "float32", vector, lambda _step: False, seed=0)
