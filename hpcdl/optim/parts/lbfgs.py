"""Limited-memory BFGS as a program of vector operations, independent of where the vectors are stored.

A program yields :class:`Operation` objects on numbered vectors and receives the value of each dot product, so it
handles only scalars. The same recursion runs on arrays of one process, or on shards.
"""

from collections.abc import Generator, Sequence
from enum import IntEnum
from math import isfinite, nan, sqrt
from typing import Final, NamedTuple, TypeAlias, TypeVar

from hpcdl.fabric.comm import Array

SUFFICIENT_DECREASE: Final = 1e-4
"""Smallest decrease of the loss as a fraction of the initial slope's prediction (Armijo's c1)."""
CURVATURE: Final = 0.9
"""Largest remaining fraction of the initial slope (c2); 0.9 is usual for quasi-Newton directions."""
MARGIN: Final = 0.1
"""Smallest distance of a trial from the ends of the bracket, as a fraction of the bracket."""
GROWTH: Final = 2.0


class _Point(NamedTuple):
    length: float
    loss: float
    slope: float


class _Conditions(NamedTuple):
    loss: float
    slope: float

    def too_high(self, point: _Point) -> bool:
        limit = self.loss + SUFFICIENT_DECREASE * point.length * self.slope
        return not (isfinite(point.slope) and point.loss <= limit)

    def flat(self, point: _Point) -> bool:
        return abs(point.slope) <= -CURVATURE * self.slope


def strong_wolfe(
    loss: float, slope: float, first: float, limit: int
) -> Generator[float, tuple[float, float], float]:
    """Find a length that satisfies the strong Wolfe conditions; yield lengths, receive (loss, slope) at each.

    Nocedal and Wright, Numerical Optimization, 2nd edition, algorithms 3.5 and 3.6. ``loss`` and ``slope`` are the
    values at length 0, ``first`` is the first trial, ``limit`` the largest number of trials. If trials run out,
    returns the best length with sufficient decrease, or 0. A loss or slope that is not finite counts as too high.

    Raises ValueError if the direction does not descend.
    """
    if not slope < 0:
        raise ValueError(f"the direction does not descend: its slope is {slope}")
    conditions = _Conditions(loss, slope)
    before = _Point(0.0, loss, slope)
    length = first
    for trial in range(1, limit + 1):
        point = _Point(length, *(yield length))
        if conditions.too_high(point) or (trial > 1 and point.loss >= before.loss):
            return (yield from _zoom(before, point, conditions, limit - trial))
        if conditions.flat(point):
            return length
        if point.slope >= 0:
            return (yield from _zoom(point, before, conditions, limit - trial))
        before, length = point, GROWTH * length
    return before.length


def _zoom(
    low: _Point, high: _Point, conditions: _Conditions, limit: int
) -> Generator[float, tuple[float, float], float]:
    """Narrow a bracket; its ``low`` end has the lowest loss so far and a slope that descends into the bracket."""
    for _ in range(limit):
        length = _between(low, high)
        point = _Point(length, *(yield length))
        if conditions.too_high(point) or point.loss >= low.loss:
            high = point
            continue
        if conditions.flat(point):
            return length
        if point.slope * (high.length - low.length) >= 0:
            high = low
        low = point
    return low.length


def _between(low: _Point, high: _Point) -> float:
    """Return the minimum of the cubic through both ends (equation 3.59), or the middle if it is near an end."""
    width = high.length - low.length
    minimum = nan
    if isfinite(high.loss) and isfinite(high.slope):
        d1 = low.slope + high.slope - 3 * (low.loss - high.loss) / (low.length - high.length)
        inner = d1 * d1 - low.slope * high.slope
        if inner >= 0:
            d2 = sqrt(inner) if width > 0 else -sqrt(inner)
            bottom = high.slope - low.slope + 2 * d2
            minimum = 1 - (high.slope + d2 - d1) / bottom if bottom else nan
    share = minimum if MARGIN <= minimum <= 1 - MARGIN else 0.5
    return low.length + share * width


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


Program: TypeAlias = Generator[Operation, float, T]
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
    newest pair (equation 7.20), or 1 without pairs. It needs 2 sequential dot products per pair.
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

    Returns these two as a pair, or None if s . y is too small (Li and Fukushima 2001, cautious update).
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
