"""Dual numbers: numbers with derivatives (Clifford's dual numbers; Wengert 1964)."""

from __future__ import annotations

from operator import add
from typing import Self


class Dual(float):
    """A number and its derivatives by some variables.

    Addition, and multiplication and division by plain numbers, keep derivatives. ``max`` and other selections
    return one of their arguments unchanged. All other operations return plain numbers.
    """

    __slots__ = ("slope",)

    slope: tuple[float, ...]

    def __new__(cls, value: float, slope: tuple[float, ...]) -> Self:
        """Create a number ``value`` with derivatives ``slope``."""
        made = super().__new__(cls, value)
        made.slope = slope
        return made

    def __add__(self, other: float) -> Dual:
        """Add values and derivatives; a plain number has derivatives 0."""
        slope = tuple(map(add, self.slope, other.slope)) if type(other) is Dual else self.slope
        return Dual(float.__add__(self, other), slope)

    __radd__ = __add__

    def __mul__(self, number: float) -> Dual:
        """Multiply by a plain number."""
        return Dual(float.__mul__(self, number), tuple([number * one for one in self.slope]))

    __rmul__ = __mul__

    def __truediv__(self, number: float) -> Dual:
        """Divide by a plain number."""
        return self * (1 / number)
