"""Exchange of selected entries by a sparse scheme: see :mod:`hpcdl.aggregation.parts.entries`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.aggregation.parts.entries import Series, nbytes
from hpcdl.compression.parts.protocol import Sparse
from hpcdl.compression.parts.selection import add, put
from hpcdl.fabric.vectors import Phantom, phantom
from hpcdl.training.parts.compressed.piece import depends, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from hpcdl.aggregation.parts.entries import Reduced
    from hpcdl.compression.parts.device import Device
    from hpcdl.compression.parts.protocol import Selector, Tensor
    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.parts.compressed.piece import Piece

    SparseSum = Callable[[Comm, Sparse, Series], Coroutine[Any, Any, Reduced]]


class SparseSums:
    """Sums of the entries that one rank's selector sends, of all pieces of the gradient.

    Entries that a sum lacks return to the residual. ``own_residual``: that of the selector itself, if it has one,
    (size of the gradient,). ``device`` holds gradient and residual; entries are on the host.
    """

    def __init__(
        self,
        selector: Selector,
        scheme: SparseSum,
        tensors: Sequence[Tensor],
        own_residual: Array | None,
        device: Device | None,
    ) -> None:
        self._selector = selector
        self._scheme = scheme
        self._tensors = tensors
        self._own_residual = own_residual
        self._device = device
        self._series: dict[tuple[int, int], Series] = {}

    async def reduce(self, comm: Comm, piece: Piece) -> None:
        """Replace the gradient of a piece by the sum of all ranks' entries.

        Raises FloatingPointError, naming step and tensor, for a value that is infinite or not a number.
        """
        span, gradient = piece.span, piece.gradient
        key = span.start, span.stop
        if key not in self._series:
            self._series[key] = Series(len(gradient), self._selector.most(span))
        entries = await comm.apply("encode", partial(self._select, piece), 2 * gradient.nbytes)
        total, rest = await self._scheme(comm, entries, self._series[key])
        residual = piece.residual
        if residual is None and self._own_residual is not None:
            residual = self._own_residual[span]
        await comm.apply(
            "decode", partial(self._write, total, rest, gradient, residual), gradient.nbytes + nbytes(total, rest)
        )

    def _select(self, piece: Piece) -> Sparse:
        if type(piece.gradient) is Phantom:
            count = self._selector.expected(piece.span)
            if count is None:
                raise ValueError(depends(type(self._selector).__name__))
            return Sparse(phantom(count, np.int32), phantom(count, piece.gradient.dtype))
        vector = piece.charge()
        try:
            return self._selector.select(piece.span, vector, piece.step)
        except FloatingPointError as error:
            raise refused(error, piece, vector, self._tensors) from None

    def _write(self, total: Sparse, rest: Sparse, gradient: Array, residual: Array | None) -> None:
        if type(gradient) is Phantom:
            return
        gradient[:] = 0
        put(total, gradient, self._device)
        if residual is not None:
            add(rest, residual, self._device)
