"""Compression of gradients that have sizes and no values, for simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hpcdl.aggregation.parts.messages import padded
from hpcdl.compression.parts.protocol import Layout, Sparse
from hpcdl.fabric.comm import Array
from hpcdl.fabric.vectors import phantom
from hpcdl.training.parts.compressed.piece import MessageCodec, Piece
from hpcdl.training.parts.compressed.plan import Plan


def of_sizes(plan: Plan) -> Plan:
    """Return a plan whose messages are as long as those of ``plan``, compressed from the first step on."""
    make = plan.make if plan.kind == "messages" else partial(Sized, plan.make)
    return replace(plan.without_warmup, make=make, codec=SizedCodec)


class Sized:
    """A compressor whose vectors and entries have sizes only."""

    def __init__(self, make: Callable[[Layout], Any], layout: Layout) -> None:
        self._compressor = make(layout)
        self._dtype = layout.dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compressor, name)

    def rounds(self, span: slice, _vector: Array, _residual: Array | None, _step: int) -> Iterator[Array]:
        """See :class:`hpcdl.compression.parts.protocol.Summable`."""
        return (phantom(size, dtype) for size, dtype in self._compressor.lengths(span))

    def select(self, span: slice, _vector: Array, _step: int) -> Sparse:
        """See :class:`hpcdl.compression.parts.protocol.Selector`. ValueError: the number depends on the values."""
        count = _known(self._compressor, self._compressor.expected(span))
        return Sparse(phantom(count, np.int32), phantom(count, self._dtype))


class SizedCodec(MessageCodec):
    """Messages of the usual sizes."""

    def encode(self, piece: Piece, into: Array) -> int:  # noqa: ARG002
        """Return the usual bytes of a message. ValueError: they depend on the values."""
        return padded(_known(self.encoder, self.encoder.expected(piece.span)))

    def scalers(self, piece: Piece) -> Array:
        """Return as many scalers as a piece has."""
        assert self.sharing
        return np.zeros(self.sharing.count(piece.span), piece.gradient.dtype)

    def decode(self, span: slice, message: Array, sender: int, into: Array) -> None:
        """Do nothing."""


def _known(compressor: object, expected: int | None) -> int:
    if expected is None:
        name = type(compressor).__name__
        raise ValueError(f"the messages of {name} depend on the gradient's values; a simulation of sizes has none")
    return expected
