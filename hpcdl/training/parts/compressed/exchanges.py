"""Exchanges of compressed gradients: by sums of vectors, and by messages to all ranks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl.aggregation.parts.messages import no_bytes
from hpcdl.fabric.vectors import Phantom, phantom
from hpcdl.training.parts.compressed.piece import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from hpcdl.compression.parts.protocol import Summable, Tensor
    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.parts.compressed.piece import Courier, Piece

    Sum = Callable[[Comm, Array], Coroutine[Any, Any, None]]
    Gather = Callable[[Comm, Array, int], Coroutine[Any, Any, list[Array]]]


async def by_sums(
    comm: Comm, compressor: Summable, piece: Piece, aggregate: Sum, tensors: Sequence[Tensor]
) -> None:
    """Sum the vectors that a compressor makes of a piece, one after the other, by any aggregation."""
    gradient, residual = piece.gradient, piece.residual
    passes = 1 if residual is None else 3
    if type(gradient) is Phantom:
        await comm.apply("encode", _nothing, passes * gradient.nbytes)
        for size, dtype in compressor.lengths(piece.span):
            await aggregate(comm, phantom(size, dtype))
            await comm.apply("decode", _nothing, gradient.nbytes)
        return

    def begin() -> tuple[Iterator[Array], Array | None]:
        nonlocal gradient
        if residual is not None:
            gradient += residual
        rounds = compressor.rounds(piece.span, gradient, residual, piece.step)
        return rounds, _next(rounds, piece, tensors)

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
