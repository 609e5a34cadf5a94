"""Compression of a case: the plan of its settings, and its exchange."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hpcdl import registry
from hpcdl.aggregation.parts import traits
from hpcdl.compression.parts.protocol import Compression, Layout
from hpcdl.fabric.device import nccl
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.training.parts.compressed.compressed import Compressed
from hpcdl.training.parts.compressed.plan import ExchangeSettings, Plan, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.cases.spec.keys import Choice
    from hpcdl.compression.parts.protocol import Tensor
    from hpcdl.fabric.comm import Array


class _Tensor(NamedTuple):
    name: str
    span: slice
    shape: tuple[int, ...]


MAX_TRIED: Final = 32
"""Ranks up to which an aggregation is tried: about 10 ms for a ring."""


def traits_of(aggregation: Choice) -> traits.Aggregation:
    """Return the traits of a scheme with its settings. Raises ValueError for an unknown one."""
    return traits.traits_of(aggregation.name, aggregation.settings)


def check_library(aggregation: Choice) -> None:
    """Raise ValueError if a scheme that sums on GPUs lacks its library."""
    if traits_of(aggregation).memory == "device":
        nccl.library()


def can_be_tried(aggregation: Choice, ranks: int) -> bool:
    """Return True if an aggregation may be simulated before the run.

    A user's own is not called before the run, whatever else it does. Schemes of the device's memory cannot be
    simulated, sparse ones sum no whole vectors, and more ranks take long.
    """
    traits = traits_of(aggregation)
    return ":" not in aggregation.name and traits.memory != "device" and not traits.sparse and ranks <= MAX_TRIED


def try_out(aggregation: Choice, ranks: int) -> None:
    """Simulate an aggregation, if :func:`can_be_tried`, to raise the ValueError that the run would."""
    if can_be_tried(aggregation, ranks):
        aggregate = aggregation.bind()
        world = simulated(ranks, next(iter(NETWORKS.values())))
        world.run(lambda comm: aggregate(comm, phantom(ranks, "float32")))


SAMPLE_LAYOUT: Final = Layout(
    size=6, tensors=(_Tensor("fc.weight", slice(0, 4), (2, 2)), _Tensor("fc.bias", slice(4, 6), (2,)))
)
"""Layout on which a compressor is made before the run, to raise the ValueError of its settings."""


def try_compressor(compression: Choice, plan: Plan | None) -> None:
    """Raise ValueError for settings of a compression that are out of range; a user's own is not made."""
    if plan is None:
        if compression.settings:
            raise ValueError(f"{NONE!r} has no setting {next(iter(compression.settings))!r}")
        return
    if plan.settings.warmup_steps < 0:
        raise ValueError(f"warmup_steps: must be at least 0, not {plan.settings.warmup_steps}")
    plan.make_code()
    if ":" not in compression.name:
        plan.make(SAMPLE_LAYOUT)


def check_lengths(plan: Plan) -> None:
    """Raise ValueError if lengths of messages depend on the values of the gradient, which simulations lack."""
    if plan.kind != "vectors" and plan.make(SAMPLE_LAYOUT).expected(slice(0, SAMPLE_LAYOUT.size)) is None:
        raise ValueError("lengths of its messages depend on values, which a simulation lacks")


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
