"""Numbers that carry their derivatives along (Clifford's dual numbers; Wengert 1964)."""

from __future__ import annotations

from operator import add
from typing import Self


class Dual(float):
    """A number and its derivative by each of some variables.

    Sums, and products with plain numbers and divisions by such, have derivatives too; ``max`` and all else that
    chooses between numbers hands on the one that it chose. What is not defined here yields plain numbers.
    """

    __slots__ = ("slope",)

    slope: tuple[float, ...]

    def __new__(cls, value: float, slope: tuple[float, ...]) -> Self:
        """Make one of ``value``, whose derivatives are ``slope``."""
        made = super().__new__(cls, value)
        made.slope = slope
        return made

    def __add__(self, other: float) -> Dual:
        """Derivatives add up; a plain number has none."""
        slope = tuple(map(add, self.slope, other.slope)) if type(other) is Dual else self.slope
        return Dual(float.__add__(self, other), slope)

    __radd__ = __add__

    def __mul__(self, number: float) -> Dual:
        """Times a plain number."""
        return Dual(float.__mul__(self, number), tuple([number * one for one in self.slope]))

    __rmul__ = __mul__

    def __truediv__(self, number: float) -> Dual:
        """By a plain number."""
        return self * (1 / number)
