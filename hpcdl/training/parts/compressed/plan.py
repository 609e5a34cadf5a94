"""Compression of a case: compressor, settings of the exchange, and the exchange that its aggregation allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from hpcdl import registry
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.compression.parts.code import Code
from hpcdl.compression.parts.message_encoders import SparseMessages, VectorMessages
from hpcdl.compression.parts.protocol import Compression, Encoder, Layout
from hpcdl.training.parts.compressed.piece import MessageCodec

CODE: Final = "words"
"""Code of positions if a suite names none."""


@dataclass(frozen=True, kw_only=True)
class ExchangeSettings:
    """Settings that every compressor has in a suite."""

    error_feedback: bool | None = None
    """Add what is not sent to the next gradient; default: the compressor's trait."""
    warmup_steps: int = 0
    """First steps, in which the gradient is exchanged dense."""
    code: str | dict[str, Any] | None = None
    """Entropy code of the positions of entries, by name or as a table; default: words."""


def kind_of(compressor: Callable[..., Any]) -> str:
    """Return ``"vectors"``, ``"entries"`` or ``"messages"``: the product of a compressor.

    Raises ValueError for a class that follows none of the protocols.
    """
    for method, kind in (("rounds", "vectors"), ("select", "entries"), ("encode", "messages")):
        if hasattr(compressor, method):
            return kind
    raise ValueError(f"{compressor.__name__} has none of the methods rounds, select and encode")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Compression of a case."""

    make: Callable[..., Any]
    """Compressor, to be called with a layout."""
    kind: str
    """See :func:`kind_of`."""
    traits: Compression
    settings: ExchangeSettings
    scheme: Callable[..., Any]
    """Aggregation, without its settings."""
    scheme_settings: Mapping[str, Any]
    aggregation: Aggregation
    """Traits of the aggregation."""
    codec: type[MessageCodec] = MessageCodec
    """Writer and reader of the messages of an encoder."""

    @property
    def feeds_back(self) -> bool:
        """True if what is not sent is added to the next gradient."""
        chosen = self.settings.error_feedback
        return self.traits.error_feedback if chosen is None else chosen

    @property
    def without_warmup(self) -> Plan:
        """This plan with compression from the first step on."""
        return replace(self, settings=replace(self.settings, warmup_steps=0))

    def encoder(self, compressor: Any, layout: Layout) -> Encoder:
        """Return the encoder of messages that one rank can read."""
        if self.kind == "entries":
            return SparseMessages(layout, compressor, self.make_code())
        if self.kind == "vectors":
            return VectorMessages(compressor, fed_back=self.feeds_back)
        return compressor  # type: ignore[no-any-return]

    def make_code(self) -> Code:
        """Return the entropy code of positions. Raises ValueError for an unknown one."""
        code = self.settings.code
        table = {"name": code} if isinstance(code, str) else dict(code or {"name": CODE})
        name = table.pop("name", None)
        try:
            if not isinstance(name, str):
                raise ValueError('must be a name or a table such as {name = "rice"}')  # noqa: TRY004, TRY301
            make = registry.find("codes", name)
            registry.check_settings(make, table)
            return make(**table)  # type: ignore[no-any-return]
        except ValueError as error:
            raise ValueError(f"code: {error}") from None

    @property
    def name(self) -> str:
        """Name of the compressor's class."""
        return str(getattr(self.make, "func", self.make).__name__)


def readable(make: Callable[..., Any]) -> bool:
    """Return True if one rank can read what a compressor, bound or not, makes without a sum over all ranks."""
    return any(hasattr(getattr(make, "func", make), method) for method in ("select", "encode", "restore"))
