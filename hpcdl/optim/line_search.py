"""How far to go along a direction, as a program that asks for loss and slope at one length after another."""

from __future__ import annotations

from math import isfinite, nan, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator

SUFFICIENT: Final = 1e-4
"""Share of the decrease promised by the first slope that a step must bring (Armijo's c1)."""
FLAT: Final = 0.9
"""Share of the first slope that may be left (c2); 0.9 is usual for quasi-Newton directions."""
MARGIN: Final = 0.1
"""A trial stays this share of the bracket away from its ends."""
GROWTH: Final = 2.0


class _Point(NamedTuple):
    length: float
    loss: float
    slope: float


class _Conditions(NamedTuple):
    """What a length is held against: loss and slope at length 0."""

    loss: float
    slope: float

    def too_high(self, point: _Point) -> bool:
        limit = self.loss + SUFFICIENT * point.length * self.slope
        return not (isfinite(point.slope) and point.loss <= limit)

    def flat(self, point: _Point) -> bool:
        return abs(point.slope) <= -FLAT * self.slope


def strong_wolfe(
    loss: float, slope: float, first: float, most: int
) -> Generator[float, tuple[float, float], float]:
    """Find a length that meets the strong Wolfe conditions; yields lengths, is sent (loss, slope) at each.

    Nocedal and Wright, Numerical Optimization, 2nd edition, algorithms 3.5 and 3.6. ``loss`` and ``slope`` are
    those at length 0, ``first`` is the first length tried, and at most ``most`` are. Returns the length found;
    when there were too few trials, the best one that lowered the loss sufficiently, or 0 if none did. A loss or
    slope that is not finite counts as too high.

    Raises ValueError if the direction does not descend.
    """
    if not slope < 0:
        raise ValueError(f"no descent along a direction of slope {slope}")
    wanted = _Conditions(loss, slope)
    before = _Point(0.0, loss, slope)
    length = first
    for trial in range(1, most + 1):
        point = _Point(length, *(yield length))
        if wanted.too_high(point) or (trial > 1 and point.loss >= before.loss):
            return (yield from _zoom(before, point, wanted, most - trial))
        if wanted.flat(point):
            return length
        if point.slope >= 0:
            return (yield from _zoom(point, before, wanted, most - trial))
        before, length = point, GROWTH * length
    return before.length


def _zoom(
    low: _Point, high: _Point, wanted: _Conditions, most: int
) -> Generator[float, tuple[float, float], float]:
    """Narrow a bracket whose ``low`` end has the lower loss of those seen and a slope that falls into it."""
    for _ in range(most):
        length = _between(low, high)
        point = _Point(length, *(yield length))
        if wanted.too_high(point) or point.loss >= low.loss:
            high = point
            continue
        if wanted.flat(point):
            return length
        if point.slope * (high.length - low.length) >= 0:
            high = low
        low = point
    return low.length


def _between(low: _Point, high: _Point) -> float:
    """The minimum of the cubic through both ends (equation 3.59); the middle if it is not well inside."""
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
