"""Precisions of activations and parameters.

float32 and float64 networks use one precision throughout. In bfloat16 and float16 networks, activations and
their gradients have 16 bits, and products are summed in 32 bits. Parameters, their gradients, running statistics
and optimizer state stay float32 (Micikevicius et al. 2018, "master weights").
"""

from __future__ import annotations

from typing import Final

HALF: Final = ("bfloat16", "float16")
"""16-bit precisions of activations; their parameters stay float32."""


def master(dtype: str) -> str:
    """Return the precision of parameters, gradients and images for activations of ``dtype``."""
    return "float32" if dtype in HALF else dtype


def storage_dtype(dtype: str) -> str:
    """Return the dtype of arrays that store ``dtype``; numpy has no bfloat16, so uint16 stores it."""
    return "uint16" if dtype == "bfloat16" else dtype
