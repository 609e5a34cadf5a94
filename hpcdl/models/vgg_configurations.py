"""What the networks of Simonyan & Zisserman have in common: table 1 of their paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.nn.initial import he
from hpcdl.nn.layers.convolution import Convolution
from hpcdl.nn.layers.dropout import Dropout
from hpcdl.nn.layers.flatten import Flatten
from hpcdl.nn.layers.linear import Linear
from hpcdl.nn.layers.pooling import MaxPooling

if TYPE_CHECKING:
    from hpcdl.nn.layer import Layer

FILTERS: Final = (64, 128, 256, 512, 512)
"""Of each block's 3x3 convolutions."""

DEPTHS: Final = {"A": (1, 1, 2, 2, 2), "D": (2, 2, 3, 3, 3), "E": (2, 2, 4, 4, 4)}
"""Convolutions in each block."""


def configuration(column: str, classes: int, dropout: float) -> list[Layer]:
    """Five blocks of 3x3 convolutions, each pooled by 2, and three fully connected layers."""
    layers: list[Layer] = []
    for block, (filters, depth) in enumerate(zip(FILTERS, DEPTHS[column], strict=True), start=1):
        layers += [Convolution(f"conv{block}_{i}", filters, 3, padding=1, relu=True) for i in range(1, depth + 1)]
        layers.append(MaxPooling(f"pool{block}", 2))
    return [
        *layers,
        Flatten("flatten"),
        Linear("fc6", 4096, weight=he, relu=True),
        Dropout("drop6", dropout),
        Linear("fc7", 4096, weight=he, relu=True),
        Dropout("drop7", dropout),
        Linear("fc8", classes),
    ]
