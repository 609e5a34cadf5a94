"""Line search as a program that asks for loss and slope at one step length after another."""

from __future__ import annotations

from math import isfinite, nan, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator

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
    """The strong Wolfe conditions, given loss and slope at length 0."""

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
    values at length 0, ``first`` is the first trial, ``limit`` the largest number of trials. Returns the length
    found. If trials run out, returns the best length with sufficient decrease, or 0 without one. A loss or slope
    that is not finite counts as too high.

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
