"""Kernels of low-rank matrices. Their sums have a fixed order, so that all ranks get the same bits."""

from typing import Final

import numpy as np

from hpcdl.compiled import njit
from hpcdl.fabric.comm import Array

DEPENDENT: Final = 1e-5
"""Share of a column's norm below which its remainder is rounding error."""


@njit(nogil=True, cache=True)
def orthonormalize(columns: Array) -> None:
    """Make the columns of a matrix (rows, columns) orthonormal, in place: Gram-Schmidt, twice.

    A column that depends on those before it is replaced by a unit vector, so that a gradient of zeros does not end
    the search for later ones. There are at most as many columns as rows.
    """
    rows, count = columns.shape
    column = np.empty(rows)
    for k in range(count):
        before = 0.0
        for row in range(rows):
            column[row] = columns[row, k]
            before += column[row] * column[row]
        after = _without(columns, k, column)
        if not after > DEPENDENT * DEPENDENT * before:
            column[:] = 0
            column[_farthest(columns, k)] = 1
            after = _without(columns, k, column)
        scale = 1 / np.sqrt(after)
        for row in range(rows):
            columns[row, k] = column[row] * scale


@njit(nogil=True, cache=True)
def _without(columns: Array, count: int, column: Array) -> float:
    """Subtract from ``column`` its parts along the first ``count`` columns; return its square norm."""
    # Twice: rounding of the first pass leaves parts along the others where the remainder is small.
    for _ in range(2):
        for other in range(count):
            along = 0.0
            for row in range(len(column)):
                along += columns[row, other] * column[row]
            for row in range(len(column)):
                column[row] -= along * columns[row, other]
    norm = 0.0
    for row in range(len(column)):
        norm += column[row] * column[row]
    return norm


@njit(nogil=True, cache=True)
def _farthest(columns: Array, count: int) -> int:
    """Return the axis whose unit vector is the farthest from the first ``count`` columns."""
    best, least = 0, np.inf
    for row in range(len(columns)):
        square = 0.0
        for other in range(count):
            square += columns[row, other] * columns[row, other]
        if square < least:
            best, least = row, square
    return best


@njit(nogil=True, cache=True)
def write_product(left: Array, right: Array, into: Array) -> None:
    """Write ``left`` (rows, rank) times the transpose of ``right`` (columns, rank) to ``into`` (rows, columns)."""
    rows, columns = into.shape
    for row in range(rows):
        for column in range(columns):
            total = left[row, 0] * right[column, 0]
            for k in range(1, left.shape[1]):
                total += left[row, k] * right[column, k]
            into[row, column] = total
