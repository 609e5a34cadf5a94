"""Limited-memory BFGS as a program that asks for vector operations, whoever holds the vectors.

Vectors are known by numbers. A program yields one :class:`Operation` after another and is sent the value of each
dot product, so that it needs scalars only: the same recursion runs on arrays of this process, or on shards of them
with the shards' dot products summed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from hpcdl.fabric.comm import Array

T = TypeVar("T")


class Kind(IntEnum):
    """What an operation does with vectors x and y and the scalar a."""

    DOT = 0
    """The value x . y."""
    AXPY = 1
    """y += a x."""
    SCALE = 2
    """y *= a."""
    COPY = 3
    """y = x."""


class Operation(NamedTuple):
    """One operation on vectors, given by their numbers."""

    kind: Kind
    x: int
    y: int
    a: float = 0.0


Program: TypeAlias = "Generator[Operation, float, T]"
"""Yields operations, is sent the value of each (that of a dot product, else anything), and returns a T."""


class Pair(NamedTuple):
    """The numbers of two vectors, a step and the change of the gradient along it, and what is known of them."""

    s: int
    y: int
    curvature: float
    """s . y, positive."""
    square: float
    """y . y."""


def two_loop(gradient: int, direction: int, pairs: Sequence[Pair]) -> Program[None]:
    """Put -H g into ``direction``, H being the inverse Hessian that ``pairs``, oldest first, stand for.

    Nocedal and Wright, Numerical Optimization, 2nd edition, algorithm 7.4, with H0 = (s . y) / (y . y) of the
    newest pair (equation 7.20), or 1 without pairs. Asks for 2 dot products per pair, one after another.
    ``gradient`` stays as it is.
    """
    yield Operation(Kind.COPY, gradient, direction)
    alphas = []
    for pair in reversed(pairs):
        alpha = (yield Operation(Kind.DOT, pair.s, direction)) / pair.curvature
        yield Operation(Kind.AXPY, pair.y, direction, -alpha)
        alphas.append(alpha)
    if pairs:
        yield Operation(Kind.SCALE, direction, direction, pairs[-1].curvature / pairs[-1].square)
    for pair in pairs:
        beta = (yield Operation(Kind.DOT, pair.y, direction)) / pair.curvature
        yield Operation(Kind.AXPY, pair.s, direction, alphas.pop() - beta)
    yield Operation(Kind.SCALE, direction, direction, -1.0)


CAUTION = 1e-6
"""Curvature along a step, per squared length of it, below which a pair is not kept."""


def difference(old: int, new: int, direction: int, length: float) -> Program[Pair | None]:
    """Make of ``direction`` the step, itself x length, and of the gradient ``old`` its change to ``new``.

    Returns the pair that these two are, or None where s . y is too small (Li and Fukushima 2001, cautious update):
    such a pair would spoil H, which has to stay positive definite.
    """
    s, y = direction, old
    yield Operation(Kind.SCALE, s, s, length)
    yield Operation(Kind.SCALE, y, y, -1.0)
    yield Operation(Kind.AXPY, new, y, 1.0)
    curvature = yield Operation(Kind.DOT, s, y)
    if curvature <= CAUTION * (yield Operation(Kind.DOT, s, s)):
        return None
    return Pair(s, y, curvature, (yield Operation(Kind.DOT, y, y)))


def apply(operation: Operation, vectors: Sequence[Array]) -> float:
    """Do one operation on ``vectors``, each (n,), in place; return the value of a dot product, else 0."""
    kind, x, y, a = operation
    if kind is Kind.DOT:
        return float(vectors[x] @ vectors[y])
    if kind is Kind.AXPY:
        vectors[y] += a * vectors[x]
    elif kind is Kind.SCALE:
        vectors[y] *= a
    else:
        vectors[y][:] = vectors[x]
    return 0.0
