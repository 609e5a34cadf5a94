"""Exchanges of compressed gradients: by sums of vectors, by messages to all ranks, and by sums of entries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.aggregation.parts.messages import no_bytes
from hpcdl.compression.parts.protocol import Sparse
from hpcdl.fabric.vectors import Phantom, phantom
from hpcdl.training.parts.compressed.piece import depends, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from hpcdl.aggregation.parts.entries import Reduced, Series
    from hpcdl.compression.parts.protocol import Selector, Summable, Tensor
    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.parts.compressed.piece import Courier, Piece

    Sum = Callable[[Comm, Array], Coroutine[Any, Any, None]]
    SparseSum = Callable[[Comm, Sparse, Series], Coroutine[Any, Any, Reduced]]
    Gather = Callable[[Comm, Array, int], Coroutine[Any, Any, list[Array]]]


async def by_sums(
    comm: Comm, compressor: Summable, piece: Piece, aggregate: Sum, tensors: Sequence[Tensor]
) -> None:
    """Sum the vectors that a compressor makes of a piece, one after the other, by any aggregation."""
    gradient, residual = piece.gradient, piece.residual
    if type(gradient) is Phantom:
        for size, dtype in compressor.lengths(piece.span):
            await comm.apply("encode", _nothing, gradient.nbytes)
            await aggregate(comm, phantom(size, dtype))
        await comm.apply("decode", _nothing, gradient.nbytes)
        return

    def begin() -> tuple[Iterator[Array], Array | None]:
        nonlocal gradient
        if residual is not None:
            gradient += residual
        rounds = compressor.rounds(piece.span, gradient, residual, piece.step)
        return rounds, _next(rounds, piece, tensors)

    passes = 1 if residual is None else 3
    rounds, vector = await comm.apply("encode", begin, passes * gradient.nbytes)
    while vector is not None:
        await aggregate(comm, vector)
        vector = await comm.apply("decode", partial(_next, rounds, piece, tensors), gradient.nbytes)


def _next(rounds: Iterator[Array], piece: Piece, tensors: Sequence[Tensor]) -> Array | None:
    try:
        return next(rounds, None)
    except FloatingPointError as error:
        raise refused(error, piece, piece.gradient, tensors) from None


def _nothing() -> None:
    """Take the place of arithmetic on vectors without values."""


async def by_messages(comm: Comm, courier: Courier, piece: Piece, gather: Gather) -> None:
    """Encode a piece, gather the messages of all ranks, and decode them in the order of the ranks.

    All ranks add the same numbers in the same order and have the same bits.
    """
    span, gradient = piece.span, piece.gradient
    with comm.scratch(comm.size * courier.bound(span), no_bytes(gradient)) as table:
        length = await comm.apply("encode", partial(courier.encode, piece, table), 2 * gradient.nbytes)
        messages = await gather(comm, table, length)

        def decode() -> None:
            gradient[:] = 0
            for sender, message in enumerate(messages):
                courier.decode(span, message, sender, gradient)

        work = _nothing if type(gradient) is Phantom else decode
        await comm.apply("decode", work, gradient.nbytes + courier.touched_bytes(gradient, messages))


async def by_entries(
    comm: Comm,
    selector: Selector,
    piece: Piece,
    allreduce: SparseSum,
    series: Series,
    returned: Array | None,
    tensors: Sequence[Tensor],
) -> None:
    """Select entries and sum them by a sparse aggregation.

    The entries that the sum lacks on this rank return to the residual; without one to ``returned``, which is added
    to the next gradient, unless it is None too.
    """
    gradient, residual = piece.gradient, piece.residual

    def select() -> Sparse:
        if type(gradient) is Phantom:
            return _usual_entries(selector, piece)
        if returned is not None:
            _move(returned, gradient)
        vector = piece.charge()
        try:
            return selector.select(piece.span, vector, piece.step)
        except FloatingPointError as error:
            raise refused(error, piece, vector, tensors) from None

    entries = await comm.apply("encode", select, 2 * gradient.nbytes)
    total, rest = await allreduce(comm, entries, series)

    def scatter() -> None:
        gradient[:] = 0
        gradient[total.indices] = total.values
        keeping = returned if residual is None else residual
        if keeping is not None:
            keeping[rest.indices] += rest.values

    work = _nothing if type(gradient) is Phantom else scatter
    await comm.apply("decode", work, gradient.nbytes)


def _usual_entries(selector: Selector, piece: Piece) -> Sparse:
    """Return size-only entries. ValueError: their number depends on the values."""
    count = selector.expected(piece.span)
    if count is None:
        raise ValueError(depends(type(selector).__name__))
    return Sparse(phantom(count, np.int32), phantom(count, piece.gradient.dtype))


def _move(source: Array, into: Array) -> None:
    into += source
    source[:] = 0
