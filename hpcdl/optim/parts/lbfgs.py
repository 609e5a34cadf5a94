"""Limited-memory BFGS as a program of vector operations, independent of where the vectors are stored.

Vectors are identified by numbers. A program yields :class:`Operation` objects and receives the value of each dot
product, so it handles only scalars. The same recursion runs on arrays of one process, or on shards whose dot
products are summed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from hpcdl.fabric.comm import Array

T = TypeVar("T")


class OperationKind(IntEnum):
    """Operation on vectors x and y with the scalar a."""

    DOT = 0
    """The value x . y."""
    AXPY = 1
    """y += a x."""
    SCALE = 2
    """y *= a."""
    COPY = 3
    """y = x."""


class Operation(NamedTuple):
    """One operation on vectors, identified by their numbers."""

    kind: OperationKind
    x: int
    y: int
    a: float = 0.0


Program: TypeAlias = "Generator[Operation, float, T]"
"""Yields operations, receives the value of each (only dot products have one), and returns a T."""


class Pair(NamedTuple):
    """Curvature pair: the numbers of two vectors, a step and the change of the gradient along it."""

    s: int
    y: int
    curvature: float
    """s . y, positive."""
    square: float
    """y . y."""


def two_loop(gradient: int, direction: int, pairs: Sequence[Pair]) -> Program[None]:
    """Set ``direction`` to -H g, where H is the inverse Hessian approximated by ``pairs``, oldest first.

    Nocedal and Wright, Numerical Optimization, 2nd edition, algorithm 7.4, with H0 = (s . y) / (y . y) of the
    newest pair (equation 7.20), or 1 without pairs. It needs 2 sequential dot products per pair. ``gradient`` is
    not changed.
    """
    yield Operation(OperationKind.COPY, gradient, direction)
    alphas = []
    for pair in reversed(pairs):
        alpha = (yield Operation(OperationKind.DOT, pair.s, direction)) / pair.curvature
        yield Operation(OperationKind.AXPY, pair.y, direction, -alpha)
        alphas.append(alpha)
    if pairs:
        yield Operation(OperationKind.SCALE, direction, direction, pairs[-1].curvature / pairs[-1].square)
    for pair in pairs:
        beta = (yield Operation(OperationKind.DOT, pair.y, direction)) / pair.curvature
        yield Operation(OperationKind.AXPY, pair.s, direction, alphas.pop() - beta)
    yield Operation(OperationKind.SCALE, direction, direction, -1.0)


MIN_CURVATURE = 1e-6
"""Pairs with a smaller curvature per squared length of the step are discarded."""


def curvature_pair(old: int, new: int, direction: int, length: float) -> Program[Pair | None]:
    """Turn ``direction`` into the step, itself x length, and the gradient ``old`` into its change to ``new``.

    Returns these two as a pair, or None if s . y is too small (Li and Fukushima 2001, cautious update): then H
    would not stay positive definite.
    """
    s, y = direction, old
    yield Operation(OperationKind.SCALE, s, s, length)
    yield Operation(OperationKind.SCALE, y, y, -1.0)
    yield Operation(OperationKind.AXPY, new, y, 1.0)
    curvature = yield Operation(OperationKind.DOT, s, y)
    if curvature <= MIN_CURVATURE * (yield Operation(OperationKind.DOT, s, s)):
        return None
    return Pair(s, y, curvature, (yield Operation(OperationKind.DOT, y, y)))


def apply_operation(operation: Operation, vectors: Sequence[Array]) -> float:
    """Execute one operation on ``vectors``, each (n,), in place; return a dot product's value, otherwise 0."""
    kind, x, y, a = operation
    if kind is OperationKind.DOT:
        return float(vectors[x] @ vectors[y])
    if kind is OperationKind.AXPY:
        vectors[y] += a * vectors[x]
    elif kind is OperationKind.SCALE:
        vectors[y] *= a
    else:
        vectors[y][:] = vectors[x]
    return 0.0
