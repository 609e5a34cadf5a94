"""Checks of settings from suite files; each returns the number or raises a one-line ValueError."""

from __future__ import annotations

from typing import Final

LIMIT: Final = 1 << 63
"""Upper limit of numbers, as in all suites."""


def _number(name: str, value: float) -> float:
    # suite files are written by hand and may contain true, "0.9" or nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LIMIT:
        raise ValueError(f"{name} must be a finite number, less than 2^63, not {value!r}")
    return float(value)


def not_negative(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number >= 0."""
    if _number(name, value) < 0:
        raise ValueError(f"{name} must not be negative, but is {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number > 0."""
    if _number(name, value) <= 0:
        raise ValueError(f"{name} must be positive, but is {value!r}")
    return float(value)


def fraction(name: str, value: float) -> float:
    """Return ``value`` if 0 <= value < 1."""
    if not 0 <= _number(name, value) < 1:
        raise ValueError(f"{name} must be at least 0 and less than 1, but is {value!r}")
    return float(value)
