"""PowerSGD: low-rank matrices by one step of a power iteration."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Final, NamedTuple

import numpy as np

from hpcdl.compression.parts.protocol import Compression, Layout, check_finite, kernels, to_device
from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(
    whole_tensors=True, sends_zeros=False, dependent_sums=True, on_device=True, title="Vogels et al. 2019"
)


class Matrix(NamedTuple):
    """A tensor as a matrix of outputs by all other axes."""

    span: slice
    rows: int
    columns: int
    q: slice
    """Slice of the state that has its Q, (columns, rank)."""


class PowerSGD:
    """Sum matrices M of all ranks as P Q^T of a low ``rank`` (Vogels et al. 2019, algorithm 1).

    P = M Q is summed over ranks and its columns are made orthonormal; Q = M^T P is summed. Q is kept for the next
    step. M is a tensor with its first axis as rows. Vectors are summed uncompressed together with P, and matrices
    that are not larger than their P and Q. Error feedback: M - P Q^T / ranks is the residual.

    The second sum of a bucket waits for its first. Sums of other buckets, which strategies start as soon as their
    layers are ready, use the links meanwhile.
    """

    def __init__(self, layout: Layout, *, rank: int = 2) -> None:
        if rank < 1:
            raise ValueError(f"rank must be at least 1, not {rank}")
        self._kernels = kernels(layout.device, "low_rank")
        self._rank = rank
        self._ranks = layout.ranks
        self._dtype = layout.dtype
        self._matrices: list[Matrix] = []
        size = 0
        for tensor in layout.tensors:
            rows, columns = (tensor.shape[0], prod(tensor.shape[1:])) if len(tensor.shape) > 1 else (0, 0)
            if rank * (rows + columns) < rows * columns:
                self._matrices.append(Matrix(tensor.span, rows, columns, slice(size, size + rank * columns)))
                size += rank * columns
        random = np.random.default_rng(layout.seed)
        first = random.standard_normal(size).astype(layout.dtype)
        self.state: dict[str, Array] = {"Q": to_device(layout.device, first)}

    def rounds(self, span: slice, vector: Array, residual: Array | None, _step: int) -> Iterator[Array]:
        """Yield all P with the uncompressed elements, then all Q."""
        check_finite(np.isfinite(vector).all())
        matrices, rest = self._divided(span)
        qs = [self.state["Q"][matrix.q].reshape(matrix.columns, self._rank) for matrix in matrices]
        views = [_of(vector, span, matrix) for matrix in matrices]
        # All ranks have equal bits of Q, from the sum of the step before, so that their P's are of one basis.
        for q in qs:
            self._kernels.orthonormalize(q)
        first = np.concatenate(
            [*((m @ q).ravel() for m, q in zip(views, qs, strict=True)), *(vector[part] for part in rest)]
        )
        yield first
        ps = _cut(first, [matrix.rows for matrix in matrices], self._rank)
        for p in ps:
            self._kernels.orthonormalize(p)
        if matrices:
            second = np.concatenate([(m.T @ p).ravel() for m, p in zip(views, ps, strict=True)])
            yield second
            for q, new in zip(qs, _cut(second, [matrix.columns for matrix in matrices], self._rank), strict=True):
                q[:] = new
        if residual is not None:
            residual[:] = vector
        for p, q, m in zip(ps, qs, views, strict=True):
            self._kernels.write_product(p, q, m)
        if residual is not None:
            for matrix, m in zip(matrices, views, strict=True):
                _of(residual, span, matrix)[:] -= m / m.dtype.type(self._ranks)
        begin = self._rank * sum(matrix.rows for matrix in matrices)
        for part in rest:
            end = begin + part.stop - part.start
            vector[part] = first[begin:end]
            if residual is not None:
                residual[part] = 0
            begin = end

    def lengths(self, span: slice) -> list[tuple[int, str]]:
        matrices, rest = self._divided(span)
        first = self._rank * sum(matrix.rows for matrix in matrices) + sum(part.stop - part.start for part in rest)
        second = self._rank * sum(matrix.columns for matrix in matrices)
        return [(first, self._dtype), *([(second, self._dtype)] if matrices else [])]

    def _divided(self, span: slice) -> tuple[list[Matrix], list[slice]]:
        """Return the matrices of a span, and slices of its other elements, counted from the span's start."""
        matrices = [
            matrix
            for matrix in self._matrices
            if span.start <= matrix.span.start and matrix.span.stop <= span.stop
        ]
        begins = [span.start, *(matrix.span.stop for matrix in matrices)]
        ends = [*(matrix.span.start for matrix in matrices), span.stop]
        between = [slice(b - span.start, e - span.start) for b, e in zip(begins, ends, strict=True) if b < e]
        return matrices, between or [slice(0, 0)]


def _of(vector: Array, span: slice, matrix: Matrix) -> Array:
    """Return the view of a matrix in the values of a span."""
    return vector[matrix.span.start - span.start : matrix.span.stop - span.start].reshape(
        matrix.rows, matrix.columns
    )


def _cut(stacked: Array, rows: Sequence[int], rank: int) -> list[Array]:
    """Return views of the matrices (rows, rank) that follow each other in a vector."""
    ends = np.cumsum([0, *rows]) * rank
    return [stacked[b:e].reshape(-1, rank) for b, e in pairwise(ends)]
