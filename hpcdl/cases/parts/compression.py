"""Compression of a case: the plan of its settings, and its exchange."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl import registry
from hpcdl.cases.parts.scheme import traits_of
from hpcdl.compression.parts.protocol import Compression
from hpcdl.training.parts.compressed.compressed import Compressed
from hpcdl.training.parts.compressed.plan import ExchangeSettings, Plan, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.cases.parts.choice import Choice
    from hpcdl.compression.parts.protocol import Tensor
    from hpcdl.fabric.comm import Array

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
