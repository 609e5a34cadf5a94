"""Compression of a training case: the plan of its settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from hpcdl import registry
from hpcdl.cases.parts.scheme import traits_of
from hpcdl.compression.parts.traits import Compression
from hpcdl.training.parts.compressed.plan import ExchangeSettings, Plan, kind_of

if TYPE_CHECKING:
    from hpcdl.cases.parts.choice import Choice

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
