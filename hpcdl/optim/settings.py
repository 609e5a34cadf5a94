"""Checks of settings that come from a suite file; each returns the number or raises a one-line ValueError."""

from __future__ import annotations

import math


def _number(name: str, value: float) -> float:
    # A suite file is written by hand: true, "0.9" and nan are all things that it may hold.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    return float(value)


def not_negative(name: str, value: float) -> float:
    """``value`` if it is a finite number >= 0."""
    if _number(name, value) < 0:
        raise ValueError(f"{name} must not be negative, but is {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """``value`` if it is a finite number > 0."""
    if _number(name, value) <= 0:
        raise ValueError(f"{name} must be positive, but is {value!r}")
    return float(value)


def fraction(name: str, value: float) -> float:
    """``value`` if 0 <= value < 1."""
    if not 0 <= _number(name, value) < 1:
        raise ValueError(f"{name} must be at least 0 and less than 1, but is {value!r}")
    return float(value)
