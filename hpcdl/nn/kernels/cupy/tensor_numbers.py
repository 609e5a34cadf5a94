"""Identifiers of the tensors in cuDNN's graphs; execution refers to them."""

from __future__ import annotations

from typing import Final

X: Final = 1
WEIGHT: Final = 2
BIAS: Final = 3
Y: Final = 4
SHORTCUT: Final = 5
GAMMA: Final = 6
BETA: Final = 7
RUNNING_MEAN: Final = 8
RUNNING_VARIANCE: Final = 9
NEXT_MEAN: Final = 10
NEXT_VARIANCE: Final = 11
MEAN: Final = 12
INVERSE: Final = 13
DGAMMA: Final = 14
DBETA: Final = 15
